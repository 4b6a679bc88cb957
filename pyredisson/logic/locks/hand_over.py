"""Handing a lock on inside a client: one command releases it and enters a waiter of the same client.

The server always knows one true owner. The reply is the proof for the new holder, whose lease counts from before the
command was sent. The release makes the call, and is responsible for it until the waiter has the lock or knows that it
has to make an attempt. What may have been entered for a waiter that doesn't get it is undone in the background.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError, ResponseError

from pyredisson._core import InOrder, ReleaseCall
from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replication import NotConfirmed
from pyredisson._protocol.replies import NoReply, Reply, is_transient_reply
from pyredisson.logic.holds import LOST, Hold
from pyredisson.logic.locks.commands import LOCK_FREE, NOT_HANDED_OVER, OTHERS_LISTEN
from pyredisson.logic.locks.queued_wait import OTHERS_FIRST, LocalQueue, LockWaiter
from pyredisson.logic.owners import Owner
from pyredisson.logic.retry import not_replicated
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import WAITING

if TYPE_CHECKING:
    from pyredisson.logic.locks.releasing import ReleasingLock


def choose_successor(lock: ReleasingLock, releaser: ReleaseCall) -> LockWaiter | None:
    """The waiter to which the release of a last level hands the lock on. None: the release notifies all clients.

    The hold is in the state RELEASING already: a call that comes to wait from now on doesn't rely on it. If an
    interrupt strikes in here or later, `abandon` does what remains to be done for the waiter.
    """
    session = lock.session
    queue = session.lock_queues.get(lock.identity)
    if queue is None:
        return None
    now, limit = session.clock(), session.local_hand_over_time
    waiter: LockWaiter | None = queue.offer_to_first(releaser, lock.commands.__class__, now, limit, session.holds.table)
    if waiter is None and queue.may_hand_over(now, limit):
        waiter = _choose(queue, lock, releaser, now)
    if waiter is not None and take_turn(waiter, releaser):
        queue.on_handed_over(now, limit)
        return waiter
    queue.end_series(now)
    forget_if_idle(session, lock.identity)
    return None


def _choose(queue: LocalQueue, lock: ReleasingLock, releaser: ReleaseCall, now: float) -> LockWaiter | None:
    for waiter in InOrder(queue.waiters):
        if not waiter.is_ready(WAITING, now, lock.session.holds.table, LOST):
            continue
        if waiter.lock.commands.__class__ is not lock.commands.__class__:
            # Another kind of lock of the same name, whose holds have other commands. It isn't passed over.
            return None
        if waiter.choose(releaser):
            return waiter
    return None


def choose(waiter: LockWaiter, releaser: ReleaseCall, now: float) -> bool:
    """Chooses a waiter, unless it isn't ready."""
    ready = waiter.is_ready(WAITING, now, waiter.lock.session.holds.table, LOST)
    return ready and waiter.choose(releaser) and take_turn(waiter, releaser)


def take_turn(waiter: LockWaiter, releaser: ReleaseCall) -> bool:
    """The call of a waiter that was chosen takes the turn of its owner. False: it can't, and isn't offered the lock.

    By its turn, a background release of that owner finds out that this acquire may be overtaken. And no other call of
    that owner acquires the lock from now on, of which this would be another level.
    """
    lock, call = waiter.lock, waiter.call
    if call.owner.calls.in_flight.enter(waiter.hold_key, call):
        hold = lock.session.holds.table.get(waiter.hold_key)
        if hold is None or hold.state is LOST:
            return True
    end(waiter, releaser, given=False)
    return False


def on_released(lock: ReleasingLock, reply: Reply) -> None:
    """The lock was released with a message, after a series of hand-overs perhaps."""
    queue = lock.session.lock_queues.get(lock.identity)
    if queue is None or not lock.commands.has_list:
        return
    # Clients of Redisson hear of the release later than the waiters here, and aren't in the list.
    queue.others_first_until = lock.session.clock() + OTHERS_FIRST if reply == OTHERS_LISTEN else 0.0
    with lock.session.channels.mutex:
        # The message goes to the client that is first in the list.
        if queue.waiters and queue.channel is not None:
            queue.channel.wake(1)


def forget_if_idle(session: Session, identity: Hashable) -> None:
    """Forgets the queue of a lock for which nobody waits, and which no waiter has acquired."""
    with session.channels.mutex:
        queue = session.lock_queues.get(identity)
        if queue is not None and not queue.is_held and not queue.waiters:
            session.lock_queues.pop(identity, None)


