"""The commands of semaphores and latches, as bytes."""

from binascii import hexlify, unhexlify
from collections.abc import Sequence
from typing import NamedTuple

from pyredisson._core import command, latch_channel, pack, prefixed, suffixed
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.logic.exactly_once import SessionSlot
from pyredisson.logic.holds import Hold
from pyredisson.logic.session import Session

REDISSON_HEARD = 2
"""In the reply to a release: clients of Redisson may have heard of free permits."""
OTHERS_WAIT = 4
"""In the reply to a release: other clients stand in the list of waiting clients."""


class Listing(NamedTuple):
    """What an acquire says about the list of waiting clients, see `permit_waiters.lua`."""

    names: bytes = b""
    """The names as which the client may be in the list, with spaces between them."""
    entry: bytes = b""
    """As which it waits if it is refused; empty: the call doesn't wait."""
    following: bytes = b""
    """As which its other calls wait if it acquires the permits; empty: there are none."""
    claimant: bytes = b""
    """The waiter that claims permits, by a name that no other waiter has; empty: it doesn't claim."""


NOT_LISTED = Listing()
"""Of a call that doesn't wait."""


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
        self._reply_cache = prefixed(b"pyredisson_once", key)

    def _replies(self, slot: SessionSlot) -> bytes:
        """The key in which the server keeps the reply to the call on that slot.

        By the kind in it a reader of the server's keys can tell a semaphore from a latch, which both are a number.
        """
        return b"%b%b:%b" % (self._reply_cache, slot.suffix, self.kind.encode())

    def read(self) -> bytes:
        """Reads the counter. The reply is None if it doesn't exist."""
        return command(b"GET", self.key)

    def delete(self, slot: SessionSlot) -> bytes:
        """Removes the object. The reply is 1 if it existed."""
        return self._delete(slot, self.key)

    def _delete(self, slot: SessionSlot, *keys: bytes) -> bytes:
        script, words = self.session.runtime.scripts.exactly_once_delete, (self.channel, self.deleted_message)
        return command(b"EVALSHA", script, len(keys) + 1, *keys, self._replies(slot), slot.number, *words)


class PermitPoolCommands(CounterCommands):
    """The commands that both kinds of semaphore have. The counter is the number of free permits."""

    __slots__ = ("_claims_period", "_list_keys", "_list_lasts", "_wake_channels")

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key, prefixed(b"redisson_sc", key))
        self._wake_channels = prefixed(b"pyredisson_wake", key) + b":"
        self._list_keys = (prefixed(b"pyredisson_waiting", key), prefixed(b"pyredisson_woken", key), claim_key(key))
        """The keys that decide who is woken and who comes first, see `permit_waiters.lua`."""
        self._claims_period = prefixed(b"pyredisson_semaphore_turn", key)
        """The key that bounds all claims: after five seconds of claims come five seconds without."""
        self._list_lasts = max(session.list_lasts, SHORTEST_LIST)

    @property
    def waiting_channel(self) -> bytes:
        """On which a call that waits is woken."""
        return self._wake_channels + self.session.client

    @property
    def counted_channel(self) -> bytes:
        """To which all clients that wait are subscribed. By that scripts find out whether Redisson's listen, too."""
        return prefixed(b"pyredisson_sc", self.key)

    def try_set(self, slot: SessionSlot, permits: int, ttl: int) -> bytes:
        """Creates the semaphore unless it exists, for `ttl` ms (0: without end). The reply is 1 if it was created."""
        script = self.session.runtime.scripts.semaphore_set
        return self._change(script, slot, slot.number, permits, ttl, self.channel)

    def add(self, slot: SessionSlot, permits: int, *, only_existing: bool = False) -> bytes:
        """Adds free permits, or removes some if negative. The reply is 0 if nothing exists but had to.

        Else it is 1, plus `REDISSON_HEARD` and `OTHERS_WAIT`.
        """
        script = self.session.runtime.scripts.semaphore_add
        return self._change(script, slot, slot.number, permits, self.channel, int(only_existing), self.session.client)

    def leave(self, names: bytes, claimant: bytes = b"") -> bytes:
        """The client waits no longer under these names; or a waiter withdraws its claim, if it has the claim."""
        script = self.session.runtime.scripts.semaphore_leave
        return pack(script, self.key, *self._list_keys, self.channel, names, claimant)

    def _listed(self, listing: Listing) -> tuple[bytes | int, ...]:
        """What an acquire says about the list, as arguments of its script."""
        names, entry, following, claimant = listing
        return self.session.patience, names, entry, following, self._list_lasts, claimant

    def _change(self, script: bytes, slot: SessionSlot, *words: bytes | int) -> bytes:
        """A call of a script that changes the counter exactly once."""
        return pack(script, self.key, *self._list_keys, self._replies(slot), *words)


