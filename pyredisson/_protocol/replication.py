"""How many replicas of a master have what was acquired: the commands that ask, and the meaning of the replies."""

from __future__ import annotations

import math
import re

from redis.exceptions import NoPermissionError, RedisError

from pyredisson._core import command

INFO = command(b"INFO", b"replication")
NEVER = -math.inf
"""Before every reading of the clock."""
ASKED_EVERY = 1.0
"""Seconds for which the number of a master's replicas is relied on."""


class NotConfirmed(Exception):
    """Too few replicas have confirmed what a command has acquired. Users never see it.

    The logic undoes the acquire, and raises `NotReplicatedError`.
    """

    def __init__(self, confirmed: int, needed: int, online: int, seconds: float) -> None:
        replicas = "replica" if needed == 1 else "replicas"
        super().__init__(
            f"{confirmed} of {needed} {replicas} confirmed it within {seconds:g} s ({online} connected to the master)"
        )


class ReplicaCount:
    """How many replicas one master has, as that master itself says.

    The number changes while the client lives, and the routing table learns that late. So it is asked again from time to
    time, and before an acquire fails because of it.
    """

    __slots__ = ("asked_at", "none_until", "online", "refused")

    def __init__(self) -> None:
        self.online: int | None = None
        """How many replicas can confirm a write. None: it isn't known."""
        self.asked_at = NEVER
        """When the master was asked, on the clock of the runtime."""
        self.none_until = NEVER
        """Until when the master is known to have no replica that can be waited for."""
        self.refused = False
        """Whether the server doesn't let this user run WAIT."""

    def set(self, online: int | None, now: float) -> None:
        """The server was asked at `now`, and has so many replicas. None: it is not a master."""
        self.online, self.asked_at = online, now
        self.none_until = now + ASKED_EVERY if online == 0 else NEVER

    def refuse(self) -> None:
        """WAIT was refused: nothing can be waited for."""
        self.refused = True
        self.none_until = math.inf

    def is_due(self, now: float) -> bool:
        """Whether the master has to be asked again."""
        return not self.refused and (self.online is None or now - self.asked_at >= ASKED_EVERY)


def wait_command(replicas: int, seconds: float) -> bytes:
    """Waits until so many replicas have what this connection has written, so many seconds at most."""
    # WAIT with a timeout of 0 would wait without end.
    return command(b"WAIT", replicas, max(1, math.ceil(seconds * 1000)))


def online_replicas(reply: bytes) -> int | None:
    """From the reply to INFO: how many replicas can confirm a write. None: the server isn't a master any more.

    A replica that is still being sent the whole database is connected, but confirms nothing: it doesn't count.
    """
    if not re.search(rb"(?m)^role:master\b", reply):
        return None
    return len(re.findall(rb"(?m)^slave\d+:.*\bstate=online\b", reply))


def is_refusal(error: RedisError) -> bool:
    """Whether an error reply means that this user may not run the command, or that the server doesn't know it."""
    return isinstance(error, NoPermissionError) or str(error).startswith("ERR unknown command")
