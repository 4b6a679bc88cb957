"""Waiting for permits of a semaphore: sleep, and make an attempt only where that may help.

As in `logic.waiting`, a wakeup is a hint to make an attempt. In addition a release of this client may acquire permits
for the waiter, see `permit_hand_over`. Then the waiter has them without any attempt of its own.
"""

from __future__ import annotations

import math
import weakref
from abc import abstractmethod
from functools import partial
from typing import NamedTuple

from redis.exceptions import TryAgainError

from pyredisson._diagnostics import tracing
from pyredisson.logic.permits.commands import NOT_LISTED, Listing, PermitPoolCommands
from pyredisson.logic.permits.counter import PermitPool
from pyredisson.logic.permits.permit_queue import PermitChannel, PermitQueue
from pyredisson.logic.retry import may_have_run
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import GIVEN, LOOKING, Waiter

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
RESERVED = 250
"""Milliseconds for which permits are left to a client that was woken, see `waiting_list.lua`."""
BEHIND = 0.05
"""Seconds by which a client looks later than the one before it in the list."""
CLAIM_DELAY = 1.0
"""Seconds for which a waiter waits before it claims permits."""


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
        """`milliseconds`: when to ask again, by the server; 0 or less: it doesn't know. Only the first clients do.

        All of them do if permits are left for a moment to clients that were woken: these may never come.
        """
        wait = LONGEST_WAIT
        if milliseconds > 0 and (place < NEAR or milliseconds <= RESERVED):
            wait = min((milliseconds + 1) / 1000, LONGEST_WAIT)
        return Refusal(free, wait + BEHIND * place, place)

    @staticmethod
    def decode(reply: int) -> Refusal:
        """From the reply, which is zero or negative."""
        if reply == NO_SEMAPHORE:
            return Refusal(0, LONGEST_WAIT, 0)
        milliseconds = (-reply >> FREE_BITS) % (1 << WAIT_BITS)
        return Refusal.of(-reply % (1 << FREE_BITS), milliseconds, -reply >> (FREE_BITS + WAIT_BITS))


# --- The wait


class PermitCall:
    """One acquire of permits."""

    __slots__ = ("began", "deadline", "permits", "pool")

    def __init__(self, pool: PermitPool, permits: int, deadline: float | None) -> None:
        self.pool = pool
        self.permits = permits
        self.deadline = deadline
        self.began = 0.0
        """When it has begun to wait. 0: it hasn't."""

    @abstractmethod
    async def attempt(self, listing: Listing) -> Refusal | None:
        """One attempt. None: it has acquired the permits."""

    @abstractmethod
    def undo(self) -> None:
        """The permits were acquired, and the caller never gets them: they are released in the background."""


def events_of(session: Session, commands: PermitPoolCommands) -> tuple[int | None, int | None]:
    """The events of the client's channel and of Redisson's, see `ChannelRegistry.events`."""
    return session.channels.events(commands.waiting_channel), session.channels.events(commands.channel)


class FirstAttempt(NamedTuple):
    """The attempt that a call has made before it waits."""

    refusal: Refusal
    entry: bytes
    """As which it has entered the client in the list."""
    before: tuple[int | None, int | None]


def leave_unused(pool: weakref.ref[Session], commands: type[PermitPoolCommands], key: bytes, name: bytes) -> None:
    """The client was woken under this name, and no call of it waits. Called by what reads the messages."""
    # A weak reference: what reads the messages must not keep a client alive that nobody else refers to.
    client = pool()
    if client is None or client.closed:
        return
    queue = client.permits.queues.get(key)
    if queue is not None:
        queue.names.pop(name, None)
        queue.member = next(queue.members)
    client.repair(commands(client, key).leave(name))


