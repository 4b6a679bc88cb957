"""What all connections to one server share: its address, the timeouts, the suspects, and whether it is available."""

from __future__ import annotations

import builtins
import copy
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError, NoPermissionError, RedisError, ResponseError

from pyredisson._core import command
from pyredisson._diagnostics import logger, with_notes
from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.replication import ReplicaState
from pyredisson._protocol.replies import info_fields, pairs
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.errors import UnsupportedServerError
from pyredisson.identity import connection_name, identity
from pyredisson.version import VERSION

MAX_SUSPECTS = 1000


class Node:
    """One server, as the pools, subscriptions and the watchdog of one client see it."""

    def __init__(
        self, config: Config, client_id: str = "", observe: Observe | None = None, scripts: ScriptSet | None = None
    ) -> None:
        """`observe` is told of each outage. `scripts`: what several servers share."""
        self.config = config
        self.client_id = client_id
        """The id of the client that these connections belong to, for messages."""
        self.timeout = config.timeout
        self.connect_timeout = config.connect_timeout
        self.ping_interval = config.ping_interval
        self.scripts = scripts or ScriptSet(PubSub.of(config))
        """The scripts in the form that the server of the latest connection takes."""
        self.suspects: list[ConnectionId] = []
        """Connections that were closed while a command had no reply, so the server may still execute that command.
        The next handshake has the server drop them before any other command is sent."""
        self.availability = Availability(config.address, observe)
        """Whether the server serves its clients. Copies of this node share it."""
        self.replicas = ReplicaState()
        """The replicas of the server. Copies of this node share it."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when no connection can be made, or when a command or a PING gets no reply. A master that dies or hangs
        doesn't say who replaces it, so a client of several servers has to ask the others."""
        self.silence_checks: dict[Callable[[], None], None] = {}
        """Called when a command gets no reply, or no connection can be made: the network may have lost the other
        connections too, and one that only receives wouldn't notice that. Each checks one connection, on any thread. It
        doesn't block, and acquires no mutex. Copies of this node share them."""
        self.on_handshake: Callable[[bytes | None], None] = lambda _: None
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
        # Thousands of releases may find the same connection in doubt. Its copies would push out other suspects.
        if connection_id is not None and connection_id not in self.suspects:
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
        """As `Availability.on_unreachable`. An interrupt is not the server's failure, and is not reported."""
        if isinstance(error, Exception):
            self.availability.on_unreachable(error, began)
            self._on_silence()

    def _on_silence(self) -> None:
        self.on_failure()
        for check in list(self.silence_checks):
            check()

    def on_connected(self, info: ServerInfo, dropped: list[ConnectionId], now: float) -> None:
        """A handshake succeeded at `now`, on the runtime's clock.

        The server has dropped the connections `dropped`, which are no longer suspect.
        """
        self.availability.on_connected(info.server_id, now)
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


FORGOTTEN_AFTER = 60.0
"""Seconds without a failed attempt after which the next failure begins another outage: no call has seen the end."""

Observe = Callable[[str, str, BaseException | None], None]
"""Called on any thread with `discovered`, `disconnected` or `connected`, the address, and the error. Doesn't block."""


@dataclass(slots=True, eq=False)
class Outage:
    """The time from the first failed attempt to the first one that succeeds."""

    began: float
    last_failure: float
    unreachable: bool
    """No connection can be made. Otherwise one can be made, but commands are not served."""


class Availability:
    """Whether a server serves its clients; shared by all connections of a client to it. Any thread may report.

    Each change is one operation on a dict: without a mutex, only one of several threads that report it logs it.
    """

    def __init__(self, address: str, observe: Observe | None = None) -> None:
        """`observe` is told of each change, and now that the client knows the server."""
        self._address = address
        self._observe = observe
        self._outage: dict[str, Outage] = {}
        """The present outage under the key "present", or nothing."""
        self._connected_at = -math.inf
        self._process: bytes | None = None
        self.replaced_at = -math.inf
        """When a connection found another process of the server, on the runtime's clock: that one may have no data."""
        if observe is not None:
            observe("discovered", address, None)

    @property
    def interrupted(self) -> bool:
        """Whether an outage has begun, whose end nobody has seen."""
        return bool(self._outage)

    def on_unreachable(self, error: BaseException, began: float) -> None:
        """A connection could not be made. The attempt began at `began`, on the clock `monotonic`."""
        if began < self._connected_at:
            # An outage that begins now would last until the next connection is made, which may be in hours.
            logger.debug(
                "another connection to the server %s was made since this attempt began: %s", self._address, error
            )
            return
        self.on_command_failed(error, unreachable=True)

    def on_connected(self, process: bytes | None, now: float) -> None:
        """A connection was made to that process. A server that failed to serve commands before may still fail to."""
        self._connected_at = monotonic()
        if process is not None and process != self._process:
            if self._process is not None:
                self.replaced_at = now
            self._process = process
        if (outage := self._outage.get("present")) is not None and outage.unreachable:
            self.on_command_served()

    def on_command_failed(self, error: BaseException, *, unreachable: bool = False) -> None:
        """A command was not served. `unreachable`: there was no connection; otherwise there may have been one."""
        now = monotonic()
        present = self._outage.get("present")
        if present is not None and now - present.last_failure > FORGOTTEN_AFTER:
            self._outage.pop("present", None)
        new = Outage(now, now, unreachable)
        present = self._outage.setdefault("present", new)
        if present is new:
            if self._observe is not None:
                self._observe("disconnected", self._address, error)
                if self._outage.get("present") is not new:
                    self._observe("connected", self._address, None)
            # asyncio's timeouts have no text, and the kernel calls its own ones a lack of resources.
            text = "" if isinstance(error, BlockingIOError) else str(error)
            reason = with_notes(text or "timed out", error)
            logger.warning(
                "the server %s is not available: %s; calls try again within their limits", self._address, reason
            )
            return
        present.last_failure = now
        present.unreachable = present.unreachable or unreachable
        logger.debug("the server %s is still not available: %s", self._address, error)

    def on_command_served(self) -> None:
        """A command was served after others had failed. The outage is over."""
        if (outage := self._outage.pop("present", None)) is not None:
            if self._observe is not None:
                self._observe("connected", self._address, None)
            logger.warning("the server %s is available again after %.1f s", self._address, monotonic() - outage.began)