async def hand_over(lock: ReleasingLock, owner: Owner, hold: Hold, releaser: ReleaseCall) -> Reply:
    """Releases the last level of a hold and enters the waiter that was chosen. The reply is as to a release.

    None: the owner didn't hold the lock, and nobody was entered. If this raises, the level is still to be released in
    the background, as after any release that failed, and then `abandon` is to be called.
    """
    waiter: LockWaiter = releaser.successor
    try:
        prepare(waiter)
        payload = lock.commands.hand_over(hold.owner, waiter.call.name, waiter.call.lease_ms)
        try:
            # In asyncio the waiter goes on at the same time as this task.
            reply = await lock.session.lock_sender.send_then(payload, partial(_apply, waiter, releaser))
        except (NoReply, RedisError) as problem:
            reply = await _send_again(lock, owner, hold, waiter, payload, problem)
            _apply(waiter, releaser, reply)
    except NotConfirmed as problem:
        # The owner has released the lock. Only the waiter needs the confirmation.
        not_confirmed(waiter, releaser, problem)
        return LOCK_FREE
    except ResponseError as error:
        if waiter.call.in_doubt or is_transient_reply(error):
            raise
        # For example: the user may not change the counter of the tokens. That must not fail a release.
        end(waiter, releaser, given=False)
        reply = await lock.send_release(owner, hold)
        lock.on_released(reply)
        return reply
    if reply.__class__ is list:
        return LOCK_FREE
    return None if reply == NOT_HANDED_OVER else reply


def prepare(waiter: LockWaiter) -> None:
    """Prepares the call of the waiter, as its own attempt would do."""
    lock, call = waiter.lock, waiter.call
    session = lock.session
    call.name = lock.name_for(call) + lock.commands.owner_suffix
    waiter.prepare(waiter.set_aside(session.channels), session.lease_ms, session.clock())


async def _send_again(
    lock: ReleasingLock,
    owner: Owner,
    hold: Hold,
    waiter: LockWaiter,
    payload: bytes,
    problem: NoReply | RedisError,
) -> Reply:
    call = waiter.call

    def on_doubt() -> None:
        call.in_doubt = True
        owner.new_epoch()
        call.owner.new_epoch()

    reply, call.sent_at = await lock.retry_release(
        owner, hold, lock.session.lock_sender, payload, problem, reply_if_done, on_doubt
    )
    return reply


def reply_if_done(reply: Reply) -> Reply:
    """The reply to a hand-over if an earlier copy of it may have run on the same server.

    If that has entered the waiter, the waiter has been removed since then. The owner has released the lock.
    """
    return LOCK_FREE if reply == NOT_HANDED_OVER else reply


def _apply(waiter: LockWaiter, releaser: ReleaseCall, reply: Reply) -> None:
    """The server has replied to the hand-over."""
    end(waiter, releaser, given=reply.__class__ is list and record_entry(waiter, reply))


def record_entry(waiter: LockWaiter, reply: Reply) -> bool:
    """Records the hold of the waiter. False: what the server has entered must not be used, and is released."""
    lock, call = waiter.lock, waiter.call
    session = lock.session
    (call.token,) = reply
    valid_until = call.sent_at + call.lease_ms / 1000
    if valid_until <= session.clock():
        logger.info("lock %r was handed on after the end of its lease: it is released", readable(lock.key))
        lock.undo_grant(call)
        return False
    if not lock.record(call, waiter.hold_key, valid_until):
        lock.undo_grant(call)
        return False
    queue = session.lock_queues.get(lock.identity)
    if queue is not None and waiter in queue.waiters:
        queue.set_holder(call.hold, call.events)
    if tracing.debug:
        logger.debug("%s is handed on", lock.named(call.owner))
    return not session.closed


def end(waiter: LockWaiter, releaser: ReleaseCall, *, given: bool) -> None:
    """The outcome is known: the waiter has the lock, or makes an attempt. Releases what it doesn't get. Idempotent."""
    lock, call = waiter.lock, waiter.call
    # After the outcome the waiter's call is its own again: it may have acquired the lock by itself.
    if waiter.releaser is releaser:
        # Before the state changes: then the call of the waiter may take the turn itself.
        call.owner.calls.in_flight.leave(waiter.hold_key, call)
        if not (given and waiter.give()):
            lock.release_acquired(call)
            waiter.take_back(lock.session.channels)
            waiter.refuse()
    # Also after an interrupt between the change of the state and this line.
    waiter.wakeup.set()
    releaser.successor = None


def not_confirmed(waiter: LockWaiter, releaser: ReleaseCall, problem: NotConfirmed) -> None:
    """The waiter was entered, and too few replicas have confirmed that."""
    waiter.error = not_replicated(waiter.lock.named(waiter.call.owner), problem)
    waiter.lock.undo_grant(waiter.call)
    end(waiter, releaser, given=False)


def abandon(releaser: ReleaseCall) -> None:
    """A hand-over was interrupted, or failed in doubt: undoes what may have been entered. The waiter makes an attempt.

    To be called after the level was released in the background: behind that release, a late copy of the hand-over
    enters nobody. Does nothing while the hand-over goes on: it will see its outcome.
    """
    waiter: LockWaiter | None = releaser.successor
    if waiter is None or releaser.hands_over:
        return
    if waiter.releaser is releaser and waiter.call.hold is None:
        waiter.lock.undo_entry(waiter)
    end(waiter, releaser, given=False)
