"""The multi-lock: several locks as one, all of them or none.

The model is Redisson's `RedissonMultiLock`. The members are acquired one after the other, and released again if one of
them isn't acquired in time. A fixed lease begins when all members are acquired. Redisson acquires the members as they
are listed; here all programs begin with the same order (`Group` in the API), so that no two of them wait for
each other. For the same reason members on different nodes of a cluster are released in parallel, but not acquired.
"""

from collections.abc import Hashable, Iterable, Sequence
from functools import partial

from redis.exceptions import RedisError, TryAgainError

from pyredisson._core import ReleaseCall
from pyredisson._diagnostics import logger
from pyredisson._protocol.replies import is_transient
from pyredisson.errors import LockLostError, RedissonError
from pyredisson.logic.groups.group import GroupHold, GroupLogic, GroupOwner, MemberRelease, release_all_in_background
from pyredisson.logic.groups.parallel import run_side_by_side
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner


class GroupAttempt:
    """One attempt to acquire a group. Each kind of group acquires and releases members in its own way."""

    __slots__ = ("_deadline", "_lease", "group", "owner")

    def __init__(self, group: GroupLogic, owner: GroupOwner, lease: int | None, deadline: float | None) -> None:
        self.group = group
        self.owner = owner
        self._lease = lease
        self._deadline = deadline

    async def run(self) -> bool:
        """True: the group is acquired. False: not enough members were acquired, and none of them is held any more."""
        group, groups = self.group, self.group.session.groups
        member_releases: list[MemberRelease] = []
        hold: GroupHold | None = None
        try:
            if await self.acquire_members():
                hold = GroupHold(group, self.owner, self.acquired())
                # The first leases may have ended before the last member was acquired.
                if not group.expire_if_due(hold):
                    groups.add(hold)
                    self.begin(hold)
                    return True
            member_releases = group.releases_after_attempt(self.owner, self.acquired())
            await self.release_members(member_releases)
            return False
        except BaseException:
            # An error, or an interrupt or a cancellation at any point above: the caller never gets the hold.
            self.close()
            # If releases have begun, the same ones are continued: others would release outer levels of the owner.
            member_releases = member_releases or group.releases_after_attempt(self.owner, self.acquired())
            release_all_in_background(member_releases)
            if hold is not None:
                group.end(hold)
                release_all_in_background(group.late_releases(self.owner, hold, member_releases))
            raise

    def begin(self, hold: GroupHold) -> None:
        """The group is acquired."""
        self.group.watch(hold)

    async def acquire_members(self) -> bool:
        """Acquires members. True: enough of them."""
        raise NotImplementedError

    def acquired(self) -> list[bool]:
        """Which members were acquired so far."""
        raise NotImplementedError

    async def release_members(self, member_releases: list[MemberRelease]) -> None:
        """Releases the members of an attempt that did not acquire enough of them."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends an attempt that was interrupted: what it acquires later is released. Idempotent."""


# --- The lock


MEMBER_WAIT = 1.5
"""Seconds, as in Redisson. While the first is held, the others are waited for this time per member. Then all are
released: a program that acquires them in another order may wait for them."""
LONGEST_PAUSE = 0.1
"""Seconds, at most, between two attempts. Random, so that two programs don't block each other in the next one too."""
EXTEND_AFTER = 0.05
"""A member's lease is extended if more than this part of it is over when the last member is acquired."""


class MultiLockLogic(GroupLogic):
    """A group that is held while all its members are held."""

    __slots__ = ()

    kind = "multi-lock"

    def __init__(self, members: Sequence[LockLogic]) -> None:
        super().__init__(members, len(members))

    async def acquire(self, owner: GroupOwner, lease: int | None, deadline: float | None) -> bool:
        """As for all groups. A fixed lease begins when all members are acquired."""
        session, members = self.session, [(number, *each) for number, each in enumerate(self.with_owners(owner))]
        while True:
            attempt = _Attempt(self, owner, lease, deadline)
            attempt.members = members
            try:
                if await attempt.run():
                    return True
            except TryAgainError:
                pass  # Of a lease that was to be extended. A member itself says that it wasn't acquired in time.
            except RedisError as error:
                # A server failed until its member's deadline: the caller's for the first member, else an earlier one.
                if not is_transient(error) or (deadline is not None and session.clock() >= deadline):
                    raise
            pause = self.within(deadline, LONGEST_PAUSE * session.runtime.jitter())
            if pause is None:
                return False
            await session.runtime.sleep(pause)

    async def _release(self, owner: GroupOwner, hold: GroupHold, member_releases: list[MemberRelease]) -> None:
        """Releases each member, whatever becomes of the others.

        Raises `LockLostError` if a member was lost, or was released separately. If that is known before, the caller
        doesn't wait for the release of the others.
        """
        if self.expire_if_due(hold):
            self.session.check_open()
            raise self.loss_of(owner, hold)
        _raise_main_error(await self.release_members(member_releases))

    async def release_members(self, member_releases: Sequence[MemberRelease]) -> list[Exception]:
        """Releases these members, on different nodes of a cluster in parallel. Returns the errors."""
        places: dict[Hashable, list[MemberRelease]] = {}
        for member_release in member_releases:
            # All clients with a single server are one place.
            place = member_release.server if member_release.member.session.runtime.sharded else None
            places.setdefault(place, []).append(member_release)
        if len(places) <= 1:
            return await _release_in_turn(member_releases)
        operations = [partial(_release_in_turn, releases) for releases in places.values()]
        errors = await run_side_by_side(self.session.runtime, operations, self.timeout(None))
        # A release that still waits for its reply counts as done.
        release_all_in_background(member_releases)
        return errors

    async def _release_without_hold(self, owner: GroupOwner) -> None:
        """Releases each member, as Redisson does: the owner may have acquired them one by one."""
        member_releases = [
            MemberRelease(member, member_owner, member.hold_of(member_owner.id), ReleaseCall())
            for member, member_owner in self.with_owners(owner)
        ]
        try:
            errors = await _release_in_turn(member_releases[::-1])
        except BaseException:
            release_all_in_background(member_releases)
            raise
        _raise_main_error(errors)

    async def is_held(self, owner: GroupOwner) -> bool:
        for member, member_owner in self.with_owners(owner):
            if not await member.hold_count(member_owner.id):
                return False
        return True


