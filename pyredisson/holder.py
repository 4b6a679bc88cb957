"""Who holds a lock, as far as the server knows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from pyredisson.owners import FIRST_AUTOMATIC_ID

ENDLESS = -1
"""PTTL's answer for a key without a time to live."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who held a lock when the server was asked. What isn't known is None."""

    client_id: str | None = None
    """The `id` of its client, in Python or in Java."""
    client_name: str | None = None
    host: str | None = None
    pid: int | None = None
    owner_id: int | None = None
    """The owner's id: of a thread, a task or an explicit owner."""
    since: datetime | None = None
    time_to_live: float | None = None
    """Seconds for which the lock was still taken, unless it is renewed or released; `math.inf`: without end."""
    foreign: bool | None = None
    """Whether it is of another library. False for ids that only this library gives; else None, not known."""


def holder_of(field: bytes, left: int) -> Holder:
    """The holder that a lock's hash has in this field, `client:id...`; `left` is the reply of PTTL."""
    client_id, _, rest = field.decode("utf-8", "backslashreplace").partition(":")
    number = rest.partition(":")[0].partition(".")[0]
    left_seconds = math.inf if left == ENDLESS else max(left, 0) / 1000
    if not (client_id and number.isascii() and number.isdigit()):
        return Holder(time_to_live=left_seconds)
    owner_id = int(number)
    # Java's ids are those of its threads: small ones, as explicit owners may have too.
    foreign = False if owner_id >= FIRST_AUTOMATIC_ID else None
    return Holder(client_id=client_id, owner_id=owner_id, time_to_live=left_seconds, foreign=foreign)


def for_how_long(left: int) -> str:
    """What a message says of the reply of PTTL."""
    if left == ENDLESS:
        return "which never expires"
    return f"free in {max(left, 0) / 1000:.1f} s at the latest, unless that is extended"
