"""Several locks held as one: the owners of its members, and what becomes of their holds together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from pyredisson._core import HoldLevel
from pyredisson._diagnostics import readable
from pyredisson._protocol.no_reply import NoReply
from pyredisson.errors import LockLostError, LockTimeoutError
from pyredisson.logic.holds import HELD, LOST, RELEASED, Hold, HoldState
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner
from pyredisson.logic.watchdog import Alarm


class GroupOwner:
    """The owners of a group's members: one thread, or task, is another owner in each client."""

    __slots__ = ("id", "owners")

    def __init__(self, owners: Sequence[Owner]) -> None:
        self.owners = owners
        self.id = tuple(owner.id for owner in owners)

    def readable(self) -> str:
        """Its names on the servers, for messages."""
        return ", ".join(dict.fromkeys(readable(owner.name) for owner in self.owners))


class MemberRelease(NamedTuple):
    """One member's hold, and the level of it that goes with one level of the group."""

    member: LockLogic
    owner: Owner
    hold: Hold
    level: HoldLevel

    def release_in_background(self) -> None:
        """Gives it back: here at once, on the server in the background; unless that was done."""
        self.member.release_in_background(self.owner, self.hold, self.level)


class GroupLogic:
    """What all groups have in common. Owners and durations come in checked, members in their order."""

    __slots__ = ("identity", "members", "quorum", "session")

    kind: str
    """For messages."""

    def __init__(self, members: Sequence[LockLogic], quorum: int) -> None:
        self.members = tuple(members)
        self.quorum = quorum
        self.session = members[0].session
        """Its clock, its signals and its watchdog serve the whole group."""
        self.identity: Hashable = (self.kind, *[(member.session.server, member.identity) for member in members])

    async def acquire(self, owner_of_group: GroupOwner, lease: int | None, deadline: float | None) -> bool:
        """Waits for the group until `deadline` (None: as long as it takes). False: not had in time, nothing is held."""
        raise NotImplementedError

    async def release(self, owner_of_group: GroupOwner, hold: GroupHold | None) -> None:
        """Gives back one hold of `hold_of(owner_of_group)`; raises if there is none, or if it was lost meanwhile."""
        raise NotImplementedError

    async def is_held(self, owner_of_group: GroupOwner) -> bool:
        """Whether the group is held, as the servers and the local clock say."""
        raise NotImplementedError

    def drift(self, hold: Hold) -> float:
        """Seconds before its own end from which on a member's hold isn't believed any more."""
        return 0.0

    def hold_of(self, party_id: tuple[int, ...]) -> GroupHold | None:
        """The party's innermost hold of the group, lost or not."""
        levels = self.session.groups.holds.get((self.identity, party_id))
        return next(reversed(levels), None) if levels else None

    def keep(self, hold: GroupHold) -> None:
        """The party has it, above what it had before."""
        self.session.groups.add(hold.key, hold)

    def drop(self, hold: GroupHold) -> None:
        """The party gives it back. Idempotent."""
        self.session.groups.remove(hold.key, hold)

    def expire_if_due(self, hold: GroupHold) -> bool:
        """Declares members lost whose leases have ended. True: too few members are held for the group."""
        hold.expire_members()
        return hold.state is not HELD

    def release_in_background(self, owner_of_group: GroupOwner, hold: GroupHold | None) -> None:
        """Gives back what a release that was interrupted has not begun with."""
        if hold is not None and hold in self.session.groups.holds.get(hold.key, ()):
            for member_release in self.member_releases(owner_of_group, hold):
                member_release.release_in_background()
            self.drop(hold)

    def member_releases(self, owner_of_group: GroupOwner, hold: GroupHold) -> list[MemberRelease]:
        """What giving back one level means, in reverse order."""
        member_releases = []
        for member, owner, had in zip(self.members, owner_of_group.owners, hold.holds, strict=True):
            present = had
            if had is not None and had.state is LOST:
                # The lost ones of one owner are kept as one.
                top = member.hold_of(owner.id)
                present = top if top is None or top.state is LOST else top.lost_below
            if present is not None and present.count:
                member_releases.append(MemberRelease(member, owner, present, HoldLevel()))
        return member_releases[::-1]

    def taken(self, owner_of_group: GroupOwner, taken: Sequence[object]) -> list[MemberRelease]:
        """What giving back those members means that an acquire has just taken (True), in reverse order."""
        return self.member_releases(owner_of_group, GroupHold(self, owner_of_group, taken))

    def watch(self, hold: GroupHold) -> None:
        """Sees to it that `on_lost` callbacks hear of the hold that was just taken; of a nested one they do already."""
        levels = list(self.session.groups.holds.get(hold.key, ()))
        if not any(other is not hold and other.state is HELD for other in levels):
            hold.listen(self._ended)

    def _ended(self, hold: GroupHold) -> None:
        if hold.unlisten(self._ended) and hold.state is LOST:
            self.session.lost_callbacks.run(self.identity)
            self.session.groups.remember_lost(hold.key)

    def loss_of(self, owner_of_group: GroupOwner, hold: GroupHold) -> LockLostError:
        """The error for a hold that was lost."""
        why = "; ".join(
            f"{_where(member)}: {'it was not had' if lost is None else lost.reason}"
            for member, lost in zip(self.members, hold.holds, strict=True)
            if lost is None or lost.state is LOST
        )
        return LockLostError(
            f"{self.named(owner_of_group)} was lost: {why}", name=str(self), owner=owner_of_group.readable()
        )

    async def timed_out(self, owner_of_group: GroupOwner, wait: float) -> LockTimeoutError:
        """What to raise after waiting so many seconds, with the first member's holder that is found."""
        said, found = "no member is held by others", None
        try:
            for member, owner in zip(self.members, owner_of_group.owners, strict=True):
                words, holder = await member.holder(member.session.runtime.send)
                if holder is not None and (holder.client_id, holder.owner_id) != (member.session.id, owner.id):
                    said, found = f"{_where(member)}: {words}", holder
                    break
        except (NoReply, RedisError) as problem:
            said = f"who holds it can't be told: {problem}"
        text = f"{self.named(owner_of_group)} was not had in {wait:g} s: {said}"
        return LockTimeoutError(text, name=str(self), owner=owner_of_group.readable(), holder=found)

    def named(self, owner_of_group: GroupOwner) -> str:
        """The group and its owners, for messages."""
        return f"{self} of owner {owner_of_group.readable()}"

    def __str__(self) -> str:
        return f"{self.kind} of {', '.join(map(_where, self.members))}"