async def acquire(call: PermitCall) -> bool:
    """Acquires permits. False: not before the deadline of the call.

    Whatever it raises, nothing of the call remains on the server, once the background has caught up.
    """
    pool, session, deadline = call.pool, call.pool.session, call.deadline
    entry, waiter = b"", None
    queue = session.permits.queues.get(pool.key) if session.permits.queues else None
    in_time = deadline is None or session.clock() < deadline
    try:
        first: FirstAttempt | None = None
        # A call with time to wait joins the waiters of its client, if there are any, before it makes an attempt.
        if queue is None or not queue.waiters or session.closed or not in_time:
            before = events_of(session, pool.commands) if session.channels.by_name else (None, None)
            # Nobody waits for a semaphore that has to exist, and may not.
            if not pool.must_exist and in_time:
                entry = b"%b:%d" % (next(session.members), call.permits)
            refusal = await call.attempt(Listing(entry=entry))
            if refusal is None:
                return True
            first = FirstAttempt(refusal, entry, before)
            if deadline is not None and session.clock() >= deadline:
                if entry:
                    session.leave_list(pool.commands.leave(entry))
                return False
        waiter = PermitWait(call)
        call.began = session.clock()
        if tracing.on:
            pool.tell_waiting(call)
        acquired = await waiter.run(first)
        if acquired:
            session.check_open()
        return acquired
    except BaseException as error:
        # An interrupt may have come on the way out, before the waiter had left.
        if waiter is not None:
            waiter.end()
            if waiter.acquired:
                call.undo()
        elif entry and may_have_run(error, False):
            session.leave_list(pool.commands.leave(entry))
        if isinstance(error, TryAgainError):
            # An answer, and no failure, see `retry`: the permits were not acquired in time.
            return False
        raise


