"""Finds the one master: by its Sentinels, or without them among the servers that the user has named."""

from __future__ import annotations

import random
import threading
from typing import NamedTuple

from redis.exceptions import AuthenticationError, ConnectionError, RedisError
from redis.sentinel import MasterNotFoundError

from pyredisson._backends.runtime import start_thread
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._client.topology.queries import QueryConnection, Servers
from pyredisson._core import command
from pyredisson._diagnostics import logger
from pyredisson._protocol import topology
from pyredisson._protocol.replication import Replication, read_replication
from pyredisson._protocol.replies import is_transient
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.topology import TopologyView
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.errors import UnsupportedServerError


class SentinelSource:
    """Asks the Sentinels in turn. Used by one thread, apart from `close`."""

    def __init__(self, config: Config, table: RoutingTable) -> None:
        self._config = config
        self._table = table
        self._sentinels = Sentinels(config)
        self._roles = Roles(config)
        self._listener = SwitchListener(self._sentinels, config, table)

    def look(self) -> tuple[TopologyView, int]:
        self._listener.start()
        begun = self._table.begin_view()
        failures: list[RedisError] = []
        older: list[TopologyView] = []
        named: set[Address] = set()
        for sentinel in self._sentinels.servers.sort(self._sentinels.known(), lambda _: False):
            if named and self._sentinels.servers.is_silent(sentinel):
                # Another one has answered. This one would probably only cost time.
                break
            try:
                answer = self._sentinels.ask(sentinel)
                address = self._config.map_address(answer.master)
                if address in named:
                    continue
                named.add(address)
                view = self._confirm(address, answer)
            except RedisError as error:
                # If this Sentinel doesn't know the master, the others may know it.
                passes = is_transient(error) or isinstance(error, MasterNotFoundError)
                if not self._table.ready and not passes:
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
        raise self._sentinels.servers.no_answer(failures, f"no Sentinel of {self._config.master_name} has replied")

    def close(self) -> None:
        self._sentinels.servers.close()
        self._roles.servers.close()
        self._listener.close()

    def _confirm(self, address: Address, answer: topology.SentinelAnswer) -> TopologyView:
        if self._table.is_failing(address):
            # It is known already that it doesn't reply, and asking it would delay the news of its successor.
            raise ConnectionError(f"the Sentinels have not replaced {address} yet, which fails")
        view = self._roles.confirm(address, answer.epoch, trusted=True).view
        # One that isn't connected to the master may have been promoted in its place, before this Sentinel says so.
        return view.with_absent(map(self._config.map_address, answer.replicas))


class Sentinels:
    """The Sentinels that the user has named, and others that they know. Used by one thread, apart from `close`."""

    def __init__(self, config: Config) -> None:
        assert config.master_name is not None
        self._config = config
        self.name = config.master_name
        self._query = topology.sentinel_query(self.name)
        self.servers = Servers(config)
        self._order = random.sample(config.nodes, len(config.nodes))
        """The one that answered last is the first."""
        self._data_credentials = False
        """Whether they take the credentials of the servers that store the locks."""

    def known(self) -> list[Address]:
        """All of them. Can be called on any thread."""
        return list(self._order)

    def prefer(self, sentinel: Address) -> None:
        """Has this one asked first from now on. Can be called on any thread."""
        self._order = [sentinel, *(other for other in self._order if other != sentinel)]

    def ask(self, sentinel: Address) -> topology.SentinelAnswer:
        """What one of them says. Raises an error if it says nothing about this master."""
        try:
            replies = self._ask_with_credentials(sentinel)
            answer = topology.read_sentinel(replies, sentinel)
        except RedisError as error:
            if str(error).startswith("ERR unknown command"):
                raise UnsupportedServerError(
                    f"the server at {sentinel} is no Sentinel: a single server is addressed as redis://host:port, a"
                    " cluster as redis+cluster://host:port"
                ) from error
            raise
        if answer is None:
            raise MasterNotFoundError(f"the Sentinel at {sentinel} knows no master named {self.name}")
        # Removed Sentinels are no longer asked, but all that the user has named are.
        present = dict.fromkeys((*self._config.nodes, sentinel, *map(self._config.map_address, answer.sentinels)))
        self._order = [other for other in self._order if other in present]
        self._order += [other for other in present if other not in self._order]
        return answer

    def config_of(self, sentinel: Address) -> Config:
        return self._config.at_sentinel(sentinel, data_credentials=self._data_credentials)

    def _ask_with_credentials(self, sentinel: Address) -> list[object]:
        replies = self.servers.ask(self.config_of(sentinel), self._query)
        if not isinstance(replies[0], AuthenticationError) or self._config.sentinel_password is not None:
            return replies
        if self._data_credentials or (self._config.password is None and self._config.credential_provider is None):
            return replies
        # As Redisson does: without a password for the Sentinels, they may have the password of the servers.
        replies = self.servers.ask(self._config.at_sentinel(sentinel, data_credentials=True), self._query)
        self._data_credentials = True
        return replies


