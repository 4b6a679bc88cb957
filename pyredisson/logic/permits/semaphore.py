"""The semaphore: a string with the number of free permits. Its permits have no owners and no leases."""

from __future__ import annotations

from redis.exceptions import TryAgainError

from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replication import NotConfirmed
from pyredisson.logic import retry
from pyredisson.logic.exactly_once import ReplyForgotten, SessionSlot
from pyredisson.logic.observing import end_of_acquire
from pyredisson.logic.permits import permit_hand_over, permit_wait
from pyredisson.logic.permits.commands import NOT_LISTED, Listing, SemaphoreCommands
from pyredisson.logic.permits.permit_wait import NO_SEMAPHORE, Refusal
from pyredisson.logic.retry import LIMITED_BY_RETRIES, not_replicated
from pyredisson.logic.session import Session


class SemaphoreAcquire:
    """One acquire."""

    __slots__ = ("_semaphore", "began", "deadline", "permits")

    def __init__(self, semaphore: SemaphoreLogic, permits: int, deadline: float | None) -> None:
        self._semaphore = semaphore
        self.permits = permits
        self.deadline = deadline
        self.began = 0.0
        """When it has begun to wait. 0: it hasn't."""

    async def attempt(self, listing: Listing) -> Refusal | None:
        reply = await self._semaphore.send_acquire(self.permits, self.deadline, listing)
        return None if reply > 0 else self._semaphore.refused(reply)

    def on_wait(self) -> None:
        self.began = self._semaphore.session.clock()
        if tracing.on:
            self._semaphore.tell("waiting", self.permits, self)

    def undo(self) -> None:
        self._semaphore.release_in_background(self.permits)


class SemaphoreLogic:
    """The operations of a semaphore; numbers and durations were checked before."""

    __slots__ = ("commands", "key", "must_exist", "session")

    def __init__(self, session: Session, key: bytes, *, must_exist: bool = False) -> None:
        self.session = session
        self.key = key
        self.commands = SemaphoreCommands(session, key)
        self.must_exist = must_exist

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
            acquired = await permit_wait.acquire(self, call)
            if tracing.on:
                self.tell("acquired" if acquired else "timed_out", permits, call)
            return acquired
        except BaseException as error:
            if acquired:
                # A cancellation or an interrupt: the caller never gets these permits.
                call.undo()
            # An answer, and no failure, see `retry`: the permits were not acquired in time.
            refused = isinstance(error, TryAgainError)
            if tracing.on:
                self.tell("timed_out" if refused else "failed", permits, call, None if refused else error)
            if refused:
                return False
            raise

    def tell(
        self, what: str, permits: int, call: SemaphoreAcquire | None = None, error: BaseException | None = None
    ) -> None:
        """Tells the log and the observer. `call`: None, if there is none that could wait."""
        observing = self.session.observing
        if tracing.debug:
            end = end_of_acquire("are", acquired=what == "acquired", error=error)
            said = "are waited for" if what == "waiting" else end
            logger.debug("%d permits of semaphore %r %s", permits, readable(self.key), said)
        if observing is None:
            return
        if what == "waiting":
            observing.wait_begins(call, self.commands, count=permits)
        else:
            waited, began = (call, call.began) if call is not None and call.began else (None, 0.0)
            observing.call_ended(what, waited, self.commands, began=began, count=permits, error=error)

    async def drain(self) -> int:
        """Acquires all permits that are free; returns how many."""
        reply = 0
        try:
            reply = await self.send_acquire(0, LIMITED_BY_RETRIES)
            if tracing.on and reply > 0:
                self.tell("acquired", reply)
        except BaseException:
            # An interrupt after the acquire, or a logging filter of the user that raises.
            self.release_in_background(max(0, reply))
            raise
        # No function is called from here on: an interrupt after the call would lose the permits.
        if reply < 0:
            return 0
        return reply

    async def send_acquire(self, permits: int, deadline: float | None, listing: Listing = NOT_LISTED) -> int:
        """Sends one acquire (of 0: all free permits). Returns how many were acquired, or a refusal for `refused`."""
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
                raise not_replicated(f"a permit of semaphore {readable(self.key)!r}", problem) from None
        if session.closed:
            if reply > 0:
                self.release_in_background(reply)
            session.check_open()
        return reply

    def refused(self, reply: int) -> Refusal:
        """What a reply means that acquired nothing. Raises `NotSetError` if the semaphore must exist, but doesn't."""
        if reply == NO_SEMAPHORE:
            permit_wait.report_semaphore(self.session, self.key, must_exist=self.must_exist)
        return Refusal.decode(reply)

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
                released = await permit_hand_over.release(self, queue, slot, permits, only_existing=only_existing)
        except BaseException:
            # They are released in the background.
            self._tell_released(permits)
            raise
        if tracing.on and released:
            self._tell_released(permits)
        return released

    def _tell_released(self, permits: int) -> None:
        if tracing.debug:
            logger.debug("%d permits of semaphore %r are released", permits, readable(self.key))
        observing = self.session.observing
        if observing is not None:
            observing.released(self.commands, permits)

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
        if not permit_hand_over.abandon(self, slot, permits, only_existing=only_existing):
            self.session.runtime.post(self.commands.add(slot, permits, only_existing=only_existing))

    # Other operations

    async def add(self, permits: int) -> None:
        """Adds permits to the semaphore, or takes some away if negative. Their number may become negative."""
        self.session.check_open()
        if permits:
            slot = self.session.slots.allocate()
            await self.session.slots.send(slot, self.commands.add(slot, permits))

    async def try_set(self, permits: int, ttl: int | None) -> bool:
        """Creates the semaphore, for so many ms (None: without end). False: it exists already."""
        self.session.check_open()
        slot = self.session.slots.allocate()
        return bool(await self.session.slots.send(slot, self.commands.try_set(slot, permits, ttl or 0)))

    async def available(self) -> int:
        """The number of free permits. If it is negative, so many must be released before the first one is free."""
        session = self.session
        session.check_open()
        reply, _ = await retry.send(session.runtime, self.commands.read(), retries=session.retries)
        return int(reply or 0)

    async def delete(self) -> bool:
        """Removes the semaphore; returns whether it existed."""
        self.session.check_open()
        slot = self.session.slots.allocate()
        return bool(await self.session.slots.send(slot, self.commands.delete(slot)))
