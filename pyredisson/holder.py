"""The holder of a lock, as the server knows it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from pyredisson.owners import FIRST_AUTOMATIC_ID

ENDLESS = -1
"""The reply of PTTL for a key without a time to live."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock at the moment when the server was asked. A field that isn't known is None."""

    client_id: str | None = None
    """The `id` of the holder's client, in Python or in Java."""
    client_name: str | None = None
    """Not known yet, so None."""
    host: str | None = None
    """Not known yet, so None."""
    pid: int | None = None
    """Not known yet, so None."""
    owner_id: int | None = None
    """The id of the owner within that client: of a thread, a task or an explicit owner."""
    since: datetime | None = None
    """Not known yet, so None."""
    time_to_live: float | None = None
    """Seconds until the server frees the lock, unless it is renewed or released before; `math.inf`: it has no lease."""
    foreign: bool | None = None
    """Whether another library holds the lock. False for an id that only this library uses; else None: not known."""


def holder_of(field: bytes, ttl: int) -> Holder:
    """The holder behind a field of a lock's hash, `client:id...`. `ttl` is the reply of PTTL for the hash."""
    client_id, _, rest = field.decode("utf-8", "backslashreplace").partition(":")
    number = rest.partition(":")[0].partition(".")[0]
    seconds = math.inf if ttl == ENDLESS else max(ttl, 0) / 1000
    if not (client_id and number.isascii() and number.isdigit()):
        return Holder(time_to_live=seconds)
    owner_id = int(number)
    # Redisson uses the ids of Java's threads. They are small, as the ids of explicit owners may be.
    foreign = False if owner_id >= FIRST_AUTOMATIC_ID else None
    return Holder(client_id=client_id, owner_id=owner_id, time_to_live=seconds, foreign=foreign)


def for_how_long(ttl: int) -> str:
    """The words of a message for the reply of PTTL."""
    if ttl == ENDLESS:
        return "which never expires"
    return f"free in {max(ttl, 0) / 1000:.1f} s at the latest, unless that is extended"
