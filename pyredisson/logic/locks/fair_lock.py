"""The fair lock: owners acquire it in the order of their arrival, in one queue with the waiters of Java Redisson."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from enum import Enum, auto
from typing import Any

from redis.exceptions import RedisError

from pyredisson._core import AcquireCall, command, pack, prefixed
from pyredisson._diagnostics import debug, logger, readable
from pyredisson._protocol.error_copies import copy_error
from pyredisson.errors import ClosedError
from pyredisson.logic import retry
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.logic.locks.fair_queue import (
    HEARTBEAT_INTERVAL,
    FairAcquireCall,
    LocalQueue,
    QueueTicket,
    TicketChannel,
)
from pyredisson.logic.locks.non_reentrant_lock import NonReentrantLockLogic
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import UNCONFIRMED_WAIT

MOST_NOTIFIED = 100
"""How many waiters `delete()` notifies. The others notice by their clients' next heartbeats that the queue is gone."""
ATTEMPT_INTERVAL = 60.0
"""Seconds, about, after which a waiter makes an attempt even if nothing happened. The attempt renews its score, or else
Redisson would remove it from the queue."""


class FairLockCommands(LockCommands):
    """The commands of the fair lock: a list and a sorted set in Redisson's format, and two keys of this library.

    Nobody subscribes to `channel` itself: it is only the beginning of the channels' names. Each waiter has a channel of
    its own, `channel_of` its ticket.
    """

    __slots__ = ("_keys",)

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key)
        self._keys = (
            key,
            prefixed(b"redisson_lock_queue", key),
            prefixed(b"redisson_lock_timeout", key),
            prefixed(b"pyredisson_fair_waiters", key),
            prefixed(b"pyredisson_fair_clients", key),
        )

    def acquire(self, owner: bytes, count: int, lease: int, *, waits: bool) -> bytes:
        session = self.session
        script = session.runtime.scripts.fair_acquire
        return pack(script, *self._keys, self.channel, owner, count, lease, session.fair_wait, int(waits))

    def release(self, owner: bytes, count: int) -> bytes:
        session = self.session
        script = session.runtime.scripts.fair_release
        return pack(script, *self._keys, self.channel, owner, count, session.fair_wait)

    def undo_acquire(self, owner: bytes) -> bytes:
        return self.leave((owner,), in_doubt=True)

    def force_release(self) -> bytes:
        session = self.session
        return pack(session.runtime.scripts.fair_force_release, *self._keys, self.channel, session.fair_wait)

    def delete(self) -> bytes:
        """Removes the lock and its queue. The reply is 1 if the lock was held."""
        return pack(self.session.runtime.scripts.fair_delete, *self._keys, self.channel, MOST_NOTIFIED)

    def wake_waiters(self) -> bytes:
        session = self.session
        return pack(session.runtime.scripts.fair_wake_waiters, *self._keys, self.channel, session.fair_wait)

    def heartbeat(self, client: bytes, waiters: Iterable[bytes]) -> bytes:
        """Reports that a client and all its waiters are alive, and asks which of these waiters are not in the queue.

        The script also removes dead waiters, and notifies the next waiter if the lock is free. With the client b"" it
        does only that.
        """
        session = self.session
        script = session.runtime.scripts.fair_heartbeat
        settings = (self.channel, client, session.fair_wait)
        return command(b"EVALSHA", script, len(self._keys), *self._keys, *settings, *waiters)

    def leave(self, owners: Iterable[bytes], *, in_doubt: bool) -> bytes:
        """Takes owners out of the queue for good. `in_doubt`: an acquire of theirs is undone, or may run late."""
        session = self.session
        script = session.runtime.scripts.fair_leave
        settings = (self.channel, session.fair_wait, int(in_doubt))
        return command(b"EVALSHA", script, len(self._keys), *self._keys, *settings, *owners)

    def channel_of(self, ticket: QueueTicket) -> bytes:
        """The channel on which the waiter with that ticket is notified, and no other waiter."""
        return b"%b:%b" % (self.channel, ticket.name)


