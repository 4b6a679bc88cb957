"""Bugs that are planted in the library of a load's processes: what other locks got wrong. The judge must find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from typing import Any

from pyredisson._protocol import scripts
from pyredisson._protocol.pubsub import PubSub
from tests.logic.test_planted_bugs import IN_FUNCTIONS, IN_SCRIPTS, changed

OF_OTHERS = "HEXISTS', KEYS[1], ARGV[1]) == 0"
"""Whether somebody else holds the lock."""
ANYBODY = "HLEN', KEYS[1]) > 9"
LEASE = "redis.call('PEXPIRE', KEYS[1], ARGV[3])"
OVERLAP, LEFT = "no history of a lock", "permits of"
STAYS = r"not taken within|is left|nobody acquired"
BELIEF = ("holds.HoldTable.expire_if_due", "hold.valid_until - margin <= self._clock()", "False")
WRONG: dict[str, tuple[str, str, str, Any]] = {
    "a release checks no owner": (
        *("lock", "worker stops", f"{OVERLAP}|said to be"),
        ("lock_release", "HEXISTS', KEYS[1], ARGV[2]) == 1", "HLEN', KEYS[1]) > 0"),
    ),
    "anybody adds a level": ("lock", "slow", OVERLAP, ("lock_acquire", OF_OTHERS, ANYBODY)),
    "a writer enters beside readers": (
        *("read write", "slow", OVERLAP),
        ("write_acquire", OF_OTHERS, "HLEN', KEYS[1]) > 2"),
    ),
    "a reader enters beside a writer": (
        *("read write", "slow", OVERLAP),
        ("read_acquire", "HEXISTS', lock, ARGV[4]) == 0", "HLEN', lock) > 9"),
    ),
    "tokens repeat": (
        "fenced",
        "slow",
        OVERLAP,
        ("fenced_acquire", "{token}", "{token - token % 100000}"),
    ),
    "a permit too many": ("permit", "slow", OVERLAP, ("permit_acquire", "KEYS[1], wanted)", "KEYS[1], wanted - 1)")),
    "a lease of half the time": (
        *("lock", "worker stops", OVERLAP),
        ("lock_acquire", LEASE, LEASE.replace("ARGV[3]", "math.floor(ARGV[3] / 2)")),
    ),
    "a lock without a lease": (
        *("lock", "worker is killed", STAYS),
        ("lock_acquire", LEASE, "redis.call('PERSIST', KEYS[1])"),
    ),
    "a release adds permits twice": (
        *("semaphore", "reply", f"{OVERLAP}|{LEFT}"),
        IN_SCRIPTS["semaphore moving_semaphore: a release adds twice"],
    ),
    "permits that ended are lost": (
        *("permit", "worker", f"{LEFT}|{STAYS}"),
        IN_SCRIPTS["permits: those that ended are lost"],
    ),
    "a latch counts twice": ("latch", "reply", OVERLAP, IN_SCRIPTS["latch: it counts twice"]),
    "a hold is believed beyond its lease": ("lock", "worker stops", OVERLAP, [BELIEF]),
    "a grant after the end of its lease counts": (
        *("lock", "late reply", OVERLAP),
        [("locks.rlock.LockLogic._apply", "valid_until <= now and", "False and"), BELIEF],
    ),
    "a renewal extends nothing": (
        *("lock", "slow", OVERLAP),
        ("lock_renew", "redis.call('PEXPIRE', lock, ARGV[1])", "redis.call('PTTL', lock)"),
    ),
    "a failed group keeps some members": (
        *("lock multi", "slow", STAYS),
        IN_FUNCTIONS["multi: a failed group keeps members"],
    ),
}
"""What shows each bug (the kinds of locks, and the faults), what the judge says, and the change: of scripts, or of
functions, what stands there instead of what."""


def changes(bug: str) -> Iterator[tuple[object, str, Callable[..., Any]]]:
    """Owners and names of functions, and what runs in their place."""
    change = WRONG[bug][-1]
    if isinstance(change, list):
        for name, *how in change:
            path, _, function = f"pyredisson.logic.{name}".rpartition(".")
            owner = resolve_name(path)
            yield owner, function, changed(getattr(owner, function), *how) if len(how) == 2 else how[0]
        return
    names, right, wrong = (text if isinstance(text, str) else text.decode() for text in change)
    usual = scripts._text

    def text_of(name: str, pubsub: PubSub) -> str:
        text = usual(name, pubsub)
        return text.replace(right, wrong) if name in names.split() else text

    assert all(right in usual(name, PubSub.PLAIN) for name in names.split())
    yield scripts, "_text", text_of


def plant(bug: str) -> None:
    """In this process, before a client is made."""
    for owner, name, function in changes(bug):
        setattr(owner, name, function)
    scripts._scripts.cache_clear()
