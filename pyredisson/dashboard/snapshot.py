"""What the dashboard knows: at one moment, for its charts of the last minutes, and in words."""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from redis.exceptions import NoPermissionError, RedisError

from pyredisson._protocol.replies import NoReply
from pyredisson.holder import Holder
from pyredisson.holder import who as named
from pyredisson.inspection.deadlocks import Edge
from pyredisson.inspection.model import LOCKS, ClientState, State

SCALES = (1, 2, 3, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
"""Seconds that a full bar may stand for: the lease isn't known, only what is left of it."""
MINUTES = 5
"""How far back the charts go."""
MOST_POINTS = 600
MOST_PAST = 50
"""Former holders of one lock that are remembered."""
MOST_CHANGED = 1_000
"""Locks whose former holders are remembered: the ones whose holders have changed last."""
MOST_CLIENTS = 20_000
"""Clients whose last counts are remembered."""
SHOWN_OF_ID = 8
"""Characters of a client's id that tell it from others."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A state, and what was known of the object before."""

    state: State
    at: float
    """When it was read, on a monotonic clock."""
    longest: float
    """The longest TTL that this hold was seen with."""
    holder: str
    first: float = 0.0
    """When this hold was seen first, on that clock."""
    since: datetime | None = None
    """When it began, if that was ever known."""
    most_waiting: int = 0
    """How many waited for it at most."""

    @classmethod
    def of(cls, state: State, at: float, before: Seen | None) -> Seen:
        left = state.time_to_live
        longest = left if left is not None and math.isfinite(left) else 0.0
        made = cls(state, at, longest, holder_words(state), at, state.since, waiting_of(state))
        if before is None or not made.goes_on(before):
            return made
        return replace(
            made,
            longest=max(longest, before.longest),
            first=before.first,
            since=before.since or state.since,
            most_waiting=max(made.most_waiting, before.most_waiting),
        )

    def goes_on(self, before: Seen) -> bool:
        """Whether the same owners hold it. Of very many owners only some are listed, and not always the same ones."""
        now, then = self.state, before.state
        cut = min(len(now.owners), len(then.owners)) < then.owner_count
        same = cut or [owner.raw for owner in now.owners] == [owner.raw for owner in then.owners]
        return now.owner_count == then.owner_count and same

    @property
    def scale(self) -> float:
        """Seconds that a full bar stands for: the lease, if it is one of the usual lengths and was renewed in time."""
        return next((float(scale) for scale in SCALES if scale >= self.longest), self.longest)


class PastHold(NamedTuple):
    """A hold that has ended, as far as it was seen."""

    holder: str
    client: str | None
    """The id of the client. None: not known, or there were several holders."""
    first: float
    """When it was seen first, on a monotonic clock."""
    since: datetime | None
    """When it began, if that is known."""
    until: float
    """When it was seen first that it had ended, on that clock."""
    most_waiting: int


def remember(past: dict[bytes, tuple[PastHold, ...]], before: Seen | None, now: Seen | None, at: float) -> None:
    """Remembers who held a lock if its holder has changed. `now`: None: nothing is known of it any more."""
    if before is None or not before.state.owners or before.state.kind not in LOCKS:
        return
    if now is not None and now.goes_on(before):
        return
    key, client = before.state.key, sole_client(before.state)
    ended = PastHold(before.holder, client, before.first, before.since, at, before.most_waiting)
    # Last in the dict: first the locks are dropped whose holders haven't changed for the longest time.
    past[key] = (*past.pop(key, ()), ended)[-MOST_PAST:]
    if len(past) > MOST_CHANGED:
        del past[next(iter(past))]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that one round has found out."""

    number: int = 0
    time: float = 0.0
    """Seconds since the epoch."""
    at: float = 0.0
    """The same moment on the monotonic clock."""
    began: float = 0.0
    """On that clock: what it says was read after this moment."""
    walked: float = -math.inf
    """On that clock: what exists since before this moment was found."""
    seen: Mapping[bytes, Seen] = field(default_factory=dict)
    clients: Mapping[str, ClientState] = field(default_factory=dict)
    away_since: datetime | None = None
    """Since when no server replies."""
    problems: tuple[str, ...] = ()
    """What can't be shown, and why: no connection, a right that is missing, a node that doesn't reply."""
    deadlocks: tuple[str, ...] = ()
    """Owners that wait for each other."""
    deadlocked: frozenset[Edge] = frozenset()
    """Their holds and waits."""
    scanned: int = 0
    total: int = 0
    """Keys of the present walk."""
    complete: bool = False
    """Whether a walk has come to its end, so that everything is shown."""
    round_trip: float | None = None
    """Seconds of a PING; of several servers the slowest."""
    waiting: int = 0
    held: int = 0
    lost: int = 0
    """Holds whose loss was announced since the dashboard began."""
    past: Mapping[bytes, tuple[PastHold, ...]] = field(default_factory=dict)
    """The former holders of locks, the latest one last."""

    def named(self, name: str) -> Seen | None:
        """The object that is shown under this name. Names that are no text may look like another one."""
        exact = self.seen.get(name.encode("utf-8", "surrogatepass"))
        if exact is not None and exact.state.kind != "unknown":
            return exact
        found = [seen for seen in self.seen.values() if seen.state.name == name]
        return next((seen for seen in found if seen.state.kind != "unknown"), found[0] if found else None)


# --- The charts


class Point(NamedTuple):
    time: float
    """Seconds since the epoch."""
    held: int
    """Locks and permits that are held, as far as they are listed."""
    waiting: int
    clients: int
    waits: int
    """Calls that had to wait, since the point before."""
    waited: float
    """Seconds for which they have waited together."""
    lost: int
    """Holds that were lost, since the point before."""


class History:
    """The points of the last minutes. Differences are made from the counts that clients announce."""

    def __init__(self) -> None:
        self.began: datetime | None = None
        """When the dashboard began, by the server's clock, as what clients say of themselves. None: not known yet."""
        self._points: deque[Point] = deque(maxlen=MOST_POINTS)
        self._counts: dict[str, tuple[int, float, int]] = {}
        """What each client has announced last: its waits, the seconds of them, and its losses."""
        self.lost = 0
        """Losses of all points, also of dropped ones."""

    def add(self, time: float, held: int, waiting: int, clients: Collection[ClientState]) -> None:
        """Adds a point. Points that are too old are dropped."""
        waits, waited, lost = 0, 0.0, 0
        for client in clients:
            now = (client.waits, client.waited, client.lost)
            # What a client has counted before the dashboard began is older than the charts. A new one has counted
            # since then. If its counts decrease, its announcement was replaced: it counts again from there.
            is_new = self.began is not None and client.since is not None and client.since >= self.began
            before = self._counts.get(client.id, (0, 0.0, 0) if is_new else now)
            waits += max(now[0] - before[0], 0)
            waited += max(now[1] - before[1], 0.0)
            lost += max(now[2] - before[2], 0)
            # Last in the dict: first the clients are dropped that have been gone for the longest time.
            self._counts.pop(client.id, None)
            self._counts[client.id] = now
        while len(self._counts) > MOST_CLIENTS:
            del self._counts[next(iter(self._counts))]
        self.lost += lost
        self._points.append(Point(time, held, waiting, len(clients), waits, waited, lost))
        while self._points[0].time < time - MINUTES * 60:
            self._points.popleft()

    def since(self, time: float) -> list[Point]:
        """The points after that moment, the oldest first."""
        return [point for point in self._points if point.time > time]


# --- Words


def who(holder: Holder) -> str:
    """`web-3 (pid 812)`, `billing on web-3 (pid 812)`, `Redisson b983c153, thread 31`, or the beginning of an id."""
    if holder.host is not None:
        return named(holder, b"")
    if holder.client_id is None:
        return "unknown"
    thread = "" if holder.owner_id is None or holder.foreign is False else f", thread {holder.owner_id}"
    return f"{'Redisson' if holder.foreign else 'client'} {holder.client_id[:SHOWN_OF_ID]}{thread}"


def waiting_of(state: State) -> int:
    """How many wait: as the server knows it, or as clients say, whichever is more."""
    return max(state.waiting, len(state.waiters))


def sole_client(state: State) -> str | None:
    """The client of the holder, if there is one holder and its client is known."""
    return state.owners[0].holder.client_id if state.owners and state.owner_count == 1 else None


def holder_words(state: State) -> str:
    """Who holds a lock; nothing for a free one, and for what has no holders."""
    if not state.owners:
        return ""
    first = state.owners[0]
    if state.kind == "read-write":
        # The writer comes first in words: it may be a reader besides.
        writer = next((owner for owner in state.owners if owner.side == "write"), None)
        if writer is not None:
            return f"{who(writer.holder)}, writes"
        if state.owner_count > 1:
            return f"{state.owner_count} readers"
        return f"{who(first.holder)}, reads"
    if state.owner_count > 1:
        return f"{state.owner_count} holders"
    return f"kept after a run on {who(first.holder)}" if first.kept else who(first.holder)


def error_words(error: NoReply | RedisError) -> str:
    """An error for a reader who knows the server, not this program."""
    cause = error.error if isinstance(error, NoReply) else error
    if isinstance(cause, NoPermissionError):
        return "this user lacks one of the rights +@read +eval +evalsha +time"
    text = str(cause) or type(cause).__name__
    # What the event loop says of a connection that can't be made has only the number of the reason.
    number = re.search(r"\[Errno (\d+)\] Connect call failed", text)
    return os.strerror(int(number[1])).lower() if number else text
