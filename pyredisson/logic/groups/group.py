"""Several locks held as one: what multi-locks and red locks have in common, and what a client remembers for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyredisson._core import ReleaseCall
from pyredisson._diagnostics import readable
from pyredisson.errors import LockLostError, LockNotHeldError, LockTimeoutError
from pyredisson.holder import Holder
from pyredisson.logic import retry
from pyredisson.logic.groups.parallel import ParallelOperations
from pyredisson.logic.holds import HELD, LOST, RELEASED, Hold, HoldKey, HoldState
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.losses import UnreleasedLosses
from pyredisson.logic.owners import Owner
from pyredisson.logic.watchdog import Alarm

if TYPE_CHECKING:
    from pyredisson.logic.groups.red_lock import MemberRecovery


class GroupOwner:
    """The owner of a group: one owner for each member. One thread or task is another owner in each client."""

    __slots__ = ("id", "owners")

    def __init__(self, owners: Sequence[Owner]) -> None:
        self.owners = owners
        """In the order of the group's members."""
        self.id = tuple(owner.id for owner in owners)

    def readable(self) -> str:
        """The names of the owners on the servers, for messages."""
        return ", ".join(dict.fromkeys(readable(owner.name) for owner in self.owners))


class MemberRelease(NamedTuple):
    """The release of one level of one member's hold, as a part of the release of one level of the group."""

    member: LockLogic
    owner: Owner
    hold: Hold | None
    """None: the owner has none, so the release raises."""
    call: ReleaseCall

    async def release(self) -> bool:
        """Releases the level, and returns True. Does nothing if it was released before this call got its turn."""
        await self.member.release(self.owner, self.hold, self.call)
        return True

    @property
    def server(self) -> Hashable:
        return self.member.session.runtime.shard_of(self.member.key)

    def release_in_background(self) -> None:
        """Releases the level: here at once, on the server in the background. Does nothing if it is released already."""
        if self.hold is not None:
            self.member.release_in_background(self.owner, self.hold, self.call)


