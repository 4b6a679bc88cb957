"""One lock on several independent servers, held while a majority of them says so."""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import RedisError

from pyredisson._core import HoldLevel
from pyredisson._protocol.error_codes import is_transient
from pyredisson.errors import LockNotHeldError
from pyredisson.logic import retry
from pyredisson.logic.groups.group import GroupHold, GroupLogic, GroupOwner, MemberRelease
from pyredisson.logic.groups.race import Late, Operation, Race
from pyredisson.logic.holds import LOST, Hold
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner

DRIFT = 0.01
LEAST_DRIFT = 0.002
"""How far clocks may part: a hundredth of the lease, and two milliseconds."""
PART = 0.1
"""The part of a lease that asking all servers may take, however many of them are slow."""
LEAST_PATIENCE = 0.05
"""Seconds; for short leases."""
GATE = 1.0
"""Seconds, about, to wait for one busy member before all are asked again: others may be free by then."""
PAUSE = 0.02
"""Seconds, at most, before one who was refused asks again; random, so that two who parted the members don't again."""
FORGOTTEN = 60.0
"""Seconds after which a member that was asked and never answered may be asked again."""


class RedLockLogic(GroupLogic):
    """Held while a majority of the members is."""

    __slots__ = ()

    kind = "red lock"

    def __init__(self, members: Sequence[LockLogic]) -> None:
        super().__init__(members, len(members) // 2 + 1)

    def drift(self, hold: Hold) -> float:
        leases = hold.leases if isinstance(hold.leases, list) else [hold.leases]
        return _drift(max(self.session.lease if lease is None else lease for lease in leases))

    async def acquire(self, owner_of_group: GroupOwner, lease: int | None, deadline: float | None) -> bool:
        """Takes a majority of the members before `deadline` (None: however long it takes). False: none is held.

        The lease is in ms; None: the watchdogs renew it. `ValueError` for one that clocks' drift uses up. Servers
        that are down don't matter while a majority answers. When it doesn't, they are asked again until it does, or
        until `deadline`; without time to wait, as often as a command would be sent again.
        """
        if lease is not None and _drift(lease) >= lease / 1000:
            raise ValueError(f"lease_time must leave more than a millisecond after clock drift, not {lease} ms")
        session = self.session
        runtime = session.runtime
        unanswered = refused = 0
        gate: int | None = None
        while True:
            race = await self._round(owner_of_group, lease, deadline, gate)
            if race is None:
                return True
            busy = [number for number, outcome in race.outcomes.items() if outcome is False]
            errors = race.errors()
            if errors and not isinstance(errors[0], RedisError):
                # Not a server's trouble: no other round would help.
                raise errors[0]
            gate = None
            if len(self.members) - len(errors) < self.quorum:
                if self._hopeless(errors):
                    raise errors[0]
                if deadline == retry.NO_WAIT and unanswered >= session.attempts:
                    return False
                pause = retry.delay(unanswered, runtime.jitter())
                unanswered += 1
            else:
                unanswered = 0
                pause = PAUSE * runtime.jitter()
                if busy:
                    # All who wait do so for the same one, and then for the next, in case that one is never free.
                    gate = sorted(busy)[refused % len(busy)]
                    refused += 1
            if deadline is not None and not (deadline == retry.NO_WAIT and unanswered):
                left = deadline - session.clock()
                if left <= 0:
                    return False
                pause = min(pause, left)
            await runtime.sleep(pause)

    def _hopeless(self, errors: list[Exception]) -> bool:
        """Whether so many members fail for reasons that no waiting mends that the others are no majority.

        Brings such a reason to the front.
        """
        errors.sort(key=_is_transient)
        return len(self.members) - sum(not _is_transient(error) for error in errors) < self.quorum

    async def _round(
        self, owner_of_group: GroupOwner, lease: int | None, deadline: float | None, gate: int | None
    ) -> Race | None:
        """Asks all members once. None: a majority is had; else what they said, and nothing is held.

        First the member `gate` is waited for, if it is named, with nothing else in hand.
        """
        session = self.session
        race = Race(session.runtime)
        member_releases: list[MemberRelease] = []
        hold: GroupHold | None = None
        try:
            asked = self._to_ask(owner_of_group)
            patience = self._patience(lease)
            if gate in asked:
                until = session.clock() + GATE * (0.5 + session.runtime.jitter())
                if deadline is not None:
                    until = min(until, deadline)
                self._ask(race, owner_of_group, gate, lease, until)
                await race.wait(max(0.0, until - session.clock()) + patience, 1, 1)
            now = session.clock()
            for number in asked:
                if number != gate:
                    self._ask(race, owner_of_group, number, lease, now)
            await race.wait(patience, self.quorum, len(self.members))
            race.close()
            if race.had() >= self.quorum:
                hold = GroupHold(self, owner_of_group, self._answers(race))
                # What is left of each lease, drift taken off, decides.
                if not self.expire_if_due(hold):
                    self.keep(hold)
                    self.watch(hold)
                    return None
            member_releases = self._taken(owner_of_group, race)
            await self._release(member_releases, patience)
            return race
        except BaseException:
            race.close()
            member_releases = member_releases or self._taken(owner_of_group, race)
            if hold is not None:
                self.drop(hold)
            for member_release in member_releases:
                member_release.release_in_background()
            raise

    def _to_ask(self, owner_of_group: GroupOwner) -> list[int]:
        now = self.session.clock()
        asked = []
        for number, (member, owner) in enumerate(zip(self.members, owner_of_group.owners, strict=True)):
            member.session.check_open()
            # One that hangs is not asked again and again.
            if now - member.session.groups.unanswered.get((member.identity, owner.id), -FORGOTTEN) >= FORGOTTEN:
                asked.append(number)
        return asked

    def _ask(self, race: Race, owner_of_group: GroupOwner, number: int, lease: int | None, until: float) -> None:
        member, owner = self.members[number], owner_of_group.owners[number]
        asked = member.session.groups.unanswered
        place = (member.identity, owner.id)

        async def ask() -> bool:
            # Here, not before it is begun: who is interrupted then has asked nobody.
            asked[place] = self.session.clock()
            try:
                return await member.acquire(owner, lease, until)
            finally:
                asked.pop(place, None)

        def give_back() -> None:
            hold = member.hold_of(owner.id)
            if hold is not None:
                member.release_in_background(owner, hold, HoldLevel())

        race.start(number, ask, give_back)

    def _taken(self, owner_of_group: GroupOwner, race: Race) -> list[MemberRelease]:
        return self.taken(owner_of_group, self._answers(race))

    def _answers(self, race: Race) -> list[object]:
        return [race.outcomes.get(number) for number in range(len(self.members))]

    async def release(self, owner_of_group: GroupOwner, hold: GroupHold | None) -> None:
        """Gives back one hold of each member that is held, at the same time.

        Raises `LockLostError` if the majority was lost, `LockNotHeldError` if there was none, and what Redis reports
        if no majority confirmed; then it is repeated in the background. A server that is down doesn't matter.
        """
        if hold is None:
            raise await self._not_held_error(owner_of_group)
        member_releases = self.member_releases(owner_of_group, hold)
        try:
            self.drop(hold)
            lost = self.expire_if_due(hold)
            race = await self._release(member_releases, self._patience(None))
        except BaseException:
            for member_release in member_releases:
                member_release.release_in_background()
            raise
        if lost or hold.state is LOST:
            raise self.loss_of(owner_of_group, hold)
        if race.had() < self.quorum:
            raise race.errors()[0]

    async def is_held(self, owner_of_group: GroupOwner) -> bool:
        """Whether a majority is held, as the servers and the local clock say; raises if too many don't answer."""
        hold = self.hold_of(owner_of_group.id)
        if hold is None or self.expire_if_due(hold):
            return False
        race = Race(self.session.runtime)
        for number, (member, owner) in enumerate(zip(self.members, owner_of_group.owners, strict=True)):
            race.start(number, _held(member, owner))
        await race.wait(self._patience(None), self.quorum, len(self.members))
        race.close()
        errors = race.errors()
        if race.had() < self.quorum <= race.had() + len(errors):
            raise errors[0]
        return race.had() >= self.quorum and not self.expire_if_due(hold)

    async def _release(self, member_releases: list[MemberRelease], patience: float) -> Race:
        race = Race(self.session.runtime)
        for number, member_release in enumerate(member_releases):
            race.start(number, _released(member_release))
        await race.wait(patience, min(self.quorum, len(member_releases)), len(member_releases))
        race.close()
        for member_release in member_releases:
            # Of those that hang: so that whatever this owner takes next doesn't meet them.
            member_release.release_in_background()
        return race

    async def _not_held_error(self, owner_of_group: GroupOwner) -> Exception:
        race = Race(self.session.runtime)
        for number, (member, owner) in enumerate(zip(self.members, owner_of_group.owners, strict=True)):
            if member.hold_of(owner.id) is None:
                race.start(number, _refused(member, owner))
        await race.wait(self._patience(None), 1, 1)
        race.close()
        # Each has raised: that it isn't held, or why that can't be told.
        why = race.errors()[0] if race.outcomes else "its members are, but not together"
        holder = why.holder if isinstance(why, LockNotHeldError) else None
        text = f"{self.named(owner_of_group)} is not held: {why}"
        return LockNotHeldError(text, name=str(self), owner=owner_of_group.readable(), holder=holder)

    def _patience(self, lease: int | None) -> float:
        shortest = min(member.session.lease for member in self.members) if lease is None else lease
        return max(LEAST_PATIENCE, PART * shortest / 1000)


def _is_transient(error: Exception) -> bool:
    return isinstance(error, Late) or is_transient(error)


def _drift(lease: int) -> float:
    return DRIFT * lease / 1000 + LEAST_DRIFT


def _released(member_release: MemberRelease) -> Operation:
    async def release() -> bool:
        # It may begin, or have its turn, when its time is over already: then what it should do is done.
        await member_release.member.release(member_release.owner, member_release.hold, member_release.level)
        return True

    return release


def _refused(member: LockLogic, owner: Owner) -> Operation:
    async def release() -> bool:
        await member.release(owner, None)
        return True

    return release


def _held(member: LockLogic, owner: Owner) -> Operation:
    async def ask() -> bool:
        return await member.hold_count(owner.id) > 0

    return ask