class PermitWait(Waiter):
    """The wait of one call.

    A waiter that wants several permits claims them after a while. Of the waiters for one semaphore in one client, only
    one claims.
    """

    __slots__ = ("_claims_from", "_has_acquired", "_name", "permits")

    call: PermitCall
    channel: PermitChannel
    queue: PermitQueue

    def __init__(self, call: PermitCall) -> None:
        session, commands = call.pool.session, call.pool.commands
        self.begin(LOOKING, session, call, session.runtime.wakeup(), commands.waiting_channel)
        # The first caller gets a single free permit, and need not claim it: nobody overtakes it by wanting less.
        self._claims_from = session.clock() + CLAIM_DELAY if call.permits > 1 else math.inf
        self._name = b""
        """Its name on the server; empty: it has never claimed."""
        self.permits = call.permits
        self._has_acquired = False
        """Whether an attempt has acquired the permits."""

    @property
    def subject(self) -> PermitPool:
        return self.call.pool

    @property
    def acquired(self) -> bool:
        """Whether the permits were acquired for this call, by an attempt or by a release."""
        return self._has_acquired or self.state is GIVEN

    def join(self, first: FirstAttempt | None) -> bool:
        pool, session = self.call.pool, self.session
        commands, channels, now = pool.commands, session.channels, session.clock()
        entry = b"" if first is None else first.entry
        # The client is in the list with a call that wants no more than this one, which came before.
        look_at = now + self._limit(LONGEST_WAIT)
        with channels.mutex:
            queue = self.queue = session.permits.queue_of(pool.key, session.members, now)
            relies = first is None and not pool.must_exist and queue.names and 0 < queue.least() <= self.permits
            if relies and channels.join_quietly(queue, self, self.permits, now, LONGEST_WAIT):
                self.look_at = look_at
                session.check_open()
                return False
            if entry:
                queue.names[entry] = None
            queue.add(self)
            own, redisson = events_of(session, commands) if first is None else first.before
            channel = channels.join(self.channel_name, self.wakeup, PermitChannel, self.permits, own)
            assert isinstance(channel, PermitChannel)
            self.channel = queue.channel = channel
            channel.queue = queue
            channel.on_unused[b""] = partial(leave_unused, weakref.ref(session), type(commands), pool.key)
            missed = redisson != channels.events(commands.channel)
            if channels.relay(commands.channel, channel, anew=missed, counted=commands.counted_channel):
                self.wakeup.set()
            if first is not None:
                self._on_refused(first.refusal, now)
        # The waiters of a closed client were woken before this one came.
        session.check_open()
        if first is not None:
            # Without an entry no release wakes this client.
            return not entry
        self.look_at = look_at
        return not (relies and channel.confirmed)

    def is_contender(self, *, stuck: bool = False) -> bool:
        return self.permits > 1 or super().is_contender(stuck=stuck)

    def asks(self, now: float, *, woken: bool) -> bool:
        # It was chosen by its need: the permits are for it.
        return woken or self.owes_attempt or super().asks(now, woken=woken)

    def rely_on_contender(self, now: float) -> None:
        if now >= self.look_at:
            # The others hear of it if the first waiter acquires its permits.
            self.look_at = now + LONGEST_WAIT

    async def ask(self) -> bool:
        session, queue = self.session, self.queue
        # After this another wakeup means another attempt.
        self.wakeup.clear()
        listing = NOT_LISTED
        try:
            with session.channels.mutex:
                waits = self.deadline is None or session.clock() < self.deadline
                listing = queue.listing(self, self._name_if_claiming(), waits=waits)
            refusal = await self.call.attempt(listing)
            self._has_acquired = refusal is None
        except BaseException:
            with session.channels.mutex:
                queue.on_failed(listing)
            raise
        with session.channels.mutex:
            if refusal is None:
                self.owes_attempt = False
                queue.remove(self)
                if unlisted := queue.on_acquired(listing):
                    self.channel.wake_for(unlisted)
                return True
            # Without an entry the next waiter here makes an attempt. So does this one, if its entry is outdated.
            # 0: permits that were acquired had ended when the reply came, after the deadline.
            self.owes_attempt = not (waits and refusal.wait) or queue.is_outdated(listing.entry)
            if waits:
                queue.names[listing.entry] = None
            self._on_refused(refusal, session.clock())
            if refusal.free:
                # The message that woke this waiter may serve others, which need fewer permits.
                self.channel.on_free(refusal.free)
        return False

    def _on_refused(self, refusal: Refusal, now: float) -> None:
        self.channel.near = refusal.place < NEAR
        self.look_at = now if self.owes_attempt else now + self._limit(refusal.wait)

    def _name_if_claiming(self) -> bytes:
        """The name for a claim; empty: this waiter must not claim yet, or another one claims."""
        session, queue = self.session, self.queue
        if session.clock() < self._claims_from or (queue.claimant is not self and queue.has_claimant):
            return b""
        queue.claimant = self
        if not self._name:
            self._name = next(session.members)
        return self._name

    def _limit(self, wait: float) -> float:
        """How many of `wait` seconds to wait: not beyond the moment from which this waiter may claim."""
        remaining = self._claims_from - self.session.clock()
        return min(wait, remaining) if remaining > 0 else wait

    def end(self) -> None:
        self.session.end_waiting(self)
        # Not a claimant: it has to withdraw its claim, and to let the next one claim.
        given = self.state is GIVEN and not self.owes_attempt and self.queue.claimant is not self
        if given and self.session.channels.leave_quietly(self.queue, self):
            return
        super().end()
        if self._name and not self._has_acquired and not self.session.closed:
            # Other waiters need not wait for the end of the claim. The claim of a closed client expires by itself.
            self.session.runtime.post(self.call.pool.commands.leave(b"", self._name))

    def leave_queue(self) -> None:
        session, key, queue = self.session, self.call.pool.key, self.queue
        if queue is None:
            return
        queue.remove(self)
        if queue.waiters:
            if queue.channel is not None and not queue.channel.confirmed:
                # The next contender makes an attempt every second.
                queue.wake_first()
            return
        names = queue.take_names()
        session.permits.forget_if_idle(key, session.clock())
        if names:
            session.leave_list(self.call.pool.commands.leave(names))
