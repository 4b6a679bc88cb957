"""Waiting for a lock that is handed on inside a client: sleep, and make an attempt only where that may help.

As in `logic.waiting`, a wakeup is a hint to make an attempt. In addition a release of this client may enter the waiter
on the server, see `hand_over`. Then the waiter has the lock without any attempt of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable
from typing import Protocol

from pyredisson._core import AcquireCall
from pyredisson._diagnostics import debug, logger, readable
from pyredisson._protocol.error_copies import copy_error
from pyredisson.logic.channels import Channel
from pyredisson.logic.holds import LOST
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.logic.locks.local_queue import (
    GIVEN,
    LEFT,
    LOOKING,
    OFFERED,
    LocalQueue,
    LockChannel,
    LockWaiter,
)
from pyredisson.logic.owner_calls import SHORTEST_WAIT, TURN_CHECK
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import UNCONFIRMED_WAIT


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


class QueuedWait:
    """The wait of one call. `run` is called once."""

    __slots__ = ("_call", "_channel", "_channel_name", "_lock", "_look_at", "_owes_attempt", "_queue", "_waiter")

    _channel: Channel
    _queue: LocalQueue
    _waiter: LockWaiter[QueuedLock]

    def __init__(self, lock: QueuedLock, call: AcquireCall) -> None:
        self._lock = lock
        self._call = call
        self._channel_name = lock.commands.channel
        self._waiter = LockWaiter(lock, lock.identity, call, lock.session.runtime.wakeup())
        self._look_at = 0.0
        """When to make the next attempt, even without a wakeup."""
        self._owes_attempt = False
        """Whether this waiter has got a wakeup without having made its attempt."""

    async def run(self, wait: float | None) -> bool:
        """Waits until the lock is acquired or the deadline has passed: False.

        `wait`: for how long at most, as the first attempt of the caller has returned. None: it has made none.
        """
        try:
            return await self._run(wait)
        except BaseException:
            # An interrupt may have prevented this in `_run`.
            self._leave()
            raise

    async def _run(self, wait: float | None) -> bool:
        session, waiter = self._lock.session, self._waiter
        try:
            self._join(wait)
            must_attempt = wait is None and not self._may_sleep() and waiter.wake_up()
            while True:
                if must_attempt and await self._attempt():
                    return True
                if self._channel.error is not None:
                    raise copy_error(self._channel.error)
                seconds = self._seconds_to_sleep()
                if seconds <= 0 and waiter.state is LOOKING:
                    return False
                waiter.sleep()
                debug.look()
                if debug.on:
                    logger.debug("waiting on channel %r for %.3f s at most", readable(self._channel_name), seconds)
                await session.runtime.wait(waiter.wakeup, max(seconds, 0.0))
                if debug.on:
                    said = "woken" if waiter.wakeup.is_set() else "no message"
                    logger.debug("%s on channel %r", said, readable(self._channel_name))
                if waiter.wake_up():
                    must_attempt = self._is_due()
                elif await self._outcome():
                    return True
                elif waiter.state is LEFT:
                    return False
                else:
                    must_attempt = True
        except BaseException:
            # The wakeup may have been consumed by an attempt that did not finish: `leave` passes it on.
            self._owes_attempt = True
            raise
        finally:
            self._leave()

    def _join(self, wait: float | None) -> None:
        """Takes the last place among the waiters of this client."""
        session, waiter, lock = self._lock.session, self._waiter, self._lock
        channels = session.channels
        with channels.mutex:
            queue = session.lock_queues.get(lock.identity)
            if queue is None:
                queue = session.lock_queues[lock.identity] = LocalQueue()
            self._queue = queue
            queue.waiters[waiter] = None
            # A waiter that has made no attempt can't have missed anything since then.
            events = self._call.events if wait is not None else channels.events(self._channel_name)
            queue.channel = self._channel = channels.join(self._channel_name, waiter.wakeup, LockChannel, 1, events)
        now = session.clock()
        if wait is not None:
            self._refused(now, wait)
        else:
            # No waiter sleeps longer than `lock_watchdog_timeout`: the next holder may have a shorter lease.
            self._look_at = min(queue.next_look(now), now + session.lease_ms / 1000)
            # Before the look at the holder: so its release finds this waiter, or this waiter finds the release.
            waiter.sleep()

    def _may_sleep(self) -> bool:
        """Whether a waiter that has made no attempt can rely on others to wake it.

        It is in the queue already, so a holder that is not releasing by now will find it there.
        """
        return self._queue.is_held or self._queue.has_others(self._waiter)

    def _seconds_to_sleep(self) -> float:
        """For how long to sleep at most. 0 or less: the deadline has passed."""
        now, deadline = self._lock.session.clock(), self._call.deadline
        seconds = max(self._look_at - now, 0.001)
        if not self._channel.confirmed:
            seconds = min(seconds, UNCONFIRMED_WAIT)
        return seconds if deadline is None else min(seconds, deadline - now)

    def _is_due(self) -> bool:
        """Whether to make an attempt after a sleep. An attempt that other clients come before is put off."""
        now, deadline = self._lock.session.clock(), self._call.deadline
        if self._waiter.wakeup.is_set():
            self._waiter.wakeup.clear()
            self._owes_attempt = True
            if now < self._queue.others_first_until:
                self._look_at = self._queue.others_first_until
        over = deadline is not None and now >= deadline
        due = now >= self._look_at or (self._owes_attempt and now >= self._queue.others_first_until)
        return over or due or not self._channel.confirmed

    async def _attempt(self) -> bool:
        # A wakeup is only a hint: it may be late, or meant for another waiter. Only a script's reply counts.
        self._waiter.wakeup.clear()
        self._call.events = self._channel.events
        wait = await self._lock._attempt(self._call)
        self._owes_attempt = False
        if wait is None:
            self._queue.set_holder(self._call.hold, self._call.events)
            return True
        self._refused(self._lock.session.clock(), wait)
        return False

    def _refused(self, now: float, wait: float) -> None:
        self._look_at = self._queue.busy_until = now + wait

    async def _outcome(self) -> bool:
        """Waits for the outcome of the hand-over. True: this waiter has the lock.

        As an attempt that is on its way at the deadline, it may take as long as a reply. False: an attempt is due, or
        the deadline has passed long ago.
        """
        session, waiter, deadline = self._lock.session, self._waiter, self._call.deadline
        if deadline is not None:
            deadline = max(deadline, session.clock() + SHORTEST_WAIT)
        while waiter.state is OFFERED:
            waiter.wakeup.clear()
            # The state is changed before the wakeup is set.
            if waiter.state is not OFFERED:
                break
            seconds = TURN_CHECK if deadline is None else min(TURN_CHECK, deadline - session.clock())
            if seconds <= 0 and waiter.decline():
                return False
            await session.runtime.wait(waiter.wakeup, max(seconds, 0.0))
        if waiter.error is not None:
            raise waiter.error
        return waiter.state is GIVEN

    def _leave(self) -> None:
        """Leaves the queue and the channel. Never suspends. Idempotent."""
        session, waiter = self._lock.session, self._waiter
        waiter.leave()
        if self._owes_attempt:
            waiter.wakeup.set()
        with session.channels.mutex:
            queue = session.lock_queues.get(self._lock.identity)
            if queue is not None:
                queue.waiters.pop(waiter, None)
                if not queue.waiters and not queue.is_held:
                    del session.lock_queues[self._lock.identity]
            session.channels.leave(self._channel_name, waiter.wakeup)
