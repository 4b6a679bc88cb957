"""The red lock: one lock on several independent servers, held while a majority of its members is held.

This is the Redlock algorithm of https://redis.io/docs/latest/develop/use/patterns/distributed-locks/. From there come
the majority, the short timeout of each round, the validity (what remains of the leases after the time that acquiring
took and the drift of clocks), the random pause before the next round, and the release of all members after a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from redis.exceptions import RedisError

from pyredisson._core import AcquireCall, ReleaseCall
from pyredisson._diagnostics import logger
from pyredisson._protocol.replies import is_transient
from pyredisson.errors import NotReplicatedError, RedissonError
from pyredisson.logic import retry
from pyredisson.logic.groups.group import GroupHold, GroupLogic, GroupOwner, MemberRelease, release_all_in_background
from pyredisson.logic.groups.multi_lock import GroupAttempt
from pyredisson.logic.groups.parallel import ParallelOperations
from pyredisson.logic.holds import HELD, LOST, Hold, RenewedLease
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.loops import log_exception
from pyredisson.logic.ports import Operation
from pyredisson.logic.renewer import ROUNDS_PER_LEASE
from pyredisson.logic.watchdog import Alarm

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
CROWD = 50
"""Behind so many waiters of its client a call waits for a busy member for twice as long."""
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

    def drift(self, member: LockLogic, hold: Hold) -> float:
        leases = found if isinstance(found := hold.leases, list) else [found]
        # Another thread may release the last level meanwhile.
        longest = max((member.session.lease_ms if lease is None else lease for lease in leases), default=0)
        return _drift(max(longest, hold.extended))

    def timeout(self, lease: int | None) -> float:
        shortest = self.renewed_ms if lease is None else lease
        return max(SHORTEST_TIMEOUT, TIMEOUT_PART * shortest / 1000)

    async def acquire(self, owner: GroupOwner, lease: int | None, deadline: float | None) -> bool:
        """As for all groups, with a majority. `ValueError` for a lease that is not longer than the drift of clocks.

        Servers that are down don't matter while a majority replies. If no majority replies, all are asked again until
        one does, or until `deadline`; a call without time to wait makes as many further attempts as a command does.
        """
        if lease is not None and _drift(lease) >= lease / 1000:
            raise ValueError(f"lease_time must leave more than a millisecond after clock drift, not {lease} ms")
        retries = _Retries(self, deadline)
        while True:
            attempt = _Attempt(retries, owner, lease)
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
            self.session.check_open()
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
            releases.start(number, member_release.release)
        await releases.wait(timeout, min(self.quorum, len(member_releases)), len(member_releases))
        releases.close()
        # A release that still waits for its reply counts as done: the owner's next acquire doesn't wait for it.
        release_all_in_background(member_releases)
        return releases

    async def is_held(self, owner: GroupOwner) -> bool:
        """As for all groups. Raises what Redis reports if the servers that reply are too few to know."""
        hold = self.hold_of(owner.id)
        if hold is None or self.expire_if_due(hold):
            return False
        queries = ParallelOperations(self.session.runtime)
        for number, (member, member_owner) in enumerate(self.with_owners(owner)):
            queries.start(number, partial(member.hold_count, member_owner.id))
        await queries.wait(self.timeout(None), self.quorum, len(self.members))
        queries.close()
        held, errors = queries.successes(), queries.errors()
        if held < self.quorum <= held + len(errors):
            raise errors[0]
        return held >= self.quorum and not self.expire_if_due(hold)


class _Attempt(GroupAttempt):
    """Asks all members in parallel, and waits for all of them with one timeout.

    A busy member (`_Retries.awaited_member`) is waited for first, while no other member is held: when its holder
    releases it, the other members are usually free too.
    """

    __slots__ = ("_awaited_member", "_timeout", "operations")

    group: RedLockLogic

    def __init__(self, retries: _Retries, owner: GroupOwner, lease: int | None) -> None:
        super().__init__(retries.group, owner, lease, retries.deadline)
        self.operations = ParallelOperations(self.group.session.runtime)
        """The acquires. They return whether the member was acquired."""
        self._awaited_member = retries.awaited_member
        self._timeout = self.group.timeout(lease)

    async def acquire_members(self) -> bool:
        group, operations, awaited = self.group, self.operations, self._awaited_member
        clock = group.session.clock
        numbers = self._without_pending_acquire()
        if awaited in numbers:
            member = group.members[awaited]
            queue = member.session.lock_queues.get(member.identity)
            # A release hands the member on in the order of its waiters. Each that is far behind would ask in vain.
            crowd = 0 if queue is None else len(queue.waiters)
            until = clock() + MEMBER_WAIT * (1 + crowd / CROWD) * (0.5 + group.session.runtime.jitter())
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
        pending, key = member.session.groups.pending_acquires, (member.identity, member_owner.id)
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
        self.group = group
        self.deadline = deadline
        self._failures = 0
        """How many attempts in a row got replies from fewer members than a majority."""
        self._refusals = 0
        """How many attempts met busy members."""

    def pause_after(self, operations: ParallelOperations) -> float | None:
        """Seconds to pause after an attempt; None: there is no time for another one. Raises if none can help."""
        group = self.group
        errors = operations.errors()
        for error in errors:
            if not isinstance(error, (RedisError, NotReplicatedError)):
                # Not the failure of a server: the next attempt would end in the same way.
                raise error
        self.awaited_member = None
        # A member that was left out, because it hasn't replied to an earlier acquire yet, hasn't replied to this one.
        if len(operations.outcomes) - len(errors) < group.quorum:
            return self._pause_after_failure(errors)
        self._failures = 0
        busy = sorted(number for number, outcome in operations.outcomes.items() if outcome is False)
        if busy:
            # All waiters wait for the same member, so the one that acquires it has a good chance for the others. Each
            # time it is another member, in case that one never becomes free.
            self.awaited_member = busy[self._refusals % len(busy)]
            self._refusals += 1
        return group.within(self.deadline, LONGEST_PAUSE * group.session.runtime.jitter())

    def _pause_after_failure(self, errors: list[Exception]) -> float | None:
        group, session = self.group, self.group.session
        permanent = [error for error in errors if not is_transient(error)]
        if len(group.members) - len(permanent) < group.quorum:
            # No majority of members remains that could ever be acquired.
            raise permanent[0]
        if self.deadline == retry.LIMITED_BY_RETRIES and (not errors or self._failures >= session.retries):
            # Without errors: no other server can be asked before those reply.
            return None
        pause = retry.delay(self._failures, session.runtime.jitter())
        self._failures += 1
        return pause if self.deadline == retry.LIMITED_BY_RETRIES else group.within(self.deadline, pause)


# --- Lost members


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
        for hold in filter(None, self._hold.holds):
            hold.listen(self)
        if self._missing():
            self._look_in(self._interval)

    def end(self) -> None:
        """The level is about to be released. A look that has begun goes on, and releases what it acquires."""
        for hold in filter(None, self._hold.holds):
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
            self._spawn(partial(self._look_for, number))

    def _look_in(self, seconds: float) -> None:
        self._group.session.watchdog.set_alarm(self, self._group.session.clock() + seconds)

    def _goes_on(self) -> bool:
        session = self._group.session
        return not session.closed and session.groups.has(self._hold) and self._hold.state is HELD

    def _missing(self) -> list[int]:
        """The numbers of the members that were lost, or never acquired."""
        return [number for number, hold in enumerate(self._hold.holds) if hold is None or hold.state is LOST]

    async def _look_for(self, number: int) -> None:
        """Acquires a member, unless an earlier look for it has not ended yet."""
        member, owner, mark = self._group.members[number], self._owner.owners[number], object()
        # One step: several threads may look.
        if self._looks.setdefault(number, mark) is not mark:
            return
        try:
            if number not in self._missing() or self._has_other_losses(number, member, owner.id):
                return
            if await self._group.is_held(self._owner):
                # Only where it is free: for a holder it doesn't wait.
                now = self._group.session.clock()
                call = member.new_call(owner, None if self._lease is None else self._lease.rest(now), now)
                if await member._acquire(call):
                    self._count(number, member, call)
        except (RedissonError, RedisError) as error:
            logger.debug("a member of %s isn't acquired again yet: %s", self._group.named(self._owner), error)
        except Exception:  # noqa: BLE001
            # Any exception, for example of a credential provider: the next look is another try.
            log_exception("a member of a red lock could not be acquired again, and is tried again")
        finally:
            self._looks.pop(number, None)

    def _has_other_losses(self, number: int, member: LockLogic, owner_id: int) -> bool:
        """Whether the owner has lost levels of the member that are not part of this group.

        Their release has to report that. Above a new hold it would find that one.
        """
        holds = [level.holds[number] for level in self._group.session.groups.levels(self._hold.key)]
        ours = sum(hold is not None and hold.state is LOST for hold in holds)
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
        if before is not None and (below := hold.lost_below) is not None:
            # The level is released with the new hold, and no more with the lost one.
            member.session.holds.drop_level(below, ReleaseCall())
        hold.listen(self)
        logger.info("%s, a member of a group, was acquired again", member.named(call.owner))


def _drift(lease: int) -> float:
    """In seconds, for a lease in ms."""
    return DRIFT * lease / 1000 + LEAST_DRIFT
