"""The red lock: one lock on several independent servers, held while a majority of its members is held.

This is the Redlock algorithm of https://redis.io/docs/latest/develop/use/patterns/distributed-locks/. From there come
the majority, the short timeout of each round, the validity (what remains of the leases after the time that acquiring
took and the drift of clocks), the random pause before the next round, and the release of all members after a failure.
"""

from collections.abc import Sequence

from redis.exceptions import RedisError

from pyredisson._core import ReleaseCall
from pyredisson._protocol.replies import is_transient
from pyredisson.logic import retry
from pyredisson.logic.groups.group import (
    GroupHold,
    GroupLogic,
    GroupOwner,
    MemberRelease,
    release_all_in_background,
)
from pyredisson.logic.groups.multi_lock import GroupAttempt
from pyredisson.logic.groups.parallel import Operation, ParallelOperations
from pyredisson.logic.groups.recovery import MemberRecovery
from pyredisson.logic.holds import LOST, Hold, RenewedLease
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner

DRIFT = 0.01
LEAST_DRIFT = 0.002
"""How far the clocks of client and server may drift apart during a lease: by 1 % of the lease, and 2 ms. These are the
values of redlock-rb, the reference implementation of the algorithm."""
TIMEOUT_PART = 0.1
"""The part of a lease that one round of requests to all servers may take, however many of them are slow."""
SHORTEST_TIMEOUT = 0.05
"""Seconds that a round may take at least, for short leases."""
MEMBER_WAIT = 1.0
"""Seconds, about, to wait for one busy member before all are asked again: others may be free by then."""
LONGEST_PAUSE = 0.02
"""Seconds, at most, between two attempts when too many members are busy. The pause is random: two programs that each
acquired some of the members don't do so in the next attempt too."""
PENDING_LIMIT = 60.0
"""Seconds after which a member may be asked again that has not replied to an acquire. A server that hangs would
otherwise get one more request with each attempt."""


