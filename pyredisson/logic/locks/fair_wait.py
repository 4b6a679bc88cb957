"""Waiting in the queue of a fair lock: an attempt or a heartbeat when it is due, and else sleep.

While a waiter sleeps, a release of this client may enter it on the server, see `hand_over`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable
from enum import Enum, auto
from typing import Protocol

from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.error_copies import copy_error
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.handed_waiter import GIVEN, LEFT
from pyredisson.logic.locks.fair_queue import (
    HEARTBEAT_INTERVAL,
    FairAcquireCall,
    LocalQueue,
    QueueCommands,
    QueueTicket,
    TicketChannel,
)
from pyredisson.logic.locks.local_queue import LockWaiter
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import UNCONFIRMED_WAIT

ATTEMPT_INTERVAL = 60.0
"""Seconds, about, after which a waiter makes an attempt even if nothing happened. The attempt renews its score, or else
Redisson would remove it from the queue."""


class FairCommands(QueueCommands, Protocol):
    """The commands that a wait needs."""

    def channel_of(self, ticket: QueueTicket) -> bytes: ...


class FairLock(Protocol):
    """What a wait needs of the lock."""

    session: Session
    identity: Hashable
    key: bytes

    @property
    def commands(self) -> FairCommands: ...

    def _attempt(self, call: FairAcquireCall) -> Awaitable[float | None]: ...


class Action(Enum):
    """What a waiter does next."""

    ATTEMPT = auto()
    HEARTBEAT = auto()
    SLEEP = auto()
    TIME_OUT = auto()


class FairWait(LockWaiter[FairLock]):
    """One call that waits in the queue: it sends an attempt or a heartbeat when that is due, and else sleeps.

    A holder that died publishes nothing. Its waiters are woken by the heartbeat that is due 1 ms after the end of its
    lease. The script of that heartbeat finds the lock free, notifies the head of the queue, and returns its name. If
    that is a waiter of the same client, `LocalQueue.heartbeat` wakes it also without a message.
    """

    __slots__ = (
        "_attempt_interval",
        "_attempted_at",
        "_channel",
        "_name",
        "_queue",
        "_seconds",
        "_seen_reasons",
        "_session",
        "_ticket",
    )

    longest_sleep = HEARTBEAT_INTERVAL

    call: FairAcquireCall
    _channel: TicketChannel
    _name: bytes
    _queue: LocalQueue
    _seconds: float
    _seen_reasons: int

    def __init__(self, lock: FairLock, call: FairAcquireCall) -> None:
        session = lock.session
        super().__init__(lock, (lock.identity, call.owner.id), call, session.runtime.wakeup(), b"")
        self._session = session
        self._ticket = call.ticket
        self._attempted_at = session.clock()
        self._attempt_interval = ATTEMPT_INTERVAL * (0.75 + session.runtime.jitter() / 2)
        call.ticket.waiter = self

    async def run(self, wait: float | None) -> bool:
        began = self._session.begin_waiting()
        try:
            self._join(wait or 0.0)
            # Each function between a message and the next attempt counts, see docs/architecture.md.
            while True:
                self.wakeup.clear()
                if self._session.closed:
                    self._session.check_open()
                if self._ticket.name != self._name:
                    self._follow_name()
                if self._channel.error is not None:
                    raise copy_error(self._channel.error)
                action = self._next_action()
                if action is Action.TIME_OUT:
                    return False
                if action is Action.ATTEMPT and await self._make_attempt():
                    return True
                if action is Action.HEARTBEAT and not await self._queue.heartbeat():
                    self._ticket.needs_attempt = True
                if action is Action.SLEEP:
                    await self._sleep()
                    if self.state is GIVEN:
                        return True
                    if self.state is LEFT:
                        return False
        finally:
            self.end()
            self._session.end_waiting(began)

    def _join(self, wait: float) -> None:
        session, key = self._session, self.lock.key
        with session.channels.mutex:
            queue = session.local_queues.get(key)
            if queue is None:
                queue = LocalQueue(self.lock.commands, session.id, session.runtime, session.channels)
                session.local_queues[key] = queue
            queue.join(self._ticket, self._attempted_at + min(HEARTBEAT_INTERVAL, wait))
        self._queue = queue
        self._name = self._ticket.name
        known = self._ticket.channel
        self._register()
        self._seen_reasons = self._channel.attempt_reasons
        if self._channel.confirmed:
            # -1: an attempt follows now, because a notification may have been missed. Not if notifications were counted
            # since before the acquire was sent.
            self._seen_reasons = self._ticket.attempt_reasons_before if self._channel is known else -1

    def end(self) -> None:
        """Waits no longer. Idempotent."""
        session, ticket = self._session, self._ticket
        self.stop()
        # `channels.leave` passes a wakeup that is set on to the next waiter of the channel. Another call with the same
        # name may be waiting for the same message, and this waiter may have cleared its wakeup without an attempt.
        self.wakeup.set()
        # Not the channel of its present name, which may have changed since.
        session.channels.leave(self.channel_name, self.wakeup)
        with session.channels.mutex:
            queue = session.local_queues.get(self.lock.key)
            if queue is not None and ticket in queue.tickets and queue.leave(ticket):
                del session.local_queues[self.lock.key]

    def set_aside(self, channels: ChannelRegistry) -> int | None:
        """Nobody else waits for the messages of this channel, which counts them."""
        return None

    def take_back(self, channels: ChannelRegistry) -> None: ...

    def _register(self) -> None:
        """Registers at the channel of the ticket's name."""
        self.channel_name = self._ticket.channel_name or self.lock.commands.channel_of(self._ticket)
        channel = self._session.channels.join(self.channel_name, self.wakeup, TicketChannel)
        assert isinstance(channel, TicketChannel)
        self._ticket.channel = self._channel = channel

    def _follow_name(self) -> None:
        """Registers anew: the ticket got another name, with a place at the end of the queue."""
        self._session.channels.leave(self.channel_name, self.wakeup)
        self._name = self._ticket.name
        self._ticket.channel_name = b""
        self._register()
        self._seen_reasons = -1
        with self._session.channels.mutex:
            self._queue.move_to_end(self._ticket)

    def _next_action(self) -> Action:
        now, deadline = self._session.clock(), self.call.deadline
        if deadline is not None and now >= deadline:
            return Action.TIME_OUT
        attempt_at = self._attempted_at + (self._attempt_interval if self._channel.confirmed else UNCONFIRMED_WAIT)
        if self._channel.attempt_reasons != self._seen_reasons or self._ticket.needs_attempt or now >= attempt_at:
            return Action.ATTEMPT
        wakes_at = attempt_at if deadline is None else min(attempt_at, deadline)
        if self._queue.sends_heartbeats(self._ticket):
            if now >= self._queue.heartbeat_at:
                return Action.HEARTBEAT
            wakes_at = min(wakes_at, self._queue.heartbeat_at)
        self._seconds = wakes_at - now
        return Action.SLEEP

    async def _make_attempt(self) -> bool:
        self._seen_reasons, self._ticket.needs_attempt = self._channel.attempt_reasons, False
        heartbeat_within = await self.lock._attempt(self.call)
        if heartbeat_within is None:
            return True
        self._attempted_at = self._session.clock()
        # After that time the lock may be free without a message. Not each waiter makes an attempt then: one heartbeat
        # finds out whose turn it is.
        self._queue.heartbeat_before(self._attempted_at + heartbeat_within)
        return False

    async def _sleep(self) -> None:
        """Sleeps until something is due. Afterwards the state is LOOKING, or GIVEN or LEFT.

        A wakeup without a reason that was counted before is none for an attempt: if a release had chosen this waiter
        and didn't enter it, the waiter is not the head of the queue, and its place is as before.
        """
        runtime = self._session.runtime
        tracing.look()
        if tracing.debug:
            logger.debug("%s waits in the queue for %.3f s at most", self, self._seconds)
        self.sleep()
        await runtime.wait(self.wakeup, self._seconds)
        if tracing.debug and self.wakeup.is_set():
            logger.debug("%s is woken", self)
        if self.wake_up():
            return
        await self.outcome(runtime)
        if self.call.in_doubt:
            # The reply may be the reply to a second copy, which doesn't tell what the first one has done.
            self._ticket.needs_attempt = True

    async def while_offered(self) -> None:
        """A hand-over that comes late needs the place, which would be lost without heartbeats."""
        if self._queue.sends_heartbeats(self._ticket) and self._session.clock() >= self._queue.heartbeat_at:
            await self._queue.heartbeat()

    def __str__(self) -> str:
        return f"lock {readable(self.lock.key)!r} of owner {readable(self._ticket.name)}"
