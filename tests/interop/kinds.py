"""The kinds of locks, by the names that Java has for them, and their objects in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .jvm import now

REENTRANT = ("Lock", "FairLock", "FencedLock", "SpinLock", "ReadLock", "WriteLock")
NON_REENTRANT = ("NonReentrantLock", "NonReentrantFairLock")
PYTHON_NAMES = {
    "Lock": "get_lock",
    "FairLock": "get_fair_lock",
    "FencedLock": "get_fenced_lock",
    "SpinLock": "get_spin_lock",
    "NonReentrantLock": "get_non_reentrant_lock",
    "NonReentrantFairLock": "get_non_reentrant_fair_lock",
}
OLD = {"3.27.2"}
"""Versions without non-reentrant locks, which are new in 4.4."""
OVERSLEEPS = {("FairLock", "3.27.2")}
"""A waiter of a fair lock before 3.32 sleeps until a message comes if it looks at the lock once after the lease with
which it began to wait: the time that is left of it is negative, which means no limit."""
WOKEN = 2.0
"""Seconds within which a waiter that was woken by a message has the lock, also on a busy machine. Leases are 30 s."""


def kinds_of(version: str) -> tuple[str, ...]:
    """The kinds of locks that this version of Redisson has."""
    return REENTRANT if version in OLD else (*REENTRANT, *NON_REENTRANT)


def python_lock(client: Any, kind: str, name: str) -> Any:
    """The lock of that kind and name in Python."""
    if kind in {"ReadLock", "WriteLock"}:
        both = client.get_read_write_lock(name)
        return both.read_lock() if kind == "ReadLock" else both.write_lock()
    return getattr(client, PYTHON_NAMES[kind])(name)


def against(kind: str) -> str:
    """The kind of lock that excludes a holder of this one: a writer for a reader, else the same."""
    return "WriteLock" if kind == "ReadLock" else kind


def field_of(kind: str, owner: str) -> str:
    """The field in the lock's hash that stands for that owner."""
    return f"{owner}:write" if kind == "WriteLock" else owner


def acquired(lock: Any) -> Callable[[], Any]:
    """Work that acquires the lock, and returns when it had it; the lock is released at once."""

    async def work() -> float:
        await lock.lock()
        then = now()
        await lock.unlock()
        return then

    return work