class SemaphoreCommands(PermitPoolCommands):
    """The commands of one semaphore whose permits have neither ids nor leases."""

    __slots__ = ()

    kind = "semaphore"

    def acquire(self, slot: SessionSlot, permits: int, listing: Listing = NOT_LISTED) -> bytes:
        """Acquires so many permits; 0: all that are free. The reply: how many; 0 or less: see `permit_wait.Refusal`."""
        script = self.session.runtime.scripts.semaphore_acquire
        keys = (self.key, *self._list_keys, self._claims_period, self._replies(slot))
        return pack(script, *keys, slot.number, permits, self.channel, *self._listed(listing))

    def undo_acquire(self, slot: SessionSlot) -> bytes:
        """Releases what the acquire on this slot has acquired, and keeps late copies of it from running."""
        return self.finish_hand_over(slot, 0)

    def correct(self, slot: SessionSlot, shown: int, free: int) -> bytes:
        """Sets the number of free permits, if it is still the one that was shown. The reply is 1 if it was set."""
        script = self.session.runtime.scripts.semaphore_correct
        return self._change(script, slot, slot.number, shown, free, self.channel)

    def hand_over(
        self, slot: SessionSlot, permits: int, wanted: int, names: bytes = b"", *, only_existing: bool = False
    ) -> bytes:
        """Releases so many permits and acquires `wanted` of them. The reply is positive if it has acquired them.

        -1: the permits are only released, with a message. 0: nothing exists but had to. `names`: as which the client
        may be in the list, if no other call waits.
        """
        script = self.session.runtime.scripts.semaphore_hand_over
        words = (slot.number, permits, wanted, self.channel, int(only_existing), names)
        return self._change(script, slot, *words)

    def finish_hand_over(self, slot: SessionSlot, permits: int, *, only_existing: bool = False) -> bytes:
        """Makes a hand-over on this slot a mere release, whether or not it has run; late copies of it don't run."""
        script = self.session.runtime.scripts.semaphore_finish
        return self._change(script, slot, slot.number + 1, permits, self.channel, int(only_existing))


class LatchCommands(CounterCommands):
    """The commands of one count-down latch. The counter is its count; an open latch has no key."""

    __slots__ = ()

    kind = "latch"
    deleted_message = b"1"

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key, latch_channel(key))

    def try_set(self, slot: SessionSlot, count: int) -> bytes:
        """Sets the count of an open latch. The reply is 0 if the latch is not open."""
        script = self.session.runtime.scripts.latch_set
        return pack(script, self.key, self._replies(slot), slot.number, count, self.channel)

    def count_down(self, slot: SessionSlot) -> bytes:
        """Counts down by one, unless the latch is open."""
        script = self.session.runtime.scripts.latch_count_down
        return pack(script, self.key, self._replies(slot), slot.number, self.channel)


def claim_key(key: bytes) -> bytes:
    """The key of the claim on permits of this semaphore. It lives for two seconds, unless the waiter renews it."""
    return prefixed(b"pyredisson_semaphore_claim", key)


SHORTEST_LIST = 30_000
"""Milliseconds for which a list of waiting clients lasts at least: each of them asks again before that."""


# --- The commands of the semaphore whose permits have ids and leases, as bytes


IN_USE = b"timeout"
"""What follows the name of a semaphore in the key of its permits in use."""
ENDLESS = -1
"""The lease of a permit that doesn't expire."""
ID_BYTES = 16
MAX_COUNT = 2**63 - 1
"""The largest `long` of Java, which is Redisson's type for a latch's count, and the largest integer of the server."""
MOST_AT_ONCE = 1_000_000
"""Permits in one command. Servers accept few more arguments than that."""