class GroupLogic:
    """What all groups have in common. Owners and durations were checked before; the members are in their order."""

    __slots__ = ("identity", "members", "quorum", "session")

    kind: str
    """For messages."""

    def __init__(self, members: Sequence[LockLogic], quorum: int) -> None:
        self.members = tuple(members)
        self.quorum = quorum
        """The group is held while at least so many members are held."""
        self.session = members[0].session
        """Its clock, its runtime, its watchdog and its registry serve the whole group."""
        self.identity: Hashable = (self.kind, *[(member.session.server, member.identity) for member in members])

    @property
    def renewed_ms(self) -> int:
        """The shortest lease in ms of a member that is renewed."""
        return min(member.renewed_ms for member in self.members)

    def with_owners(self, owner: GroupOwner) -> Iterator[tuple[LockLogic, Owner]]:
        return zip(self.members, owner.owners, strict=True)

    def drift(self, member: LockLogic, hold: Hold) -> float:
        """So many seconds before its `valid_until` a member's hold is no longer relied on."""
        return 0.0

    # Acquiring

    async def acquire(self, owner: GroupOwner, lease: int | None, deadline: float | None) -> bool:
        """Waits for the group until `deadline` (None: without limit). False: not acquired by then, nothing is held.

        The lease is in ms; None: the watchdogs renew the members until they are released.
        """
        raise NotImplementedError

    def within(self, deadline: float | None, pause: float) -> float | None:
        """The pause in seconds before the next attempt, not longer than until `deadline`. None: that has passed."""
        if deadline is None:
            return pause
        remaining = deadline - self.session.clock()
        return min(pause, remaining) if remaining > 0 else None

    def releases_after_attempt(self, owner: GroupOwner, acquired: Sequence[bool]) -> list[MemberRelease]:
        """What releases the members that an attempt has just acquired (True), in reverse order."""
        return self.member_releases(owner, GroupHold(self, owner, acquired))

    def watch(self, hold: GroupHold) -> None:
        """Has `on_lost` callbacks called at the loss of a new hold, unless the watch of an outer level does that."""
        levels = self.session.groups.levels(hold.key)
        # Of two levels that begin at the same time one is the outer one.
        if next((other for other in levels if other is hold or other.state is HELD), hold) is hold:
            hold.listen(self._on_end)

    def _on_end(self, hold: GroupHold) -> None:
        # Several members may end at the same time, on different threads: only one of these calls finds the listener.
        if hold.unlisten(self._on_end) and hold.state is LOST:
            self.session.lost_callbacks.run(self.identity)
            self.session.groups.losses.add(hold.key)

    # Releasing

    async def release(self, owner: GroupOwner, hold: GroupHold | None) -> None:
        """Releases one level of `hold_of(owner)`: one level of each member. Raises if there is none, or if it was lost.

        In each case the level counts as released: what can't be released now is released in the background.
        """
        if hold is None:
            await self._release_without_hold(owner)
            return
        # Before anything is released: an interrupt in here leaves the whole release to the caller.
        member_releases = self.member_releases(owner, hold)
        try:
            self.end(hold)
            member_releases += self.late_releases(owner, hold, member_releases)
            await self._release(owner, hold, member_releases)
        except BaseException:
            release_all_in_background(member_releases)
            release_all_in_background(self.late_releases(owner, hold, member_releases))
            raise

    async def _release(self, owner: GroupOwner, hold: GroupHold, member_releases: list[MemberRelease]) -> None:
        """Releases the members. After an error the caller releases in the background what is not released yet."""
        raise NotImplementedError

    async def _release_without_hold(self, owner: GroupOwner) -> None:
        """The owner has no hold of the group: raises, unless it is enough that it holds each member on its own."""
        raise await self._not_held_error(owner)

    def release_in_background(self, owner: GroupOwner, hold: GroupHold | None) -> None:
        """Releases a level whose release was interrupted before it began. Does nothing if the release has begun."""
        if hold is not None and self.session.groups.has(hold):
            member_releases = self.member_releases(owner, hold)
            release_all_in_background(member_releases)
            self.end(hold)
            release_all_in_background(self.late_releases(owner, hold, member_releases))

    def end(self, hold: GroupHold) -> None:
        """The level is not held any more, or is about to be released. Idempotent."""
        self.session.groups.remove(hold)
        if hold.recovery is not None:
            hold.recovery.end()

    def member_releases(self, owner: GroupOwner, hold: GroupHold) -> list[MemberRelease]:
        """What releases one level of the group, in reverse order. Members that are not held any more are left out."""
        member_releases = []
        for (member, member_owner), acquired in zip(self.with_owners(owner), hold.holds, strict=True):
            present = acquired
            if acquired is not None and acquired.state is LOST:
                # A later acquire of the owner has perhaps merged this lost hold with other lost ones (`merge_lost`).
                latest = member.hold_of(member_owner.id)
                present = latest if latest is None or latest.state is LOST else latest.lost_below
            if present is not None and present.count:
                call = hold.release_calls.get(present) or ReleaseCall()
                member_releases.append(MemberRelease(member, member_owner, present, call))
        return member_releases[::-1]

    def late_releases(
        self, owner: GroupOwner, hold: GroupHold, member_releases: Sequence[MemberRelease]
    ) -> list[MemberRelease]:
        """What releases members that were acquired again since `member_releases` was made.

        To be called after `end`: who acquires a member again after that finds out, and releases it.
        """
        known = [member_release.call for member_release in member_releases]
        late = [call for call in hold.release_calls.copy().values() if call not in known]
        return [each for each in self.member_releases(owner, hold) if each.call in late]

    # Extending leases

    async def extend_hold(self, owner: GroupOwner, lease: int) -> None:
        """Makes the members' holds last for so many ms from now on, at least.

        Raises if there is no hold or it is lost, and what Redis reports if too few members are extended for a quorum.
        """
        self.session.check_open()
        hold = self.hold_of(owner.id)
        if hold is None:
            raise await self._not_held_error(owner)
        while True:
            before = list(hold.holds)
            extensions = ParallelOperations(self.session.runtime)
            for number, (member, member_hold) in enumerate(zip(self.members, before, strict=True)):
                if member_hold is not None:
                    extensions.start(number, partial(member.extend, member_hold, lease))
            await extensions.wait(self.timeout(lease), self.quorum, len(self.members))
            extensions.close()
            if self.expire_if_due(hold):
                raise self.loss_of(owner, hold)
            if extensions.successes() >= self.quorum:
                return
            if errors := extensions.errors():
                raise errors[0]
            # Members that were lost before, and were acquired again meanwhile, are not extended yet.
            if hold.holds == before:
                raise self.loss_of(owner, hold)

    def timeout(self, lease: int | None) -> float:
        """Seconds for one round of requests to all servers. The lease is in ms; None: the lease of the watchdogs."""
        return max(member.session.longest_call for member in self.members)

    # Queries and errors

    async def is_held(self, owner: GroupOwner) -> bool:
        """Whether the owner holds enough members, as the servers and the local clock both say."""
        raise NotImplementedError

    def hold_of(self, owner_id: tuple[int, ...]) -> GroupHold | None:
        """The innermost hold of the owner, lost or not."""
        levels = self.session.groups.levels((self.identity, owner_id))
        return levels[-1] if levels else None

    def expire_if_due(self, hold: GroupHold) -> bool:
        """Declares members lost whose leases have ended, less the drift. True: the group is not held any more."""
        for member, member_hold in zip(self.members, hold.holds, strict=True):
            # A hold that has ended may have no lease any more.
            if member_hold is not None and member_hold.state is HELD:
                member.session.holds.expire_if_due(member_hold, self.drift(member, member_hold))
        return hold.state is not HELD

    def loss_of(self, owner: GroupOwner, hold: GroupHold) -> LockLostError:
        """The error for a hold that was lost, or of which members were released separately.

        Call this before the group releases its members: otherwise these are named as released separately, too.
        """
        lost = hold.state is LOST
        reasons = [
            f"{_described(member)}: {reason}"
            for member, member_hold in zip(self.members, hold.holds, strict=True)
            if (reason := _reason_of_loss(member_hold, only_lost=lost)) is not None
        ]
        text = f"{self.named(owner)} {'was lost' if lost else 'is not held any more'}: {'; '.join(reasons)}"
        return LockLostError(text, name=str(self), owner=owner.readable())

    async def _not_held_error(self, owner: GroupOwner) -> LockNotHeldError:
        """The error for a release by an owner without a hold. It names the holder that the first server reports."""
        refusals = ParallelOperations(self.session.runtime)
        for number, (member, member_owner) in enumerate(self.with_owners(owner)):
            if member.hold_of(member_owner.id) is None:
                refusals.start(number, MemberRelease(member, member_owner, None, ReleaseCall()).release)
        await refusals.wait(self.timeout(None), 1, 1)
        refusals.close()
        # Each operation has raised: that the member isn't held, or why the server can't say so.
        errors = refusals.errors()
        reason = errors[0] if errors else "its members are, but not together"
        holder = reason.holder if isinstance(reason, LockNotHeldError) else None
        text = f"{self.named(owner)} is not held: {reason}"
        return LockNotHeldError(text, name=str(self), owner=owner.readable(), holder=holder)

    async def timed_out(self, owner: GroupOwner, wait: float) -> LockTimeoutError:
        """The error after a wait of so many seconds, with the holder of the first member that another owner holds."""
        found: dict[int, tuple[str, Holder]] = {}
        servers: dict[Hashable, list[tuple[int, LockLogic, Owner]]] = {}
        for number, (member, member_owner) in enumerate(self.with_owners(owner)):
            servers.setdefault(member.session.server, []).append((number, member, member_owner))

        async def ask(members: Sequence[tuple[int, LockLogic, Owner]]) -> bool:
            for number, member, member_owner in members:
                text, holder = await member.who_holds_it(partial(retry.send_once, member.session.runtime))
                if holder is not None and (holder.client_id, holder.owner_id) != (member.session.id, member_owner.id):
                    found[number] = f"{_described(member)} {text}", holder
                    return True
            return False

        # In parallel: a server that hangs must not delay the error by its timeout, nor hide the holders of the others.
        questions = ParallelOperations(self.session.runtime)
        for number, members in enumerate(servers.values()):
            questions.start(number, partial(ask, members))
        await questions.wait(self.timeout(None), 1, len(servers))
        questions.close()
        text, holder = "no member is held by others", None
        if held := found.copy():
            text, holder = held[min(held)]
        elif errors := questions.errors():
            text = f"who holds it can't be told: {errors[0]}"
        text = f"{self.named(owner)} was not acquired in {wait:g} s: {text}"
        return LockTimeoutError(text, name=str(self), owner=owner.readable(), holder=holder)

    def named(self, owner: GroupOwner) -> str:
        return f"{self} of owner {owner.readable()}"

    def __str__(self) -> str:
        return f"{self.kind} of {', '.join(map(_described, self.members))}"


