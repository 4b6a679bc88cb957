"""Finds out from Sentinels which server is the master, and confirms it at that server."""

from __future__ import annotations

from redis.exceptions import ConnectionError, RedisError
from redis.sentinel import MasterNotFoundError

from pyredisson._client.topology.roles import Roles
from pyredisson._client.topology.sentinels import Sentinels
from pyredisson._client.topology.switch_listener import SwitchListener
from pyredisson._protocol.error_codes import is_transient
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.sentinel import SentinelAnswer
from pyredisson._protocol.topology import TopologyView
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config


class SentinelSource:
    """Asks the Sentinels in turn. Used by one thread, apart from `close`."""

    def __init__(self, config: Config, table: RoutingTable) -> None:
        self._config = config
        self._table = table
        self._sentinels = Sentinels(config)
        self._roles = Roles(config)
        self._listener = SwitchListener(
            self._sentinels,
            config,
            on_listening=lambda: table.on_request(),
            on_switch=lambda: table.request_refresh("a Sentinel says that the master was replaced"),
        )

    def look(self) -> tuple[TopologyView, int]:
        """The view in which the present master has all slots. Raises the error that best says why there is none."""
        self._listener.start()
        begun = self._table.begin_view()
        failures: list[RedisError] = []
        older: list[TopologyView] = []
        named: set[Address] = set()
        for sentinel in self._sentinels.in_turn():
            if named and self._sentinels.is_silent(sentinel):
                # Another one has answered. This one would probably only cost time.
                break
            try:
                answer = self._sentinels.ask(sentinel)
                address = self._config.map_address(answer.master)
                if address in named:
                    continue
                named.add(address)
                view = self._confirm(address, answer)
            except MasterNotFoundError as error:
                # The others may know it.
                failures.append(error)
                continue
            except RedisError as error:
                if not self._table.ready and not is_transient(error):
                    raise
                failures.append(error)
                continue
            if view.epoch >= self._table.epoch:
                self._sentinels.prefer(sentinel)
                return view, begun
            # This Sentinel has not heard of the latest failover yet. If all say so, they were set up anew.
            older.append(view)
        if older:
            return max(older, key=lambda view: view.epoch), begun
        raise self._sentinels.no_answer(failures)

    def close(self) -> None:
        """Ends everything that blocks. Can be called on any thread, takes no mutex."""
        self._sentinels.close()
        self._roles.servers.close()
        self._listener.close()

    def _confirm(self, address: Address, answer: SentinelAnswer) -> TopologyView:
        if self._table.is_failing(address):
            # It is known already that it doesn't reply, and asking it would delay the news of its successor.
            raise ConnectionError(f"the Sentinels have not replaced {address} yet, which fails")
        view = self._roles.confirm(address, answer.epoch, trusted=True).view
        # One that isn't connected to the master may have been promoted in its place, before this Sentinel says so.
        return view.with_absent(map(self._config.map_address, answer.replicas))
