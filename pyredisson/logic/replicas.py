"""What the replicas of a master have to confirm: which replies count, and the error of an acquire that fails."""

from __future__ import annotations

from collections.abc import Callable

from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.replication import NotConfirmed
from pyredisson.errors import NotReplicatedError
from pyredisson.logic.ports import Granted, Sender

Acquiring = Callable[[Granted], Sender]
"""Makes what sends acquires: as a runtime, but it raises `NotConfirmed` for an acquire that too few replicas have."""


def lock_granted(reply: Reply) -> bool:
    """Whether a lock was acquired. A list contains its fencing token."""
    return reply is None or reply.__class__ is list


def permits_granted(reply: Reply) -> bool:
    """Whether permits of a semaphore were acquired."""
    return reply.__class__ is int and reply > 0


def has_run(reply: Reply) -> bool:
    """Whether a call that changes a number of permits, or the count of a latch, has run."""
    return reply.__class__ is int


def expirable_permits_granted(reply: Reply) -> bool:
    """Whether permits with ids were acquired."""
    return reply is None


def not_replicated(what: str, problem: NotConfirmed) -> NotReplicatedError:
    """The error for an acquire of `what`, which was undone."""
    return NotReplicatedError(f"{what} was acquired and released again: {problem}")
