"""The semaphore: a string with the number of free permits, which have no owners."""

from __future__ import annotations

import logging

from pyredisson._core import command, pack, prefixed
from pyredisson.logic import calls, missing, once, waiting
from pyredisson.logic.calls import NO_WAIT
from pyredisson.logic.holds import logger, shown, trace
from pyredisson.logic.hub import Channel
from pyredisson.logic.once import Lane
from pyredisson.logic.permit_claim import Claimant, claim_key, turn_key
from pyredisson.logic.shared import Shared

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

    def heard(self, payload: bytes) -> None:
        """So many permits are free, as Redisson spells it; anything else is ignored."""
        if payload.isdigit() and len(payload) <= MOST_DIGITS:
            self.wake(int(payload))

    def next_leader(self) -> None:
        """Only who wants several may lead."""
        for signal in list(self.waiters):
            if self.waiters.get(signal, 0) > 1:
                signal.set()
                return


class SemaphoreLogic:
    """What a semaphore does; numbers and durations come in checked."""

    __slots__ = ("_channel", "_claim", "_memory", "_must_exist", "key", "shared")

    def __init__(self, shared: Shared, key: bytes, *, must_exist: bool = False) -> None:
        self.shared = shared
        self.key = key
        self._channel = prefixed(CHANNEL, key)
        self._claim = claim_key(key)
        self._memory = once.memory(key)
        self._must_exist = must_exist

    async def acquire(self, permits: int, deadline: float | None) -> bool:
        """Waits for so many permits until `deadline` (None: as long as it takes). False: not had in time.

        Raises `NotSetError` if the semaphore must exist, and doesn't or ceases to.
        """
        shared = self.shared
        if not permits:
            shared.check_open()
            return True
        taken = await self._take(permits, deadline)
        if taken > 0:
            return True
        if taken == NO_SEMAPHORE:
            tell_missing(shared, self.key, must_exist=self._must_exist)
        if deadline is not None and shared.clock() >= deadline:
            return False
        return await self._wait(permits, deadline, _look_again(taken))

    async def _wait(self, permits: int, deadline: float | None, busy: float) -> bool:
        shared = self.shared
        claimant = Claimant(shared, self.key, self._channel, permits)
        had = False

        async def attempt() -> float | None:
            nonlocal had
            taken = await self._take(permits, deadline, claimant.claims())
            had = taken > 0
            if had:
                return None
            if taken == NO_SEMAPHORE:
                tell_missing(shared, self.key, must_exist=self._must_exist)
            if free := -taken % (1 << FREE_BITS):
                # The message that woke this one may serve others, who need less.
                shared.hub.message(self._channel, b"%d" % free)
            return claimant.rest(_look_again(taken))

        try:
            return await waiting.until(
                shared,
                self._channel,
                attempt,
                claimant.rest(busy),
                deadline,
                kind=PermitChannel,
                need=permits,
                signal=claimant.signal,
            )
        except BaseException:
            if had:
                # Interrupted on the way out with permits in its hands.
                self.settle(permits)
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

    async def release(self, permits: int, only_existing: bool = False, lane: Lane | None = None) -> bool:
        """Gives back so many permits; False if there were none, or no semaphore where one must exist.

        Whatever it raises, it is done: in the background, as soon as it can be.
        """
        shared = self.shared
        if not permits:
            shared.check_open()
            return False
        lane = lane or shared.lanes.take()
        if shared.closed:
            # Nothing on the server would ever free what the client leaves.
            self.settle(permits, only_existing, lane)
            shared.check_open()
        payload = self._add_command(lane, permits, only_existing=only_existing)
        released = bool(await shared.lanes.call(lane, payload, complete=True))
        if trace.on:
            logger.debug("%d permits of semaphore %r are released", permits, shown(self.key))
        return released

    def settle(self, permits: int, only_existing: bool = False, lane: Lane | None = None) -> None:
        """Gives back so many permits in the background; together with `release` over the same lane, once."""
        if permits:
            lane = lane or self.shared.lanes.take()
            self.shared.runtime.post(self._add_command(lane, permits, only_existing=only_existing))

    async def add(self, permits: int) -> None:
        """Makes the semaphore so much larger; or smaller, perhaps below zero."""
        self.shared.check_open()
        if permits:
            lane = self.shared.lanes.take()
            await self.shared.lanes.call(lane, self._add_command(lane, permits))

    async def try_set(self, permits: int, ttl: int | None) -> bool:
        """Makes the semaphore, for so many ms, if there is none."""
        shared = self.shared
        shared.check_open()
        lane = shared.lanes.take()
        payload = pack(
            shared.runtime.scripts.semaphore_set,
            self.key,
            self._memory + lane.suffix,
            lane.number,
            permits,
            ttl or 0,
            self._channel,
        )
        return bool(await shared.lanes.call(lane, payload))

    async def available(self) -> int:
        """How many permits are free; below zero: so many must come back before one is."""
        shared = self.shared
        shared.check_open()
        return int(await calls.call(shared.runtime, command(b"GET", self.key), attempts=shared.attempts) or 0)

    async def delete(self) -> bool:
        """Removes the semaphore; was there one."""
        shared = self.shared
        shared.check_open()
        lane = shared.lanes.take()
        payload = once.delete_command(shared.runtime.scripts, lane, self._memory, self._channel, b"", self.key)
        return bool(await shared.lanes.call(lane, payload))

    async def _take(self, permits: int, deadline: float | None, claimant: bytes = b"") -> int:
        """One acquire (of 0: all there are). Above zero: so many were had; else none, and see `FREE_BITS`."""
        shared = self.shared
        if shared.closed:
            shared.check_open()
        lane = shared.lanes.take()
        payload = self._acquire_command(lane, permits, claimant)
        try:
            taken: int = await shared.lanes.call(lane, payload, deadline=deadline, undo=self._undo_command)
        except once.Outlived:
            # What it may have taken is given back in the background.
            return await self._take(permits, deadline, claimant)
        if shared.closed:
            if taken > 0:
                self.settle(taken)
            shared.check_open()
        if trace.on and taken > 0:
            try:
                logger.debug("%d permits of semaphore %r are acquired", taken, shown(self.key))
            except BaseException:
                self.settle(taken)
                raise
        return taken

    def _acquire_command(self, lane: Lane, permits: int, claimant: bytes) -> bytes:
        scripts, memory = self.shared.runtime.scripts, self._memory + lane.suffix
        if not claimant:
            return pack(scripts.semaphore_acquire, self.key, self._claim, memory, lane.number, permits)
        return pack(
            scripts.semaphore_claim,
            self.key,
            self._claim,
            turn_key(self.key),
            memory,
            lane.number,
            permits,
            claimant,
            self._channel,
        )

    def _undo_command(self, lane: Lane) -> bytes:
        return pack(
            self.shared.runtime.scripts.semaphore_undo,
            self.key,
            self._memory + lane.suffix,
            lane.number + 1,
            self._channel,
        )

    def _add_command(self, lane: Lane, permits: int, *, only_existing: bool = False) -> bytes:
        return pack(
            self.shared.runtime.scripts.semaphore_add,
            self.key,
            self._memory + lane.suffix,
            lane.number,
            permits,
            self._channel,
            int(only_existing),
        )


def _look_again(taken: int) -> float:
    """After how many seconds to ask again at the latest, by the reply of a refused acquire."""
    claimed = -taken >> FREE_BITS
    return min((claimed + 1) / 1000, LOOK_AGAIN) if claimed else LOOK_AGAIN


def tell_missing(shared: Shared, key: bytes, *, must_exist: bool) -> None:
    """An acquire found no semaphore."""
    text = "doesn't exist: its permits were never set, it was deleted, or it has ended"
    missing.tell(shared, logging.WARNING, "semaphore", key, text, must_exist=must_exist)
