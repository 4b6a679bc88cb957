"""Waiting for permits of a semaphore: sleep, and make an attempt only where that may help.

As in `logic.waiting`, a wakeup is a hint to make an attempt. In addition a release of this client may acquire permits
for the waiter, see `permit_hand_over`. Then the waiter has them without any attempt of its own.
"""

from __future__ import annotations

import logging
import weakref
from functools import partial
from typing import NamedTuple, Protocol

from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replies import copy_error
from pyredisson.errors import NotSetError
from pyredisson.logic.locks.queued_wait import LATER
from pyredisson.logic.permits.commands import Listing, PermitPoolCommands
from pyredisson.logic.permits.permit_queue import Claimant, PermitChannel, PermitQueue, PermitWaiter
from pyredisson.logic.retry import may_have_run
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import GIVEN, LEFT, UNCONFIRMED_WAIT

LONGEST_WAIT = 5.0
"""Seconds between two attempts of a waiter: a message may be lost, and nobody knows when a permit without a lease is
released."""
NO_SEMAPHORE = -(2**52)
"""The reply to an acquire if there is no semaphore."""
FREE_BITS, WAIT_BITS = 32, 14
"""The bits of a refusal: the number of free permits; the milliseconds after which to ask again; and the place."""
FAR = 63
"""The place of a client behind so many others, or more."""
NEAR = 2
"""So many clients of the list listen to Redisson's messages, and look when the lease of a permit ends."""
BEHIND = 0.05
"""Seconds by which a client looks later than the one before it in the list."""


class Refusal(NamedTuple):
    """What the server replied to an acquire that it refused."""

    free: int
    """The number of permits that waiters may take that want fewer."""
    wait: float
    """Seconds after which to ask again."""
    place: int = 0
    """How many clients stand before this one in the list, at most `FAR`."""

    @staticmethod
    def of(free: int, milliseconds: int, place: int) -> Refusal:
        """`milliseconds`: when to ask again, by the server; 0 or less: it doesn't know. Only the first clients do."""
        wait = LONGEST_WAIT
        if milliseconds > 0 and place < NEAR:
            wait = min((milliseconds + 1) / 1000, LONGEST_WAIT)
        return Refusal(free, wait + BEHIND * place, place)

    @staticmethod
    def decode(reply: int) -> Refusal:
        """From the reply, which is zero or negative."""
        if reply == NO_SEMAPHORE:
            return Refusal(0, LONGEST_WAIT, 0)
        milliseconds = (-reply >> FREE_BITS) % (1 << WAIT_BITS)
        return Refusal.of(-reply % (1 << FREE_BITS), milliseconds, -reply >> (FREE_BITS + WAIT_BITS))


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


class Pool(Protocol):
    """A semaphore of either kind."""

    session: Session
    key: bytes
    must_exist: bool

    @property
    def commands(self) -> PermitPoolCommands: ...


class Call(Protocol):
    """One acquire of permits."""

    permits: int
    deadline: float | None

    async def attempt(self, listing: Listing) -> Refusal | None:
        """One attempt. None: it has acquired the permits."""

    def on_wait(self) -> None:
        """The call begins to wait."""

    def undo(self) -> None:
        """The permits were acquired, and the caller never gets them: they are released in the background."""


class Before(NamedTuple):
    """The events of both channels before an attempt, see `ChannelRegistry.events`."""

    own: int | None
    redisson: int | None

    @staticmethod
    def of(session: Session, commands: PermitPoolCommands) -> Before:
        events = session.channels.events
        return Before(events(commands.waiting_channel), events(commands.channel))


class FirstAttempt(NamedTuple):
    """The attempt that a call has made before it waits."""

    refusal: Refusal
    entry: bytes
    """As which it has entered the client in the list."""
    before: Before | None
    """None: nobody of this client has waited then."""


def leave_unused(pool: weakref.ref[Session], commands: type[PermitPoolCommands], key: bytes, name: bytes) -> None:
    """The client was woken under this name, and no call of it waits. Called by what reads the messages.

    A weak reference: what reads the messages must not keep a client alive that nobody else refers to.
    """
    client = pool()
    if client is None or client.closed:
        return
    queue = client.permits.queues.get(key)
    if queue is not None and queue.names.pop(name, None) is not None:
        queue.removals += 1
    client.repair(commands(client, key).leave(name))