class FairLockLogic(LockLogic):
    """A lock with a queue on the server. A release notifies the head of the queue, on a channel of its own."""

    __slots__ = ()

    is_handed_on = False
    commands_type = FairLockCommands
    commands: FairLockCommands

    def acquire(self, owner: Owner, lease: int | None, deadline: float | None) -> Coroutine[Any, Any, bool]:
        return self._acquire(FairAcquireCall(owner, lease, deadline))

    async def _acquire(self, call: AcquireCall) -> bool:
        assert isinstance(call, FairAcquireCall)
        owner: Owner = call.owner
        queued_names = owner.calls.queued_names
        if owner.name in queued_names:
            # Two calls of one owner each need a place, and must not give up the place of the other.
            call.owner = owner.for_one_call()
        ticket = call.ticket = QueueTicket(call.owner)
        name = ticket.name
        channel = self.session.channels.confirmed_channel(self.commands.channel_of(ticket))
        if isinstance(channel, TicketChannel):
            ticket.channel, ticket.attempt_reasons_before = channel, channel.attempt_reasons
        try:
            queued_names.add(name)
            if not await super()._acquire(call):
                self._leave_queue(ticket)
                return False
            self._after_acquire(ticket, len(queued_names) > 1)
            return True
        except BaseException:
            self.release_acquired(call)
            self._leave_queue(ticket)
            raise
        finally:
            queued_names.discard(name)

    def _after_acquire(self, ticket: QueueTicket, others_wait: bool) -> None:
        if ticket.wakeup is not None:
            hold = self.hold_of(ticket.owner.id)
            if hold is not None and hold.owner != ticket.name:
                # Another call of this owner acquired the lock, and this call has added a level: it needs no place.
                self._leave_queue(ticket)
        if others_wait:
            # What one call of an owner has acquired, its other calls can acquire too.
            with self.session.channels.mutex:
                queue = self.session.local_queues.get(self.key)
                if queue is not None:
                    queue.request_attempts_of(ticket.owner.id)

    async def _attempt(self, call: AcquireCall) -> float | None:
        assert isinstance(call, FairAcquireCall)
        self.session.check_open()
        if self.checks_owner:
            # Before the ticket counts as queued: a call that is refused here has nothing to withdraw.
            self.check_owner(call.owner)
        if not call.ticket.may_be_queued:
            call.ticket.may_be_queued = call.deadline is None or self.session.clock() < call.deadline
        return await super()._attempt(call)

    def name_for(self, call: AcquireCall) -> bytes:
        assert isinstance(call, FairAcquireCall)
        return call.ticket.name

    def undo_grant(self, call: AcquireCall) -> None:
        assert isinstance(call, FairAcquireCall)
        super().undo_grant(call)
        call.ticket.name = call.ticket.owner.name

    def _leave_queue(self, ticket: QueueTicket) -> None:
        """Leaves the queue, in the background. Idempotent."""
        if not ticket.may_be_queued or ticket.withdrawn:
            return
        # On the server the name may stay in the queue, as that of a waiter that has left, until it comes to one of the
        # queue's ends. So a later acquire needs another name.
        ticket.owner.new_epoch()
        self.session.runtime.post(self.commands.leave((ticket.name,), in_doubt=False))
        # Last: if an interrupt strikes before, it is sent once more.
        ticket.withdrawn = True

    async def _wait(self, call: AcquireCall, wait: float) -> bool:
        assert isinstance(call, FairAcquireCall)
        call.ticket.wakeup = self.session.runtime.wakeup()
        waiter = _Waiter(self, call, call.ticket.wakeup)
        try:
            return await waiter.run(wait)
        except BaseException:
            # An interrupt may have come on the way out, before the waiter had left.
            waiter.leave()
            raise

    def on_partly_released(self) -> None:
        self.session.runtime.spawn(self._remove_dead_waiters)

    async def _remove_dead_waiters(self) -> None:
        """Removes dead waiters from the head of the queue, some in each call, until the next waiter was notified."""
        session = self.session
        unfinished = 1
        try:
            while unfinished and not session.closed:
                payload = self.commands.heartbeat(b"", ())
                reply, _ = await retry.send(session.runtime, payload, retries=session.retries)
                *_, unfinished, _ = reply
        except (ClosedError, RedisError):
            # The heartbeats of living waiters go on with it.
            return

    async def force_release(self) -> bool:
        removed = await super().force_release()
        if removed:
            await self._remove_dead_waiters()
        return removed

    async def delete(self) -> bool:
        """Removes the lock and its queue; returns whether it was held. Living waiters of this library queue again."""
        return await self._remove(self.commands.delete(), "delete()")


class _Action(Enum):
    """What a waiter does next."""

    ATTEMPT = auto()
    HEARTBEAT = auto()
    SLEEP = auto()
    TIME_OUT = auto()