class RedLockLogic(GroupLogic):
    """A group that is held while a majority of its members is held."""

    __slots__ = ()

    kind = "red lock"

    def __init__(self, members: Sequence[LockLogic]) -> None:
        super().__init__(members, len(members) // 2 + 1)

    def drift(self, hold: Hold) -> float:
        leases = hold.leases if isinstance(hold.leases, list) else [hold.leases]
        # Another thread may release the last level meanwhile.
        longest = max((self.session.lease_ms if lease is None else lease for lease in leases), default=0)
        return _drift(max(longest, hold.extended))

    def timeout(self, lease: int | None) -> float:
        """Seconds for one round of requests to all servers. The lease is in ms; None: the lease of the watchdogs."""
        shortest = self.renewed_ms if lease is None else lease
        return max(SHORTEST_TIMEOUT, TIMEOUT_PART * shortest / 1000)

    async def acquire(self, owner: GroupOwner, lease: int | None, deadline: float | None) -> bool:
        """Acquires a majority of the members before `deadline` (None: without limit). False: none is held.

        The lease is in ms; None: the watchdogs renew the members. `ValueError` for a lease that is not longer than the
        drift of clocks. Servers that are down don't matter while a majority replies. If no majority replies, all are
        asked again until one does, or until `deadline`; a call without time to wait makes as many further attempts as
        a command does.
        """
        if lease is not None and _drift(lease) >= lease / 1000:
            raise ValueError(f"lease_time must leave more than a millisecond after clock drift, not {lease} ms")
        retries = _Retries(self, deadline)
        while True:
            attempt = _Attempt(self, owner, lease, deadline, retries.awaited_member)
            if await attempt.run():
                return True
            pause = retries.pause_after(attempt.operations)
            if pause is None:
                return False
            await self.session.runtime.sleep(pause)

    async def _release(self, owner: GroupOwner, hold: GroupHold, member_releases: list[MemberRelease]) -> None:
        """Releases all members in parallel.

        Raises `LockLostError` if the majority was lost or released separately, and what Redis reports if no majority
        confirmed the release; then it is repeated in the background. A server that is down doesn't matter.
        """
        loss = self.loss_of(owner, hold) if self.expire_if_due(hold) else None
        releases = await self.release_members(member_releases, self.timeout(None))
        if loss is not None:
            raise loss
        if hold.state is LOST:
            # A release has found out that its member was lost before.
            raise self.loss_of(owner, hold)
        if releases.successes() < self.quorum:
            raise releases.errors()[0]

    async def release_members(self, member_releases: list[MemberRelease], timeout: float) -> ParallelOperations:
        """Releases these members in parallel, the ones that don't reply in time in the background."""
        releases = ParallelOperations(self.session.runtime)
        for number, member_release in enumerate(member_releases):
            releases.start(number, _released(member_release))
        await releases.wait(timeout, min(self.quorum, len(member_releases)), len(member_releases))
        releases.close()
        # A release that still waits for its reply counts as done: the owner's next acquire doesn't wait for it.
        release_all_in_background(member_releases)
        return releases

    async def _release_without_hold(self, owner: GroupOwner) -> None:
        raise await self._not_held_error(owner)

    async def is_held(self, owner: GroupOwner) -> bool:
        """Whether the owner holds a majority, as the servers and the local clock both say.

        Raises what Redis reports if the servers that reply are too few to know.
        """
        hold = self.hold_of(owner.id)
        if hold is None or self.expire_if_due(hold):
            return False
        queries = ParallelOperations(self.session.runtime)
        for number, (member, member_owner) in enumerate(self.with_owners(owner)):
            queries.start(number, _held(member, member_owner))
        await queries.wait(self.timeout(None), self.quorum, len(self.members))
        queries.close()
        held, errors = queries.successes(), queries.errors()
        if held < self.quorum <= held + len(errors):
            raise errors[0]
        return held >= self.quorum and not self.expire_if_due(hold)


class _Attempt(GroupAttempt):
    """Asks all members in parallel, and waits for all of them with one timeout.

    `awaited_member` is the number of a busy member. It is waited for first, while no other member is held: when its
    holder releases it, the other members are usually free too.
    """

    __slots__ = ("_awaited_member", "_deadline", "_lease", "_timeout", "operations")

    group: RedLockLogic

    def __init__(
        self,
        group: RedLockLogic,
        owner: GroupOwner,
        lease: int | None,
        deadline: float | None,
        awaited_member: int | None,
    ) -> None:
        super().__init__(group, owner)
        self.operations = ParallelOperations(group.session.runtime)
        """The acquires. They return whether the member was acquired."""
        self._lease = lease
        self._deadline = deadline
        self._awaited_member = awaited_member
        self._timeout = group.timeout(lease)

    async def acquire_members(self) -> bool:
        group, operations, awaited = self.group, self.operations, self._awaited_member
        clock = group.session.clock
        numbers = self._without_pending_acquire()
        if awaited in numbers:
            until = clock() + MEMBER_WAIT * (0.5 + group.session.runtime.jitter())
            if self._deadline is not None:
                until = min(until, self._deadline)
            self._start_acquire(awaited, until)
            await operations.wait(max(0.0, until - clock()) + self._timeout, 1, 1)
        # The others are not waited for: this is their deadline.
        now = clock()
        for number in numbers:
            if number != awaited:
                self._start_acquire(number, now)
        await operations.wait(self._timeout, group.quorum, len(group.members))
        operations.close()
        return operations.successes() >= group.quorum

    def begin(self, hold: GroupHold) -> None:
        super().begin(hold)
        if self._lease is None or isinstance(self._lease, RenewedLease):
            recovery = hold.recovery = MemberRecovery(self.group, self.owner, hold, self._lease)
            recovery.begin()

    def acquired(self) -> list[bool]:
        outcomes = self.operations.outcomes
        return [outcomes.get(number) is True for number in range(len(self.group.members))]

    async def release_members(self, member_releases: list[MemberRelease]) -> None:
        await self.group.release_members(member_releases, self._timeout)

    def close(self) -> None:
        self.operations.close()

    def _without_pending_acquire(self) -> list[int]:
        """The numbers of the members to ask: all but the members that have not replied to an earlier acquire yet."""
        now = self.group.session.clock()
        numbers = []
        for number, (member, member_owner) in enumerate(self.group.with_owners(self.owner)):
            member.session.check_open()
            asked_at = member.session.groups.pending_acquires.get((member.identity, member_owner.id))
            if asked_at is None or now - asked_at >= PENDING_LIMIT:
                numbers.append(number)
        return numbers

    def _start_acquire(self, number: int, until: float) -> None:
        """Starts the acquire of one member, which waits for its holder until then."""
        member, member_owner = self.group.members[number], self.owner.owners[number]
        pending = member.session.groups.pending_acquires
        key = (member.identity, member_owner.id)
        clock, lease = self.group.session.clock, self._lease

        async def acquire() -> bool:
            # Not before the operation is started: an interrupt may prevent the start, and then nothing is pending.
            pending[key] = clock()
            member_owner.calls.in_group = True
            try:
                return await member.acquire(member_owner, lease, until)
            finally:
                member_owner.calls.in_group = False
                pending.pop(key, None)

        def release_late() -> None:
            hold = member.hold_of(member_owner.id)
            if hold is not None:
                member.release_in_background(member_owner, hold, ReleaseCall())

        self.operations.start(number, acquire, release_late)


class _Retries:
    """Decides after each attempt of one `acquire` whether and when the next one is made."""

    def __init__(self, group: RedLockLogic, deadline: float | None) -> None:
        self.awaited_member: int | None = None
        """The number of the busy member for which the next attempt waits first."""
        self._group = group
        self._deadline = deadline
        self._failures = 0
        """How many attempts in a row got replies from fewer members than a majority."""
        self._refusals = 0
        """How many attempts met busy members."""

    def pause_after(self, operations: ParallelOperations) -> float | None:
        """Seconds to pause after an attempt; None: there is no time for another one. Raises if none can help."""
        group = self._group
        errors = operations.errors()
        if errors and not isinstance(errors[0], RedisError):
            # Not the failure of a server: the next attempt would end in the same way.
            raise errors[0]
        self.awaited_member = None
        if len(group.members) - len(errors) < group.quorum:
            return self._pause_after_failure(errors)
        return self._pause_after_refusal(operations)

    def _pause_after_failure(self, errors: list[Exception]) -> float | None:
        group, session = self._group, self._group.session
        permanent = [error for error in errors if not is_transient(error)]
        if len(group.members) - len(permanent) < group.quorum:
            # No majority of members remains that could ever be acquired.
            raise permanent[0]
        if self._deadline == retry.LIMITED_BY_RETRIES and self._failures >= session.retries:
            return None
        pause = retry.delay(self._failures, session.runtime.jitter())
        self._failures += 1
        return pause if self._deadline == retry.LIMITED_BY_RETRIES else group.within(self._deadline, pause)

    def _pause_after_refusal(self, operations: ParallelOperations) -> float | None:
        self._failures = 0
        pause = LONGEST_PAUSE * self._group.session.runtime.jitter()
        busy = sorted(number for number, outcome in operations.outcomes.items() if outcome is False)
        if busy:
            # All waiters wait for the same member, so the one that acquires it has a good chance for the others. Each
            # time it is another member, in case that one never becomes free.
            self.awaited_member = busy[self._refusals % len(busy)]
            self._refusals += 1
        return self._group.within(self._deadline, pause)


def _drift(lease: int) -> float:
    """In seconds, for a lease in ms."""
    return DRIFT * lease / 1000 + LEAST_DRIFT


def _released(member_release: MemberRelease) -> Operation:
    """The operation that releases a member.

    It may start, or get its turn among the owner's calls, only after the level was released in the background. Then it
    does nothing.
    """

    async def release() -> bool:
        await member_release.release()
        return True

    return release


def _held(member: LockLogic, owner: Owner) -> Operation:
    """The operation that asks whether the owner holds the member."""

    async def query() -> bool:
        return await member.hold_count(owner.id) > 0

    return query
