"""Finds the master among servers that the user has named: a master and replicas without a cluster or Sentinels."""

from __future__ import annotations

import random

from redis.exceptions import RedisError

from pyredisson._client.topology.roles import Roles
from pyredisson._protocol.error_codes import is_transient
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
        for address in self._in_turn():
            try:
                view = self._roles.confirm(address, 0, trusted=False)
            except RedisError as error:
                if not self._table.ready and not is_transient(error):
                    raise
                failures.append(error)
                continue
            self._master = address
            return view, begun
        raise self._roles.servers.no_answer(failures, "none of the servers is the master")

    def close(self) -> None:
        """Ends the question that is being asked. Can be called on any thread, takes no mutex."""
        self._roles.servers.close()

    def _in_turn(self) -> list[Address]:
        """The present master first: a former one that comes back also says that it is a master."""
        others = random.sample(self._config.nodes, len(self._config.nodes))
        ordered = sorted(others, key=lambda address: address != self._master)
        return self._roles.servers.sort(ordered, self._table.is_failing)
