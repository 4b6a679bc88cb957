"""The holder of a lock, as the server knows it."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pyredisson._diagnostics import printable, readable
from pyredisson.identity import Identity, connection_name
from pyredisson.owners import FIRST_AUTOMATIC_ID

ENDLESS = -1
"""The reply of PTTL for a key without a time to live."""
KEPT = "kept"
"""What the name of an owner ends with whose lock is kept for a minimum time after it was released."""
ANNOUNCED = (b"name", b"host", b"pid", b"program", b"version")
"""The fields of a client's announcement that say who it is."""
MOST_DIGITS = 20
"""Of an owner's id or a process id that somebody has written."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock at the moment when the server was asked. A field that isn't known is None."""

    client_id: str | None = None
    """The `id` of the holder's client, in Python or in Java."""
    client_name: str | None = None
    """The `client_name` of that client, by default `program@host:pid`."""
    host: str | None = None
    """The name of the machine on which the holder's process runs."""
    pid: int | None = None
    """The id of that process."""
    owner_id: int | None = None
    """The id of the owner within that client: of a thread, a task or an explicit owner."""
    since: datetime | None = None
    """When the hold began, in UTC. Known once it has lived for a second or two."""
    time_to_live: float | None = None
    """Seconds until the server frees the lock, unless it is renewed or released before; `math.inf`: it has no lease."""
    foreign: bool | None = None
    """Whether another library holds the lock, such as Redisson in Java. None: not known."""
    program: str | None = None
    """The program that runs in that process."""
    version: str | None = None
    """The version of pyredisson there."""
    kept: bool = False
    """Whether the lock was released, and is only kept for a minimum time."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """One that waits for a lock, as the servers know it. A field that isn't known is None."""

    place: int | None = None
    """In the queue of a fair lock: 1 is the next one. None: there is no queue."""
    side: Literal["read", "write"] | None = None
    """Of a read-write lock."""
    client_id: str | None = None
    client_name: str | None = None
    host: str | None = None
    pid: int | None = None
    owner_id: int | None = None
    since: datetime | None = None
    """When the wait began, in UTC."""
    foreign: bool | None = None
    program: str | None = None
    version: str | None = None
    """These fields are the same as of a `Holder`."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What one owner of this client holds, as `client.holds()` returns it."""

    name: str
    """The name on the server, after `name_mapper`."""
    kind: str
    """`lock`, `fair`, `fenced`, `spin`, `read`, `write`; `permit`: a permit that is renewed."""
    owner_id: int | None
    """The id of the owner within the client. None: a permit, which has no owner."""
    since: datetime
    """When the hold began, in UTC."""
    levels: int
    """How often it was acquired and not released."""
    token: int | None
    """The fencing token of the latest acquire. None: the lock has none."""
    valid_for: float
    """Seconds for which it may be relied on without a further renewal; 0.0 if it is lost."""
    renewed: bool
    """Whether the watchdog renews its lease."""
    lost: bool
    """Whether it is lost, and was not released yet."""


def holder_of(field: bytes, ttl: int) -> Holder:
    """The holder behind a field of a lock's hash, `client:id...`. `ttl` is the reply of PTTL for the hash."""
    client_id, _, rest = readable(field).partition(":")
    number, _, suffix = rest.partition(":")
    number = number.partition(".")[0]
    seconds = seconds_of(ttl)
    if not (client_id and _is_number(number)):
        return Holder(time_to_live=seconds)
    owner_id = int(number)
    # Redisson uses the ids of Java's threads. They are small, as the ids of explicit owners may be.
    foreign = False if owner_id >= FIRST_AUTOMATIC_ID else None
    kept = suffix.rpartition(":")[2] == KEPT
    return Holder(client_id=client_id, owner_id=owner_id, time_to_live=seconds, foreign=foreign, kept=kept)


def seconds_of(ttl: int) -> float:
    return math.inf if ttl == ENDLESS else max(ttl, 0) / 1000


def with_announcement(holder: Holder, values: Sequence[bytes | None]) -> Holder:
    """The holder with what its client has announced: the values of `ANNOUNCED`, and the moment when its hold began."""
    if values[0] is None:
        # A client that announces nothing, with ids as Java's threads have them.
        if holder.foreign is None and holder.client_id is not None and _UUID.fullmatch(holder.client_id):
            return dataclasses.replace(holder, foreign=True)
        return holder
    name, host, pid, program, version, _ = (None if value is None else printable(readable(value)) for value in values)
    number = int(pid) if pid is not None and _is_number(pid) else None
    since = moment_of((values[-1] or b"").partition(b" ")[0])
    return dataclasses.replace(
        holder, client_name=name, host=host, pid=number, program=program, version=version, since=since, foreign=False
    )


def who(holder: Holder, field: bytes) -> str:
    """The holder for a message. `field` is its name on the server."""
    if holder.host is not None:
        where = f"{holder.host} (pid {holder.pid})"
        usual = connection_name(Identity(holder.program or "", holder.host, holder.pid or 0))
        return where if holder.client_name in (None, usual) else f"{holder.client_name} on {where}"
    if holder.foreign:
        return f"a client of Redisson ({holder.client_id}, thread {holder.owner_id})"
    return printable(readable(field))


def for_how_long(holder: Holder) -> str:
    """The words of a message for its time to live."""
    if holder.time_to_live == math.inf:
        return "which never expires"
    return f"free in {holder.time_to_live:.1f} s at the latest, unless that is extended"


def _is_number(text: str) -> bool:
    """Whether it is one that Python takes: anybody may write these keys, and thousands of digits raise `ValueError`."""
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def moment_of(value: bytes) -> datetime | None:
    """A moment from ms since the epoch; None for what isn't a moment: anybody may write that key."""
    with contextlib.suppress(OverflowError, OSError, ValueError):
        return datetime.fromtimestamp(int(value) / 1000, UTC) if value.isdigit() else None
    return None
