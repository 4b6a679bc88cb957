"""The release of a writer enters the readers of the same client that wait, all of them by one call.

As in `hand_over`, the release makes the call, and is responsible for each reader until the reader has its hold or knows
that it has to make an attempt. Other clients are notified in the same step, as the lock is open to their readers, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from redis.exceptions import RedisError, ResponseError

from pyredisson._core import ReleaseCall
from pyredisson._protocol.replication import NotConfirmed
from pyredisson._protocol.replies import NoReply, Reply, is_transient_reply
from pyredisson.logic.holds import Hold
from pyredisson.logic.locks import hand_over
from pyredisson.logic.locks.commands import LOCK_FREE, NOT_HANDED_OVER
from pyredisson.logic.locks.queued_wait import LocalQueue, LockWaiter
from pyredisson.logic.owners import Owner

if TYPE_CHECKING:
    from pyredisson.logic.locks.read_write_lock import WriteCommands
    from pyredisson.logic.locks.releasing import ReleasingLock

MOST_READERS = 100
"""Of the readers that wait, one call enters so many, to keep the script short. The others are woken by the message."""


class Offers:
    """The readers that a release enters. Each is the successor of a `ReleaseCall` of its own."""

    __slots__ = ("releasers",)

    def __init__(self) -> None:
        self.releasers: list[ReleaseCall] = []

    def pending(self) -> list[tuple[LockWaiter, ReleaseCall]]:
        """The offers whose outcome isn't known."""
        return [(releaser.successor, releaser) for releaser in self.releasers if releaser.successor is not None]


def choose_readers(queue: LocalQueue, releaser: ReleaseCall, now: float) -> bool:
    """Chooses the readers that the release of a writer enters. False: none of them can be entered."""
    # Before any reader is chosen: if an interrupt strikes, `abandon` finds the chosen ones.
    releaser.hands_over = True
    offers = releaser.successor = Offers()
    for waiter in list(queue.waiters):
        offer = ReleaseCall()
        offers.releasers.append(offer)
        if not hand_over.choose(waiter, offer, now):
            offers.releasers.pop()
        elif len(offers.releasers) == MOST_READERS:
            break
    if not offers.releasers:
        releaser.successor = None
    return bool(offers.releasers)


async def let_in(
    lock: ReleasingLock, commands: WriteCommands, owner: Owner, hold: Hold, releaser: ReleaseCall
) -> Reply:
    """Releases the last level of a writer's hold and enters the readers that were chosen. As `hand_over.hand_over`."""
    offers: Offers = releaser.successor
    chosen = offers.pending()
    try:
        for waiter, _ in chosen:
            hand_over.prepare(waiter)
        payload = commands.let_readers_in(hold.owner, [(each.call.name, each.call.lease_ms) for each, _ in chosen])
        try:
            reply = await lock.session.lock_sender.send(payload)
        except (NoReply, RedisError) as problem:
            reply = await _send_again(lock, owner, hold, chosen, payload, problem)
        entered = reply if reply.__class__ is list else [0] * len(chosen)
        for (waiter, offer), there in zip(chosen, entered, strict=True):
            hand_over.end(waiter, offer, given=bool(there) and hand_over.record_entry(waiter, [0]))
    except NotConfirmed as problem:
        # The writer has released the lock. Only the readers need the confirmation.
        for waiter, offer in offers.pending():
            hand_over.not_confirmed(waiter, offer, problem)
        reply = LOCK_FREE
    except ResponseError as error:
        if is_transient_reply(error) or any(waiter.call.in_doubt for waiter, _ in chosen):
            raise
        for waiter, offer in offers.pending():
            hand_over.end(waiter, offer, given=False)
        releaser.successor = None
        reply = await lock.send_release(owner, hold)
        lock.on_released(reply)
        return reply
    releaser.successor = None
    if reply == NOT_HANDED_OVER:
        return None
    # Writers of this client, which relied on the release, claim the lock now. And readers that did not sleep may read.
    lock.on_released(LOCK_FREE)
    return LOCK_FREE


async def _send_again(
    lock: ReleasingLock,
    owner: Owner,
    hold: Hold,
    chosen: Sequence[tuple[LockWaiter, ReleaseCall]],
    payload: bytes,
    problem: NoReply | RedisError,
) -> Reply:
    def on_doubt() -> None:
        owner.new_epoch()
        for waiter, _ in chosen:
            waiter.call.in_doubt = True
            waiter.call.owner.new_epoch()

    reply, sent_at = await lock.retry_release(
        owner, hold, lock.session.lock_sender, payload, problem, hand_over.reply_if_done, on_doubt
    )
    for waiter, _ in chosen:
        waiter.call.sent_at = sent_at
    return reply


def abandon(releaser: ReleaseCall) -> None:
    """`let_in` was interrupted, or failed in doubt. As `hand_over.abandon`, for each reader."""
    if releaser.hands_over:
        return
    offers: Offers = releaser.successor
    for _, offer in offers.pending():
        offer.hands_over = False
        hand_over.abandon(offer)
    releaser.successor = None
