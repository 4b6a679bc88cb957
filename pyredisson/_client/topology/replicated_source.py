"""Finds the master among servers that the user has named: a master and replicas without a cluster or Sentinels."""

from __future__ import annotations

import random

from redis.exceptions import RedisError

from pyredisson._client.topology.queries import Confirmed, Roles
from pyredisson._protocol.replies import is_transient
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.topology import TopologyView
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config


class ReplicatedSource:
    """Asks the servers in turn for their role. Used by one thread, apart from `close`."""

    def __init__(self, config: Config, table: RoutingTable) -> None:
        self._config = config
        self._table = table
        self._roles = Roles(config)
        self._master: Address | None = None

    def look(self) -> tuple[TopologyView, int]:
        """The view in which the present master has all slots. Raises the error that best says why there is none."""
        begun = self._table.begin_view()
        failures: list[RedisError] = []
        masters: dict[Address, Confirmed] = {}
        for address in self._in_turn():
            if masters and self._is_certain(masters, address):
                break
            try:
                masters[address] = self._roles.confirm(address, 0, trusted=False)
            except RedisError as error:
                if not self._table.ready and not masters and not is_transient(error):
                    raise
                failures.append(error)
        if not masters:
            raise self._roles.servers.no_answer(failures, "none of the servers is the master")
        self._master = _latest(masters)
        return masters[self._master].view.with_absent(self._config.nodes), begun

    def _is_certain(self, masters: dict[Address, Confirmed], other: Address) -> bool:
        """Whether a further server need not be asked whether it has replaced one of these masters."""
        (shard,) = next(iter(masters.values())).view.shards
        if len(masters) == 1 and len(shard.replicas) >= len(self._config.nodes) - 1:
            # All others are its replicas.
            return True
        # Servers that fail come last. They would delay the news of their successor.
        return self._table.is_failing(other) or self._roles.servers.is_silent(other)

    def close(self) -> None:
        self._roles.servers.close()

    def _in_turn(self) -> list[Address]:
        """The present master first: a former one that comes back also says that it is a master."""
        others = random.sample(self._config.nodes, len(self._config.nodes))
        ordered = sorted(others, key=lambda address: address != self._master)
        return self._roles.servers.sort(ordered, self._table.is_failing)


def _latest(masters: dict[Address, Confirmed]) -> Address:
    """The first of these masters, or the one that has replaced it: a former master may not have been demoted yet."""
    latest = next(iter(masters))
    for _ in masters:
        latest = next((other for other in masters if _replaces(masters[other], masters[latest])), latest)
    return latest


def _replaces(one: Confirmed, other: Confirmed) -> bool:
    if one.replication is None or other.replication is None:
        return False
    return one.replication.replaces(other.replication.history)
