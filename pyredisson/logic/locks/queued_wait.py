"""Waiting for a lock that is handed on inside a client: sleep, and make an attempt only where that may help.

As in `logic.waiting`, a wakeup is a hint to make an attempt. In addition a release of this client may enter the waiter
on the server, see `hand_over`. Then the waiter has the lock without any attempt of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Hashable
from functools import partial
from typing import Protocol

from pyredisson._core import AcquireCall, InOrder
from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.error_copies import copy_error
from pyredisson.logic.channels import Channel
from pyredisson.logic.handed_waiter import GIVEN, LEFT, LOOKING
from pyredisson.logic.holds import LOST
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.logic.locks.local_queue import LATER, LocalQueue, LockChannel, LockWaiter
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import UNCONFIRMED_WAIT

LISTENING = 2
"""So many of the clients that wait listen to Redisson's messages while one of its clients holds the lock."""
LONGEST_SLEEP = 1e9
"""Seconds. A waiter that makes no attempt sleeps until something happens."""


class QueuedLock(Protocol):
    """What a wait needs of the lock."""

    session: Session
    identity: Hashable

    @property
    def commands(self) -> LockCommands: ...

    def _attempt(self, call: AcquireCall) -> Awaitable[float | None]: ...


def joins_at_once(lock: QueuedLock, call: AcquireCall) -> bool:
    """Whether a call waits behind others of its client before it makes any attempt.

    Not if it has no time to wait, and not if its owner has a hold, which may only need another level.
    """
    session = lock.session
    queue = session.lock_queues.get(lock.identity)
    if queue is None or not session.local_hand_over_time or not (queue.waiters or queue.is_held):
        return False
    if call.deadline is not None and call.deadline <= session.clock():
        return False
    hold = session.holds.table.get((lock.identity, call.owner.id))
    return hold is None or hold.state is LOST


def delay_of(place: int, lease: float) -> float:
    """How many seconds later than the first client one looks whether the holder's lease has ended.

    The first one finds that out, the second one if the first is dead. The others are woken by a release, and look only
    to stay in the list.
    """
    return 0.05 * place if place < LISTENING else lease / 3 + min(0.05 * place, lease / 3)


def leave_unused(session: weakref.ref[Session], commands: type[LockCommands], key: bytes, member: bytes) -> None:
    """The client was woken under this name, and no call of it waits. Called by what reads the messages.

    A weak reference: what reads the messages must not keep a client alive that nobody else refers to.
    """
    client = session()
    if client is not None and not client.closed:
        client.repair(commands(client, key).leave_list(member))


