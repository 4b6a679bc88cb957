"""The semaphore: a string with the number of free permits, which have no owners."""

from __future__ import annotations

import logging

from pyredisson._core import command, pack, prefixed
from pyredisson._diagnostics import debug, logger, readable
from pyredisson.logic import exactly_once, retry, waiting
from pyredisson.logic.channels import Channel
from pyredisson.logic.exactly_once import SessionSlot
from pyredisson.logic.permits import not_set
from pyredisson.logic.permits.claims import Claimant, claim_key, turn_key
from pyredisson.logic.retry import NO_WAIT
from pyredisson.logic.session import Session

CHANNEL = b"redisson_sc"
LOOK_AGAIN = 5.0
"""Seconds between two looks of one who waits: a message may be lost, and no lease tells when to look."""
MOST_DIGITS = 19
"""Of a number in a message; longer ones are nobody's permits."""
FREE_BITS = 32
"""Of a refused acquire's reply: how many are free. The rest: for how many ms they are somebody else's."""


NO_SEMAPHORE = -(2**52)
"""The reply of an acquire if there is none."""


class PermitChannel(Channel):
    """The waiters for permits, each of whom needs so many."""

    __slots__ = ()

    def on_message(self, payload: bytes) -> None:
        """So many permits are free, as Redisson spells it; anything else is ignored."""
        if payload.isdigit() and len(payload) <= MOST_DIGITS:
            self.wake(int(payload))

    def wake_next_leader(self) -> None:
        """Only who wants several may lead."""
        for wakeup in list(self.waiters):
            if self.waiters.get(wakeup, 0) > 1:
                wakeup.set()
                return


