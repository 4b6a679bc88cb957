"""Handing a lock on inside a client: one command releases it and enters a waiter of the same client, or many readers.

The server always knows the true owners. The reply is the proof for the new holder, whose lease counts from before the
command was sent. The release makes the call, and is responsible for each waiter until the waiter has the lock or knows
that it has to make an attempt. What may have been entered for a waiter that doesn't get it is undone in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError, ResponseError

from pyredisson._core import InOrder, ReleaseCall
from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replication import NotConfirmed
from pyredisson._protocol.replies import NoReply, Reply, is_transient_reply
from pyredisson.logic.holds import LOST, Hold
from pyredisson.logic.locks.commands import LOCK_FREE, NOT_HANDED_OVER, OTHERS_LISTEN
from pyredisson.logic.locks.queued_wait import LocalQueue, LockWaiter
from pyredisson.logic.owners import Owner
from pyredisson.logic.retry import not_replicated
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import OTHERS_FIRST, WAITING

if TYPE_CHECKING:
    from pyredisson.logic.locks.releasing import ReleasingLock

MOST_READERS = 100
"""Of the readers that wait, one call enters so many, to keep the script short. The others are woken by the message."""

Offer = tuple[LockWaiter, ReleaseCall]
"""A waiter that a release enters, whose outcome isn't known, and the `ReleaseCall` whose successor it is."""


@dataclass(slots=True, eq=False)
class Readers:
    """The readers that the release of a writer enters. Each is the successor of a `ReleaseCall` of its own.

    Other clients are notified in the same step, as the lock is open to their readers, too.
    """

    let_in: Callable[[bytes, Sequence[tuple[bytes, int]]], bytes]
    """Makes the command, from the owner that releases, and the owners and leases of the readers."""
    releasers: list[ReleaseCall] = field(default_factory=list)


def offers_of(releaser: ReleaseCall) -> list[Offer]:
    """The waiters that a release enters, as far as their outcomes aren't known."""
    successor = releaser.successor
    if isinstance(successor, Readers):
        return [(each.successor, each) for each in successor.releasers if each.successor is not None]
    return [] if successor is None else [(successor, releaser)]


# --- The choice


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


def choose_readers(queue: LocalQueue, readers: Readers, releaser: ReleaseCall, now: float) -> bool:
    """Chooses the readers that the release of a writer enters. False: none of them can be entered."""
    # Before any reader is chosen: if an interrupt strikes, `abandon` finds the chosen ones.
    releaser.hands_over, releaser.successor = True, readers
    for waiter in list(queue.waiters):
        offer = ReleaseCall()
        readers.releasers.append(offer)
        ready = waiter.is_ready(WAITING, now, waiter.session.holds.table, LOST)
        if not (ready and waiter.choose(offer) and take_turn(waiter, offer)):
            readers.releasers.pop()
        elif len(readers.releasers) == MOST_READERS:
            break
    if not readers.releasers:
        releaser.successor = None
    return bool(readers.releasers)


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
    queues, channels, channel_name = lock.session.lock_queues, lock.session.channels, lock.commands.waiting_channel
    if not lock.commands.has_list or (lock.identity not in queues and channel_name not in channels.by_name):
        return
    with channels.mutex:
        queue = queues.get(lock.identity)
        if queue is None:
            # A call may have been refused before this hold, whose acquire has taken the client out of the list again.
            channels.on_missed(channel_name)
            return
        # Clients of Redisson hear of the release later than the waiters here, and aren't in the list.
        queue.others_first_until = lock.session.clock() + OTHERS_FIRST if reply == OTHERS_LISTEN else 0.0
        if queue.waiters and queue.channel is not None:
            # The message goes to the client that is first in the list.
            queue.channel.wake(1)


def forget_if_idle(session: Session, identity: Hashable) -> None:
    """Forgets the queue of a lock for which nobody waits, and which no waiter has acquired."""
    with session.channels.mutex:
        queue = session.lock_queues.get(identity)
        if queue is not None and not queue.is_held and not queue.waiters:
            session.lock_queues.pop(identity, None)


# --- The command


