"""Waiting for permits of a semaphore: sleep, and make an attempt only where that may help.

As in `logic.waiting`, a wakeup is a hint to make an attempt. In addition a release of this client may acquire permits
for the waiter, see `permit_hand_over`. Then the waiter has them without any attempt of its own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replies import copy_error
from pyredisson.errors import NotSetError
from pyredisson.logic.permits.permit_queue import KNOWN_FOR, Claimant, PermitChannel, PermitQueue, PermitWaiter
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import GIVEN, LEFT, UNCONFIRMED_WAIT

if TYPE_CHECKING:
    from pyredisson.logic.permits.semaphore import SemaphoreLogic

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


# --- What to do about a semaphore or a latch that doesn't exist on the server: raise an error, or log it once


MOST_REPORTED = 1000
"""Names for which one client logs this. More names than that are no mistake of the program."""


def report_semaphore(session: Session, key: bytes, *, must_exist: bool) -> None:
    """An acquire found no semaphore. Raises `NotSetError` if it must exist; else logs a warning."""
    text = "doesn't exist: its permits were never set, it was deleted, or it has ended"
    _report(session, logging.WARNING, "semaphore", key, text, must_exist=must_exist)


def report_latch(session: Session, key: bytes, *, must_exist: bool) -> None:
    """A wait found no latch. Raises `NotSetError` if it must exist; else logs that."""
    text = "isn't counting: it has come to zero, was deleted, or was never set; wait() returns at once"
    _report(session, logging.INFO, "latch", key, text, must_exist=must_exist)


def _report(session: Session, level: int, kind: str, key: bytes, text: str, *, must_exist: bool) -> None:
    if must_exist:
        raise NotSetError(f"{kind} {readable(key)!r} {text}")
    reported = session.permits.reported_not_set
    if (kind, key) not in reported and len(reported) < MOST_REPORTED:
        reported.add((kind, key))
        logger.log(level, "%s %r %s", kind, readable(key), text)


# --- The wait


class PermitWait(PermitWaiter):
    """The wait of one call. `run` is called once."""

    __slots__ = (
        "_channel",
        "_claimant",
        "_events",
        "_has_acquired",
        "_look_at",
        "_queue",
        "_semaphore",
    )

    _channel: PermitChannel
    _queue: PermitQueue

    def __init__(self, semaphore: SemaphoreLogic, permits: int, deadline: float | None, events: int | None) -> None:
        """`events`: the events of the channel before the latest attempt, of this or another call."""
        # The first caller gets a single free permit, and need not claim it.
        claimant = self._claimant = Claimant(semaphore.commands, permits) if permits > 1 else None
        super().__init__(permits, deadline, semaphore.session.runtime.wakeup() if claimant is None else claimant.wakeup)
        self._semaphore = semaphore
        self._events = events
        self._has_acquired = False
        """Whether an attempt has acquired the permits."""
        self._look_at = 0.0
        """When to make the next attempt, even without a wakeup."""

    @property
    def acquired(self) -> bool:
        """Whether the permits were acquired for this call, by an attempt or by a release."""
        return self._has_acquired or self.state is GIVEN

    async def run(self, refusal: Refusal | None, look_at: float) -> bool:
        """Waits until the permits are acquired or the deadline has passed: False.

        `refusal`: of the attempt that the caller has made. None: it has made none, as another one was refused.
        `look_at`: when to make the next attempt. After an exception the caller calls `end`: an interrupt may have
        prevented it in here.
        """
        session, wakeup = self._semaphore.session, self.wakeup
        began = session.begin_waiting()
        try:
            self._join(refusal, look_at)
            while True:
                if self._channel.error is not None:
                    raise copy_error(self._channel.error)
                # Before the look at who is the first: one that leaves wakes the next one.
                self.sleep()
                seconds = self._seconds_to_sleep()
                if seconds <= 0:
                    if self.wake_up():
                        return False
                    seconds = 0.0
                tracing.look()
                if tracing.debug:
                    self._log(f"waiting for {seconds:.3f} s at most")
                await session.runtime.wait(wakeup, seconds)
                if tracing.debug:
                    self._log("woken" if wakeup.is_set() else "no message")
                if (self.state is GIVEN and self.error is None) or (
                    not self.wake_up() and await self.outcome(session.runtime)
                ):
                    if session.closed:
                        session.check_open()
                    return True
                if self.state is LEFT:
                    return False
                if self._is_due() and await self._attempt():
                    return True
        except BaseException:
            # The wakeup may have been consumed by an attempt that did not finish: the next waiter gets it.
            self.owes_attempt = True
            raise
        finally:
            self.end()
            session.end_waiting(began)

    def _join(self, refusal: Refusal | None, look_at: float) -> None:
        """Takes the last place among the waiters of this client."""
        semaphore = self._semaphore
        session, name = semaphore.session, semaphore.commands.channel
        channels, now = session.channels, session.clock()
        with channels.mutex:
            queue = self._queue = session.permits.queues.queue_of(semaphore.key, now)
            queue.waiters[self] = None
            channel = channels.join(name, self.wakeup, PermitChannel, self.permits, self._events)
            assert isinstance(channel, PermitChannel)
            self._channel = queue.channel = channel
            if refusal is not None:
                self._on_refused(refusal, self._events, now, 0)
        self._look_at = look_at if self._claimant is None else now + self._claimant.limit(look_at - now)
        if refusal is not None:
            return
        if session.closed:
            # The waiters were woken before this one came.
            session.check_open()

    def _seconds_to_sleep(self) -> float:
        """For how long to sleep at most. 0 or less: the deadline has passed."""
        now, deadline = self._semaphore.session.clock(), self.deadline
        seconds = max(self._look_at - now, 0.001)
        asks = self._claimant is not None or self.is_contender(self._queue.waiters)
        if asks and not self._channel.confirmed and seconds > UNCONFIRMED_WAIT:
            seconds = UNCONFIRMED_WAIT
        return seconds if deadline is None else min(seconds, deadline - now)

    def _is_due(self) -> bool:
        """Whether to make an attempt after a sleep. An attempt that other clients come before is put off."""
        now, others_first_until = self._semaphore.session.clock(), self._queue.others_first_until
        if self.wakeup.is_set():
            self.wakeup.clear()
            self.owes_attempt = True
            if now < others_first_until:
                self._look_at = others_first_until
        looks, over = now >= self._look_at, self.deadline is not None and now >= self.deadline
        if self.owes_attempt:
            return looks or over or now >= others_first_until or not self._channel.confirmed
        if self._claimant is None and not self.is_contender(self._queue.waiters, stuck=looks):
            # Nothing was heard. The first waiter asks, and the others hear of it if it acquires its permits.
            if looks:
                self._look_at = now + LONGEST_WAIT
            return False
        if looks or not self._channel.confirmed:
            with self._semaphore.session.channels.mutex:
                self._channel.on_missed(self.wakeup)
            return True
        return over

    async def _attempt(self) -> bool:
        """One attempt. A wakeup is only a hint: it may be late, or meant for another waiter."""
        semaphore, channel = self._semaphore, self._channel
        session = semaphore.session
        # After this another wakeup means another attempt.
        self.wakeup.clear()
        events, number = channel.events, channel.begin_attempt()
        name = b"" if self._claimant is None else self._claimant.name_if_claiming()
        reply = await semaphore.send_acquire(self.permits, self.deadline, name)
        self._has_acquired = reply > 0
        self.owes_attempt = False
        if self._has_acquired:
            with session.channels.mutex:
                channel.on_acquired(events, self.permits)
            return True
        refusal = semaphore.refused(reply)
        now = session.clock()
        self._look_at = now + (refusal.wait if self._claimant is None else self._claimant.limit(refusal.wait))
        with session.channels.mutex:
            self._on_refused(refusal, events, now, number)
        return False

    def _on_refused(self, refusal: Refusal, events: int | None, now: float, attempt: int) -> None:
        """An attempt was refused. `events`: the events of the channel before it; None: messages didn't arrive then."""
        self._queue.checked_until = now + min(refusal.wait, KNOWN_FOR)
        # The message that woke this waiter may serve others, which need fewer permits.
        self._channel.on_refused(attempt, 0 if events is None else events, refusal.free)

    def end(self) -> None:
        """Leaves the queue and the channel, and withdraws a claim. Never suspends. Idempotent."""
        semaphore = self._semaphore
        session = semaphore.session
        self.stop()
        if self.owes_attempt:
            self.wakeup.set()
        with session.channels.mutex:
            queues = session.permits.queues
            queue = queues.get(semaphore.key)
            if queue is not None:
                queue.waiters.pop(self, None)
                if not queue.waiters:
                    queues.forget_if_idle(semaphore.key, session.clock())
            session.channels.leave(semaphore.commands.channel, self.wakeup)
            if queue is not None and queue.waiters and queue.channel is not None and not queue.channel.confirmed:
                # The first one asks every second.
                queue.channel.on_missed(self.wakeup)
        if self._claimant is not None and not self._has_acquired:
            self._claimant.withdraw()

    def _log(self, what: str) -> None:
        logger.debug("%s on channel %r", what, readable(self._semaphore.commands.channel))
