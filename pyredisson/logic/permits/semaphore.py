"""The semaphore: a string with the number of free permits. Its permits have no owners and no leases."""

from __future__ import annotations

from typing import NamedTuple

from pyredisson._diagnostics import debug, logger, readable
from pyredisson._protocol.replication import NotConfirmed
from pyredisson.logic import retry, waiting
from pyredisson.logic.exactly_once import ReplyForgotten, SessionSlot
from pyredisson.logic.permits import not_set
from pyredisson.logic.permits.claims import Claimant
from pyredisson.logic.permits.commands import SemaphoreCommands
from pyredisson.logic.permits.permit_channel import PermitChannel
from pyredisson.logic.replicas import not_replicated
from pyredisson.logic.retry import LIMITED_BY_RETRIES
from pyredisson.logic.session import Session

LONGEST_WAIT = 5.0
"""Seconds between two attempts of a waiter: a message may be lost, and nobody knows when a permit without a lease is
released."""
NO_SEMAPHORE = -(2**52)
"""The reply to an acquire if there is no semaphore."""
FREE_BITS = 32
"""The lower bits of a refusal are the number of free permits. The upper bits are milliseconds: so long another
waiter's claim lasts, or so long the caller is to wait before it asks again."""


class Refusal(NamedTuple):
    """What the server replied to an acquire that it refused."""

    free: int
    """The number of permits that waiters may take that want fewer."""
    wait: float
    """Seconds to wait for a message at most."""

    @staticmethod
    def decode(reply: int) -> Refusal:
        """From the reply, which is zero or negative."""
        milliseconds = -reply >> FREE_BITS
        wait = min((milliseconds + 1) / 1000, LONGEST_WAIT) if milliseconds else LONGEST_WAIT
        return Refusal(-reply % (1 << FREE_BITS), wait)


class SemaphoreLogic:
    """The operations of a semaphore; numbers and durations were checked before."""

    __slots__ = ("_must_exist", "commands", "key", "session")

    def __init__(self, session: Session, key: bytes, *, must_exist: bool = False) -> None:
        self.session = session
        self.key = key
        self.commands = SemaphoreCommands(session, key)
        self._must_exist = must_exist

    # Acquiring

    async def acquire(self, permits: int, deadline: float | None) -> bool:
        """Waits for so many permits until `deadline` (None: without limit). False: they were not acquired by then.

        Raises `NotSetError` if the semaphore must exist, but doesn't exist or is deleted during the wait.
        """
        session = self.session
        if not permits:
            session.check_open()
            return True
        reply = await self._send_acquire(permits, deadline)
        # Between this test and the return no function is called: an interrupt after the call would lose the permits.
        if reply > 0:
            return True
        refusal = self._refused(reply)
        if deadline is not None and session.clock() >= deadline:
            return False
        return await self._wait(permits, deadline, refusal.wait)

    async def _wait(self, permits: int, deadline: float | None, wait: float) -> bool:
        """Makes attempts until the permits are acquired. The first attempt said to wait `wait` seconds at most."""
        session, channel = self.session, self.commands.channel
        claimant = Claimant(self.commands, permits)
        acquired = False

        async def attempt() -> float | None:
            nonlocal acquired
            reply = await self._send_acquire(permits, deadline, claimant.name_if_claiming())
            acquired = reply > 0
            if acquired:
                return None
            refusal = self._refused(reply)
            if refusal.free:
                # The message that woke this waiter may serve others, which need fewer permits.
                session.channels.deliver(channel, b"%d" % refusal.free)
            return claimant.limit(refusal.wait)

        try:
            return await waiting.until(
                session,
                channel,
                attempt,
                claimant.limit(wait),
                deadline,
                channel_class=PermitChannel,
                need=permits,
                wakeup=claimant.wakeup,
            )
        except BaseException:
            if acquired:
                # An interrupt on the way out of the wait: the caller never gets these permits.
                self.release_in_background(permits)
            raise
        finally:
            if not acquired:
                claimant.withdraw()

    async def drain(self) -> int:
        """Acquires all permits that are free; returns how many."""
        reply = await self._send_acquire(0, LIMITED_BY_RETRIES)
        # No function is called from here on: an interrupt after the call would lose the permits.
        if reply < 0:
            return 0
        return reply

    async def _send_acquire(self, permits: int, deadline: float | None, claimant: bytes = b"") -> int:
        """Sends one acquire (of 0: all free permits). Returns how many were acquired, or a refusal for `_refused`."""
        session, slots = self.session, self.session.slots
        while True:
            if session.closed:
                session.check_open()
            slot = slots.allocate()
            payload = self.commands.acquire(slot, permits, claimant)
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
        if debug.on and reply > 0:
            try:
                logger.debug("%d permits of semaphore %r are acquired", reply, readable(self.key))
            except BaseException:
                # An interrupt, or a logging filter of the user that raises.
                self.release_in_background(reply)
                raise
        return reply

    def _refused(self, reply: int) -> Refusal:
        """What a reply means that acquired nothing. Raises `NotSetError` if the semaphore must exist, but doesn't."""
        if reply == NO_SEMAPHORE:
            not_set.report_semaphore(self.session, self.key, must_exist=self._must_exist)
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
        payload = self.commands.add(slot, permits, only_existing=only_existing)
        released = bool(await session.slots.send(slot, payload, complete=True))
        if debug.on:
            logger.debug("%d permits of semaphore %r are released", permits, readable(self.key))
        return released

    def release_in_background(self, permits: int, only_existing: bool = False, slot: SessionSlot | None = None) -> None:
        """Releases so many permits in the background. After an interrupted `release` over the same slot: once."""
        if permits:
            slot = slot or self.session.slots.allocate()
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
