"""The read-write lock: many readers or one writer, on one hash with a mode. Each hold of a reader has its own lease."""

from collections.abc import Hashable, Sequence
from functools import partial

from pyredisson._core import AcquireCall, ReleaseCall, command, pack, prefixed, suffixed
from pyredisson._diagnostics import readable
from pyredisson._protocol.replies import Reply
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.errors import LockUpgradeError
from pyredisson.logic.holds import Hold, HoldKey
from pyredisson.logic.locks import hand_over
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.logic.locks.hand_over import Readers
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.locks.side_wait import READERS, ClaimWait, ReaderWait, WriterQueue, WriterWait, wake_readers
from pyredisson.logic.owners import Owner, owner_id
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import LOOKING, OTHERS_FIRST, WAITING

WRITER_CLAIM = b"pyredisson_rwlock_writer"
"""The prefix of the claim, a key with a TTL of two seconds: a writer waits, so new readers of this library wait too."""
READERS_TURN = b"pyredisson_rwlock_turn"
"""The prefix of the key that limits the claims of all writers: after five seconds of claims it is the readers' turn."""
READ, WRITE = b"read", b"write"
"""The modes of the hash, and the two sides of a lock in the table of holds."""
CLAIMED = -1000
"""The reply to a writer that has claimed the lock is this number less the ms until it asks again."""


class SideCommands(LockCommands):
    __slots__ = ("_claim", "_leases", "_readers_turn", "other_identity")

    channel_prefix = b"redisson_rwlock"
    released_message = b"1"
    side: bytes
    other: bytes

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key)
        self.other_identity = (key, self.other)
        writers, woken = self.list_keys
        self.list_keys = (writers, prefixed(b"pyredisson_waiting_readers", key), woken)
        self._claim = prefixed(WRITER_CLAIM, key)
        self._readers_turn = prefixed(READERS_TURN, key)
        self._leases = suffixed(key, b"")

    def force_release(self) -> bytes:
        script = self.session.runtime.scripts.read_write_force_release
        return pack(script, self.key, *self.list_keys, self.channel, self.side, *self._waking)

    def _lists(self) -> tuple[bytes, ...]:
        writers, readers, woken = self.list_keys
        return (readers, woken, writers) if self.side == READ else (writers, woken, readers)

    def _listed(self, side: bytes) -> bytes:
        """The callers of that side in this client, as a member of the list; empty: they aren't there."""
        member = self.session.listed_member((self.key, side))
        return member + READERS if member and side == READ else member


def renew_reads(scripts: ScriptSet, holds: Sequence[Hold], lease: int, *, fixed: bool = False) -> bytes:
    """The command that extends leases of readers, if `lease` isn't 0, and keeps the lock alive for the fixed ones.

    `fixed`: it extends these, too.
    """
    keys, leases, readers = list[bytes](), list[bytes](), list[bytes | int]()
    for hold in holds:
        key, prefix = hold.commands.key, suffixed(hold.commands.key, b"")
        keys.append(key)
        leases += [b"%b%b:rwlock_timeout:%d" % (prefix, hold.owner, level) for level in range(1, hold.count + 1)]
        readers += (prefix, hold.owner, lease if fixed or hold.renewed else 0)
    return command(b"EVALSHA", scripts.read_renew, len(keys) + len(leases), *keys, *leases, *readers)


