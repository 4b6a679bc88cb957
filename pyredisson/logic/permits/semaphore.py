"""The semaphore: a string with the number of free permits. Its permits have no owners and no leases."""

from __future__ import annotations

from pyredisson._diagnostics import tracing
from pyredisson._protocol.replication import NotConfirmed
from pyredisson._protocol.replies import number_in
from pyredisson.logic.exactly_once import ReplyForgotten, SessionSlot
from pyredisson.logic.permits import permit_hand_over, permit_wait
from pyredisson.logic.permits.commands import NOT_LISTED, Listing, SemaphoreCommands
from pyredisson.logic.permits.counter import PermitPool
from pyredisson.logic.permits.permit_hand_over import PermitRelease
from pyredisson.logic.permits.permit_wait import NO_SEMAPHORE, PermitCall, Refusal
from pyredisson.logic.retry import LIMITED_BY_RETRIES


class SemaphoreAcquire(PermitCall):
    """One acquire."""

    __slots__ = ()

    pool: SemaphoreLogic

    async def attempt(self, listing: Listing) -> Refusal | None:
        reply = await self.pool.send_acquire(self.permits, self.deadline, listing)
        if reply > 0:
            return None
        if reply == NO_SEMAPHORE:
            self.pool.report_missing()
        return Refusal.decode(reply)

    def undo(self) -> None:
        self.pool.release_in_background(self.permits)


class SemaphoreLogic(PermitPool):
    """The operations of a semaphore; numbers and durations were checked before."""

    __slots__ = ()

    commands_type = SemaphoreCommands
    commands: SemaphoreCommands

    # Acquiring

    async def acquire(self, permits: int, deadline: float | None) -> bool:
        """Waits for so many permits until `deadline` (None: without limit). False: they were not acquired by then.

        Raises `NotSetError` if the semaphore must exist, but doesn't exist or is deleted during the wait.
        """
        session = self.session
        if not permits:
            session.check_open()
            return True
        call = SemaphoreAcquire(self, permits, deadline)
        acquired = False
        try:
            acquired = await permit_wait.acquire(call)
            if tracing.on:
                self.tell_ended("acquired" if acquired else "timed_out", call)
            return acquired
        except BaseException as error:
            if acquired:
                # A cancellation or an interrupt: the caller never gets these permits.
                call.undo()
            if tracing.on:
                self.tell_ended("failed", call, error)
            raise

    async def drain(self) -> int:
        """Acquires all permits that are free; returns how many."""
        reply = 0
        try:
            reply = await self.send_acquire(0, LIMITED_BY_RETRIES)
            if tracing.on and reply > 0:
                self.tell_ended("acquired", SemaphoreAcquire(self, reply, None))
        except BaseException:
            # An interrupt after the acquire, or a logging filter of the user that raises.
            self.release_in_background(max(0, reply))
            raise
        # No function is called from here on: an interrupt after the call would lose the permits.
        if reply < 0:
            return 0
        return reply

    async def send_acquire(self, permits: int, deadline: float | None, listing: Listing = NOT_LISTED) -> int:
        """Sends one acquire (of 0: all free permits). Returns how many were acquired, or see `Refusal.decode`."""
        session, slots = self.session, self.session.slots
        while True:
            if session.closed:
                session.check_open()
            slot = slots.allocate()
            payload = self.commands.acquire(slot, permits, listing)
            try:
                reply = await slots.send_or_undo(slot, payload, self.commands.undo_acquire, deadline)
                break
            except ReplyForgotten:
                # What it may have acquired is released in the background. The next attempt is a new call.
                continue
            except NotConfirmed as problem:
                raise self.not_confirmed(problem) from None
        if session.closed:
            if reply > 0:
                self.release_in_background(reply)
            session.check_open()
        return reply

    # Releasing

    async def release(self, permits: int, only_existing: bool = False, slot: SessionSlot | None = None) -> bool:
        """Releases so many permits. False: there were none to release, or no semaphore although `only_existing`.

        Whatever it raises, the release happens: in the background, as soon as possible.
        """
        session = self.session
        if not permits:
            session.check_open()
            return False
        slot = slot or session.slots.allocate()
        if session.closed:
            # Permits have no leases: nothing else would ever free them.
            self.release_in_background(permits, only_existing, slot)
            session.check_open()
        try:
            queue = session.permits.queues.get(self.key) if session.permits.queues else None
            if queue is None:
                payload = self.commands.add(slot, permits, only_existing=only_existing)
                released = bool(await session.slots.send(slot, payload, complete=True))
            else:
                released = await permit_hand_over.release(self, queue, PermitRelease(slot, permits, only_existing))
        except BaseException:
            # They are released in the background.
            self.tell_released(permits)
            raise
        if tracing.on and released:
            self.tell_released(permits)
        return released

    def release_in_background(
        self, permits: int, only_existing: bool = False, slot: SessionSlot | None = None, number: int = 0
    ) -> None:
        """Releases so many permits in the background.

        After an interrupted `release` over `slot`: once. `number`: of its call on the slot; 0: it was not sent.
        """
        if not permits:
            return
        if slot is None:
            slot = self.session.slots.allocate()
        elif number:
            slot = slot.copy_for(number)
            if slot is None:
                return
        if not permit_hand_over.abandon(self, PermitRelease(slot, permits, only_existing)):
            self.session.runtime.post(self.commands.add(slot, permits, only_existing=only_existing))

    # Other operations

    async def available(self) -> int:
        """The number of free permits. If it is negative, so many must be released before the first one is free."""
        return number_in(await self.query(self.commands.read())) or 0
