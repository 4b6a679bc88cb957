"""Handing permits on inside a client: one command releases permits and acquires some for a waiter of the same client.

Without that command the permits would pass other clients and the server by: a semaphore that was made smaller, was
deleted or has ended would still grant permits here, claims of other clients would not be respected, and no replica
would confirm. So the server is asked each time.

The release makes the call, and is responsible for it until the waiter has its permits or knows that it has to make an
attempt. What may have been acquired for a waiter that doesn't get it is released in the background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyredisson._core import InOrder, ReleaseCall
from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replication import NotConfirmed
from pyredisson._protocol.replies import copy_error
from pyredisson.logic.exactly_once import SessionSlot
from pyredisson.logic.permits.commands import OTHERS_WAIT, REDISSON_HEARD
from pyredisson.logic.permits.permit_queue import PermitQueue
from pyredisson.logic.permits.permit_wait import PermitWait
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.waiting import OTHERS_FIRST, WAITING

if TYPE_CHECKING:
    from pyredisson.logic.permits.semaphore import SemaphoreLogic


class PermitRelease(NamedTuple):
    """One release."""

    slot: SessionSlot
    permits: int
    only_existing: bool = False
    """Whether nothing is to be done if there is no semaphore."""


# --- One hand-over


async def release(semaphore: SemaphoreLogic, queue: PermitQueue, call: PermitRelease) -> bool:
    """Releases permits for which callers of this client may wait. False: no semaphore, although there has to be one."""
    session, slot, permits = semaphore.session, call.slot, call.permits
    now, limit = session.clock(), session.local_hand_over_time
    if queue.may_hand_over(now, limit):
        # If an interrupt strikes from here on, `abandon` does what remains to be done for the waiter.
        releaser = slot.releaser = ReleaseCall()
        waiter = _choose(queue, permits, releaser, now)
        if waiter is not None:
            queue.on_handed_over(now, limit)
            session.channels.set_aside(semaphore.commands.waiting_channel, waiter.wakeup)
            if not queue.in_flight or call.only_existing:
                return await _hand_over(semaphore, queue, call, (waiter,))
            # In an event loop all hand-overs that come while one is on its way share a command.
            session.slots.free(slot)
            batch = queue.batch
            # Nobody sends the batch of an event loop that was closed.
            if not (batch and batch.parts and batch.parts[0].wakeup.alive):
                batch = queue.batch = HandOverBatch(semaphore, queue)
            await batch.release(permits, waiter)
            return True
    asks = queue.begins_to_ask(now)
    try:
        payload = semaphore.commands.add(slot, permits, only_existing=call.only_existing)
        reply = await session.slots.send(slot, payload, complete=True)
        queue.on_released(others_wait=bool(reply & (OTHERS_WAIT | REDISSON_HEARD)), now=now)
    finally:
        if asks:
            queue.asks_until = 0.0
    if reply & REDISSON_HEARD:
        # They hear of it later than the waiters here.
        queue.others_first_until = session.clock() + OTHERS_FIRST
    if not queue.waiters:
        with session.channels.mutex:
            session.permits.forget_if_idle(semaphore.key, session.clock())
    return bool(reply)


def _choose(queue: PermitQueue, permits: int, releaser: ReleaseCall, now: float) -> PermitWait | None:
    """The first waiter that sleeps and wants no more than these permits."""
    if queue.has_claimant:
        # A waiter that wants several permits claims them: others leave it what becomes free.
        return None
    for waiter in InOrder(queue.waiters):
        if waiter.state is not WAITING or waiter.permits > permits:
            continue
        if waiter.owes_attempt or waiter.wakeup.is_set() or not waiter.wakeup.alive:
            # It was woken for other permits, which are free.
            continue
        if (waiter.deadline is None or waiter.deadline > now) and waiter.choose(releaser):
            return waiter
    return None


async def _hand_over(
    semaphore: SemaphoreLogic, queue: PermitQueue, call: PermitRelease, waiters: Sequence[PermitWait]
) -> bool:
    """Sends the command of a release, or of several as one. False: no semaphore, although there has to be one."""
    session = semaphore.session
    counted = not session.runtime.blocking
    try:
        queue.in_flight += counted
        reply = await _send(semaphore, queue, call, waiters)
    except BaseException as error:
        if isinstance(error, NotConfirmed):
            for waiter in waiters:
                waiter.error = semaphore.not_confirmed(error)
        _undo(semaphore, call, waiters)
        if not isinstance(error, NotConfirmed):
            raise
        # The permits were released. Only the waiters need the confirmation.
        return True
    finally:
        queue.in_flight -= counted
    left = [waiter for waiter in waiters if reply > 0 and not waiter.give()]
    if len(left) == len(waiters):
        _undo(semaphore, call, waiters)
        return True
    for waiter in waiters:
        if reply <= 0:
            _refuse(semaphore, waiter)
        waiter.wakeup.set()
    if left:
        semaphore.release_in_background(sum(waiter.permits for waiter in left))
    if tracing.debug and reply > 0:
        logger.debug("%d permits of semaphore %r are handed on", reply, readable(semaphore.key))
    session.slots.free(call.slot)
    return bool(reply)


async def _send(
    semaphore: SemaphoreLogic, queue: PermitQueue, call: PermitRelease, waiters: Sequence[PermitWait]
) -> int:
    """Returns how many permits were acquired; 0 or less: see `SemaphoreCommands.hand_over`."""
    session, (slot, permits, only_existing) = semaphore.session, call
    with session.channels.mutex:
        names = queue.take_names(waiters)
    wanted = sum(waiter.permits for waiter in waiters)
    payload = semaphore.commands.hand_over(slot, permits, wanted, names, only_existing=only_existing)
    reply = 0
    try:
        reply = await session.slots.send_hand_over(payload)
    finally:
        if reply <= 0 and names:
            # Only a hand-over takes the client out of the list.
            with session.channels.mutex:
                queue.names.update(dict.fromkeys(names.split()))
    return reply


def abandon(semaphore: SemaphoreLogic, call: PermitRelease) -> bool:
    """Ends a hand-over that was interrupted: its permits are released, once, and the waiter makes an attempt.

    False: there is no hand-over. Idempotent.
    """
    releaser = call.slot.releaser
    waiter: PermitWait | None = None if releaser is None else releaser.successor
    if waiter is None:
        return False
    if waiter.releaser is releaser:
        _undo(semaphore, call, (waiter,))
    # Also after an interrupt between the change of the state and the line that wakes it.
    waiter.wakeup.set()
    return True


def _undo(semaphore: SemaphoreLogic, call: PermitRelease, waiters: Sequence[PermitWait]) -> None:
    """Makes a hand-over that has failed, or whose waiters have left, a mere release; the waiters make attempts."""
    # The slot isn't used again: this command must find the number of the hand-over.
    slot, permits, only_existing = call
    semaphore.session.runtime.post(semaphore.commands.finish_hand_over(slot, permits, only_existing=only_existing))
    for waiter in waiters:
        _refuse(semaphore, waiter)


def _refuse(semaphore: SemaphoreLogic, waiter: PermitWait) -> None:
    """The waiter hasn't got its permits: it makes an attempt."""
    semaphore.session.channels.take_back(semaphore.commands.waiting_channel, waiter.wakeup, waiter.permits)
    waiter.refuse()
    waiter.wakeup.set()