class GroupHold:
    """What one acquire of a group has acquired, perhaps of other members each time: one level of each member's hold."""

    __slots__ = ("_lost", "_watches", "group", "holds", "key", "recovery", "release_calls")

    def __init__(self, group: GroupLogic, owner: GroupOwner, acquired: Sequence[bool]) -> None:
        """`acquired`: of each member, whether the acquire has just acquired it."""
        self.group = group
        self._lost = False
        """Whether it was seen to be lost. Then it stays so, also if a member is acquired again."""
        self.key: Hashable = (group.identity, owner.id)
        """The group and the owner in the registry."""
        self._watches: dict[Callable[[Any], None], _Watch] = {}
        self.holds = [
            member.hold_of(member_owner.id) if was_acquired else None
            for (member, member_owner), was_acquired in zip(group.with_owners(owner), acquired, strict=True)
        ]
        """Of each member, the hold that counts this level; None: the acquire did not acquire that member."""
        self.release_calls: dict[Hold, ReleaseCall] = {}
        """What releases the holds of members that were acquired again, once."""
        self.recovery: MemberRecovery | None = None
        """What acquires members again that were lost."""

    @property
    def state(self) -> HoldState:
        """HELD, RELEASED or LOST. Computed from the states of the members' holds, which only `HoldTable` changes.

        HELD while a quorum of the members is held, LOST when too many are lost for a quorum. RELEASED otherwise: too
        many members were released, by a release of the group or separately, or are being released.
        """
        if self._lost:
            return LOST
        states = [LOST if hold is None else hold.state for hold in self.holds]
        quorum = self.group.quorum
        if len(states) - states.count(LOST) < quorum:
            self._lost = True
            return LOST
        return HELD if states.count(HELD) >= quorum else RELEASED

    def replace(self, number: int, hold: Hold, call: ReleaseCall) -> bool:
        """A member was acquired again, and `call` releases it. False: the group is not held any more."""
        # Without the new one: a lease of the others may have ended before it was granted, without notice, because this
        # process was stopped.
        if self.group.expire_if_due(self):
            return False
        # Before the hold: whoever finds that releases it by this call.
        self.release_calls[hold] = call
        before = self.holds[number]
        self.holds[number] = hold
        if before is not None:
            self.release_calls.pop(before, None)
        for watch in list(self._watches.values()):
            hold.listen(watch)
        # Another member may have been lost before the new one counted, and then somebody was told so.
        return self.state is HELD

    def listen(self, listener: Callable[[Any], None]) -> None:
        """Has `listener` called when the group is lost or released, maybe more than once. At once if it isn't held."""
        watch = self._watches[listener] = _Watch(self, listener)
        watch.begin()

    def unlisten(self, listener: Callable[[Any], None]) -> bool:
        """Undoes `listen`. False: `listener` was not listening."""
        watch = self._watches.pop(listener, None)
        if watch is not None:
            watch.end()
        return watch is not None


