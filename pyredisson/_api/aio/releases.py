"""Releases in asyncio, and how programs wait for losses. Written by hand: interrupts of threads need handling.

A cancelled task needs none of that here: a coroutine that has begun handles the cancellation in the logic, and one that
was cancelled before it began has released nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from pyredisson._api.aio.blocks import Enterable
from pyredisson._api.arguments import count_of, permit_ids_of
from pyredisson._backends.aio.operations import call_in
from pyredisson._backends.aio.wakeup import AioWakeup
from pyredisson.logic.groups.group import GroupHold, GroupLogic
from pyredisson.logic.holds import Hold
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic
from pyredisson.logic.permits.semaphore import SemaphoreLogic


class LockReleases(Enterable):
    __slots__ = ()

    _logic: LockLogic

    def unlock(self) -> Coroutine[Any, Any, None]:
        """Releases one hold.

        Raises `LockLostError` if the hold was lost, and `LockNotHeldError` if the calling task has no hold. Raises
        `ClosedError` if the client is closed, which has released all its holds. After any other error, as one of Redis,
        the release goes on in the background: don't repeat it.

        A release whose reply was lost is sent again. If the same server then doesn't know the last hold, the first copy
        has released it. If it is another server, or a restarted one, `LockLostError` is raised, although the first copy
        may have released the lock in time.
        """
        owner = self._owner()
        return self._logic.release(owner, self._logic.hold_of(owner.id))


class GroupReleases(Enterable):
    __slots__ = ()

    _logic: GroupLogic

    def unlock(self) -> Coroutine[Any, Any, None]:
        """Releases one hold of each member, also if the release of another member fails.

        Raises `LockLostError` if the group was lost, or is not held any more because members were released separately;
        `LockNotHeldError` if the calling task has no hold of it.
        """
        owner = self._owner()
        return self._logic.release(owner, self._logic.hold_of(owner.id))


def release_permits(logic: SemaphoreLogic, permits: int, *, only_existing: bool) -> Coroutine[Any, Any, bool]:
    """Releases permits of a semaphore. The result: whether the semaphore existed."""
    return logic.release(count_of(permits, "permits"), only_existing)


def release_permit_ids(
    logic: PermitExpirableSemaphoreLogic, permits: str | Iterable[str], *, must: bool
) -> Coroutine[Any, Any, int]:
    """Releases permits by their ids. The result: how many. `must`: raises if one of them is unknown or has ended."""
    return logic.release(permit_ids_of(permits), must)


async def wait_for_end(hold: Hold | GroupHold, seconds: float | None) -> None:
    """Waits until the hold has ended, lost or released, but at most so many seconds (None: no limit)."""
    loop = asyncio.get_running_loop()
    wakeup = AioWakeup()

    def hold_ended(_: object) -> None:
        call_in(loop, wakeup.set)

    hold.listen(hold_ended)
    try:
        await wakeup.wait(seconds)
    finally:
        hold.unlisten(hold_ended)
