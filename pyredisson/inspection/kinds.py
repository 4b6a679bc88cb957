"""What kind of object a key is, by its content and its companion keys."""

from __future__ import annotations

from typing import NamedTuple

from pyredisson.inspection.model import Evidence, Kind
from pyredisson.inspection.raw import NO_TYPE, Raw, number_of

LOCK, READ_WRITE, SEMAPHORE, LATCH = range(4)
"""The places of the channels in `Raw.subscribed`."""

_ANNOUNCED: dict[str, Kind] = {
    "lock": "lock",
    "fair": "fair",
    "fenced": "fenced",
    "spin": "spin",
    "read": "read-write",
    "write": "read-write",
    "permit": "permits",
}
"""The kinds of holds that clients announce."""


class Recognized(NamedTuple):
    """The kind of an object, and why it is taken for that."""

    kind: Kind
    certain: bool
    why: str


def recognize(raw: Raw, evidence: Evidence | None, announced: str | None) -> Recognized:
    """The kind of an object.

    `evidence`: why the walk takes it for one; None: a user has named it, so it is taken for one more easily.
    `announced`: the kind that its holder has announced.
    """
    if raw.type == "hash":
        return _hash(raw, evidence, announced)
    if raw.type == "string" and raw.number is not None:
        return _counter(raw, evidence)
    if raw.type == NO_TYPE:
        return _absent(raw, evidence)
    what = "a string that is no number" if raw.type == "string" else f"a key of type {raw.type}"
    return Recognized("unknown", True, f"{what}: neither a lock nor another object")


def _hash(raw: Raw, evidence: Evidence | None, announced: str | None) -> Recognized:
    if raw.hash_class == "read-write":
        return Recognized("read-write", True, f"a hash with the mode {raw.mode}")
    if raw.hash_class == "group":
        return Recognized("group", True, "several locks of Redisson in one hash")
    if raw.hash_class == "lock" or (evidence is None and _may_be_a_lock(raw)):
        return _lock(raw, announced)
    if raw.hash_class == "rate-limiter":
        return Recognized("unknown", True, "a rate limiter of Redisson: not a lock")
    return Recognized("unknown", True, "a hash without owners: not a lock")


def _may_be_a_lock(raw: Raw) -> bool:
    """Whether the fields of a hash may be owners of other clients, whose ids aren't UUIDs."""
    return bool(raw.fields) and all(
        b":" in owner and (number_of(levels) or 0) > 0 for owner, levels in raw.fields.items()
    )


def _lock(raw: Raw, announced: str | None) -> Recognized:
    if announced in _ANNOUNCED:
        return Recognized(_ANNOUNCED[announced], True, "its holder has announced the kind")
    if raw.has(b"redisson_lock_queue", b"redisson_lock_timeout", b"pyredisson_fair_waiters"):
        return Recognized("fair", True, "it has a queue")
    if raw.has(b"redisson_lock_token"):
        return Recognized("fenced", False, "a counter of tokens exists, perhaps from an earlier use of the name")
    if raw.hash_class != "lock":
        return Recognized("lock", False, "a hash of owners, none of which has an id of Redisson or of this library")
    return Recognized("lock", False, "a fair lock without waiters, a spin lock or a member of a group looks the same")


def _counter(raw: Raw, evidence: Evidence | None) -> Recognized:
    if raw.in_use or raw.ended:
        return Recognized("permits", True, "its permits in use have ids")
    if evidence is Evidence.PERMITS:
        return Recognized("permits", True, "calls for its permits are remembered")
    if evidence is Evidence.LATCH:
        return Recognized("latch", True, "calls for it as a latch are remembered")
    if evidence is Evidence.SEMAPHORE or raw.has(b"pyredisson_semaphore_claim", b"pyredisson_semaphore_turn"):
        return Recognized("semaphore", True, "calls for its permits, or claims, are remembered")
    if raw.subscribed[LATCH] > 0:
        return Recognized("latch", False, "clients wait for messages of a latch of this name")
    if raw.subscribed[SEMAPHORE] > 0:
        return Recognized("semaphore", False, "clients wait for messages of a semaphore of this name")
    if evidence is Evidence.COUNTER:
        return Recognized("semaphore", False, "calls are remembered that may also be those for a latch")
    return Recognized("unknown", False, "a number: a semaphore or a latch, if it is one of ours")


def _absent(raw: Raw, evidence: Evidence | None) -> Recognized:
    if raw.has(b"redisson_lock_queue", b"pyredisson_fair_waiters"):
        return Recognized("fair", True, "a queue is left, or what its waiters have left")
    if raw.in_use or raw.ended:
        return Recognized("permits", True, "permits in use are left")
    if evidence is Evidence.LATCH:
        return Recognized("latch", True, "calls for it as a latch are remembered")
    if raw.subscribed[LATCH] > 0:
        return Recognized("latch", False, "clients wait for messages of a latch of this name")
    if raw.has(b"redisson_lock_token", b"pyredisson_fenced_newest"):
        return Recognized("fenced", False, "a counter of tokens is left")
    return Recognized("unknown", True, "there is no such key")
