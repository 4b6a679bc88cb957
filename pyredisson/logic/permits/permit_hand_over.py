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
from pyredisson.logic.owners import TURN_CHECK
from pyredisson.logic.permits.commands import OTHERS_WAIT, REDISSON_HEARD
from pyredisson.logic.permits.permit_queue import PermitQueue
from pyredisson.logic.permits.permit_wait import PermitWait
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.waiting import OTHERS_FIRST, WAITING

if TYPE_CHECKING:
    from pyredisson.logic.permits.semaphore import SemaphoreLogic


async def send(
    semaphore: SemaphoreLogic,
    queue: PermitQueue,
    slot: SessionSlot,
    permits: int,
    waiters: Sequence[PermitWait],
    *,
    only_existing: bool = False,
) -> int:
    """Sends a hand-over. Returns how many permits were acquired; 0 or less: see `SemaphoreCommands.hand_over`."""
    session = semaphore.session
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


def refuse(semaphore: SemaphoreLogic, waiter: PermitWait) -> None:
    """The waiter hasn't got its permits: it makes an attempt."""
    semaphore.session.channels.take_back(semaphore.commands.waiting_channel, waiter.wakeup, waiter.permits)
    waiter.refuse()
    waiter.wakeup.set()


# --- One hand-over


async def release(
    semaphore: SemaphoreLogic, queue: PermitQueue, slot: SessionSlot, permits: int, *, only_existing: bool
) -> bool:
    """Releases permits for which callers of this client may wait. False: no semaphore although `only_existing`."""
    session = semaphore.session
    now, limit = session.clock(), session.local_hand_over_time
    if queue.may_hand_over(now, limit):
        # If an interrupt strikes from here on, `abandon` does what remains to be done for the waiter.
        releaser = slot.releaser = ReleaseCall()
        waiter = _choose(queue, permits, releaser, now)
        if waiter is not None:
            queue.on_handed_over(now, limit)
            if not queue.in_flight or only_existing:
                return await _hand_over(semaphore, queue, slot, permits, waiter, only_existing=only_existing)
            # In an event loop all hand-overs that come while one is on its way share a command.
            session.slots.free(slot)
            batch = queue.batch
            if batch is None:
                batch = queue.batch = HandOverBatch(semaphore, queue)
            await batch.release(permits, waiter)
            return True
    asks = queue.begins_to_ask(now)
    try:
        payload = semaphore.commands.add(slot, permits, only_existing=only_existing)
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
    if queue.claimant is not None:
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
    semaphore: SemaphoreLogic,
    queue: PermitQueue,
    slot: SessionSlot,
    permits: int,
    waiter: PermitWait,
    *,
    only_existing: bool,
) -> bool:
    session = semaphore.session
    counted = not session.runtime.blocking
    try:
        queue.in_flight += counted
        session.channels.set_aside(semaphore.commands.waiting_channel, waiter.wakeup)
        reply = await send(semaphore, queue, slot, permits, (waiter,), only_existing=only_existing)
    except NotConfirmed as problem:
        # The permits were released. Only the waiter needs the confirmation.
        waiter.error = semaphore.not_confirmed(problem)
        abandon(semaphore, slot, permits, only_existing=only_existing)
        return True
    except BaseException:
        abandon(semaphore, slot, permits, only_existing=only_existing)
        raise
    finally:
        queue.in_flight -= counted
    if reply > 0:
        if not waiter.give():
            abandon(semaphore, slot, permits, only_existing=only_existing)
            return True
        waiter.wakeup.set()
    else:
        refuse(semaphore, waiter)
    if tracing.debug and reply > 0:
        logger.debug("%d permits of semaphore %r are handed on", reply, readable(semaphore.key))
    session.slots.free(slot)
    return bool(reply)


