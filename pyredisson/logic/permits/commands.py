"""The commands of the semaphore and of the latch, as bytes.

A command that takes a slot adds to a value: it is sent over that slot, see `pyredisson.logic.exactly_once`. All other
commands are idempotent.
"""

from __future__ import annotations

from pyredisson._core import command, latch_channel, pack, prefixed
from pyredisson.logic.exactly_once import SessionSlot, reply_cache
from pyredisson.logic.session import Session

OTHERS_HEAR = 3
"""The reply to a release that was published, if several clients have received that, or perhaps have."""


class CounterCommands:
    """What a semaphore and a latch have in common: a counter on the server, changed exactly once by each call."""

    __slots__ = ("_reply_cache", "channel", "key", "session")

    kind: str
    """As in `pyredisson.Event.kind`."""
    deleted_message = b""
    """What is published on the channel when the object is deleted; empty: nothing."""

    def __init__(self, session: Session, key: bytes, channel: bytes) -> None:
        self.session = session
        self.key = key
        self.channel = channel
        self._reply_cache = reply_cache(key)

    def _replies(self, slot: SessionSlot) -> bytes:
        """The key in which the server keeps the reply to the call on that slot."""
        return b"%b%b:%b" % (self._reply_cache, slot.suffix, self.kind.encode())

    def read(self) -> bytes:
        """Reads the counter. The reply is None if it doesn't exist."""
        return command(b"GET", self.key)

    def delete(self, slot: SessionSlot) -> bytes:
        """Removes the object. The reply is 1 if it existed."""
        return self._delete(slot, self.key)

    def _delete(self, slot: SessionSlot, *keys: bytes) -> bytes:
        return command(
            b"EVALSHA",
            self.session.runtime.scripts.exactly_once_delete,
            len(keys) + 1,
            *keys,
            self._replies(slot),
            slot.number,
            self.channel,
            self.deleted_message,
        )


class PermitPoolCommands(CounterCommands):
    """The commands that both kinds of semaphore have. The counter is the number of free permits."""

    __slots__ = ("_claim", "_claims_period")

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key, prefixed(b"redisson_sc", key))
        self._claim = claim_key(key)
        self._claims_period = prefixed(b"pyredisson_semaphore_turn", key)
        """The key that bounds all claims: after five seconds of claims come five seconds without."""

    def try_set(self, slot: SessionSlot, permits: int, ttl: int) -> bytes:
        """Creates the semaphore unless it exists, for `ttl` ms (0: without end). The reply is 1 if it was created."""
        return pack(
            self.session.runtime.scripts.semaphore_set,
            self.key,
            self._replies(slot),
            slot.number,
            permits,
            ttl,
            self.channel,
        )

    def add(self, slot: SessionSlot, permits: int, *, only_existing: bool = False) -> bytes:
        """Adds free permits, or removes some if negative. The reply is 0 if nothing exists but had to.

        `OTHERS_HEAR`: done, and others than this client may have heard of free permits.
        """
        return pack(
            self.session.runtime.scripts.semaphore_add,
            self.key,
            self._replies(slot),
            slot.number,
            permits,
            self.channel,
            int(only_existing),
        )

    def withdraw_claim(self, claimant: bytes) -> bytes:
        """Withdraws the claim of a waiter that waits no longer, if it has the claim."""
        return pack(
            self.session.runtime.scripts.semaphore_withdraw_claim, self.key, self._claim, self.channel, claimant
        )


class SemaphoreCommands(PermitPoolCommands):
    """The commands of one semaphore whose permits have neither ids nor leases."""

    __slots__ = ()

    kind = "semaphore"

    def acquire(self, slot: SessionSlot, permits: int, claimant: bytes = b"") -> bytes:
        """Acquires so many permits; 0: all that are free.

        A positive reply is the number of acquired permits. Any other reply is decoded by `semaphore.Refusal`. Permits
        that can't be acquired now are claimed for the waiter `claimant`, if that is not empty.
        """
        scripts, replies = self.session.runtime.scripts, self._replies(slot)
        if not claimant:
            return pack(scripts.semaphore_acquire, self.key, self._claim, replies, slot.number, permits)
        return pack(
            scripts.semaphore_claim,
            self.key,
            self._claim,
            self._claims_period,
            replies,
            slot.number,
            permits,
            claimant,
            self.channel,
        )

    def undo_acquire(self, slot: SessionSlot) -> bytes:
        """Releases what the acquire on this slot has acquired, and keeps late copies of it from running."""
        return pack(
            self.session.runtime.scripts.semaphore_undo,
            self.key,
            self._replies(slot),
            slot.number + 1,
            self.channel,
        )

    def correct(self, slot: SessionSlot, shown: int, free: int) -> bytes:
        """Sets the number of free permits, if it is still the one that was shown. The reply is 1 if it was set."""
        return pack(
            self.session.runtime.scripts.semaphore_correct,
            self.key,
            self._replies(slot),
            slot.number,
            shown,
            free,
            self.channel,
        )

    def hand_over(self, slot: SessionSlot, permits: int, wanted: int, *, only_existing: bool = False) -> bytes:
        """Releases so many permits and acquires `wanted` of them. The reply is positive if it has acquired them.

        -1: the permits are only released, with a message. 0: nothing exists but had to.
        """
        return pack(
            self.session.runtime.scripts.semaphore_hand_over,
            self.key,
            self._claim,
            self._replies(slot),
            slot.number,
            permits,
            wanted,
            self.channel,
            int(only_existing),
        )

    def finish_hand_over(self, slot: SessionSlot, permits: int, *, only_existing: bool = False) -> bytes:
        """Makes a hand-over on this slot a mere release, whether or not it has run; late copies of it don't run."""
        return pack(
            self.session.runtime.scripts.semaphore_finish,
            self.key,
            self._replies(slot),
            slot.number + 1,
            permits,
            self.channel,
            int(only_existing),
        )


class LatchCommands(CounterCommands):
    """The commands of one count-down latch. The counter is its count; an open latch has no key."""

    __slots__ = ()

    kind = "latch"
    deleted_message = b"1"

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key, latch_channel(key))

    def try_set(self, slot: SessionSlot, count: int) -> bytes:
        """Sets the count of an open latch. The reply is 0 if the latch is not open."""
        return pack(
            self.session.runtime.scripts.latch_set,
            self.key,
            self._replies(slot),
            slot.number,
            count,
            self.channel,
        )

    def count_down(self, slot: SessionSlot) -> bytes:
        """Counts down by one, unless the latch is open."""
        return pack(
            self.session.runtime.scripts.latch_count_down,
            self.key,
            self._replies(slot),
            slot.number,
            self.channel,
        )


def claim_key(key: bytes) -> bytes:
    """The key of the claim on permits of this semaphore. It lives for two seconds, unless the waiter renews it."""
    return prefixed(b"pyredisson_semaphore_claim", key)