# --- Several hand-overs of permits in one command: all that come while another one is on its way, in one event loop
# The first of the releases sends the command. If it is cancelled meanwhile, the permits of all are released in the
# background, and the waiters make attempts. A release that is cancelled before that takes its part out of the batch.


class Part(NamedTuple):
    """One release, and the waiter to which it hands permits on."""

    permits: int
    waiter: PermitWait
    wakeup: Wakeup
    """Wakes the release."""


@dataclass(slots=True, eq=False)
class HandOverBatch:
    """Hand-overs that become one command."""

    _semaphore: SemaphoreLogic
    _queue: PermitQueue
    parts: list[Part] = field(default_factory=list)
    """The first one sends the command."""
    _begun: bool = False
    _done: bool = False
    _error: Exception | None = None
    """What the releases have to raise. The permits are released in the background."""

    async def release(self, permits: int, waiter: PermitWait) -> None:
        """Adds a release, and waits for its end. The waiter was chosen by that release."""
        runtime = self._semaphore.session.runtime
        part = Part(permits, waiter, runtime.wakeup())
        self.parts.append(part)
        try:
            if self.parts[0] is part:
                # Other tasks that are about to run may release, too.
                await runtime.sleep(0)
            while not self._done and self.parts[0] is not part:
                await runtime.wait(part.wakeup, math.inf)
            if not self._done:
                await self._send()
        except BaseException:
            if not self._begun:
                self._take_out(part)
            raise
        if self._error is not None:
            raise copy_error(self._error)

    def _take_out(self, part: Part) -> None:
        """A release was cancelled before the command was sent: it is done on its own."""
        self.parts.remove(part)
        if self.parts:
            self.parts[0].wakeup.set()
        else:
            self._queue.batch = None
        self._semaphore.release_in_background(part.permits)
        _refuse(self._semaphore, part.waiter)

    async def _send(self) -> None:
        self._begun = True
        self._queue.batch = None
        semaphore, parts = self._semaphore, self.parts
        call = PermitRelease(semaphore.session.slots.allocate(), sum(part.permits for part in parts))
        try:
            await _hand_over(semaphore, self._queue, call, [part.waiter for part in parts])
        except Exception as error:
            self._error = error
            raise
        finally:
            self._done = True
            for part in parts:
                part.wakeup.set()
