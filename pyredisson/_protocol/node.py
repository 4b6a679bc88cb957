"""What all connections to one server share: how to reach it, and which of its connections are suspect."""

from __future__ import annotations

import copy

from redis.exceptions import RedisError

from pyredisson._protocol.availability import Availability
from pyredisson._protocol.handshake import ConnectionId, ServerInfo
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson._settings.durations import seconds

MOST_SUSPECTS = 1000


class Node:
    """One server, as a client's pools, subscriptions and watchdog see it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.client_id = ""
        """For messages: whose connections these are."""
        self.timeout = seconds(config.timeout, "timeout")
        self.connect_timeout = seconds(config.connect_timeout, "connect_timeout")
        self.ping_interval = seconds(config.ping_interval, "ping_interval")
        self.scripts = ScriptSet()
        """As the server took them that answered last."""
        self.suspects: list[ConnectionId] = []
        """Connections that were given up with a command in flight. Whoever connects next has the server
        drop them before anything else is sent, so that no such command can run late."""
        self.availability = Availability()
        """Whether it serves; copies share it."""

    def with_timeout(self, seconds: float) -> Node:
        """The same server, with the same suspects, for calls that have no more time than that."""
        other = copy.copy(self)
        other.timeout = min(self.timeout, seconds)
        other.connect_timeout = min(self.connect_timeout, seconds)
        return other

    def suspect(self, connection_id: ConnectionId | None) -> None:
        """Names a connection that may still carry a command."""
        if connection_id is not None:
            self.suspects.append(connection_id)
            del self.suspects[:-MOST_SUSPECTS]

    def on_unreachable(self, error: BaseException) -> None:
        """A connection was not made, for whatever reason but an interrupt."""
        if isinstance(error, Exception):
            self.availability.on_unreachable(self.address, error)

    def on_command_failed(self, error: RedisError) -> None:
        """A command was not served, and is tried again."""
        self.availability.on_command_failed(self.address, error)

    def on_command_served(self) -> None:
        """A command was served after others had failed."""
        self.availability.on_command_served(self.address)

    def on_connected(self, info: ServerInfo, cleared: list[ConnectionId]) -> None:
        """A handshake succeeded, and the server has dropped the suspects named in it."""
        self.availability.on_connected(self.address)
        if self.scripts.flags != info.flags:
            self.scripts.use(flags=info.flags)
        for connection_id in cleared:
            try:
                self.suspects.remove(connection_id)
            except ValueError:
                # Another connection, made at the same time, had it dropped too.
                continue

    @property
    def address(self) -> str:
        """For messages."""
        return self.config.path or f"{self.config.host}:{self.config.port}"
