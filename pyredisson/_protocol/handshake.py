"""The commands that a new connection sends first, and what their replies say about the server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ConnectionError, NoPermissionError, RedisError, ResponseError

from pyredisson._core import command
from pyredisson._settings.config import Config
from pyredisson.errors import UnsupportedServerError
from pyredisson.identity import connection_name, identity
from pyredisson.version import VERSION

SCRIPT_FLAGS_SINCE = 7
"""The first major version whose servers know the `#!lua` line of scripts."""
OLDEST_VERSION = (6, 2)
OPTIONAL = frozenset({"hello", "default name", "library", "client info", "server info", "kill"})
"""Steps that a server may not know, or may not allow to this user. The connection works without them."""
OTHER_MODES = {
    b"cluster": "a node of a cluster, which is addressed as redis+cluster://host:port,host:port",
    b"sentinel": "a Sentinel, which is addressed as redis+sentinel://host:port,host:port/master",
}


@dataclass(frozen=True, slots=True)
class ConnectionId:
    """One connection as the server identifies it: enough to have the server drop it and no other connection."""

    id: bytes
    address: bytes

    def kill_command(self) -> bytes:
        """The command that has the server drop this connection, with every command that it hasn't executed yet."""
        return command(b"CLIENT", b"KILL", b"ID", self.id, b"ADDR", self.address)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a handshake found out about the server and the connection."""

    script_flags: bool
    """Whether the server knows the `#!lua` line of scripts."""
    connection_id: ConnectionId | None
    """None where the user may not run CLIENT INFO. Then the server can't be told to drop this connection, so a command
    that it lost may run late."""
    server_id: bytes | None
    """The identity of the server's process (`run_id`); None where the user may not run INFO."""


class Handshake:
    """The commands of one handshake, which are sent in one write, and the meaning of their replies."""

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
        steps.extend(("kill", suspect.kill_command()) for suspect in suspects)
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
        hello = results.get("hello", ())
        greeting = dict(zip(hello[::2], hello[1::2], strict=True))
        info = dict(re.findall(rb"(?m)^(\w+):([^\r\n]*)", results.get("server info", b"")))
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
