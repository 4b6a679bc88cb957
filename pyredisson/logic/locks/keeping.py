"""Locks that stay locked for a minimum time, however short the work under them was.

Clocks differ between machines. A job that takes a second would run again on a machine whose clock is two seconds late,
if the lock were free by then. So the release of such a lock is a command by which the server keeps it for the rest of
the time (`lock_keep.lua`). It takes the place of the release everywhere: in the foreground, in the background, and when
the client is closed. From the beginning the lease is that long, so the time holds also if the process is killed.
"""

import math

from pyredisson._core import AcquireCall, ReleaseCall, pack
from pyredisson.logic.holds import Hold, HoldKey
from pyredisson.logic.locks import hand_over
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.logic.locks.fair_lock import FairLockCommands, FairLockLogic
from pyredisson.logic.locks.fenced_lock import FencedLockCommands, FencedLockLogic
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner
from pyredisson.logic.session import Session


class KeepingCommands(LockCommands):
    """The commands of a lock that is kept for `at_least` ms from its acquire on.

    Without `__slots__`: the commands of other kinds, which have slots of their own, are combined with it.
    """

    at_least = 0
    keep_until = 0.0
    """The reading of the clock until which the lock is kept; 0.0: the next release frees it at once."""

    def acquire(self, owner: bytes, count: int, lease: int, *, waits: bool, member: bytes = b"") -> bytes:
        # A nested acquire doesn't begin the time again.
        lease = max(lease, self.at_least) if count == 1 else lease
        return super().acquire(owner, count, lease, waits=waits, member=member)

    def release(self, owner: bytes, count: int, *, late: bool = False) -> bytes:
        rest = math.ceil((self.keep_until - self.session.clock()) * 1000) if self.keep_until and not count else 0
        if rest <= 0:
            return super().release(owner, count, late=late)
        if self.session.announcement is not None:
            self.session.announcement.stay_until(self.keep_until)
        # Each waiter for a fair lock has a channel of its own. Its client's heartbeats find out when the lock is free.
        words = (self.channel if self.has_list else b"", owner, rest, *self._waking, int(late))
        return pack(self.session.runtime.scripts.lock_keep, self.key, *self.list_keys, *words)


class KeepingFencedCommands(KeepingCommands, FencedLockCommands):
    """The same with fencing tokens."""


class KeepingFairCommands(KeepingCommands, FairLockCommands):
    """The same with a queue."""


class KeepingLock(LockLogic):
    """A lock that nobody acquires before `at_least` ms have passed since it was acquired."""

    __slots__ = ()

    commands_type = KeepingCommands
    commands: KeepingCommands

    def __init__(self, session: Session, key: bytes, at_least: int) -> None:
        super().__init__(session, key)
        self.commands.at_least = at_least

    def record(self, call: AcquireCall, hold_key: HoldKey, valid_until: float) -> bool:
        if not super().record(call, hold_key, valid_until):
            return False
        if call.target is None:
            # From the reply on, not from the sending: the server has granted the lock in between.
            self.commands.keep_until = self.session.clock() + self.commands.at_least / 1000
        return True

    async def hand_off(self, owner: Owner, hold: Hold | None, name: str | bytes | None) -> str:
        raise NotImplementedError("a lock with at_least can't be handed off: it would not be kept for that time")

    def choose_successor(self, releaser: ReleaseCall) -> None:
        """Nobody: a hand-over would leave out the time for which the lock is kept."""
        hand_over.forget_if_idle(self.session, self.identity)


class KeepingFencedLock(KeepingLock, FencedLockLogic):
    __slots__ = ()

    commands_type = KeepingFencedCommands
    commands: KeepingFencedCommands


class KeepingFairLock(KeepingLock, FairLockLogic):
    __slots__ = ()

    commands_type = KeepingFairCommands
    commands: KeepingFairCommands