class _Watch(Alarm):
    """Calls a listener when a group is not held any more.

    It is called at the end of each member's hold, and at the time when the next member expires: a red lock's members
    expire earlier than their holds do, because of the drift of clocks, and no watchdog looks at that time.
    """

    __slots__ = ("_hold", "_listener")

    def __init__(self, hold: GroupHold, listener: Callable[[GroupHold], None]) -> None:
        self._hold = hold
        self._listener = listener

    def begin(self) -> None:
        for hold in filter(None, self._hold.holds):
            hold.listen(self)
        self.ring()

    def end(self) -> None:
        for hold in filter(None, self._hold.holds):
            hold.unlisten(self)
        self._hold.group.session.watchdog.cancel(self)

    def ring(self) -> None:
        group = self._hold.group
        if group.expire_if_due(self._hold):
            self(None)
            return
        members = zip(group.members, self._hold.holds, strict=True)
        held = [(member, hold) for member, hold in members if hold is not None and hold.state is HELD]
        next_expiry = min((hold.valid_until - group.drift(member, hold) for member, hold in held), default=0.0)
        group.session.watchdog.set_alarm(self, next_expiry)

    def __call__(self, hold: Hold | None) -> None:
        if self._hold.state is not HELD:
            self._listener(self._hold)


def release_all_in_background(member_releases: Iterable[MemberRelease]) -> None:
    for member_release in member_releases:
        member_release.release_in_background()