class ReadCommands(SideCommands):
    __slots__ = ()

    renew, restore = staticmethod(renew_reads), staticmethod(partial(renew_reads, fixed=True))
    # A reader in Java shortens the whole lock to its own lease when it renews.
    renews_fixed_leases = True
    kind = "read"
    member_suffix = READERS
    side, other = READ, WRITE

    def acquire(self, owner: bytes, count: int, lease: int, *, waits: bool, member: bytes = b"") -> bytes:
        session = self.session
        # The owner may have begun to write under another name than its present one.
        writing = session.holds.valid((self.other_identity, owner_id(owner)))
        writer = owner + WriteCommands.owner_suffix if writing is None else writing.owner
        keys = (self.key, self._leases, self._claim, *self.list_keys)
        waiting = (member + READERS, session.list_lasts if waits else 0, self.wake_channels)
        return pack(session.runtime.scripts.read_acquire, *keys, owner, count, lease, writer, *waiting)

    def release(self, owner: bytes, count: int, *, late: bool = False) -> bytes:
        script = self.session.runtime.scripts.read_release
        keys = (self.key, self._leases, self._readers_turn, *self.list_keys)
        return pack(script, *keys, self.channel, owner, count, *self._waking)

    def move(self, owner: bytes, next_owner: bytes, lease: int) -> bytes:
        return pack(self.session.runtime.scripts.read_move, self.key, self._leases, owner, next_owner, lease)


class WriteCommands(SideCommands):
    __slots__ = ()

    kind = "write"
    owner_suffix = b":write"
    side, other = WRITE, READ

    def acquire(self, owner: bytes, count: int, lease: int, *, waits: bool, member: bytes = b"") -> bytes:
        script, lasts = self.session.runtime.scripts.write_acquire, self.session.list_lasts if waits else 0
        writers, _, woken = self.list_keys
        keys = (self.key, self._claim, self._readers_turn, writers, woken)
        return pack(script, *keys, owner, count, lease, member, lasts)

    def release(self, owner: bytes, count: int, *, late: bool = False) -> bytes:
        script = self.session.runtime.scripts.write_release
        words = (self.channel, owner, count, *self._waking, int(late))
        return pack(script, self.key, self._leases, *self.list_keys, *words)

    def hand_over(self, owner: bytes, next_owner: bytes, lease: int) -> bytes:
        """As `LockCommands.hand_over`. The reply is `LOCK_FREE` if the owner reads, too: then nobody was entered."""
        script = self.session.runtime.scripts.write_hand_over
        words = (self.channel, owner, next_owner, lease, self._listed(WRITE), *self._waking)
        return pack(script, self.key, self._leases, *self.list_keys, *words)

    def let_readers_in(self, owner: bytes, readers: Sequence[tuple[bytes, int]]) -> bytes:
        """Releases the lock, and enters readers with their leases in the same step.

        The reply has 1 for each reader that has a hold, else 0. It is `NOT_HANDED_OVER` if nobody has one.
        """
        script, keys = self.session.runtime.scripts.write_let_readers_in, (self.key, self._leases, *self.list_keys)
        words = (self.channel, owner, self._listed(READ), *self._waking)
        return command(b"EVALSHA", script, len(keys), *keys, *words, *[word for reader in readers for word in reader])

    def leave_list(self, member: bytes) -> bytes:
        """As for a lock. It also ends the claim that was made under that name."""
        script = self.session.runtime.scripts.write_leave
        return pack(script, self.key, self._claim, *self.list_keys, member, *self._waking)


class SideLogic(LockLogic):
    __slots__ = ()

    commands: SideCommands

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key)
        self.identity = (key, self.commands.side)

    @property
    def writers(self) -> WriterQueue | None:
        """The writers of this client that wait; None: there is no queue."""
        queue = self.session.lock_queues.get((self.key, WRITE))
        return queue if isinstance(queue, WriterQueue) else None

    @property
    def label(self) -> str:
        return f"{readable(self.commands.side)} {super().label}"

    @property
    def blocked_by(self) -> Sequence[Hashable]:
        return self._identities() if self.commands.side == WRITE else (self.commands.other_identity,)


