"""Groups of locks for asyncio: `MultiLock` and `RedLock`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pyredisson._api.aio.releases import GroupReleases
from pyredisson._api.aio.rlock import Lock, Lockable, Lost
from pyredisson._api.groups import Group, members_of
from pyredisson.logic.groups.group import GroupLogic
from pyredisson.logic.groups.multi_lock import MultiLockLogic
from pyredisson.logic.groups.red_lock import RedLockLogic
from pyredisson.logic.locks.rlock import LockLogic


class LockGroup(Group, GroupReleases, Lockable):
    """Several locks as one. A method that makes no sense for a group raises `NotImplementedError`."""

    __slots__ = ("_locks",)

    _logic: GroupLogic

    def __init__(self, logic: Callable[[Sequence[LockLogic]], GroupLogic], locks: Sequence[Lock]) -> None:
        self._locks = locks
        self._group_owner = None
        self._logic = logic([lock._logic for lock in locks])
        # The owner of the group is the calling task as soon as that is so for one member.
        first = next((lock for lock in locks if lock._explicit_owner is None), locks[0])
        self._callers = first._callers
        self._explicit_owner = first._explicit_owner
        self._blocks = None

    def is_held(self) -> Coroutine[Any, Any, bool]:
        """Whether the calling task holds the group, as the servers say and the local clock confirms."""
        return self._logic.is_held(self._owner())

    is_held_by_current_thread = is_held

    @property
    def lost(self) -> Lost:
        """Whether the calling task's present hold is lost, as an object that may be passed to other tasks."""
        return Lost(self._logic.hold_of(self._owner().id), self._logic, self)


class MultiLock(LockGroup):
    """Several locks as one, all or none of them. They may be of any kind, and of different clients.

    Every program acquires them in the same order, so two programs that list them in different orders don't wait for
    each other for ever. A member that isn't acquired within some seconds makes the group release the others and start
    again: programs that acquire the same locks one by one, and Java's MultiLock, use other orders. A fixed lease begins
    when all members are acquired. The group is lost when any member is lost.
    """

    __slots__ = ()

    def __init__(self, locks: Sequence[Lock]) -> None:
        super().__init__(MultiLockLogic, members_of(locks, Lock))


class RedLock(LockGroup):
    """One lock on several independent masters, usually 3 or 5. It is held while a majority of its members is held.

    This is the Redlock algorithm of the Redis documentation. All members are asked at the same time, so a server that
    is down doesn't matter while a majority answers. Slow servers get a tenth of the lease (or of
    `lock_watchdog_timeout`), and less once enough others have answered. The lock is acquired if a majority of the
    leases isn't over, counted from when they were asked for, after subtracting 1 % of the lease and 2 ms, as the
    servers' clocks may run at different speeds. It is lost as soon as that is true of no majority any more.

    `lock()` raises an error of a server if no majority answers; `try_lock` tries again until its time is over.
    """

    __slots__ = ()

    def __init__(self, locks: Sequence[Lock]) -> None:
        super().__init__(RedLockLogic, members_of(locks, Lock))
