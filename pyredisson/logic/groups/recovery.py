"""Acquires the members of a red lock again that were lost, while a majority of them is held."""

from __future__ import annotations

from collections.abc import Callable

from redis.exceptions import RedisError

from pyredisson._core import AcquireCall, ReleaseCall
from pyredisson._diagnostics import logger
from pyredisson.errors import RedissonError
from pyredisson.logic.groups.group import GroupHold, GroupLogic, GroupOwner
from pyredisson.logic.holds import HELD, LOST, Hold, RenewedLease
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.loops import log_exception
from pyredisson.logic.ports import Operation
from pyredisson.logic.renewer import ROUNDS_PER_LEASE
from pyredisson.logic.watchdog import Alarm


class MemberRecovery(Alarm):
    """Acquires again, where they are free, the members that one level of a red lock has lost, or never acquired.

    It looks as soon as a member is lost, and then as often as leases are renewed, until no member is missing or the
    level is not held any more. Members that the owner has released are left alone.

    Two things keep the lock from having a second owner. Before each acquire a majority of the servers confirms that
    they know the holds of this owner. And what is acquired after the level was lost doesn't count: it is released.
    """

    __slots__ = ("_group", "_hold", "_interval", "_lease", "_looks", "_owner", "_spawn")

    def __init__(self, group: GroupLogic, owner: GroupOwner, hold: GroupHold, lease: RenewedLease | None) -> None:
        """For a level whose leases the watchdogs renew. To be called by the thread or task that has acquired it."""
        # What is acquired later has no later end.
        self._lease = None if lease is None else lease.begin(min(held.begun for held in hold.holds if held is not None))
        self._group = group
        self._owner = owner
        self._hold = hold
        self._looks: dict[int, object] = {}
        """The members for which a look has begun and not ended."""
        self._spawn: Callable[[Operation], None] = group.session.runtime.spawner()
        self._interval = group.renewed_ms / ROUNDS_PER_LEASE / 1000

    def begin(self) -> None:
        """Looks from now on."""
        for hold in self._hold.holds:
            if hold is not None:
                hold.listen(self)
        if self._missing():
            self._look_in(self._interval)

    def end(self) -> None:
        """The level is about to be released. A look that has begun goes on, and releases what it acquires."""
        for hold in self._hold.holds:
            if hold is not None:
                hold.unlisten(self)
        self._group.session.watchdog.cancel(self)

    def __call__(self, hold: Hold) -> None:
        """A member's hold has ended. Called on any thread."""
        if not self._goes_on():
            # Also as the client was closed: the alarm would keep it alive.
            self._group.session.watchdog.cancel(self)
        elif hold.state is LOST:
            self._look_in(0.0)

    def ring(self) -> None:
        """Starts a look for each member that is missing."""
        if not self._goes_on() or not (missing := self._missing()):
            return
        # Before anything is started: that may fail.
        self._look_in(self._interval)
        for number in missing:
            self._spawn(self._look_for(number))

    def _look_in(self, seconds: float) -> None:
        self._group.session.watchdog.set_alarm(self, self._group.session.clock() + seconds)

    def _goes_on(self) -> bool:
        return self._group.session.groups.has(self._hold) and self._hold.state is HELD

    def _missing(self) -> list[int]:
        """The numbers of the members that were lost, or never acquired."""
        return [number for number, hold in enumerate(self._hold.holds) if hold is None or hold.state is LOST]

    def _look_for(self, number: int) -> Operation:
        """The operation that acquires a member, unless an earlier one for it has not ended yet."""
        member, owner = self._group.members[number], self._owner.owners[number]

        async def look() -> None:
            mark = object()
            # One step: several threads may look.
            if self._looks.setdefault(number, mark) is not mark:
                return
            try:
                if number not in self._missing() or self._has_other_losses(number, member, owner.id):
                    return
                if await self._group.is_held(self._owner):
                    # Only where it is free: for a holder it doesn't wait.
                    now = self._group.session.clock()
                    call = AcquireCall(owner, None if self._lease is None else self._lease.rest(now), now)
                    if await member._acquire(call):
                        self._count(number, member, call)
            except (RedissonError, RedisError) as error:
                logger.debug("a member of %s isn't acquired again yet: %s", self._group.named(self._owner), error)
            except Exception:  # noqa: BLE001
                # Any exception, for example of a credential provider: the next look is another try.
                log_exception("a member of a red lock could not be acquired again, and is tried again")
            finally:
                self._looks.pop(number, None)

        return look

    def _has_other_losses(self, number: int, member: LockLogic, owner_id: int) -> bool:
        """Whether the owner has lost levels of the member that are not part of this group.

        Their release has to report that. Above a new hold it would find that one.
        """
        levels = self._group.session.groups.levels(self._hold.key)
        ours = sum(level.holds[number] is not None and level.holds[number].state is LOST for level in levels)
        latest = member.hold_of(owner_id)
        lost = latest if latest is None or latest.state is LOST else latest.lost_below
        return lost is not None and lost.count > ours

    def _count(self, number: int, member: LockLogic, call: AcquireCall) -> None:
        """The member was acquired: it counts from now on, unless the level was lost or released meanwhile."""
        hold, before, release = call.hold, self._hold.holds[number], ReleaseCall()
        if not self._hold.replace(number, hold, release) or not self._goes_on():
            # Perhaps the release of the level has found it, too: the one `ReleaseCall` releases it once.
            member.release_in_background(call.owner, hold, release)
            return
        if before is not None and hold.lost_below is not None:
            # The level is released with the new hold, and no more with the lost one.
            member.session.holds.drop_level(hold.lost_below, ReleaseCall())
        hold.listen(self)
        logger.info("%s, a member of a group, was acquired again", member.named(call.owner))
