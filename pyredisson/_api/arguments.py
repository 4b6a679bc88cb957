"""Checks and converts what a user passes: names, durations, counts, permit ids. Nothing is sent before that."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from threading import TIMEOUT_MAX
from typing import TypedDict

from pyredisson._backends.runtime import clock
from pyredisson._core import parts_on_cluster
from pyredisson._diagnostics import readable
from pyredisson._settings.durations import Duration, lease_ms, seconds
from pyredisson.logic.holds import RenewedLease
from pyredisson.logic.permits.commands import ID_BYTES, MOST_AT_ONCE
from pyredisson.logic.retry import LIMITED_BY_RETRIES
from pyredisson.owners import AnyOwner

MAX_PERMITS = 2**31 - 1
"""The largest `int` of Java, which is Redisson's type for permits."""

PERMIT_ID = re.compile(f"[0-9A-Fa-f]{{{2 * ID_BYTES}}}")
Name = str | bytes


class LockOptions(TypedDict, total=False):
    """What each method of a client takes that makes a lock; see `get_lock`."""

    owner: AnyOwner | None
    watchdog_timeout: Duration | None


def key_of(name: Name, mapper: Callable[[str], str] | None, on_cluster: bool = False) -> bytes:
    """The key on the server for a name, after the user's `name_mapper`.

    `TypeError` if the name or the mapper's result has another type; `ValueError` if it is empty, if it has no form in
    UTF-8, if bytes that must be mapped aren't UTF-8, or if the name can't be used on a cluster.
    """
    if not isinstance(name, (str, bytes)):
        raise TypeError(f"a name must be str or bytes, not {type(name).__name__}")
    if mapper is not None:
        try:
            text = name if isinstance(name, str) else name.decode()
        except UnicodeDecodeError as error:
            reason = f"isn't UTF-8 (position {error.start}), so the name_mapper can't be given its text"
            raise ValueError(f"the name {name!r} {reason}") from None
        name = mapper(text)
        if not isinstance(name, str):
            raise TypeError(f"name_mapper must return str, not {type(name).__name__}")
    if not name:
        raise ValueError("a name must not be empty")
    try:
        key = name.encode() if isinstance(name, str) else name
    except UnicodeEncodeError as error:
        # Half of a surrogate pair, as Python makes it of a byte that isn't UTF-8 in a file's name or an argument.
        raise ValueError(f"the name {name!r} can't be encoded as UTF-8 (position {error.start})") from None
    if on_cluster and parts_on_cluster(key):
        # Redisson acquires such a lock, but can't release it: its script has keys of two slots.
        raise ValueError(
            f"the name {readable(key)!r} can't be used on a cluster: its braces would put the keys that belong to it"
            " into different slots. Braces can only be a hash tag, as in '{orders}:1'"
        )
    return key


def lease_of(lease_time: Duration | None) -> int | None:
    """A lease in milliseconds; None: the watchdog renews it."""
    return None if lease_time is None else lease_ms(lease_time)


def renewed_lease_of(renewed: int, lease_time: Duration | None, at_most: Duration | None) -> int | None:
    """As `lease_of`; with `at_most` a lease of `renewed` ms that is renewed for so long. `ValueError` for both."""
    if at_most is None:
        return lease_of(lease_time)
    if lease_time is not None:
        raise ValueError("at_most is for a lock that is renewed, so without a lease_time")
    return RenewedLease(renewed, lease_ms(at_most, "at_most"))


def wait_of(wait: Duration | None, name: str) -> float | None:
    """A limit on waiting, in seconds; None for None and for infinity: no limit. `name` is the argument's name."""
    limit = None if wait is None else seconds(wait, name, allow_inf=True)
    return None if limit == math.inf else limit


def deadline_of(wait: Duration | None, name: str) -> float | None:
    """The deadline of a wait that begins now; None: no deadline. `name` is the argument's name."""
    return deadline_after(wait_of(wait, name))


def deadline_after(wait: float | None) -> float | None:
    """The deadline of a wait of so many seconds that begins now; None: no deadline. Of 0 it is `LIMITED_BY_RETRIES`."""
    if not wait:
        return None if wait is None else LIMITED_BY_RETRIES
    return clock() + wait


def deadline_of_acquire(blocking: bool, timeout: Duration) -> float | None:
    """The deadline of `acquire(blocking, timeout)`, by the rules of `threading.Lock.acquire`."""
    if not blocking:
        if timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        return LIMITED_BY_RETRIES
    if timeout == -1:
        return None
    # `threading` refuses None and infinity here, so they aren't "no limit", as they are elsewhere.
    limit = seconds(timeout, "timeout", allow_inf=True)
    if limit > TIMEOUT_MAX:
        raise OverflowError(f"timeout must be at most {TIMEOUT_MAX:g} s (threading.TIMEOUT_MAX), not {limit:g} s")
    return deadline_after(limit)


def count_of(value: int, name: str, maximum: int = MAX_PERMITS) -> int:
    """A number of permits, or another count. `TypeError` if it is no int; `ValueError` below 0 or above `maximum`."""
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 0 <= value <= maximum:
        raise ValueError(f"{name} must be in 0 .. {maximum}, not {value}")
    return value


def permit_id_of(permit: object) -> bytes:
    """A permit's id in the server's form. `TypeError` if it is no str; `ValueError` if it isn't 32 hex digits."""
    if not isinstance(permit, str):
        raise TypeError(f"a permit's id must be str, not {type(permit).__name__}")
    if not PERMIT_ID.fullmatch(permit):
        raise ValueError(f"a permit's id must be {2 * ID_BYTES} hex digits, not {permit!r}")
    return bytes.fromhex(permit)


def permit_ids_of(permits: str | Iterable[str]) -> list[bytes]:
    """One permit id, or several, in the server's form. Errors as for one; `ValueError` for duplicates or too many."""
    several = isinstance(permits, Iterable) and not isinstance(permits, (str, bytes))
    ids = list(map(permit_id_of, permits)) if several else [permit_id_of(permits)]
    if len(set(ids)) < len(ids):
        raise ValueError("a permit's id was given twice")
    if len(ids) > MOST_AT_ONCE:
        raise ValueError(f"more than {MOST_AT_ONCE} permits at once")
    return ids


def permit_lease_of(lease_time: Duration | None, renew: bool) -> int | None:
    """A lease of permits in milliseconds; None: endless, or renewed. `ValueError` for a `lease_time` with `renew`."""
    if renew and lease_time is not None:
        raise ValueError("renew=True is for permits without a lease_time")
    return lease_of(lease_time)


def package_of(kind: type) -> str:
    """The package from which users import this public class."""
    return "pyredisson.asyncio" if kind.__module__.startswith("pyredisson._api.aio.") else "pyredisson"