async def hand_over(lock: ReleasingLock, owner: Owner, hold: Hold, releaser: ReleaseCall) -> Reply:
    """Releases the last level of a hold and enters the waiters that were chosen. The reply is as to a release.

    None: the owner didn't hold the lock, and nobody was entered. If this raises, the level is still to be released in
    the background, as after any release that failed, and then `abandon` is to be called.
    """
    offers, successor = offers_of(releaser), releaser.successor
    readers = successor if isinstance(successor, Readers) else None
    try:
        events = offers[0][0].set_aside(*[waiter.wakeup for waiter, _ in offers])
        entries = [prepare(waiter, events) for waiter, _ in offers]
        if readers is None:
            payload = lock.commands.hand_over(hold.owner, *entries[0])
        else:
            payload = readers.let_in(hold.owner, entries)
        sender = lock.session.lock_sender
        try:
            if readers is None:
                # In asyncio the waiter goes on at the same time as this task.
                reply = await sender.send_then(payload, partial(_apply, offers, readers))
            else:
                # This task goes on first: if it comes back for the lock, it claims it before the readers come back.
                reply = await sender.send(payload)
                _apply(offers, readers, reply)
        except (NoReply, RedisError) as problem:
            on_doubt = partial(_note_doubt, owner, offers)
            reply, sent_at = await lock.retry_release(owner, hold, sender, payload, problem, reply_if_done, on_doubt)
            for waiter, _ in offers:
                waiter.call.sent_at = sent_at
            _apply(offers, readers, reply)
    except NotConfirmed as problem:
        # The owner has released the lock. Only the waiters, which were entered, need the confirmation.
        for waiter, offer in offers_of(releaser):
            waiter.error = not_replicated(waiter.lock.named(waiter.call.owner), problem)
            waiter.lock.undo_grant(waiter.call)
            end(waiter, offer, given=False)
        reply = LOCK_FREE
    except ResponseError as error:
        if is_transient_reply(error) or any(waiter.call.in_doubt for waiter, _ in offers):
            raise
        return await _release_only(lock, owner, hold, releaser)
    releaser.successor = None
    if reply == NOT_HANDED_OVER:
        return None
    if readers is not None:
        # Writers of this client, which relied on the release, claim the lock. Readers that did not sleep may read.
        lock.on_released(LOCK_FREE)
    return LOCK_FREE if readers is not None or reply.__class__ is list else reply


async def _release_only(lock: ReleasingLock, owner: Owner, hold: Hold, releaser: ReleaseCall) -> Reply:
    """The server has refused the hand-over, say as the user may not change the tokens. That must not fail a release."""
    for waiter, offer in offers_of(releaser):
        end(waiter, offer, given=False)
    releaser.successor = None
    reply = await lock.send_release(owner, hold, lock.commands.release(hold.owner, 0))
    lock.on_released(reply)
    return reply


def prepare(waiter: LockWaiter, events: int | None) -> tuple[bytes, int]:
    """Prepares the call of the waiter, as its own attempt would do. Returns its owner on the server and its lease.

    `events`: the events of its channel before the command is sent.
    """
    lock, call, session = waiter.lock, waiter.call, waiter.session
    call.name = lock.name_for(call) + lock.commands.owner_suffix
    waiter.prepare(events, session.lease_ms, session.clock())
    return call.name, call.lease_ms


def _note_doubt(owner: Owner, offers: Sequence[Offer]) -> None:
    owner.new_epoch()
    for waiter, _ in offers:
        waiter.call.in_doubt = True
        waiter.call.owner.new_epoch()


def reply_if_done(reply: Reply) -> Reply:
    """The reply to a hand-over if an earlier copy of it may have run on the same server.

    If that has entered the waiter, the waiter has been removed since then. The owner has released the lock.
    """
    return LOCK_FREE if reply == NOT_HANDED_OVER else reply


# --- The outcome


def _apply(offers: Sequence[Offer], readers: Readers | None, reply: Reply) -> None:
    """The server has replied to the hand-over."""
    entered = reply.__class__ is list
    for index, (waiter, offer) in enumerate(offers):
        if entered and (readers is None or reply[index]):
            end(waiter, offer, given=record_entry(waiter, reply[0] if readers is None else 0))
        else:
            end(waiter, offer, given=False)


def record_entry(waiter: LockWaiter, token: int) -> bool:
    """Records the hold of the waiter. False: what the server has entered must not be used, and is released."""
    lock, call, session = waiter.lock, waiter.call, waiter.session
    call.token = token
    valid_until = call.sent_at + call.lease_ms / 1000
    late = valid_until <= session.clock()
    if late:
        logger.info("lock %r was handed on after the end of its lease: it is released", readable(lock.key))
    if late or not lock.record(call, waiter.hold_key, valid_until):
        lock.undo_grant(call)
        return False
    queue = session.lock_queues.get(lock.identity)
    if queue is not None and waiter in queue.waiters and (hold := call.hold) is not None:
        queue.set_holder(hold, call.events)
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
            waiter.take_back()
            waiter.refuse()
    # Also after an interrupt between the change of the state and this line.
    waiter.wakeup.set()
    releaser.successor = None


def abandon(releaser: ReleaseCall) -> None:
    """A hand-over was interrupted, or failed in doubt: undoes what may have been entered. The waiters make attempts.

    To be called after the level was released in the background: behind that release, a late copy of the hand-over
    enters nobody. Does nothing while the hand-over goes on: it will see its outcome.
    """
    if releaser.hands_over:
        return
    for waiter, offer in offers_of(releaser):
        if waiter.releaser is offer and waiter.call.hold is None:
            waiter.lock.undo_entry(waiter)
        end(waiter, offer, given=False)
    releaser.successor = None
