"""How states are said: holders, times and numbers as a person reads them, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import datetime
from typing import Any

from pyredisson.cli.output import readable
from pyredisson.holder import who as named
from pyredisson.inspection.model import Owner, State

NOTHING = "-"
SHORT_ID = 8
"""Characters of a client's id that are shown where there is little room."""
KINDS = {
    "lock": "lock",
    "fair": "fair lock",
    "fenced": "fenced lock",
    "spin": "spin lock",
    "read-write": "read-write lock",
    "semaphore": "semaphore",
    "permits": "semaphore whose permits have ids",
    "latch": "latch",
    "group": "multi-lock of Redisson in one hash",
}


def duration(seconds: float | None) -> str:
    """A time that is left."""
    if seconds is None:
        return NOTHING
    if math.isinf(seconds):
        return "no end"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def moment(time: datetime | None) -> str:
    """A time of day on this machine's clock, with the date if it is another day."""
    if time is None:
        return NOTHING
    local = time.astimezone()
    today = datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M")


def who(owner: Owner) -> str:
    """Who an owner is, in few words: host and process, or else what is known, its ids."""
    holder = owner.holder
    if holder.host is not None:
        return readable(named(holder, owner.id))
    if holder.client_id is None:
        return NOTHING if holder.owner_id is None else str(holder.owner_id)
    program = {True: "Redisson", False: "pyredisson", None: "client"}[holder.foreign]
    return f"{program} {readable(holder.client_id)[:SHORT_ID]}:{holder.owner_id}"


def holders(state: State) -> str:
    """Who has an object, for one column."""
    if state.kind == "latch":
        return NOTHING if state.count is None else f"{state.count} to go" if state.count else "open"
    if state.kind == "semaphore":
        return NOTHING if state.free is None else f"{state.free} free"
    if state.kind == "permits":
        return (
            f"{state.owner_count} in use" if state.permits is None else f"{state.owner_count} of {state.permits} in use"
        )
    if state.owner_count == 1 and state.owners:
        return _one(state.owners[0])
    if not state.owner_count:
        return NOTHING
    readers = state.kind == "read-write" and all(owner.side == "read" for owner in state.owners)
    return f"{state.owner_count} {'readers' if readers else 'holders'}"


def _one(owner: Owner) -> str:
    return f"{who(owner)}, work done" if owner.kept else who(owner)


def lasts(state: State) -> str:
    """The TTL, for one column. A semaphore or a latch without one is usual, a lock without one is not."""
    if state.time_to_live == math.inf:
        return NOTHING if state.kind in ("semaphore", "permits", "latch") else "no lease"
    return duration(state.time_to_live)


def waiters(state: State) -> str:
    """The waiters, for one column. Only a fair lock knows each waiter; else it is known how many clients listen."""
    if state.waiter_count is not None:
        silent = sum(waiter.is_silent for waiter in state.waiters)
        living = str(state.waiter_count or NOTHING)
        return living if not silent else f"{silent} silent" if not state.waiter_count else f"{living}, {silent} silent"
    if not state.waiting_clients:
        return NOTHING
    return f"{state.waiting_clients} client{'s' if state.waiting_clients > 1 else ''}"


def as_json(value: object) -> str:
    """A state as one line of JSON: durations in seconds (null: no end, or not known), moments as ISO 8601."""
    return json.dumps(_plain(value))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if isinstance(value, State):
            # The name says the same as text.
            fields.pop("key")
        if isinstance(value, Owner):
            fields.pop("id")
        return {name: _plain(each) for name, each in fields.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
