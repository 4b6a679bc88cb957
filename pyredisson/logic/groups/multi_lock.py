"""Several locks as one, all or nothing: taken in one order, given back in the other."""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import RedisError

from pyredisson._diagnostics import logger
from pyredisson._protocol.error_codes import is_transient
from pyredisson.errors import LockLostError, RedissonError
from pyredisson.logic.groups.group import GroupHold, GroupLogic, GroupOwner, MemberRelease
from pyredisson.logic.locks.rlock import LockLogic

PATIENCE = 1.5
"""Seconds, for each member, to wait for the others with some in hand: who takes them in another order waits for us."""
PAUSE = 0.1
"""Seconds, at most, between giving back and starting over; random, so that two who met don't meet again."""
SHORT = 0.05
"""The part of a fixed lease that may be over when the last member is had."""


class MultiLockLogic(GroupLogic):
    """Held while all members are."""

    __slots__ = ()

    kind = "multi-lock"

    def __init__(self, members: Sequence[LockLogic]) -> None:
        super().__init__(members, len(members))

    async def acquire(self, owner_of_group: GroupOwner, lease: int | None, deadline: float | None) -> bool:
        """Takes all members before `deadline` (None: however long it takes). False: none was taken, or not in time.

        The lease is in ms, of each member and from the moment when all are had; None: the watchdogs renew it.
        """
        session = self.session
        while True:
            try:
                if await self._round(owner_of_group, lease, deadline):
                    return True
            except RedisError as error:
                # The first member's time is the caller's own, that of the others is shorter.
                over = deadline is not None and session.clock() >= deadline
                if over or not is_transient(error):
                    raise
            pause = PAUSE * session.runtime.jitter()
            if deadline is not None:
                left = deadline - session.clock()
                if left <= 0:
                    return False
                pause = min(pause, left)
            await session.runtime.sleep(pause)

    async def _round(self, owner_of_group: GroupOwner, lease: int | None, deadline: float | None) -> bool:
        """One go at the members. False: one wasn't had, and none is held."""
        taken = [False] * len(self.members)
        member_releases: list[MemberRelease] = []
        hold: GroupHold | None = None
        try:
            if await self._collect(owner_of_group, lease, deadline, taken):
                hold = GroupHold(self, owner_of_group, taken)
                if not self.expire_if_due(hold):
                    self.keep(hold)
                    self.watch(hold)
                    return True
            member_releases = self.taken(owner_of_group, taken)
            for member_release in member_releases:
                await _put_back(member_release)
            return False
        except BaseException:
            member_releases = member_releases or self.taken(owner_of_group, taken)
            if hold is not None:
                self.drop(hold)
            for member_release in member_releases:
                member_release.release_in_background()
            raise

    async def _collect(
        self, owner_of_group: GroupOwner, lease: int | None, deadline: float | None, taken: list[bool]
    ) -> bool:
        clock = self.session.clock
        # Half a lease at most, or it would end for the first while the last is waited for.
        patience = PATIENCE * len(self.members)
        if lease is not None:
            patience = min(patience, lease / 2000)
        until = deadline
        for i, (member, owner) in enumerate(zip(self.members, owner_of_group.owners, strict=True)):
            if i == 1:
                # Nobody waits for the one who has nothing: the first is waited for as long as it takes.
                bound = clock() + patience
                until = bound if deadline is None else min(deadline, bound)
            taken[i] = await member.acquire(owner, lease, until)
            if not taken[i]:
                return False
        if lease is not None:
            for member, owner in zip(self.members, owner_of_group.owners, strict=True):
                hold = member.hold_of(owner.id)
                if hold is not None and hold.valid_until - clock() < (1 - SHORT) * lease / 1000:
                    await member.extend(owner, hold, lease)
        return True

    async def release(self, owner_of_group: GroupOwner, hold: GroupHold | None) -> None:
        """Gives back one hold of each member, whatever happens to others; raises `LockLostError` if any was lost.

        If that is known before, the others are given back in the background.
        """
        members = list(zip(self.members, owner_of_group.owners, strict=True))[::-1]
        member_releases = (
            {}
            if hold is None
            else {
                member_release.member: member_release for member_release in self.member_releases(owner_of_group, hold)
            }
        )
        errors: list[Exception] = []
        try:
            if hold is not None:
                self.drop(hold)
                if self.expire_if_due(hold):
                    for taken in member_releases.values():
                        taken.release_in_background()
                    raise self.loss_of(owner_of_group, hold)
            for member, owner in members:
                member_release = member_releases.get(member)
                try:
                    if member_release is None:
                        await member.release(owner, member.hold_of(owner.id))
                    else:
                        await member.release(owner, member_release.hold, member_release.level)
                except (RedissonError, RedisError) as error:
                    errors.append(error)
        except BaseException:
            for member_release in member_releases.values():
                member_release.release_in_background()
            raise
        if errors:
            raise _foremost(errors)

    async def is_held(self, owner_of_group: GroupOwner) -> bool:
        """Whether all are held, as the servers and the local clock say."""
        for member, owner in zip(self.members, owner_of_group.owners, strict=True):
            if not await member.hold_count(owner.id):
                return False
        return True


async def _put_back(member_release: MemberRelease) -> None:
    try:
        await member_release.member.release(member_release.owner, member_release.hold, member_release.level)
    except (RedissonError, RedisError) as error:
        # It was lost, or the server will hear of it in the background: nobody has believed to hold it yet.
        logger.info("giving back one of several locks: %s", error)


def _foremost(errors: list[Exception]) -> Exception:
    """The one to raise, with the others in its notes: that a lock was lost matters more than why one isn't free."""
    first = next((error for error in errors if isinstance(error, LockLostError)), errors[0])
    for error in errors:
        if error is not first:
            first.add_note(f"and {type(error).__name__}: {error}")
    return first