class _Attempt(GroupAttempt):
    """Acquires the members in their order. The first one that isn't acquired in time ends the attempt."""

    __slots__ = ("_acquired", "members")

    group: MultiLockLogic
    members: list[tuple[int, LockLogic, Owner]]
    """With their numbers. A member that was refused comes first in the next attempt, as in C++'s `std::lock`: it may
    take any time, and the others none. So two programs that hold one member each don't block each other."""

    def __init__(self, group: MultiLockLogic, owner: GroupOwner, lease: int | None, deadline: float | None) -> None:
        super().__init__(group, owner, lease, deadline)
        self._acquired = [False] * len(group.members)

    async def acquire_members(self) -> bool:
        acquired, lease, deadline = self._acquired, self._lease, self._deadline
        for place, (number, member, member_owner) in enumerate(self.members):
            # As long as nothing is held, no other program waits for this one: the first member may take any time.
            if place == 1:
                deadline = self._deadline_of_others()
            member_owner.calls.in_group = place > 0
            try:
                # In one statement: no interrupt strikes between the end of the acquire and the note that it succeeded.
                acquired[number] = await member.acquire(member_owner, lease, deadline)
            finally:
                member_owner.calls.in_group = False
            if not acquired[number]:
                # With the other side of a read-write lock, which must stay before it.
                same = (member.session.server, member.key)
                self.members.sort(key=lambda each: ((each[1].session.server, each[1].key) != same, each[0]))
                return False
        return lease is None or await self._extend_leases(lease)

    def acquired(self) -> list[bool]:
        return self._acquired

    async def release_members(self, member_releases: list[MemberRelease]) -> None:
        for error in await self.group.release_members(member_releases):
            # The member was lost, or is released in the background. The caller need not know: it never held the group.
            logger.info("a lock of a group that was not acquired is released later, or was lost: %s", error)

    def _deadline_of_others(self) -> float:
        """Until when to wait for the others when the first member is acquired. In another order they are only tried."""
        wait = 0.0 if self.members[0][0] else MEMBER_WAIT * len(self.group.members)
        if self._lease is not None:
            # Half a lease, in seconds: the lease of the first member must not end during the wait for the last one.
            wait = min(wait, self._lease / 2000)
        limit = self.group.session.clock() + wait
        return limit if self._deadline is None else min(self._deadline, limit)

    async def _extend_leases(self, lease: int) -> bool:
        """Has the fixed leases begin now, when all members are acquired. False: one of them is lost."""
        clock = self.group.session.clock
        for member, member_owner in self.group.with_owners(self.owner):
            hold = member.hold_of(member_owner.id)
            late = hold is not None and hold.valid_until - clock() < (1 - EXTEND_AFTER) * lease / 1000
            if hold is None or (late and not await member.extend(hold, lease)):
                return False
        return True


async def _release_in_turn(member_releases: Iterable[MemberRelease]) -> list[Exception]:
    """Releases the members one after the other, also after one has failed. Returns the errors.

    Those on a server that has just been away for as long as a call tries are released in the background: a group of
    several members tries no longer than one lock.
    """
    errors: list[Exception] = []
    away: set[Hashable] = set()
    for member_release in member_releases:
        if member_release.server in away:
            member_release.release_in_background()
            continue
        try:
            await member_release.release()
        except (RedissonError, RedisError) as error:
            errors.append(error)
            if is_transient(error):
                away.add(member_release.server)
    return errors


def _raise_main_error(errors: list[Exception]) -> None:
    """Raises one of the errors, with the others in its notes: a loss matters most, else the first one."""
    if not errors:
        return
    main = next((error for error in errors if isinstance(error, LockLostError)), errors[0])
    for error in errors:
        if error is not main:
            main.add_note(f"and {type(error).__name__}: {error}")
    raise main