def renew_permits(scripts: ScriptSet, holds: Sequence[Hold], lease: int) -> bytes:
    """The command that extends the leases of permits, which may belong to several semaphores. 0: it only asks."""
    keys = [suffixed(hold.commands.key, IN_USE) for hold in holds]
    ids = [unhexlify(hold.owner) for hold in holds]
    return command(b"EVALSHA", scripts.permit_renew, len(keys), *keys, lease, *ids)


class PermitCommands(PermitPoolCommands):
    """The commands of one semaphore whose permits have ids and leases. A lease is in milliseconds, or `ENDLESS`.

    The caller chooses the ids. So a permit can be acquired and released by idempotent commands, without a slot.
    """

    __slots__ = ("in_use",)

    kind = "permit"
    renew = restore = staticmethod(renew_permits)
    other_identity, renews_fixed_leases = None, False

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key)
        self.in_use = suffixed(key, IN_USE)
        """The key of the permits in use."""

    def acquire(self, ids: Sequence[bytes], lease: int, listing: Listing = NOT_LISTED) -> bytes:
        """Acquires permits with these ids: all of them or none. The reply is None if they were acquired.

        Else the reply has three numbers: after how many ms to ask again (-1: after a message), how many permits are
        free, and how many clients stand before this one in the list.
        """
        script = self.session.runtime.scripts.permit_acquire
        keys = (self.key, *self._list_keys, self._claims_period, self.in_use, self._withdrawn(ids[0]))
        return command(b"EVALSHA", script, len(keys), *keys, self.channel, lease, *self._listed(listing), *ids)

    def release(self, ids: Sequence[bytes], *, all_or_none: bool) -> bytes:
        """Releases permits. No late copy of their acquire can acquire them after that.

        The reply is empty if it was done. Else it has the number of unknown permits, and then the ids of any that
        are unknown or have expired.
        """
        in_doubt = self.session.permits.in_doubt
        withdrawn = [self._withdrawn(permit) for permit in ids if permit in in_doubt]
        script = self.session.runtime.scripts.permit_release
        keys = (self.key, self.in_use, *self._list_keys, *withdrawn)
        return command(b"EVALSHA", script, len(keys), *keys, self.channel, int(all_or_none), *ids)

    def abandon(self, hold: Hold) -> bytes:
        """Releases the permit of that hold, when the client is closed."""
        return self.release([unhexlify(hold.owner)], all_or_none=False)

    def wake_waiters(self) -> None:
        """None: waiters ask the server every few seconds anyway.

        A permit that was lost together with its semaphore frees nothing for them.
        """

    def read_lease(self, permit: bytes) -> bytes:
        """Reads the remaining lease of a permit. The reply is None if the permit is unknown or has expired."""
        return command(b"EVALSHA", self.session.runtime.scripts.permit_lease, 1, self.in_use, permit)

    def update_lease(self, permit: bytes, lease: int) -> bytes:
        """Gives a permit another lease from now on. The reply is None if the permit is unknown or has expired."""
        return command(b"EVALSHA", self.session.runtime.scripts.permit_lease, 1, self.in_use, permit, lease)

    def count(self) -> bytes:
        """Counts the permits. The reply has the number of free ones (None: no semaphore) and of those in use."""
        return pack(self.session.runtime.scripts.permit_count, self.key, self.in_use, *self._list_keys, self.channel)

    def set(self, slot: SessionSlot, permits: int) -> bytes:
        """Sets the number of permits, free and in use together."""
        words = (self.in_use, self._replies(slot), slot.number, permits, self.channel)
        return pack(self.session.runtime.scripts.permit_set, self.key, *self._list_keys, *words)

    def delete(self, slot: SessionSlot) -> bytes:
        """Removes the semaphore with all permits in use. The reply is 1 if it existed."""
        return self._delete(slot, self.key, self.in_use)

    def _withdrawn(self, permit: bytes) -> bytes:
        """The key that keeps late copies of an acquire from running; `permit` is the first of its permits."""
        return prefixed(b"pyredisson_permit_withdrawn", self.key) + b":" + hexlify(permit)