def abandon(semaphore: SemaphoreLogic, slot: SessionSlot, permits: int, *, only_existing: bool) -> bool:
    """Ends a hand-over that was interrupted or has failed, or whose waiter has left: its permits are released, once.

    The waiter makes an attempt. False: there is no hand-over. Idempotent.
    """
    releaser = slot.releaser
    waiter: PermitWait | None = None if releaser is None else releaser.successor
    if waiter is None:
        return False
    if waiter.releaser is releaser:
        # The slot isn't used again: this command must find the number of the hand-over.
        finish = semaphore.commands.finish_hand_over(slot, permits, only_existing=only_existing)
        semaphore.session.runtime.post(finish)
        refuse(semaphore, waiter)
    # Also after an interrupt between the change of the state and the line that wakes it.
    waiter.wakeup.set()
    return True


# --- Several hand-overs of permits in one command: all that come while another one is on its way, in one event loop
# The command is sent by an operation in the background, so a release that is cancelled changes nothing for the others.
# Until that operation has begun, a release that is cancelled takes its part out of the batch.


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
    _parts: list[Part] = field(default_factory=list)
    _begun: bool = False
    done: bool = False
    error: Exception | None = None
    """What the releases have to raise. The permits are released in the background."""

    async def release(self, permits: int, waiter: PermitWait) -> None:
        """Adds a release, and waits for its end. The waiter was chosen by that release."""
        semaphore = self._semaphore
        runtime = semaphore.session.runtime
        part = Part(permits, waiter, runtime.wakeup())
        self._parts.append(part)
        try:
            semaphore.session.channels.set_aside(semaphore.commands.waiting_channel, waiter.wakeup)
            if len(self._parts) == 1:
                runtime.spawn(self._run_soon)
            while not self.done:
                part.wakeup.clear()
                first = self._parts[0] is part
                await runtime.wait(part.wakeup, TURN_CHECK if first else math.inf)
                if first and not part.wakeup.is_set():
                    # The operation in the background may have been cancelled before it has begun.
                    await self._run()
        except BaseException:
            if not self._begun:
                self._take_out(part)
            raise
        if self.error is not None:
            raise copy_error(self.error)

    def _take_out(self, part: Part) -> None:
        """A release was cancelled before the command was sent: it is done on its own."""
        self._parts.remove(part)
        if self._parts:
            self._parts[0].wakeup.set()
        elif self._queue.batch is self:
            self._queue.batch = None
        self._semaphore.release_in_background(part.permits)
        refuse(self._semaphore, part.waiter)

    async def _run_soon(self) -> None:
        # Other tasks that are about to run may release, too. With an eager task factory this one runs at once.
        await self._semaphore.session.runtime.sleep(0)
        await self._run()

    async def _run(self) -> None:
        """Sends the command, once."""
        if self._begun:
            return
        self._begun = True
        queue, semaphore = self._queue, self._semaphore
        if queue.batch is self:
            queue.batch = None
        queue.in_flight += 1
        try:
            if self._parts:
                await self._send(semaphore.session.slots.allocate())
        finally:
            queue.in_flight -= 1
            self.done = True
            for part in self._parts:
                part.wakeup.set()

    async def _send(self, slot: SessionSlot) -> None:
        semaphore, parts = self._semaphore, self._parts
        permits = sum(part.permits for part in parts)
        try:
            reply = await send(semaphore, self._queue, slot, permits, [part.waiter for part in parts])
        except BaseException as error:
            # The slot isn't used again: this command must find the number of the hand-over.
            semaphore.session.runtime.post(semaphore.commands.finish_hand_over(slot, permits))
            for part in parts:
                if isinstance(error, NotConfirmed):
                    part.waiter.error = semaphore.not_confirmed(error)
                refuse(semaphore, part.waiter)
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, NotConfirmed):
                self.error = error
            return
        unused = 0
        for part in parts:
            if reply <= 0:
                refuse(semaphore, part.waiter)
            elif part.waiter.give():
                part.waiter.wakeup.set()
            else:
                unused += part.waiter.permits
        semaphore.session.slots.free(slot)
        if unused:
            semaphore.release_in_background(unused)