class SemaphoreLogic:
    """What a semaphore does; numbers and durations come in checked."""

    __slots__ = ("_channel", "_claim", "_memory", "_must_exist", "key", "session")

    def __init__(self, session: Session, key: bytes, *, must_exist: bool = False) -> None:
        self.session = session
        self.key = key
        self._channel = prefixed(CHANNEL, key)
        self._claim = claim_key(key)
        self._memory = exactly_once.memory(key)
        self._must_exist = must_exist

    async def acquire(self, permits: int, deadline: float | None) -> bool:
        """Waits for so many permits until `deadline` (None: as long as it takes). False: not had in time.

        Raises `NotSetError` if the semaphore must exist, and doesn't or ceases to.
        """
        session = self.session
        if not permits:
            session.check_open()
            return True
        taken = await self._take(permits, deadline)
        if taken > 0:
            return True
        if taken == NO_SEMAPHORE:
            tell_missing(session, self.key, must_exist=self._must_exist)
        if deadline is not None and session.clock() >= deadline:
            return False
        return await self._wait(permits, deadline, _look_again(taken))

    async def _wait(self, permits: int, deadline: float | None, busy: float) -> bool:
        session = self.session
        claimant = Claimant(session, self.key, self._channel, permits)
        had = False

        async def attempt() -> float | None:
            nonlocal had
            taken = await self._take(permits, deadline, claimant.claims())
            had = taken > 0
            if had:
                return None
            if taken == NO_SEMAPHORE:
                tell_missing(session, self.key, must_exist=self._must_exist)
            if free := -taken % (1 << FREE_BITS):
                # The message that woke this one may serve others, who need less.
                session.channels.deliver(self._channel, b"%d" % free)
            return claimant.rest(_look_again(taken))

        try:
            return await waiting.until(
                session,
                self._channel,
                attempt,
                claimant.rest(busy),
                deadline,
                channel_class=PermitChannel,
                need=permits,
                wakeup=claimant.wakeup,
            )
        except BaseException:
            if had:
                # Interrupted on the way out with permits in its hands.
                self.release_in_background(permits)
            raise
        finally:
            if not had:
                claimant.give_up()

    async def drain(self) -> int:
        """Takes all permits that are free, and says how many."""
        taken = await self._take(0, NO_WAIT)
        # No call of a function from here on: a signal could strike after it, with the permits in nobody's hands.
        if taken < 0:
            return 0
        return taken

    async def release(self, permits: int, only_existing: bool = False, slot: SessionSlot | None = None) -> bool:
        """Gives back so many permits; False if there were none, or no semaphore where one must exist.

        Whatever it raises, it is done: in the background, as soon as it can be.
        """
        session = self.session
        if not permits:
            session.check_open()
            return False
        slot = slot or session.slots.take()
        if session.closed:
            # Nothing on the server would ever free what the client leaves.
            self.release_in_background(permits, only_existing, slot)
            session.check_open()
        payload = self._add_command(slot, permits, only_existing=only_existing)
        released = bool(await session.slots.call(slot, payload, complete=True))
        if debug.on:
            logger.debug("%d permits of semaphore %r are released", permits, readable(self.key))
        return released

    def release_in_background(self, permits: int, only_existing: bool = False, slot: SessionSlot | None = None) -> None:
        """Gives back so many permits in the background; together with `release` over the same lane, once."""
        if permits:
            slot = slot or self.session.slots.take()
            self.session.runtime.post(self._add_command(slot, permits, only_existing=only_existing))

    async def add(self, permits: int) -> None:
        """Makes the semaphore so much larger; or smaller, perhaps below zero."""
        self.session.check_open()
        if permits:
            slot = self.session.slots.take()
            await self.session.slots.call(slot, self._add_command(slot, permits))

    async def try_set(self, permits: int, ttl: int | None) -> bool:
        """Makes the semaphore, for so many ms, if there is none."""
        session = self.session
        session.check_open()
        slot = session.slots.take()
        payload = pack(
            session.runtime.scripts.semaphore_set,
            self.key,
            self._memory + slot.suffix,
            slot.number,
            permits,
            ttl or 0,
            self._channel,
        )
        return bool(await session.slots.call(slot, payload))

    async def available(self) -> int:
        """How many permits are free; below zero: so many must come back before one is."""
        session = self.session
        session.check_open()
        reply, _ = await retry.send(session.runtime, command(b"GET", self.key), attempts=session.attempts)
        return int(reply or 0)

    async def delete(self) -> bool:
        """Removes the semaphore; was there one."""
        session = self.session
        session.check_open()
        slot = session.slots.take()
        payload = exactly_once.delete_command(session.runtime.scripts, slot, self._memory, self._channel, b"", self.key)
        return bool(await session.slots.call(slot, payload))

    async def _take(self, permits: int, deadline: float | None, claimant: bytes = b"") -> int:
        """One acquire (of 0: all there are). Above zero: so many were had; else none, and see `FREE_BITS`."""
        session = self.session
        if session.closed:
            session.check_open()
        slot = session.slots.take()
        payload = self._acquire_command(slot, permits, claimant)
        try:
            taken: int = await session.slots.call(slot, payload, deadline=deadline, undo=self._undo_command)
        except exactly_once.Outlived:
            # What it may have taken is given back in the background.
            return await self._take(permits, deadline, claimant)
        if session.closed:
            if taken > 0:
                self.release_in_background(taken)
            session.check_open()
        if debug.on and taken > 0:
            try:
                logger.debug("%d permits of semaphore %r are acquired", taken, readable(self.key))
            except BaseException:
                self.release_in_background(taken)
                raise
        return taken

    def _acquire_command(self, slot: SessionSlot, permits: int, claimant: bytes) -> bytes:
        scripts, memory = self.session.runtime.scripts, self._memory + slot.suffix
        if not claimant:
            return pack(scripts.semaphore_acquire, self.key, self._claim, memory, slot.number, permits)
        return pack(
            scripts.semaphore_claim,
            self.key,
            self._claim,
            turn_key(self.key),
            memory,
            slot.number,
            permits,
            claimant,
            self._channel,
        )

    def _undo_command(self, slot: SessionSlot) -> bytes:
        return pack(
            self.session.runtime.scripts.semaphore_undo,
            self.key,
            self._memory + slot.suffix,
            slot.number + 1,
            self._channel,
        )

    def _add_command(self, slot: SessionSlot, permits: int, *, only_existing: bool = False) -> bytes:
        return pack(
            self.session.runtime.scripts.semaphore_add,
            self.key,
            self._memory + slot.suffix,
            slot.number,
            permits,
            self._channel,
            int(only_existing),
        )


def _look_again(taken: int) -> float:
    """After how many seconds to ask again at the latest, by the reply of a refused acquire."""
    claimed = -taken >> FREE_BITS
    return min((claimed + 1) / 1000, LOOK_AGAIN) if claimed else LOOK_AGAIN


def tell_missing(session: Session, key: bytes, *, must_exist: bool) -> None:
    """An acquire found no semaphore."""
    text = "doesn't exist: its permits were never set, it was deleted, or it has ended"
    not_set.report(session, logging.WARNING, "semaphore", key, text, must_exist=must_exist)
