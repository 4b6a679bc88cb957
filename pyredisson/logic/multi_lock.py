"""Several locks as one, all or nothing: taken in one order, given back in the other."""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import RedisError

from pyredisson.errors import LockLostError, RedissonError
from pyredisson.logic import calls
from pyredisson.logic.group import GroupHold, GroupLogic, Mark, Party
from pyredisson.logic.holds import GONE, HELD, Hold, Owner, logger
from pyredisson.logic.lock import LockLogic
from pyredisson.runtime import Cut

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

    async def acquire(self, party: Party, lease: int | None, deadline: float | None) -> bool:
        """Takes all members before `deadline` (None: however long it takes). False: none was taken, or not in time.

        The lease is in ms, of each member and from the moment when all are had; None: the watchdogs renew it.
        """
        shared = self.shared
        while True:
            try:
                if await self._round(party, lease, deadline):
                    return True
            except RedisError as error:
                # The first member's time is the caller's own, that of the others is shorter.
                over = deadline is not None and shared.clock() >= deadline
                if over or not calls.may_pass(error):
                    raise
            pause = PAUSE * shared.runtime.jitter()
            if deadline is not None:
                left = deadline - shared.clock()
                if left <= 0:
                    return False
                pause = min(pause, left)
            await shared.runtime.sleep(pause)

    async def _round(self, party: Party, lease: int | None, deadline: float | None) -> bool:
        """One go at the members. False: one wasn't had, and none is held."""
        taken = [False] * len(self.members)
        marks: list[Mark] = []
        hold: GroupHold | None = None
        try:
            if await self._collect(party, lease, deadline, taken):
                hold = GroupHold(self, party, taken)
                if self.proven(hold):
                    self.keep(hold)
                    self.watch(hold)
                    return True
            marks = self.taken(party, taken)
            for mark in marks:
                await _put_back(mark)
            return False
        except BaseException:
            marks = marks or self.taken(party, taken)
            if hold is not None:
                self.drop(hold)
            for mark in marks:
                mark.settle()
            raise

    async def _collect(self, party: Party, lease: int | None, deadline: float | None, taken: list[bool]) -> bool:
        clock = self.shared.clock
        # Half a lease at most, or it would end for the first while the last is waited for.
        patience = PATIENCE * len(self.members)
        if lease is not None:
            patience = min(patience, lease / 2000)
        until = deadline
        for i, (member, owner) in enumerate(zip(self.members, party.owners, strict=True)):
            if i == 1:
                # Nobody waits for the one who has nothing: the first is waited for as long as it takes.
                bound = clock() + patience
                until = bound if deadline is None else min(deadline, bound)
            taken[i] = await member.acquire(owner, lease, until)
            if not taken[i]:
                return False
        if lease is not None:
            for member, owner in zip(self.members, party.owners, strict=True):
                hold = member.hold_of(owner.id)
                if hold is not None and hold.ends - clock() < (1 - SHORT) * lease / 1000:
                    await _extend(member, owner, hold, lease)
        return True

    async def release(self, party: Party, hold: GroupHold | None) -> None:
        """Gives back one hold of each member, whatever happens to others; raises `LockLostError` if any was lost.

        If that is known before, the others are given back in the background.
        """
        members = list(zip(self.members, party.owners, strict=True))[::-1]
        marks = {} if hold is None else {mark.member: mark for mark in self.marks(party, hold)}
        errors: list[Exception] = []
        try:
            if hold is not None:
                self.drop(hold)
                if not self.proven(hold):
                    for taken in marks.values():
                        taken.settle()
                    raise self.loss_of(party, hold)
            for member, owner in members:
                mark = marks.get(member)
                try:
                    if mark is None:
                        await member.release(owner, member.hold_of(owner.id))
                    else:
                        await member.release(owner, mark.hold, mark.level)
                except (RedissonError, RedisError) as error:
                    errors.append(error)
        except BaseException:
            for mark in marks.values():
                mark.settle()
            raise
        if errors:
            raise _foremost(errors)

    async def is_held(self, party: Party) -> bool:
        """Whether all are held, as the servers and the local clock say."""
        for member, owner in zip(self.members, party.owners, strict=True):
            if not await member.hold_count(owner.id):
                return False
        return True


async def _extend(member: LockLogic, owner: Owner, hold: Hold, lease: int) -> None:
    """Has a hold last for so many ms from now at least; it is lost if the server doesn't know it any more.

    By the command that took it, which states the same holds again and never shortens a lease: each kind of
    lock keeps its leases in its own way. Whoever is interrupted, or gets an error, must give the hold back.
    """
    shared = member.shared
    payload = member.acquire_command(hold.owner, hold.count, lease, waits=False)
    sent_at = shared.clock()
    try:
        reply = await shared.runtime.send(payload)
    except (Cut, RedisError) as problem:
        reply, sent_at = await calls.repeat(
            shared.runtime, payload, problem, attempts=shared.attempts, on_doubt=owner.rename
        )
    if reply is None or reply.__class__ is list:
        if reply is not None:
            (hold.token,) = reply
        if hold.state is HELD:
            hold.ends = max(hold.ends, sent_at + lease / 1000)
            shared.watchdog.watch_nested(hold, sent_at)
    else:
        shared.holds.lose(hold, GONE)


async def _put_back(mark: Mark) -> None:
    try:
        await mark.member.release(mark.owner, mark.hold, mark.level)
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
