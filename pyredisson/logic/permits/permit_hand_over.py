"""Handing permits on inside a client: one command releases permits and acquires some for a waiter of the same client.

Without that command the permits would pass other clients and the server by: a semaphore that was made smaller, was
deleted or has ended would still grant permits here, claims of other clients would not be respected, and no replica
would confirm. So the server is asked each time.

The release makes the call, and is responsible for it until the waiter has its permits or knows that it has to make an
attempt. What may have been acquired for a waiter that doesn't get it is released in the background.
"""

from __future__ import annotations

from pyredisson._core import ReleaseCall
from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replication import NotConfirmed
from pyredisson.logic.exactly_once import SessionSlot
from pyredisson.logic.handed_waiter import GIVEN, WAITING
from pyredisson.logic.permits.commands import OTHERS_HEAR
from pyredisson.logic.permits.permit_batch import HandOverBatch
from pyredisson.logic.permits.permit_queue import PermitQueue, PermitWaiter
from pyredisson.logic.permits.permit_sending import ReleasedSemaphore, not_confirmed, refuse, send


async def release(
    semaphore: ReleasedSemaphore, queue: PermitQueue, slot: SessionSlot, permits: int, *, only_existing: bool
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
    queue.on_publish(now)
    if not queue.waiters:
        # The next caller doesn't wait for the message.
        queue.checked_until = 0.0
    payload = semaphore.commands.add(slot, permits, only_existing=only_existing)
    reply = await session.slots.send(slot, payload, complete=True)
    queue.on_published(session.clock(), limit, others_listen=reply == OTHERS_HEAR)
    if not queue.waiters:
        with session.channels.mutex:
            session.permits.queues.forget_if_idle(semaphore.key, session.clock())
    return bool(reply)


def _choose(queue: PermitQueue, permits: int, releaser: ReleaseCall, now: float) -> PermitWaiter | None:
    """The first waiter that sleeps and wants no more than these permits."""
    if queue.channel is not None and queue.channel.leader is not None:
        # A waiter that wants several permits claims them: others leave it what becomes free.
        return None
    for waiter in list(queue.waiters):
        if waiter.state is not WAITING or waiter.permits > permits:
            continue
        if waiter.owes_attempt or waiter.wakeup.is_set() or not waiter.wakeup.alive:
            # It was woken for other permits, which are free.
            continue
        if (waiter.deadline is None or waiter.deadline > now) and waiter.choose(releaser):
            return waiter
    return None


async def _hand_over(
    semaphore: ReleasedSemaphore,
    queue: PermitQueue,
    slot: SessionSlot,
    permits: int,
    waiter: PermitWaiter,
    *,
    only_existing: bool,
) -> bool:
    session = semaphore.session
    if not session.runtime.blocking:
        queue.in_flight += 1
    try:
        session.channels.set_aside(semaphore.commands.channel, waiter.wakeup)
        reply = await send(semaphore, slot, permits, waiter.permits, only_existing=only_existing)
    except NotConfirmed as problem:
        # The permits were released. Only the waiter needs the confirmation.
        waiter.error = not_confirmed(semaphore, problem)
        abandon(semaphore, slot, permits, only_existing=only_existing)
        return True
    except BaseException:
        abandon(semaphore, slot, permits, only_existing=only_existing)
        raise
    finally:
        if not session.runtime.blocking:
            queue.in_flight -= 1
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


def abandon(semaphore: ReleasedSemaphore, slot: SessionSlot, permits: int, *, only_existing: bool) -> bool:
    """Ends a hand-over that was interrupted or has failed, or whose waiter has left: its permits are released, once.

    The waiter makes an attempt. False: there is no hand-over. Idempotent.
    """
    releaser = slot.releaser
    waiter: PermitWaiter | None = None if releaser is None else releaser.successor
    if waiter is None:
        return False
    if waiter.releaser is not releaser or waiter.state is not GIVEN:
        # The slot isn't used again: this command must find the number of the hand-over.
        finish = semaphore.commands.finish_hand_over(slot, permits, only_existing=only_existing)
        semaphore.session.runtime.post(finish)
        if waiter.releaser is releaser:
            refuse(semaphore, waiter)
    # Also after an interrupt between the change of the state and the line that wakes it.
    waiter.wakeup.set()
    return True
