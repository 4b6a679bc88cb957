"""What all connections to one server share: its address, the timeouts, and the connections that are suspect."""

from __future__ import annotations

import builtins
import copy
from collections.abc import Callable

from redis.exceptions import ConnectionError, RedisError

from pyredisson._protocol.availability import Availability
from pyredisson._protocol.handshake import ConnectionId, ServerInfo
from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.replication import ReplicaState
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson._settings.durations import seconds

MAX_SUSPECTS = 1000


class Node:
    """One server, as the pools, subscriptions and the watchdog of one client see it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.client_id = ""
        """The id of the client that these connections belong to, for messages."""
        self.timeout = seconds(config.timeout, "timeout")
        self.connect_timeout = seconds(config.connect_timeout, "connect_timeout")
        self.ping_interval = seconds(config.ping_interval, "ping_interval")
        self.scripts = ScriptSet(PubSub.of(config))
        """The scripts in the form that the server of the latest connection takes."""
        self.suspects: list[ConnectionId] = []
        """Connections that were closed while a command had no reply, so the server may still execute that command.
        The next handshake has the server drop them before any other command is sent."""
        self.availability = Availability()
        """Whether the server serves its clients. Copies of this node share it."""
        self.replicas = ReplicaState()
        """The replicas of the server. Copies of this node share it."""
        self.on_failure: Callable[[], None] = _do_nothing
        """Called when no connection can be made, or when a command or a PING gets no reply. A master that dies or hangs
        doesn't say who replaces it, so a client of several servers has to ask the others."""
        self.silence_checks: dict[Callable[[], None], None] = {}
        """Called when a command gets no reply, or no connection can be made: the network may have lost the other
        connections too, and one that only receives wouldn't notice that. Each checks one connection. They are called on
        any thread, don't block, and acquire no mutex. Copies of this node share them."""
        self.on_handshake: Callable[[bytes | None], None] = _do_nothing
        """Called after each handshake that succeeded, with the identity of the server's process."""

    def with_timeout(self, seconds: float) -> Node:
        """The same server and the same suspects, with shorter timeouts."""
        other = copy.copy(self)
        other.timeout = min(self.timeout, seconds)
        other.connect_timeout = min(self.connect_timeout, seconds)
        return other

    def with_longer_timeout(self, seconds: float) -> Node:
        """The same server and the same suspects; a reply may take so many seconds more."""
        other = copy.copy(self)
        other.timeout += seconds
        return other

    def suspect(self, connection_id: ConnectionId | None) -> None:
        """Records a connection over which the server may still get a command. None: its identity is unknown."""
        if connection_id is not None:
            self.suspects.append(connection_id)
            del self.suspects[:-MAX_SUSPECTS]

    def suspect_after(self, error: BaseException, connection_id: ConnectionId | None) -> None:
        """As `suspect`, after a failure of that connection, unless nothing can deliver its commands any more."""
        # When a unix socket is disconnected, the server itself has closed it. No network can still hold a command.
        disconnected = isinstance(error, ConnectionError | builtins.ConnectionError)
        if self.config.path is None or not disconnected:
            self.suspect(connection_id)
        self._on_silence()

    def on_unreachable(self, error: BaseException, began: float) -> None:
        """A connection could not be made; the attempt began at `began`, on the clock `time.monotonic`.

        An interrupt is not the server's failure, and is not reported.
        """
        if isinstance(error, Exception):
            self.availability.on_unreachable(self.address, error, began)
            self._on_silence()

    def _on_silence(self) -> None:
        self.on_failure()
        for check in tuple(self.silence_checks):
            check()

    def on_command_failed(self, error: RedisError) -> None:
        """A command was not served, and is sent again."""
        self.availability.on_command_failed(self.address, error)

    def on_command_served(self) -> None:
        """A command was served after others had failed."""
        self.availability.on_command_served(self.address)

    def on_connected(self, info: ServerInfo, dropped: list[ConnectionId]) -> None:
        """A handshake succeeded; the server has dropped the connections `dropped`, which are no longer suspect."""
        self.availability.on_connected(self.address)
        self.scripts.on_connected(with_shebang=info.script_flags)
        for connection_id in dropped:
            try:
                self.suspects.remove(connection_id)
            except ValueError:
                # Another handshake at the same time had the server drop it too.
                continue
        self.on_handshake(info.server_id)

    @property
    def address(self) -> str:
        """The server's address, for messages."""
        return self.config.address

    @property
    def endpoint(self) -> Address:
        """The server's address, for routing."""
        return Address(self.config.host, self.config.port)


def _do_nothing(*_: object) -> None:
    pass