PAUSE = 0.5
"""Seconds before another Sentinel is listened to, after a connection has failed."""


class SwitchListener:
    """A daemon thread that listens to one Sentinel at a time: a replaced master may not fail for this client."""

    def __init__(self, sentinels: Sentinels, config: Config, table: RoutingTable) -> None:
        self._sentinels = sentinels
        self._table = table
        self._timeout = config.timeout
        # Without messages, the master is looked at after the interval anyway.
        self._silence = min(config.ping_interval or config.topology_refresh_interval, config.topology_refresh_interval)
        self._thread: threading.Thread | None = None
        self._connection: QueryConnection | None = None
        self._ended = ThreadWakeup()

    def start(self) -> None:
        """Starts the thread if it doesn't run. Called by one thread."""
        if self._ended.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        try:
            self._thread = start_thread(self._run, "pyredisson-sentinel")
        except RuntimeError as error:
            # No thread can be started. The next look at the topology tries again.
            logger.debug("the Sentinels can't be listened to: %s", error)

    def close(self) -> None:
        self._ended.set()
        if (connection := self._connection) is not None:
            connection.shut_down()

    def _run(self) -> None:
        while not self._ended.is_set():
            for sentinel in self._sentinels.known():
                try:
                    self._listen(sentinel)
                except Exception as error:  # noqa: BLE001
                    # Any exception, as a credential provider may raise anything. Another Sentinel may do better.
                    logger.debug("the Sentinel at %s is not listened to any more: %s", sentinel, error)
                self._ended.wait(PAUSE)
                if self._ended.is_set():
                    return

    def _listen(self, sentinel: Address) -> None:
        """Returns never; raises when the connection has failed."""
        connection = self._connection = QueryConnection(self._sentinels.config_of(sentinel), self._timeout)
        try:
            if not self._ended.is_set():
                [reply] = connection.ask([command(b"SUBSCRIBE", topology.SWITCH_CHANNEL)])
                if isinstance(reply, RedisError):
                    raise reply
            # Earlier messages were lost.
            self._table.on_request()
            while not self._ended.is_set():
                message = connection.receive(self._silence)
                published = isinstance(message, list) and message[0] == b"message"
                if published and topology.names_master(message[2], self._sentinels.name):
                    self._sentinels.prefer(sentinel)
                    self._table.request_refresh("a Sentinel says that the master was replaced")
        finally:
            self._connection = None
            connection.close()


class ReplicatedSource:
    """Finds the master among servers without Sentinels. Used by one thread, apart from `close`."""

    def __init__(self, config: Config, table: RoutingTable) -> None:
        self._config = config
        self._table = table
        self._roles = Roles(config)
        self.close = self._roles.servers.close
        self._master: Address | None = None

    def look(self) -> tuple[TopologyView, int]:
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

    def _in_turn(self) -> list[Address]:
        """The present master first: a former one that comes back also says that it is a master."""
        others = random.sample(self._config.nodes, len(self._config.nodes))
        ordered = sorted(others, key=lambda address: address != self._master)
        return self._roles.servers.sort(ordered, self._table.is_failing)


def _latest(masters: dict[Address, Confirmed]) -> Address:
    """The first of these masters, or the one that has replaced it: a former master may not have been demoted yet."""
    latest = next(iter(masters))
    for _ in masters:
        history = masters[latest].replication.history
        latest = next((other for other in masters if masters[other].replication.replaces(history)), latest)
    return latest


class Confirmed(NamedTuple):
    """What a server says that is a master."""

    view: TopologyView
    replication: Replication
    """It says nothing if the user may not ask for it."""


class Roles:
    """Asks the servers that store the locks for their role."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.servers = Servers(config)
        self._warned = False
        """Whether the log says that the user may not ask."""

    def confirm(self, address: Address, epoch: int, *, trusted: bool) -> Confirmed:
        """With the view in which the server is the master; if `trusted`, also if the user may not ask for its role.
        ConnectionError: it is a replica, or doesn't reply."""
        replies = self.servers.ask(self._config.at(address), topology.ROLE_QUERY)
        if trusted and (view := topology.unconfirmed_master(replies, address, epoch)) is not None:
            if not self._warned:
                self._warned = True
                logger.warning("the user may run neither ROLE nor INFO at %s: its role can't be confirmed", address)
            return Confirmed(view, read_replication(replies[1]))
        if (confirmed := topology.read_role(replies, address, epoch)) is None:
            raise ConnectionError(f"the server at {address} is a replica")
        # The addresses of the replicas are announced by their master; the one of the master is translated already.
        map_address = self._config.map_address
        view = confirmed.mapped(lambda other: address if other == address else map_address(other))
        return Confirmed(view, read_replication(replies[1]))
