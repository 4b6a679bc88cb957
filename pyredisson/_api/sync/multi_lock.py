"""The thread world's groups of locks: thin and typed over the logic."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from pyredisson._api.groups import Group, members_of
from pyredisson._api.sync.rlock import Lock, Lockable, Lost
from pyredisson._backends.threads.operations import run
from pyredisson._core import Run
from pyredisson.logic.groups.group import GroupHold, GroupLogic, GroupOwner
from pyredisson.logic.groups.multi_lock import MultiLockLogic
from pyredisson.logic.groups.red_lock import RedLockLogic
from pyredisson.logic.locks.rlock import LockLogic


class LockGroup(Group, Lockable):
    """Several locks as one. What has no meaning for a group raises `NotImplementedError`."""

    __slots__ = ("_locks", "_party")

    _logic: GroupLogic

    def __init__(self, logic: Callable[[Sequence[LockLogic]], GroupLogic], locks: Sequence[Lock]) -> None:
        self._locks = locks
        self._party = None
        self._logic = logic([lock._logic for lock in locks])
        # With one member whose owner is the thread, so is the group's.
        lead = next((lock for lock in locks if lock._given is None), locks[0])
        self._callers = lead._callers
        self._given = lead._given
        self._block = None

    def unlock(self) -> None:
        """Gives back one hold of each member, whatever happens to the others.

        Raises `LockLostError` if the group was lost meanwhile, `LockNotHeldError` if the calling thread has none.
        """
        logic = self._logic
        owner_of_group: GroupOwner | None = None
        hold: GroupHold | None = None
        try:
            owner_of_group = self._owner()
            hold = logic.hold_of(owner_of_group.id)
            _ = Run(logic.release, owner_of_group, hold).result
        except Exception:
            # The logic has seen to it.
            raise
        except BaseException:
            # Interrupted, perhaps before it came to the logic: nobody else would give these holds back.
            owner_of_group = owner_of_group or self._owner()
            logic.release_in_background(owner_of_group, hold or logic.hold_of(owner_of_group.id))
            raise

    def is_held(self) -> bool:
        """Whether the calling thread holds the group: the servers say so and no lease has ended by our clock."""
        return run(self._logic.is_held, self._owner())

    is_held_by_current_thread = is_held

    @property
    def lost(self) -> Lost:
        """Tells whether the calling thread's present hold is lost; may be given to other threads."""
        return Lost(self._logic.hold_of(self._owner().id), self._logic, self)

    def _owned_by(self, owner: GroupOwner) -> LockGroup:
        other = copy.copy(self)
        other._party = owner
        return other


class MultiLock(LockGroup):
    """Several locks as one, all or nothing; they may be of any kind, and of different clients.

    Everybody takes them in the same order, so that two who list them differently can't wait for each other.
    One that is not had within some seconds makes it give back the others, and start over: programs that take
    them one by one, or Java in its own order, may wait for these. A fixed lease counts from when all are had.
    It is lost when any of them is.
    """

    __slots__ = ()

    def __init__(self, locks: Sequence[Lock]) -> None:
        super().__init__(MultiLockLogic, members_of(locks, Lock))


class RedLock(LockGroup):
    """One lock on several independent masters, 3 or 5: held while a majority of its members is.

    A server that is down doesn't matter while a majority answers. All are asked at the same time; those
    that are slow get a tenth of the lease (or of `lock_watchdog_timeout`) altogether, less when the others have
    answered. It is had if of a majority of the leases something is left, by when they were asked for, and after
    taking off a hundredth and 2 ms for clocks that go wrong; and it is lost as soon as that is no longer so.
    `lock()` raises what the servers said when no majority answers; `try_lock` tries for as long as it has.
    """

    __slots__ = ()

    def __init__(self, locks: Sequence[Lock]) -> None:
        super().__init__(RedLockLogic, members_of(locks, Lock))
