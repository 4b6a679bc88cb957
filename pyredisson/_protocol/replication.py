"""The replicas of a master: whether they have what was acquired, and whether one of them has replaced the master."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from redis.exceptions import NoPermissionError, RedisError

from pyredisson._core import command
from pyredisson._protocol.replies import Reply, info_fields
from pyredisson._settings.address import Address

INFO = command(b"INFO", b"replication")
NEVER = -math.inf
"""Before every reading of the clock."""
ASKED_EVERY = 1.0
"""Seconds after which a master is asked again about its replicas, by one call."""
RELIED_ON = 2.0
"""Seconds for which what a master says about its replicas is relied on at most, counted from before it was asked."""
REMEMBERED = 60.0
"""Seconds for which a replica is remembered that has left its master, and that the routing table doesn't know."""


class NotConfirmed(Exception):
    """Too few replicas have confirmed a command, which has run. The logic undoes it, and users never see this."""

    reply: Reply
    """The reply of the master to the command."""

    def __init__(self, confirmed: int, needed: int, online: int, seconds: float) -> None:
        replicas = "replica" if needed == 1 else "replicas"
        super().__init__(
            f"{confirmed} of {needed} {replicas} confirmed it within {seconds:g} s ({online} connected to the master)"
        )


class Replication(NamedTuple):
    """What a server says about its replication."""

    is_master: bool
    history: bytes
    """The id of the history that it writes (`master_replid`). A replica has the id of its master."""
    former_history: bytes
    """The id of the history that it has continued since it became a master (`master_replid2`)."""
    replicas: tuple[Address, ...]
    """The replicas that can confirm a write: not one that is still being sent the whole database."""

    def replaces(self, history: bytes) -> bool:
        """Whether the server was a replica of the master with that history, and is a master in its place now."""
        # Not the other way round: the former master, which may still believe to be one, continues nobody's history.
        return self.is_master and bool(history) and self.former_history == history

    def mapped(self, mapper: Callable[[Address], Address]) -> Replication:
        """The same with other addresses, for servers that announce addresses of their own network."""
        return self._replace(replicas=tuple(map(mapper, self.replicas)))


@dataclass(slots=True, eq=False)
class ReplicaState:
    """Which replicas one master has, as that master itself says, and which of them have left it.

    The replicas change while the client lives, and the routing table learns that late. So the master is asked again
    from time to time, and before an acquire fails because of it. An answer counts for `RELIED_ON` only: a replica may
    have come back since, which then may be promoted without what was acquired; or it has left, and confirms nothing.

    A replica that has left may have been promoted, and the master may not have been demoted yet. Then both grant locks.
    So where replicas are away, an acquire counts only after they were asked (`_backends.acquiring`).
    """

    online: int | None = None
    """How many replicas can confirm a write. None: it isn't known."""
    history: bytes = b""
    """The id of the history that the master writes. Empty: unknown."""
    asked_at: float = NEVER
    """When the question was sent that was answered, on the clock of the runtime."""
    ask_again_at: float = NEVER
    """When a call is to ask the master again. The latest question may not be answered yet."""
    none_until: float = NEVER
    """Until when the master is known to have no replica that can be waited for, and none that is away."""
    refused: bool = False
    """Whether the server doesn't let this user run WAIT."""
    seen: dict[Address, float] = field(default_factory=dict)
    """When a replica was connected last."""
    away: tuple[Address, ...] = ()
    """Servers that are not connected to the master at present, but were its replicas, or are to be."""
    left: dict[Address, float] = field(default_factory=dict)
    """When a server was found to be away that was not away before, until it is known that it is no master."""
    unreachable: dict[Address, float] = field(default_factory=dict)
    """Until when a server that gave no answer isn't asked again, or not by other calls than the one that asks it."""

    def begin_question(self, now: float) -> None:
        """The server is asked. Until it has replied, other calls use what it has said last, if that isn't too old."""
        self.ask_again_at = now + ASKED_EVERY

    def set(self, replication: Replication, known: Iterable[Address], now: float) -> None:
        """The server was asked at `now`. `known`: what the routing table knows as its replicas, connected or not."""
        if now < self.asked_at:
            # A later question was answered first.
            return
        if not replication.is_master:
            self.online, self.asked_at, self.none_until = None, now, NEVER
            return
        connected = dict.fromkeys(replication.replicas, now)
        seen = {address: at for address, at in self.seen.items() if now - at < REMEMBERED} | connected
        away = tuple(dict.fromkeys(address for address in (*seen, *known) if address not in connected))
        for address in away:
            if address not in self.away:
                self.left[address] = now
        for answers in (self.left, self.unreachable):
            for address in list(answers):
                if address not in away:
                    answers.pop(address, None)
        self.seen, self.away, self.history = seen, away, replication.history
        self.online, self.asked_at = len(connected), now
        self.none_until = NEVER if connected or away else now + RELIED_ON

    def set_number(self, online: int, now: float) -> None:
        """The server may not be asked, and has so many replicas as far as is known at `now`."""
        self.online, self.asked_at = online, now
        self.none_until = NEVER if online else now + RELIED_ON

    def refuse(self) -> None:
        """WAIT was refused: nothing can be waited for."""
        self.refused = True
        self.none_until = self.ask_again_at = math.inf

    def is_due(self, now: float) -> bool:
        """Whether a call has to ask the master, instead of using what it has said last."""
        if self.refused:
            return False
        return self.online is None or now >= self.ask_again_at or now - self.asked_at >= RELIED_ON

    def on_answer(self, address: Address, asked_at: float) -> None:
        """A server that was away at `asked_at` is no master in place of this one."""
        if self.left.get(address, math.inf) <= asked_at and (since := self.left.pop(address, asked_at)) > asked_at:
            self.left.setdefault(address, since)


def wait_command(replicas: int, seconds: float) -> bytes:
    """Waits until so many replicas have what this connection has written, so many seconds at most."""
    # WAIT with a timeout of 0 would wait without end.
    return command(b"WAIT", replicas, max(1, math.ceil(seconds * 1000)))


def read_replication(reply: Reply) -> Replication:
    """The meaning of the reply to INFO. An error reply says nothing: a user may have no right to ask."""
    fields = info_fields(reply)
    text = reply if isinstance(reply, bytes) else b""
    replicas = re.findall(rb"(?m)^slave\d+:ip=([^,\r\n]*),port=(\d+),(?:[^\r\n]*,)?state=online\b", text)
    return Replication(
        fields.get(b"role") == b"master",
        fields.get(b"master_replid", b""),
        fields.get(b"master_replid2", b""),
        tuple(Address(host.decode(), int(port)) for host, port in replicas),
    )


def is_refusal(error: RedisError) -> bool:
    """Whether an error reply means that this user may not run the command, or that the server doesn't know it."""
    return isinstance(error, NoPermissionError) or str(error).startswith("ERR unknown command")
