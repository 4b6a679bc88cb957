"""The commands of the re-entrant lock, as bytes. Other kinds of lock derive theirs from them."""

from collections.abc import Hashable, Sequence

from pyredisson._core import command, pack, prefixed
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.logic.holds import Hold
from pyredisson.logic.session import Session

NO_KEY = -2
"""The reply of PTTL if there is no key."""
HOLD_GONE = NO_KEY
"""The reply to a nested acquire that found no lock: the outer hold is lost. The scripts return what PTTL replied."""
NOT_FINISHED = -3
"""The reply of an acquire that stopped early, to keep the call of the script short: the command is to be sent again."""
LOCK_FREE = 1
"""The reply of a release after which the lock is free."""
PARTLY_DONE = 2
"""The reply of a release after which dead waiters are still to be removed before the next waiter can be notified."""
OTHERS_LISTEN = 3
"""The reply of a release after which the lock is free, and whose message others may have received on its channel."""
HAS_BOTH_SIDES = -1
"""The reply of a move of one side of a read-write lock whose owner holds the other one, too. Nothing has changed."""
NOT_HANDED_OVER = 0
"""The reply of a hand-over that found neither of both owners. Else it is a list with the fencing token, or with 0."""


def renew_holds(scripts: ScriptSet, holds: Sequence[Hold], lease: int) -> bytes:
    """The command that extends the leases of holds whose lock is a hash with a field for the owner. 0: it only asks."""
    keys, owners = [hold.commands.key for hold in holds], [hold.owner for hold in holds]
    return command(b"EVALSHA", scripts.lock_renew, len(keys), *keys, lease, *owners)


class LockCommands:
    """The commands of one lock: owners by name on the server, leases in ms. All but `force_release` are idempotent."""

    __slots__ = ("key", "list_keys", "session", "wake_channels")

    list_keys: tuple[bytes, ...]

    kind = "lock"
    has_list = True
    """Whether the clients that wait stand in a list on the server, of which a release wakes the first."""
    member_suffix = b""
    """What follows the client's name in the list, see `waiting_list.lua`."""
    channel_prefix = b"redisson_lock__channel"
    """Of Redisson's channel; empty: there is none."""
    released_message = b"0"
    """What `wake_waiters` publishes. A release script publishes a message of its own."""
    owner_suffix = b""
    """What follows the owner's name in its field of the hash."""
    other_identity: Hashable = None
    renews_fixed_leases = False
    renew = restore = staticmethod(renew_holds)

    def __init__(self, session: Session, key: bytes) -> None:
        self.session, self.key = session, key
        self.list_keys = (prefixed(b"pyredisson_waiting", key), prefixed(b"pyredisson_woken", key))
        """The list, and what is known of the client that was woken; see `waiting_list.lua`."""
        self.wake_channels = prefixed(b"pyredisson_wake", key) + b":"
        """The beginning of the names of the channels on which clients are woken."""

    @property
    def waiting_channel(self) -> bytes:
        """On which a call that waits is notified."""
        return self.wake_channels + self.session.client if self.has_list else self.channel

    @property
    def channel(self) -> bytes:
        """Where a release is published, for Redisson; empty: nowhere. Computed: a program may have very many locks."""
        return self.channel_prefix and prefixed(self.channel_prefix, self.key)

    @property
    def _waking(self) -> tuple[bytes, int]:
        """What a script that wakes clients of the list has to know."""
        return self.wake_channels, self.session.patience

    def acquire(self, owner: bytes, count: int, lease: int, *, waits: bool, member: bytes = b"") -> bytes:
        """Acquires the lock, or sets the number of levels to `count`. `waits`: the caller will wait if it is refused.

        `member`: the client, in the list of the waiting ones. The reply is None if the lock was acquired (a list with
        the fencing token, if it has tokens). Else it is how many milliseconds the holder's lease lasts (-1: without
        end), `HOLD_GONE` or `NOT_FINISHED`; or a text with that number and two more, see `wait_in_list.lua`.

        The rules for the script of a new kind of lock:
        1. It always grants a nested acquire, if the owner holds the lock. The caller takes any int as the reply,
           except `NOT_FINISHED`, as the loss of the hold.
        2. It may run twice, and a copy may arrive late. So any other effect than the count and the lease belongs to a
           new hold only.
        3. A reply of 0 or more is the longest time in ms until the next attempt. The reply -1 sets no limit: the next
           attempt follows after `lock_watchdog_timeout` at the latest.
        """
        session = self.session
        lasts = session.list_lasts if waits and self.has_list else 0
        return pack(session.runtime.scripts.lock_acquire, self.key, *self.list_keys, owner, count, lease, member, lasts)

    def release(self, owner: bytes, count: int, *, late: bool = False) -> bytes:
        """Sets the number of levels to `count`, 0: releases the lock. The reply is None if the owner has none.

        `late`: the background sends this, so its message has to wake the waiters of this client, too.
        """
        session = self.session
        # Not `self.channel`, nor `_waking`: before Python 3.12 a property costs much more than this call.
        channel = self.channel_prefix and prefixed(self.channel_prefix, self.key)
        words = (channel, owner, count, self.wake_channels, session.patience, int(late))
        return pack(session.runtime.scripts.lock_release, self.key, *self.list_keys, *words)

    def hand_over(self, owner: bytes, next_owner: bytes, lease: int) -> bytes:
        """Releases the lock, and enters its next owner in the same step; see `NOT_HANDED_OVER` for the reply."""
        script, member = self.session.runtime.scripts.lock_hand_over, self.session.listed_member(self.key)
        return pack(script, self.key, self.list_keys[0], owner, next_owner, lease, member)

    def move(self, owner: bytes, next_owner: bytes, lease: int) -> bytes:
        """Moves a hold of one level to another owner, for that lease at least, 0: for what is left of it.

        The reply is a list with the lease in ms (-1: without end); None: neither of them holds the lock; or
        `HAS_BOTH_SIDES`.
        """
        return pack(self.session.runtime.scripts.lock_move, self.key, owner, next_owner, lease)

    def undo_acquire(self, owner: bytes) -> bytes:
        """Undoes an acquire of a new hold that may have run, or may run late.

        The owner has begun a new epoch: neither this command nor a late copy of it can reach a later hold.
        """
        return self.release(owner, 0, late=True)

    def force_release(self) -> bytes:
        """Removes the lock, whoever holds it. The reply is 1 if something was removed."""
        script = self.session.runtime.scripts.lock_force_release
        return pack(script, self.key, *self.list_keys, self.channel, *self._waking)

    def leave_list(self, member: bytes) -> bytes:
        """The client waits no longer: it leaves the list, and wakes the next one if it was about to get the lock."""
        return self._with_lists(self.session.runtime.scripts.lock_leave, member + self.member_suffix)

    def abandon(self, hold: Hold) -> bytes:
        return self.release(hold.owner, 0)

    def wake_waiters(self) -> bytes | None:
        """Wakes waiters if the lock is free, after a holder has lost it; None: there is no channel."""
        if not self.channel:
            return None
        return self._with_lists(self.session.runtime.scripts.lock_wake_waiters, self.channel, self.released_message)

    def _with_lists(self, script: bytes, *words: bytes) -> bytes:
        """A command that is the same for all kinds of locks, except for the number of lists."""
        keys = (self.key, *self._lists())
        return command(b"EVALSHA", script, len(keys), *keys, *words, *self._waking)

    def _lists(self) -> tuple[bytes, ...]:
        return self.list_keys
