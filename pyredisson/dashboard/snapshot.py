"""What the dashboard knows at one moment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pyredisson.dashboard.words import holder_words
from pyredisson.inspection.model import ClientState, State

SCALES = (1, 2, 3, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
"""Seconds that a full bar may stand for: the lease isn't known, only what is left of it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A state, and what was known of the object before."""

    state: State
    at: float
    """When it was read, on a monotonic clock."""
    longest: float
    """The longest TTL that this hold was seen with."""
    holder: str
    """Who holds it, in words."""

    @classmethod
    def of(cls, state: State, at: float, before: Seen | None) -> Seen:
        left = state.time_to_live
        longest = left if left is not None and math.isfinite(left) else 0.0
        if before is not None and _holders(before.state) == _holders(state):
            longest = max(longest, before.longest)
        return cls(state, at, longest, holder_words(state))

    @property
    def scale(self) -> float:
        """Seconds that a full bar stands for: the lease, if it is one of the usual lengths and was renewed in time."""
        return next((float(scale) for scale in SCALES if scale >= self.longest), self.longest)


def _holders(state: State) -> list[str]:
    return [owner.raw for owner in state.owners]


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
    scanned: int = 0
    total: int = 0
    """Keys of the present walk."""
    complete: bool = False
    """Whether a walk has come to its end, so that everything is shown."""
    round_trip: float | None = None
    """Seconds of a PING; of several servers the slowest."""
    waiting: int = 0
    held: int = 0

    def named(self, name: str) -> Seen | None:
        """The object that is shown under this name. Names that are no text may look like another one."""
        exact = self.seen.get(name.encode("utf-8", "surrogatepass"))
        if exact is not None and exact.state.kind != "unknown":
            return exact
        found = [seen for seen in self.seen.values() if seen.state.name == name]
        return next((seen for seen in found if seen.state.kind != "unknown"), found[0] if found else None)