async def acquire(pool: Pool, call: Call) -> bool:
    """Acquires permits. False: not before the deadline of the call.

    Whatever it raises, nothing of the call remains on the server, once the background has caught up.
    """
    session, deadline = pool.session, call.deadline
    entry, waiter = b"", None
    try:
        first: FirstAttempt | None = None
        if not _joins_queue(pool, deadline):
            before = Before.of(session, pool.commands) if session.channels.by_name else None
            # Nobody waits for a semaphore that has to exist, and may not.
            if not pool.must_exist and (deadline is None or session.clock() < deadline):
                entry = b"%b:%d" % (session.new_member(), call.permits)
            refusal = await call.attempt(Listing(entry=entry))
            if refusal is None:
                return True
            first = FirstAttempt(refusal, entry, before)
            if deadline is not None and session.clock() >= deadline:
                if entry:
                    session.leave_list(pool.commands.leave(entry))
                return False
        waiter = PermitWait(pool, call)
        call.on_wait()
        return await waiter.run(first)
    except BaseException as error:
        # An interrupt may have come on the way out, before the waiter had left.
        if waiter is not None:
            waiter.end()
            if waiter.acquired:
                call.undo()
        elif entry and may_have_run(error, False):
            session.leave_list(pool.commands.leave(entry))
        raise


def _joins_queue(pool: Pool, deadline: float | None) -> bool:
    """Whether a call joins the waiters of its client before any attempt, as it has time to wait."""
    session = pool.session
    queue = session.permits.queues.get(pool.key) if session.permits.queues else None
    if queue is None or not queue.waiters or session.closed:
        return False
    return deadline is None or session.clock() < deadline