class _Waiter:
    """One call that waits in the queue: it sends an attempt or a heartbeat when that is due, and else sleeps.

    A holder that died publishes nothing. Its waiters are woken by the heartbeat that is due 1 ms after the end of its
    lease. The script of that heartbeat finds the lock free, notifies the head of the queue, and returns its name. If
    that is a waiter of the same client, `LocalQueue.heartbeat` wakes it also without a message.
    """

    def __init__(self, lock: FairLockLogic, call: FairAcquireCall, wakeup: Wakeup) -> None:
        session = lock.session
        self._lock = lock
        self._call = call
        self._ticket = call.ticket
        self._wakeup = wakeup
        self._session = session
        self._attempted_at = session.clock()
        self._attempt_interval = ATTEMPT_INTERVAL * (0.75 + session.runtime.jitter() / 2)

    async def run(self, wait: float) -> bool:
        """Waits until the lock is acquired, or until the deadline of the call: False."""
        try:
            self._join(wait)
            while True:
                self._wakeup.clear()
                self._session.check_open()
                self._follow_name()
                if self._channel.error is not None:
                    raise copy_error(self._channel.error)
                action = self._next_action()
                if action is _Action.TIME_OUT:
                    return False
                if action is _Action.ATTEMPT and await self._make_attempt():
                    return True
                if action is _Action.HEARTBEAT and not await self._queue.heartbeat():
                    self._ticket.needs_attempt = True
                if action is _Action.SLEEP:
                    await self._sleep()
        finally:
            self.leave()

    def _join(self, wait: float) -> None:
        session, key = self._session, self._lock.key
        with session.channels.mutex:
            queue = session.local_queues.get(key)
            if queue is None:
                queue = LocalQueue(self._lock.commands, session.id, session.runtime, session.channels)
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

    def leave(self) -> None:
        """Waits no longer. Idempotent."""
        session, ticket = self._session, self._ticket
        # `channels.leave` passes a wakeup that is set on to the next waiter of the channel. Another call with the same
        # name may be waiting for the same message, and this waiter may have cleared its wakeup without an attempt.
        self._wakeup.set()
        # Not the channel of its present name, which may have changed since.
        session.channels.leave(ticket.channel_name, self._wakeup)
        with session.channels.mutex:
            queue = session.local_queues.get(self._lock.key)
            if queue is not None and ticket in queue.tickets and queue.leave(ticket):
                del session.local_queues[self._lock.key]

    def _register(self) -> None:
        """Registers at the channel of the ticket's name."""
        self._ticket.channel_name = self._lock.commands.channel_of(self._ticket)
        channel = self._session.channels.join(self._ticket.channel_name, self._wakeup, TicketChannel)
        assert isinstance(channel, TicketChannel)
        self._ticket.channel = self._channel = channel

    def _follow_name(self) -> None:
        """Registers anew if the ticket got another name, with a place at the end of the queue."""
        if self._ticket.name != self._name:
            self._session.channels.leave(self._ticket.channel_name, self._wakeup)
            self._name = self._ticket.name
            self._register()
            self._seen_reasons = -1

    def _next_action(self) -> _Action:
        now, deadline = self._session.clock(), self._call.deadline
        if deadline is not None and now >= deadline:
            return _Action.TIME_OUT
        attempt_at = self._attempted_at + (self._attempt_interval if self._channel.confirmed else UNCONFIRMED_WAIT)
        if self._channel.attempt_reasons != self._seen_reasons or self._ticket.needs_attempt or now >= attempt_at:
            return _Action.ATTEMPT
        wakes_at = attempt_at if deadline is None else min(attempt_at, deadline)
        if self._queue.sends_heartbeats(self._ticket):
            if now >= self._queue.heartbeat_at:
                return _Action.HEARTBEAT
            wakes_at = min(wakes_at, self._queue.heartbeat_at)
        self._seconds = wakes_at - now
        return _Action.SLEEP

    async def _make_attempt(self) -> bool:
        self._seen_reasons, self._ticket.needs_attempt = self._channel.attempt_reasons, False
        heartbeat_within = await self._lock._attempt(self._call)
        if heartbeat_within is None:
            return True
        self._attempted_at = self._session.clock()
        # After that time the lock may be free without a message. Not each waiter makes an attempt then: one heartbeat
        # finds out whose turn it is.
        self._queue.heartbeat_before(self._attempted_at + heartbeat_within)
        return False

    async def _sleep(self) -> None:
        debug.look()
        if debug.on:
            logger.debug("%s waits in the queue for %.3f s at most", self, self._seconds)
        await self._session.runtime.wait(self._wakeup, self._seconds)
        if debug.on and self._wakeup.is_set():
            logger.debug("%s is woken", self)

    def __str__(self) -> str:
        return f"lock {readable(self._lock.key)!r} of owner {readable(self._ticket.name)}"


class NonReentrantFairLockLogic(NonReentrantLockLogic, FairLockLogic):
    """The fair lock that its holder can't acquire again."""

    __slots__ = ()