def _reason_of_loss(hold: Hold | None, *, only_lost: bool) -> str | None:
    """Why a member with this hold doesn't count any more; None: it does."""
    if hold is None:
        return "it was not acquired"
    if hold.state is LOST:
        return hold.reason
    return None if hold.state is HELD or only_lost else "it was released separately"


def _described(member: LockLogic) -> str:
    return f"{readable(member.key)!r} on {member.session.server}"


# --- What one client remembers


class GroupRegistry:
    """The holds of the groups whose first member is a lock of this client."""

    def __init__(self) -> None:
        # Re-entrant: the garbage collector may run a finalizer here that releases another group.
        self._mutex = threading.RLock()
        self.holds: dict[Hashable, dict[GroupHold, None]] = {}
        """By the key of the holds: the holds of one group and owner, one for each level, the innermost last."""
        self.pending_acquires: dict[HoldKey, float] = {}
        """Members of a red lock that were asked and have not replied yet, with the time when they were asked."""
        self.losses = UnreleasedLosses(self._has_loss, self._forget_losses)
        """A lost hold stays here until it is released; the oldest lost ones are forgotten above a limit."""

    def levels(self, key: Hashable) -> list[GroupHold]:
        # A copy, made in one step: another call of the same owner may change the dict at any time.
        return list(self.holds.get(key, ()))

    def has(self, hold: GroupHold) -> bool:
        return hold in self.holds.get(hold.key, ())

    def add(self, hold: GroupHold) -> None:
        levels: dict[GroupHold, None] = {}
        with self._mutex:
            # That finalizer may remove the last level, and the inner dict with it.
            while self.holds.get(hold.key) is not levels:
                levels = self.holds.setdefault(hold.key, {})
                levels[hold] = None

    def remove(self, hold: GroupHold) -> None:
        """Removes one level. Idempotent."""
        with self._mutex:
            levels = self.holds.get(hold.key)
            if levels is not None and levels.pop(hold, hold) is None and not levels:
                self.holds.pop(hold.key, None)

    def _has_loss(self, key: Hashable) -> bool:
        return any(hold.state is LOST for hold in self.levels(key))

    def _forget_losses(self, key: Hashable) -> None:
        for hold in self.levels(key):
            if hold.state is LOST:
                self.remove(hold)
