"""Several locks held as one: the owners of its members, and what becomes of their holds together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from pyredisson.logic.holds import GIVEN_BACK, HELD, LOST, Hold, Owner, State, shown
from pyredisson.logic.lock import LockLogic
from pyredisson.logic.watchdog import Alarm


class Party:
    """The owners of a group's members: one thread, or task, is another owner in each client."""

    __slots__ = ("id", "owners")

    def __init__(self, owners: Sequence[Owner]) -> None:
        self.owners = owners
        self.id = tuple(owner.id for owner in owners)


class Mark(NamedTuple):
    """One member's hold, and how many times it is held when one level of the group was given back."""

    member: LockLogic
    owner: Owner
    hold: Hold
    target: int

    def settle(self) -> None:
        """Gives it back: here at once, on the server in the background; unless that was done."""
        if self.hold.count > self.target:
            self.member.settle(self.owner, self.hold, self.target)


class GroupLogic:
    """What all groups have in common. Owners and durations come in checked, members in their order."""

    __slots__ = ("members", "place", "quorum", "shared")

    kind: str
    """For messages."""

    def __init__(self, members: Sequence[LockLogic], quorum: int) -> None:
        self.members = tuple(members)
        self.quorum = quorum
        self.shared = members[0].shared
        """Its clock, its signals and its watchdog serve the whole group."""
        self.place: Hashable = (self.kind, *[(member.shared.server, member.place) for member in members])

    async def acquire(self, party: Party, lease: int | None, deadline: float | None) -> bool:
        """Waits for the group until `deadline` (None: as long as it takes). False: not had in time, nothing is held."""
        raise NotImplementedError

    async def release(self, party: Party, hold: GroupHold | None) -> None:
        """Gives back one hold of `hold_of(party)`; raises if there is none, or if it was lost meanwhile."""
        raise NotImplementedError

    async def is_held(self, party: Party) -> bool:
        """Whether the group is held, as the servers and the local clock say."""
        raise NotImplementedError

    def drift(self, hold: Hold) -> float:
        """Seconds before its own end from which on a member's hold isn't believed any more."""
        return 0.0

    def hold_of(self, party_id: tuple[int, ...]) -> GroupHold | None:
        """The party's hold of the group, lost or not."""
        holds = [member.hold_of(owner_id) for member, owner_id in zip(self.members, party_id, strict=True)]
        return GroupHold(self, holds) if len(holds) - holds.count(None) >= self.quorum else None

    def proven(self, hold: GroupHold) -> bool:
        """Whether enough members are still held; what has ended of them is lost here and now."""
        hold.check()
        return hold.state is HELD

    def settle(self, party: Party, hold: GroupHold | None) -> None:
        """Gives back what a release that was interrupted has not."""
        if hold is not None:
            for mark in self.marks(party, hold):
                mark.settle()

    def marks(self, party: Party, hold: GroupHold) -> list[Mark]:
        """What giving back one level means, in reverse order."""
        members = zip(self.members, party.owners, hold.holds, hold.counts, strict=True)
        return [
            Mark(member, owner, of_member, count - 1)
            for member, owner, of_member, count in members
            if of_member is not None
        ][::-1]

    def taken(self, party: Party, taken: Sequence[object]) -> list[Mark]:
        """What giving back those members means that an acquire has just taken (True), in reverse order."""
        marks = []
        for member, owner, took in zip(self.members, party.owners, taken, strict=True):
            hold = member.hold_of(owner.id) if took is True else None
            if hold is not None:
                marks.append(Mark(member, owner, hold, hold.count - 1))
        return marks[::-1]

    def watch(self, party: Party) -> None:
        """Sees to it that `on_lost` callbacks hear of the hold that was just taken; of a nested one they do already."""
        hold = self.hold_of(party.id)
        if hold is not None and hold.depth == 1:
            hold.listen(self._ended)

    def _ended(self, hold: GroupHold) -> None:
        if hold.unlisten(self._ended) and hold.state is LOST:
            self.shared.tell_lost(self.place)

    def loss_of(self, party: Party, hold: GroupHold) -> str:
        """What to say of a lost hold."""
        why = "; ".join(
            f"{_where(member)}: {'it was not had' if lost is None else lost.reason}"
            for member, lost in zip(self.members, hold.holds, strict=True)
            if lost is None or lost.state is LOST
        )
        return f"{self.named(party)} was lost: {why}"

    def named(self, party: Party) -> str:
        """The group and its owners, for messages."""
        owners = ", ".join(dict.fromkeys(shown(owner.name) for owner in party.owners))
        return f"{self} of owner {owners}"

    def __str__(self) -> str:
        return f"{self.kind} of {', '.join(map(_where, self.members))}"


class GroupHold:
    """The members' holds as one, which is lost as soon as fewer than a quorum of them can be proven.

    A view: all that is known of it, the members' holds know.
    """

    __slots__ = ("_group", "_watches", "counts", "depth", "holds")

    def __init__(self, group: GroupLogic, holds: Sequence[Hold | None]) -> None:
        """`holds`: of each member; None: that one was not had."""
        self._group = group
        self._watches: dict[Callable[[Any], None], _Watch] = {}
        self.counts = [0 if hold is None else hold.count for hold in holds]
        self.depth = sorted(self.counts, reverse=True)[group.quorum - 1]
        """How often the group is held: so often a quorum of its members is."""
        self.holds = [None if hold is None or hold.count < self.depth else hold for hold in holds]
        """One that was not had for the innermost level neither counts for it, nor is given back with it."""

    @property
    def state(self) -> State:
        """Held, given back or lost."""
        states = [LOST if hold is None else hold.state for hold in self.holds]
        quorum = self._group.quorum
        if len(states) - states.count(LOST) < quorum:
            return LOST
        return HELD if states.count(HELD) >= quorum else GIVEN_BACK

    def check(self) -> None:
        """Declares lost what has come to its end."""
        now = self._group.shared.clock()
        for member, hold in zip(self._group.members, self.holds, strict=True):
            if hold is not None and hold.state is HELD and hold.ends - self._group.drift(hold) <= now:
                member.shared.holds.lose(hold, "its lease ended without a proven renewal")

    def looks(self) -> float:
        """When the next of its members ends, as far as is known now."""
        drift = self._group.drift
        held = [hold for hold in self.holds if hold is not None and hold.state is HELD]
        return min((hold.ends - drift(hold) for hold in held), default=0.0)

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
        self._group.shared.watchdog.forget(self)

    def ring(self) -> None:
        if self._group.proven(self._hold):
            self._group.shared.watchdog.remind(self, self._hold.looks())
        else:
            self(None)

    def __call__(self, hold: Hold | None) -> None:
        if self._hold.state is not HELD:
            self._listener(self._hold)


def _where(member: LockLogic) -> str:
    return f"{shown(member.key)!r} on {member.shared.server}"