class ReadLogic(SideLogic):
    """The side of which there may be many holders."""

    __slots__ = ()

    commands_type = ReadCommands
    waiter_type = ReaderWait
    # A writer may also read, but a reader can't become a writer.
    order_in_group = 1

    def _joins_at_once(self, call: AcquireCall) -> bool:
        writers = self.writers
        if writers is None or writers.keep_out_until(self.session.clock()) is None:
            return False
        return writers.channel is not None and writers.channel.confirmed and self.may_wait(call)

    def choose_successor(self, releaser: ReleaseCall) -> None:
        # A reader keeps no reader out, and a writer waits for all of them.
        return None

    def on_released(self, reply: Reply) -> None:
        """The release of the last reader wakes the first client of the list. Nobody here relies on that release."""

    def _apply(self, call: AcquireCall, hold_key: HoldKey, reply: Reply) -> float | None:
        wait = super()._apply(call, hold_key, reply)
        readers = self.session.lock_queues.get(self.identity)
        if wait is None and call.target is None and readers is not None and readers.listed:
            # This reader has taken its client out of the list. Where it got in, the others do, too. The next reader
            # wakes them again only if an attempt has begun since, which may have entered the client once more.
            readers.listed = False
            wake_readers(self.session, self.identity)
        return wait

    async def is_locked(self) -> bool:
        """Whether anyone reads; a writer that also reads counts."""
        return bool(await self._query(pack(self.session.runtime.scripts.read_locked, self.key)))


class WriteLogic(SideLogic):
    """The side with one holder, which may also read."""

    __slots__ = ()

    commands_type = WriteCommands
    waiter_type = WriterWait
    commands: WriteCommands
    # Before each attempt: another call of the same owner may have begun to read meanwhile.
    checks_owner = True

    async def acquire(self, owner: Owner, lease: int | None, deadline: float | None) -> bool:
        """As for a lock. Raises `LockUpgradeError` for an owner that only reads.

        While the writer waits for readers, new readers of this library wait too: for five seconds in a row at most,
        however many writers wait. Then readers have a turn of a second.
        """
        self.check_owner(owner)
        return await super().acquire(owner, lease, deadline)

    def on_released(self, reply: Reply) -> None:
        super().on_released(reply)
        # Readers may have relied on the release, too, which has entered none of them.
        wake_readers(self.session, self.commands.other_identity)

    def on_handed_off(self) -> None:
        super().on_handed_off()
        wake_readers(self.session, self.commands.other_identity)

    def _joins_at_once(self, call: AcquireCall) -> bool:
        return super()._joins_at_once(call) or self.readers_come_first(call)

    def readers_come_first(self, call: AcquireCall) -> bool:
        """Whether a writer leaves the lock to readers of its client that are about to make attempts, for a moment.

        After a release that could enter none of them, as they did not sleep, the same writer would nearly always be
        first: it hears of the release before they do.
        """
        readers = self.session.lock_queues.get(self.commands.other_identity)
        if readers is None or not any(waiter.state in (LOOKING, WAITING) for waiter in list(readers.waiters)):
            return False
        return self.may_wait(call)

    def choose_successor(self, releaser: ReleaseCall) -> object | None:
        """Readers of this client come first, then its writers."""
        session = self.session
        readers = session.lock_queues.get(self.commands.other_identity)
        if readers is None or not readers.waiters or not session.local_hand_over_time:
            return super().choose_successor(releaser)
        now = session.clock()
        chosen = hand_over.choose_readers(readers, Readers(self.commands.let_readers_in), releaser, now)
        writers = self.writers
        if writers is not None:
            writers.end_series(now)
            if not chosen:
                # They are about to make attempts. A writer that is woken by the message would nearly always be first.
                writers.readers_first_until = now + OTHERS_FIRST
            hand_over.forget_if_idle(session, self.identity)
        return releaser.successor if chosen else None

    def _refused(self, call: AcquireCall, reply: int) -> float:
        if reply > CLAIMED:
            return super()._refused(call, reply)
        return ClaimWait(super()._refused(call, CLAIMED - reply))

    async def is_locked(self) -> bool:
        return bool(await self._query(command(b"HGET", self.key, b"mode")) == WRITE)

    def check_owner(self, owner: Owner) -> None:
        holds = self.session.holds
        reads = holds.valid((self.commands.other_identity, owner.id)) is not None
        if reads and holds.valid((self.identity, owner.id)) is None:
            raise LockUpgradeError(f"{self.named(owner)} can't be acquired while it reads: it would wait for itself")
