"""How both faces read what a user typed: names, owners, durations; nothing is sent before it was checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from pyredisson._diagnostics import readable
from pyredisson._settings.durations import Duration, lease_ms, seconds
from pyredisson.errors import LockTimeoutError
from pyredisson.logic.holds import Owner
from pyredisson.logic.permits.expirable_acquire import ID_BYTES, MOST_AT_ONCE
from pyredisson.logic.retry import NO_WAIT
from pyredisson.logic.session import Session
from pyredisson.owners import FIRST_AUTOMATIC_ID, AnyOwner, id_of_owner

MOST_PERMITS = 2**31 - 1
"""What fits Java's `int`."""
MOST_CALLS = 2**63 - 1
"""What fits Java's `long`, and the server's integers."""

Name = str | bytes
Clock = Callable[[], float]


def key_of(name: Name, mapper: Callable[[str], str] | None) -> bytes:
    """A name as the server knows it. `TypeError`, `ValueError` (empty, or not UTF-8 text where it is mapped)."""
    if not isinstance(name, (str, bytes)):
        raise TypeError(f"a name must be str or bytes, not {type(name).__name__}")
    if mapper is not None:
        name = mapper(name if isinstance(name, str) else name.decode())
        if not isinstance(name, str):
            raise TypeError(f"name_mapper must return str, not {type(name).__name__}")
    if not name:
        raise ValueError("a name must not be empty")
    return name.encode() if isinstance(name, str) else name


def given_name(name: Name, mapper: Callable[[str], str] | None) -> Name | None:
    """The name, where it can't be told from the key; a million locks need not keep it twice."""
    return name if mapper is not None or isinstance(name, bytes) else None


def explicit_owner(session: Session, owner: AnyOwner | None) -> Owner | None:
    """The owner that a user gave, in one client; None: the calling thread or task. `TypeError`, `ValueError`."""
    if owner is None:
        return None
    owner_id = id_of_owner(owner)
    if type(owner) is int and owner >= FIRST_AUTOMATIC_ID:
        raise ValueError(f"an int for owner must be in 0 .. 2**32 - 1, not {owner}")
    return session.explicit_owner(owner_id)


def lease_of(lease_time: Duration | None) -> int | None:
    """A lease in ms; None: renewed by the watchdog."""
    return None if lease_time is None else lease_ms(lease_time)


def wait_of(wait: Duration | None, name: str) -> float | None:
    """A bound on waiting in seconds; None, or infinite: none."""
    bound = None if wait is None else seconds(wait, name, allow_inf=True)
    return None if bound == math.inf else bound


def deadline_of(wait: Duration, name: str, clock: Clock) -> float | None:
    """The one deadline that a bound on waiting stands for; None: an infinite one."""
    return deadline_after(wait_of(wait, name), clock)


def deadline_after(bound: float | None, clock: Clock) -> float | None:
    """The deadline of one who waits so many seconds from now on at most; None: for ever."""
    if not bound:
        return None if bound is None else NO_WAIT
    return clock() + bound


def timeout_of(blocking: bool, timeout: Duration, clock: Clock) -> float | None:
    """The deadline of `acquire(blocking, timeout)`, with the rules of `threading.Lock`."""
    if not blocking:
        if timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        return NO_WAIT
    if timeout == -1:
        return None
    # None is no bound here: threading refuses it, too.
    bound = seconds(timeout, "timeout", allow_inf=True)
    return deadline_after(None if bound == math.inf else bound, clock)


def count_of(value: int, name: str, most: int = MOST_PERMITS) -> int:
    """A number of permits, or what else is counted. `TypeError`; `ValueError` below zero and above `most`."""
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 0 <= value <= most:
        raise ValueError(f"{name} must be in 0 .. {most}, not {value}")
    return value


def id_of(permit: object) -> bytes:
    """A permit's id as the server has it. `TypeError`, `ValueError` (not 32 hex digits)."""
    if not isinstance(permit, str):
        raise TypeError(f"a permit's id must be str, not {type(permit).__name__}")
    try:
        found = bytes.fromhex(permit)
    except ValueError:
        found = b""
    # `fromhex` takes blanks, too.
    if len(found) != ID_BYTES or len(permit) != 2 * ID_BYTES:
        raise ValueError(f"a permit's id must be {2 * ID_BYTES} hex digits, not {permit!r}")
    return found


def ids_of(permits: str | Iterable[str]) -> list[bytes]:
    """One id, or several. `TypeError`, `ValueError` (also for one that is named twice, and for too many)."""
    ids = [id_of(permits)] if isinstance(permits, str) else list(map(id_of, permits))
    if len(set(ids)) < len(ids):
        raise ValueError("a permit's id was given twice")
    if len(ids) > MOST_AT_ONCE:
        raise ValueError(f"more than {MOST_AT_ONCE} permits at once")
    return ids


def lease_of_permits(lease_time: Duration | None, renewed: bool) -> int | None:
    """A lease in ms; None: endless, or renewed. `ValueError` for a lease that is both given and renewed."""
    if renewed and lease_time is not None:
        raise ValueError("renew=True is for permits without a lease_time")
    return lease_of(lease_time)


def permit_timeout(key: bytes, wait: float | None) -> LockTimeoutError:
    """No permit was acquired in so many seconds."""
    name = readable(key)
    return LockTimeoutError(f"no permit of semaphore {name!r} was acquired in {wait or 0.0:g} s", name=name)


def package_of(kind: type) -> str:
    """Where a user imports this public class from, for texts."""
    return "pyredisson.asyncio" if kind.__module__.startswith("pyredisson._api.aio.") else "pyredisson"


def lost_shown(lost: Any) -> str:
    """The text of a `Lost`: its lock, and what has become of the hold, without asking the server."""
    hold = lost._hold
    state = "no hold" if hold is None else "lost" if lost.is_set() else hold.state.value
    return f"<{package_of(type(lost))}.Lost of {lost._lock!r}: {state}>"


def hold_shown(holding: Any, wait: float | None, lease: int | None) -> str:
    """The text of what `hold` gives: its lock, and for how long it waits for it and keeps it."""
    waits = "waits without end" if wait is None else f"waits {wait:g} s"
    leased = "renewed" if lease is None else f"lease {lease / 1000:g} s"
    return f"<{package_of(type(holding))}.Holding of {holding._lock!r}: {waits}, {leased}>"


def attach(error: BaseException, failure: BaseException) -> None:
    """Tells of `failure` in a note to the exception that is on its way already."""
    error.add_note(f"and while giving it back: {type(failure).__name__}: {failure}")