class PermitWait(PermitWaiter):
    """The wait of one call. `run` is called once."""

    __slots__ = ("_call", "_channel", "_claimant", "_has_acquired", "_look_at", "_pool", "_queue")

    _channel: PermitChannel
    _queue: PermitQueue

    def __init__(self, pool: Pool, call: Call) -> None:
        # The first caller gets a single free permit, and need not claim it.
        claimant = self._claimant = Claimant(pool.commands, call.permits) if call.permits > 1 else None
        wakeup = pool.session.runtime.wakeup() if claimant is None else claimant.wakeup
        super().__init__(call.permits, call.deadline, wakeup)
        self._pool = pool
        self._call = call
        self._has_acquired = False
        """Whether an attempt has acquired the permits."""
        self._look_at = 0.0
        """When to make the next attempt, even without a wakeup."""

    @property
    def acquired(self) -> bool:
        """Whether the permits were acquired for this call, by an attempt or by a release."""
        return self._has_acquired or self.state is GIVEN

    async def run(self, first: FirstAttempt | None) -> bool:
        """Waits until the permits are acquired or the deadline has passed: False.

        `first`: None, if the call has made no attempt. After an exception the caller calls `end`: an interrupt may have
        prevented it in here.
        """
        session, wakeup = self._pool.session, self.wakeup
        began = session.begin_waiting()
        try:
            if self._join(first) and await self._ask():
                return True
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
                if self._is_due() and await self._ask():
                    return True
        except BaseException:
            # The wakeup may have been consumed by an attempt that did not finish: the next waiter gets it.
            self.owes_attempt = True
            raise
        finally:
            self.end()
            session.end_waiting(began)

    def _join(self, first: FirstAttempt | None) -> bool:
        """Takes the last place among the waiters of this client. Returns whether to make an attempt at once."""
        pool, session = self._pool, self._pool.session
        commands, channels, now = pool.commands, session.channels, session.clock()
        entry = b"" if first is None else first.entry
        with channels.mutex:
            queue = self._queue = session.permits.queues.queue_of(pool.key, now)
            if entry:
                queue.names[entry] = 0.0
            least = queue.least()
            queue.waiters[self] = None
            before = Before.of(session, commands) if first is None else first.before or Before(None, None)
            channel = channels.join(commands.waiting_channel, self.wakeup, PermitChannel, self.permits, before.own)
            assert isinstance(channel, PermitChannel)
            self._channel = queue.channel = channel
            channel.queue = queue
            channel.on_unused[b""] = partial(leave_unused, weakref.ref(session), type(commands), pool.key)
            missed = before.redisson != channels.events(commands.channel)
            if channels.relay(commands.channel, channel, anew=missed, counted=commands.counted_channel):
                self.wakeup.set()
            if first is not None:
                self._on_refused(first.refusal, now)
        if session.closed:
            # The waiters were woken before this one came.
            session.check_open()
        if first is not None:
            # Without an entry no release wakes this client.
            return not entry
        # The client is in the list with a call that wants no more than this one, which came before.
        self._look_at = now + LONGEST_WAIT if self._claimant is None else now + self._claimant.limit(LONGEST_WAIT)
        return pool.must_exist or not (queue.is_listed and channel.confirmed and 0 < least <= self.permits)

    def _seconds_to_sleep(self) -> float:
        """For how long to sleep at most. 0 or less: the deadline has passed."""
        now, deadline = self._pool.session.clock(), self.deadline
        seconds = max(self._look_at - now, 0.001)
        asks = self._claimant is not None or self.is_contender(self._queue.waiters)
        if asks and not self._channel.confirmed and seconds > UNCONFIRMED_WAIT:
            seconds = UNCONFIRMED_WAIT
        return seconds if deadline is None else min(seconds, deadline - now)

    def _is_due(self) -> bool:
        """Whether to make an attempt after a sleep."""
        now, channel = self._pool.session.clock(), self._channel
        if self.wakeup.is_set():
            self.wakeup.clear()
            if channel.look_in is not None and channel.look_for is self.wakeup:
                self._look_at = min(self._look_at, now + channel.look_in + LATER)
                channel.look_in = None
            else:
                self.owes_attempt = True
                self._look_at = max(now, self._queue.others_first_until)
        looks, over = now >= self._look_at, self.deadline is not None and now >= self.deadline
        if self.owes_attempt or self._claimant is not None or self.is_contender(self._queue.waiters, stuck=looks):
            return looks or over or not channel.confirmed
        if looks:
            # The first waiter asks, and the others hear of it if it acquires its permits.
            self._look_at = now + LONGEST_WAIT
        return False

    async def _ask(self) -> bool:
        """One attempt. A wakeup is only a hint: it may be late, or meant for another waiter."""
        session, queue = self._pool.session, self._queue
        # After this another wakeup means another attempt.
        self.wakeup.clear()
        claimant = b"" if self._claimant is None else self._claimant.name_if_claiming()
        with session.channels.mutex:
            waits = self.deadline is None or session.clock() < self.deadline
            sure, removals = queue.sure_names(session.clock()), queue.removals
            listing = queue.listing(self, claimant, session.new_member())
            self.asks = True
        try:
            refusal = await self._call.attempt(listing if waits else listing._replace(entry=b""))
            self._has_acquired = refusal is None
        except BaseException:
            with session.channels.mutex:
                queue.on_failed(listing, session.clock())
                self.asks = False
            raise
        with session.channels.mutex:
            self.asks = False
            if refusal is None:
                self.owes_attempt = False
                queue.waiters.pop(self, None)
                if unlisted := queue.on_acquired(listing, sure):
                    self._channel.wake_for(unlisted)
                return True
            # Without an entry the next waiter here makes an attempt. So does this one, if the entry is gone.
            self.owes_attempt = not waits or queue.removals != removals
            queue.on_answered(listing, sure if waits else (), listing.entry if waits else b"")
            self._on_refused(refusal, session.clock())
            if refusal.free:
                # The message that woke this waiter may serve others, which need fewer permits.
                self._channel.on_free(refusal.free)
        return False

    def _on_refused(self, refusal: Refusal, now: float) -> None:
        self._channel.near = refusal.place < NEAR
        wait = refusal.wait if self._claimant is None else self._claimant.limit(refusal.wait)
        self._look_at = now if self.owes_attempt else now + wait

    def end(self) -> None:
        """Leaves the queue, the channel and the list, and withdraws a claim. Never suspends. Idempotent."""
        pool, session = self._pool, self._pool.session
        self.stop()
        if self.owes_attempt:
            self.wakeup.set()
        names = b""
        with session.channels.mutex:
            queues = session.permits.queues
            queue = queues.get(pool.key)
            if queue is not None:
                queue.waiters.pop(self, None)
                if not queue.waiters:
                    names = queue.take_names()
                    queues.forget_if_idle(pool.key, session.clock())
            session.channels.leave(pool.commands.waiting_channel, self.wakeup)
            if queue is not None and queue.waiters and queue.channel is not None and not queue.channel.confirmed:
                # The first one asks every second.
                queue.channel.wake(1)
        if names and not session.closed:
            session.runtime.post(pool.commands.leave(names))
        if self._claimant is not None and not self._has_acquired:
            self._claimant.withdraw()

    def _log(self, what: str) -> None:
        logger.debug("%s on channel %r", what, readable(self._pool.commands.waiting_channel))