SCRIPT_FLAGS_SINCE = 7
"""The first major version whose servers know the `#!lua` line of scripts."""
OLDEST_VERSION = (6, 2)
OPTIONAL = frozenset({"hello", "default name", "library", "client info", "server info", "kill"})
"""Steps that a server may not know, or may not allow to this user. The connection works without them."""
OTHER_MODES = {
    b"cluster": "a node of a cluster, which is addressed as redis+cluster://host:port,host:port",
    b"sentinel": "a Sentinel, which is addressed as redis+sentinel://host:port,host:port/master",
}


class ConnectionId(NamedTuple):
    """One connection as the server identifies it: enough to have the server drop it and no other connection."""

    id: bytes
    address: bytes


class ServerInfo(NamedTuple):
    """What a handshake found out about the server and the connection."""

    script_flags: bool
    """Whether the server knows the `#!lua` line of scripts."""
    connection_id: ConnectionId | None
    """None where the user may not run CLIENT INFO: then a command that the connection has lost may run late."""
    server_id: bytes | None
    """The identity of the server's process (`run_id`); None where the user may not run INFO."""


class Handshake:
    """The commands that a new connection sends first, in one write, and what their replies say about the server."""

    def __init__(self, config: Config, credentials: Sequence[str], suspects: Sequence[ConnectionId] = ()) -> None:
        steps: list[tuple[str, bytes]] = []
        if credentials:
            steps.append(("auth", command(b"AUTH", *credentials)))
        steps.append(("hello", command(b"HELLO", 2)))
        if config.database:
            steps.append(("select", command(b"SELECT", config.database)))
        if config.client_name is not None:
            steps.append(("name", command(b"CLIENT", b"SETNAME", config.client_name)))
        else:
            steps.append(("default name", command(b"CLIENT", b"SETNAME", connection_name(identity()))))
        steps.append(("library", command(b"CLIENT", b"SETINFO", b"LIB-NAME", b"pyredisson")))
        steps.append(("library", command(b"CLIENT", b"SETINFO", b"LIB-VER", VERSION)))
        steps.append(("client info", command(b"CLIENT", b"INFO")))
        steps.append(("server info", command(b"INFO", b"server")))
        # With every command of that connection that the server hasn't executed yet.
        steps.extend(("kill", command(b"CLIENT", b"KILL", b"ID", each.id, b"ADDR", each.address)) for each in suspects)
        self._mode = b"cluster" if config.topology == "cluster" else b"standalone"
        self._address = config.address
        self._names = [name for name, _ in steps]
        self.payload = b"".join(payload for _, payload in steps)

    def __len__(self) -> int:
        return len(self._names)

    def read(self, replies: Sequence[Any]) -> ServerInfo:
        """Raises an error reply, unless the step is optional and the server doesn't know or doesn't allow it."""
        results: dict[str, Any] = {}
        for name, reply in zip(self._names, replies, strict=False):
            if isinstance(reply, RedisError):
                # Any other error (BUSY, LOADING, ...) is transient, also for an optional step.
                unknown = isinstance(reply, ResponseError) and str(reply).startswith("ERR ")
                unavailable = unknown or isinstance(reply, NoPermissionError)
                if not unavailable or name not in OPTIONAL:
                    raise reply
            else:
                results[name] = reply
        greeting = pairs(results.get("hello", ()))
        info = info_fields(results.get("server info"))
        version = greeting.get(b"version") or info.get(b"redis_version", b"")
        self._check(version, greeting.get(b"mode") or info.get(b"redis_mode", b""))
        if len(replies) < len(self):
            raise ConnectionError("the connection was closed during the handshake")
        found = re.search(rb"(?:^| )id=(\d+) addr=(\S+)", results.get("client info", b""))
        connection_id = ConnectionId(found[1], found[2]) if found else None
        script_flags = _numbers(version)[0] >= SCRIPT_FLAGS_SINCE
        return ServerInfo(script_flags, connection_id, info.get(b"run_id"))

    def _check(self, version: bytes, mode: bytes) -> None:
        """Refuses a server that can't be served, as later errors would be less clear. Accepts an unknown version."""
        if version and _numbers(version) < OLDEST_VERSION:
            raise UnsupportedServerError(
                f"the server at {self._address} is version {version.decode()}; Redis 6.2 or later, or Valkey, is needed"
            )
        if mode in OTHER_MODES and mode != self._mode:
            raise UnsupportedServerError(f"the server at {self._address} is {OTHER_MODES[mode]}")


def _numbers(version: bytes) -> tuple[int, ...]:
    return tuple(map(int, re.findall(rb"\d+", version)[:2])) or (0,)
