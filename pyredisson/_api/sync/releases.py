"""Releases that an interrupt can't prevent, and waits for losses. Written by hand: asyncio has no such interrupts.

A KeyboardInterrupt, or what else the handler of a signal raises, may strike after any call of a function, also before
the operation of the logic has begun, which otherwise handles it. The caller has then lost its only chance to release,
and does not know whether the release happened. So each release starts its `try` at its first statement. An interrupt
leaves the work to the client's threads (`release_in_background`), which does nothing for what was released already.

An interrupt at the very first instruction, before the `try`, counts as one before the call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from redis.exceptions import RedisError

from pyredisson._api.arguments import count_of, permit_ids_of
from pyredisson._api.sync.blocks import Enterable
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import ReleaseCall, Run
from pyredisson.errors import RedissonError
from pyredisson.logic.exactly_once import SessionSlot
from pyredisson.logic.groups.group import GroupHold, GroupLogic, GroupOwner
from pyredisson.logic.holds import Hold
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic
from pyredisson.logic.permits.semaphore import SemaphoreLogic

REPORTED = (RedissonError, RedisError, TypeError, ValueError)
"""What the logic and the checks of arguments raise: the release is finished, handed to the background, or refused.
Anything else may come from the handler of a signal."""


class LockReleases(Enterable):
    __slots__ = ()

    _logic: LockLogic

    def unlock(self) -> None:
        """Releases one hold.

        Raises `LockLostError` if the hold was lost, and `LockNotHeldError` if the calling thread has no hold. Raises
        `ClosedError` if the client is closed, which has released all its holds. After any other error, as one of Redis,
        the release goes on in the background: don't repeat it.

        A release whose reply was lost is sent again. If the same server then doesn't know the last hold, the first copy
        has released it. If it is another server, or a restarted one, `LockLostError` is raised, although the first copy
        may have released the lock in time.
        """
        logic = self._logic
        owner: Owner | None = None
        hold: Hold | None = None
        call: ReleaseCall | None = None
        try:
            call = ReleaseCall()
            owner = self._owner()
            # As `hold_of`, without its call: this is the hot path.
            hold = logic.session.holds.table.get((logic.identity, owner.id))
            _ = Run(logic.release, owner, hold, call).result
        except REPORTED:
            raise
        except BaseException:
            if owner is None or hold is None:
                owner = owner or self._owner()
                hold = logic.hold_of(owner.id)
            if hold is not None:
                logic.release_in_background(owner, hold, call or ReleaseCall())
            raise


class GroupReleases(Enterable):
    __slots__ = ()

    _logic: GroupLogic

    def unlock(self) -> None:
        """Releases one hold of each member, also if the release of another member fails.

        Raises `LockLostError` if the group was lost, or is not held any more because members were released separately;
        `LockNotHeldError` if the calling thread has no hold of it.
        """
        logic = self._logic
        owner: GroupOwner | None = None
        hold: GroupHold | None = None
        try:
            owner = self._owner()
            hold = logic.hold_of(owner.id)
            _ = Run(logic.release, owner, hold).result
        except REPORTED:
            raise
        except BaseException:
            owner = owner or self._owner()
            logic.release_in_background(owner, hold or logic.hold_of(owner.id))
            raise


def release_permits(logic: SemaphoreLogic, permits: int, *, only_existing: bool) -> bool:
    """Releases permits of a semaphore. Returns whether the semaphore existed."""
    slot: SessionSlot | None = None
    number = 0
    try:
        count = count_of(permits, "permits")
        slot = logic.session.slots.allocate()
        number = slot.number
        return Run(logic.release, count, only_existing, slot).result
    except REPORTED:
        raise
    except BaseException:
        logic.release_in_background(count_of(permits, "permits"), only_existing, slot, number)
        raise


def release_permit_ids(logic: PermitExpirableSemaphoreLogic, permits: str | Iterable[str], *, must: bool) -> int:
    """Releases permits by their ids. Returns how many. `must`: raises if one of them is unknown or has ended."""
    ids: list[bytes] | None = None
    try:
        ids = permit_ids_of(permits)
        return Run(logic.release, ids, must).result
    except REPORTED:
        raise
    except BaseException:
        logic.release_in_background(permit_ids_of(permits) if ids is None else ids)
        raise


def wait_for_end(hold: Hold | GroupHold, seconds: float | None, wakeup: ThreadWakeup | None = None) -> None:
    """Waits until the hold has ended, lost or released, but at most so many seconds (None: no limit).

    `wakeup`: a caller that sets it ends the wait.
    """
    wakeup = ThreadWakeup() if wakeup is None else wakeup

    def hold_ended(_: object) -> None:
        wakeup.set()

    hold.listen(hold_ended)
    try:
        wakeup.wait(threading.TIMEOUT_MAX if seconds is None else seconds)
    finally:
        hold.unlisten(hold_ended)