class QueuedWait(LockWaiter[QueuedLock]):
    """The wait of one call."""

    __slots__ = ()

    channel_class: type[Channel] = LockChannel
    queue_class: type[LocalQueue] = LocalQueue
    joins_quietly = True
    """Whether it may wait behind others of its queue without a look at anything else."""

    def __init__(self, lock: QueuedLock, call: AcquireCall) -> None:
        wakeup = lock.session.runtime.wakeup()
        self.begin(LOOKING, lock, (lock.identity, call.owner.id), call, wakeup, lock.commands.waiting_channel)

    async def run(self, wait: float | None) -> bool:
        session, wakeup = self.lock.session, self.wakeup
        runtime, began = session.runtime, session.begin_waiting()
        try:
            must_attempt = self._join(wait)
            while True:
                if must_attempt and await self._attempt():
                    return True
                if self.channel.error is not None:
                    raise copy_error(self.channel.error)
                # Before the look at who is the contender: one that leaves wakes the next waiter that sleeps.
                self.sleep()
                asks = self.is_contender(self.queue.waiters)
                seconds = self.seconds_to_sleep(session.clock(), UNCONFIRMED_WAIT if asks else LONGEST_SLEEP)
                if seconds <= 0:
                    if self.wake_up():
                        return False
                    seconds = 0.0
                if tracing.debug:
                    logger.debug("waiting on channel %r for %.3f s at most", readable(self.channel_name), seconds)
                await runtime.wait(wakeup, seconds)
                if self.state is GIVEN and self.error is None:
                    return True
                if tracing.debug:
                    said = "woken" if wakeup.is_set() else "no message"
                    logger.debug("%s on channel %r", said, readable(self.channel_name))
                if self.wake_up():
                    must_attempt = self._is_due()
                elif await self.outcome(runtime):
                    return True
                elif self.state is LEFT:
                    return False
                else:
                    must_attempt = True
        except BaseException:
            # The wakeup may have been consumed by an attempt that did not finish: the next waiter gets it.
            self.owes_attempt = True
            raise
        finally:
            self.end()
            session.end_waiting(began)

    def _join(self, wait: float | None) -> bool:
        """Takes the last place among the waiters of this client. Returns whether to make an attempt at once."""
        lock, name, call = self.lock, self.channel_name, self.call
        session, identity, commands = lock.session, lock.identity, lock.commands
        channels, queues = session.channels, session.lock_queues
        if wait is None and self.joins_quietly:
            queue = queues.get(identity)
            if queue is not None and channels.join_quietly(
                queue, self, self.need, session.clock(), session.lease_ms / 1000
            ):
                return False
        with channels.mutex:
            queue = queues.get(identity)
            if queue is None:
                queue = queues[identity] = self.queue_class(session.list_member(identity))
            self.queue = queue
            if call.member == queue.member:
                # From now on the queue leaves the list, when nobody waits in it any more.
                queue.listed = True
            alone = True
            for waiter in InOrder(queue.waiters):
                if waiter.wakeup.alive:
                    alone = False
                    break
            queue.waiters[self] = None
            # A waiter that has made no attempt can't have missed anything since then.
            events = call.events if wait is not None else channels.events(name)
            queue.channel = self.channel = channels.join(name, self.wakeup, self.channel_class, self.need, events)
            if isinstance(self.channel, LockChannel):
                self.channel.on_unused = partial(leave_unused, weakref.ref(session), type(commands), commands.key)
        if call.member and call.member != queue.member:
            # Under that name the client may have left the list since.
            session.leave_list(commands.leave_list(call.member))
            self.wakeup.set()
        if wait is not None:
            tracing.look()
            self._refused(session.clock(), wait, joined=True)
            return False
        return self._starts_with_attempt(alone=alone)

    def _starts_with_attempt(self, *, alone: bool) -> bool:
        """Goes to sleep without an attempt, unless nobody else is seen to wait (`alone`) or to hold the lock."""
        session, queue = self.lock.session, self.queue
        now = session.clock()
        # No waiter sleeps longer than `lock_watchdog_timeout`: the next holder may have a shorter lease.
        self.look_at = min(queue.next_look(now, queue.is_held), now + session.lease_ms / 1000)
        # Before the look at the holder: so its release finds this waiter, or this waiter finds the release.
        self.sleep()
        return alone and not queue.is_held and self.wake_up()

    def _is_due(self) -> bool:
        """Whether to make an attempt after a sleep. An attempt that other clients come before is put off."""
        session, queue = self.lock.session, self.queue
        now, deadline, put_off = session.clock(), self.call.deadline, queue.put_off_until()
        woken = self.wakeup.is_set()
        if woken:
            self.wakeup.clear()
            channel = self.channel
            if isinstance(channel, LockChannel) and channel.look_in is not None:
                self.look_at = min(self.look_at, now + channel.look_in + LATER)
                channel.look_in, woken = None, False
        # After the wakeup was cleared: a contender that leaves sets it again.
        if not self.is_contender(queue.waiters, stuck=now >= self.look_at):
            # The contender makes an attempt for all. If it has just acquired the lock, the next attempt is due at the
            # end of that lease.
            held, longest = queue.is_held, now + session.lease_ms / 1000
            if held or now >= self.look_at:
                self.look_at = min(queue.next_look(now, held), longest) if held else longest
            return False
        if woken:
            self.owes_attempt = True
            if now < put_off:
                self.look_at = put_off
        over = deadline is not None and now >= deadline
        due = now >= self.look_at or (self.owes_attempt and now >= put_off)
        return over or due or not self.channel.confirmed

    async def _attempt(self) -> bool:
        # A wakeup is only a hint: it may be late, or meant for another waiter. Only a script's reply counts.
        self.wakeup.clear()
        self.call.events = self.channel.events
        self.queue.listed = self.lock.commands.has_list
        wait = await self.lock._attempt(self.call)
        self.owes_attempt = False
        if wait is None:
            self.queue.set_holder(self.call.hold, self.call.events)
            return True
        # Here and not before the attempt, which another process may wait for.
        tracing.look()
        self._refused(self.lock.session.clock(), wait)
        return False

    def _refused(self, now: float, wait: float, *, joined: bool = False) -> None:
        """Sets when to look again. `joined`: this waiter has joined the channel after the attempt."""
        session, call = self.lock.session, self.call
        if call.place >= 0:
            wait += delay_of(call.place, session.lease_ms / 1000)
            if call.foreign and call.place < LISTENING:
                assert isinstance(self.channel, LockChannel)
                if session.channels.relay(self.lock.commands.channel, self.channel, anew=joined):
                    self.wakeup.set()
        self.look_at = self.queue.busy_until = now + wait

    def end(self) -> None:
        """Leaves the queue and the channel. Never suspends. Idempotent, also if an earlier call was interrupted."""
        session, queue = self.lock.session, self.queue
        self.stop()
        if self.owes_attempt:
            self.wakeup.set()
        if queue is not None and session.channels.leave_quietly(queue, self):
            self.call.member = b""
            return
        with session.channels.mutex:
            if queue is not None:
                self._leave_queue(queue)
            session.channels.leave(self.channel_name, self.wakeup)

    def _leave_queue(self, queue: LocalQueue) -> None:
        """The caller holds the mutex. What the queue owes the list is the call's after its last waiter."""
        session, call = self.lock.session, self.call
        queue.waiters.pop(self, None)
        if self.channel is not None and not self.channel.confirmed:
            # The next contender makes an attempt every second.
            queue.wake_first()
        elif call.hold is None and self.look_at == queue.busy_until:
            # The latest attempt was its own: nobody else knows when the lease ends.
            queue.wake_if_later(self.look_at)
        if queue.waiters:
            call.member = b""
            return
        if queue.listed:
            call.member = queue.member
            queue.member = session.new_member()
            queue.listed = False
        if not queue.is_held and session.lock_queues.get(self.hold_key[0]) is queue:
            session.lock_queues.pop(self.hold_key[0], None)