class GroupHold:
    """One hold of each member as one, which is lost as soon as fewer than a quorum of them can be proven.

    Of a group that is held more than once, each level is one of these: it may have been had with other members.
    """

    __slots__ = ("_group", "_watches", "holds", "key")

    def __init__(self, group: GroupLogic, owner_of_group: GroupOwner, taken: Sequence[object]) -> None:
        """Of the members that an acquire of the party has just taken (True)."""
        self._group = group
        self.key: Hashable = (group.identity, owner_of_group.id)
        """The group and the party in the table of holds."""
        self._watches: dict[Callable[[Any], None], _Watch] = {}
        self.holds = [
            member.hold_of(owner.id) if took is True else None
            for member, owner, took in zip(group.members, owner_of_group.owners, taken, strict=True)
        ]
        """Of each member, which counts this one; None: that member was not had."""

    @property
    def state(self) -> HoldState:
        """Held, given back or lost."""
        states = [LOST if hold is None else hold.state for hold in self.holds]
        quorum = self._group.quorum
        if len(states) - states.count(LOST) < quorum:
            return LOST
        return HELD if states.count(HELD) >= quorum else RELEASED

    def expire_members(self) -> None:
        """Declares members lost whose leases have ended."""
        for member, hold in zip(self._group.members, self.holds, strict=True):
            if hold is not None:
                member.session.holds.expire_if_due(hold, self._group.drift(hold))

    def looks(self) -> float:
        """When the next of its members ends, as far as is known now."""
        drift = self._group.drift
        held = [hold for hold in self.holds if hold is not None and hold.state is HELD]
        return min((hold.valid_until - drift(hold) for hold in held), default=0.0)

    def listen(self, listener: Callable[[Any], None]) -> None:
        """Has `listener` called when the group is lost or given back, perhaps more than once; at once if it is."""
        watch = self._watches[listener] = _Watch(self._group, self, listener)
        watch.begin()

    def unlisten(self, listener: Callable[[Any], None]) -> bool:
        """Takes a listener back; was it there."""
        watch = self._watches.pop(listener, None)
        if watch is not None:
            watch.end()
        return watch is not None


class _Watch(Alarm):
    """Hears of the end of each member, and looks itself when one should have ended."""

    __slots__ = ("_group", "_hold", "_listener")

    def __init__(self, group: GroupLogic, hold: GroupHold, listener: Callable[[GroupHold], None]) -> None:
        self._group = group
        self._hold = hold
        self._listener = listener

    def begin(self) -> None:
        for hold in self._hold.holds:
            if hold is not None:
                hold.listen(self)
        self.ring()

    def end(self) -> None:
        for hold in self._hold.holds:
            if hold is not None:
                hold.unlisten(self)
        self._group.session.watchdog.cancel(self)

    def ring(self) -> None:
        if not self._group.expire_if_due(self._hold):
            self._group.session.watchdog.set_alarm(self, self._hold.looks())
        else:
            self(None)

    def __call__(self, hold: Hold | None) -> None:
        if self._hold.state is not HELD:
            self._listener(self._hold)


def _where(member: LockLogic) -> str:
    return f"{readable(member.key)!r} on {member.session.server}"
