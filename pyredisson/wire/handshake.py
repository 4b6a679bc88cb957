"""What a new connection says first, and what it learns about the server; the same for both worlds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ConnectionError, NoPermissionError, RedisError, ResponseError

from pyredisson._core import command
from pyredisson.config import Config
from pyredisson.version import VERSION

SCRIPT_FLAGS_SINCE = 7
"""The major version from which on servers know the `#!lua` line."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One connection as the server names it: enough to have the server drop it, and it alone."""

    id: bytes
    addr: bytes

    def kill(self) -> bytes:
        """The command by which the server drops that connection, with all that it has not executed yet."""
        return command(b"CLIENT", b"KILL", b"ID", self.id, b"ADDR", self.addr)


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the handshake told."""

    flags: bool
    """Whether the server knows the `#!lua` line."""
    peer: Peer | None
    """None where the user may not run CLIENT INFO: then a late copy of a cut command can't be prevented."""


class Greeting:
    """The commands of one handshake, sent in one write, and what their replies mean."""

    def __init__(self, config: Config, credentials: Sequence[str], suspects: Sequence[Peer] = ()) -> None:
        steps: list[tuple[str, bytes]] = []
        if credentials:
            steps.append(("auth", command(b"AUTH", *credentials)))
        steps.append(("hello", command(b"HELLO", 2)))
        if config.database:
            steps.append(("select", command(b"SELECT", config.database)))
        if config.client_name:
            steps.append(("name", command(b"CLIENT", b"SETNAME", config.client_name)))
        steps.append(("info", command(b"CLIENT", b"SETINFO", b"LIB-NAME", b"pyredisson")))
        steps.append(("info", command(b"CLIENT", b"SETINFO", b"LIB-VER", VERSION)))
        steps.append(("peer", command(b"CLIENT", b"INFO")))
        steps.extend(("kill", suspect.kill()) for suspect in suspects)
        self._names = [name for name, _ in steps]
        self.payload = b"".join(payload for _, payload in steps)

    def __len__(self) -> int:
        return len(self._names)

    def read(self, replies: Sequence[Any]) -> Welcome:
        """Raises what the server objects to; servers that don't know a courtesy are served without it."""
        flags, peer = False, None
        for name, reply in zip(self._names, replies, strict=False):
            if isinstance(reply, RedisError):
                # Not known here, or not allowed to this user; anything else (BUSY, LOADING, ...) passes.
                unknown = isinstance(reply, ResponseError) and str(reply).startswith("ERR ")
                missing = unknown or isinstance(reply, NoPermissionError)
                if not missing or name not in ("hello", "info", "peer", "kill"):
                    raise reply
            elif name == "hello":
                told = dict(zip(reply[::2], reply[1::2], strict=True))
                major = int(told.get(b"version", b"0").partition(b".")[0])
                flags = major >= SCRIPT_FLAGS_SINCE
            elif name == "peer":
                found = re.search(rb"(?:^| )id=(\d+) addr=(\S+)", reply)
                peer = Peer(found[1], found[2]) if found else None
        if len(replies) < len(self):
            raise ConnectionError("the connection was closed during the handshake")
        return Welcome(flags, peer)
