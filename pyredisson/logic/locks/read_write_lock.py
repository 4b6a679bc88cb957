"""The read-write lock: many readers or one writer, on one hash with a mode; each hold of a reader has its own lease."""

from __future__ import annotations

from collections.abc import Sequence

from pyredisson._core import AcquireCall, command, pack, prefixed, suffixed
from pyredisson._diagnostics import readable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.errors import LockUpgradeError
from pyredisson.logic import waiting
from pyredisson.logic.channels import Channel
from pyredisson.logic.holds import HELD, Hold, Owner, owner_id
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.session import Session

CHANNEL = b"redisson_rwlock"
CLAIM = b"pyredisson_rwlock_writer"
"""The prefix of a key that lives for two seconds: a writer waits, so readers of this library hold back."""
TURN = b"pyredisson_rwlock_turn"
"""The prefix of a key that bounds the claims of all writers: after five seconds of claims readers have a turn."""
READ, WRITE = b"read", b"write"
"""The modes of the hash, and the two sides of a lock in the table of holds."""
READER, WRITER = 1, 2
"""What a waiter needs."""


class ReadWriteChannel(Channel):
    """The waiters of one read-write lock."""

    __slots__ = ()

    def on_message(self, payload: bytes) -> None:
        """Readers left (`0`) or a writer did (`1`): all readers may come, or one writer."""
        if payload in (b"0", b"1"):
            # Readers first: they have their turn after a writer, before the next one looks and claims.
            for wakeup in list(self.waiters):
                if self.waiters.get(wakeup) == READER:
                    wakeup.set()
            self._wake_writer()

    def on_leave(self, need: int) -> None:
        """The other readers were woken with the one that goes; the other writers were not."""
        if need == WRITER:
            self._wake_writer()

    def _wake_writer(self) -> None:
        for wakeup in list(self.waiters):
            if self.waiters.get(wakeup) == WRITER and not wakeup.is_set():
                wakeup.set()
                if wakeup in self.waiters:
                    return
                # It left just before, by a finalizer that ran in here: nobody got this wake-up.


class SideLogic(LockLogic):
    """What the two sides have in common."""

    __slots__ = ("_claim", "_leases", "_other_identity", "_turn")

    prefix = CHANNEL
    wakeup = b"1"
    side: bytes
    other: bytes
    need: int

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key)
        self.identity = (key, self.side)
        self._other_identity = (key, self.other)
        self._claim = prefixed(CLAIM, key)
        self._turn = prefixed(TURN, key)
        self._leases = suffixed(key, b"")

    def force_command(self) -> bytes:
        return pack(self.session.runtime.scripts.read_write_force_release, self.key, self._channel, self.side)

    async def force_release(self) -> bool:
        """As that of a lock. What the writer reads goes with what it writes."""
        others = [hold for hold in list(self.session.holds.table.values()) if hold.key[0] == self._other_identity]
        removed = await super().force_release()
        if removed:
            for hold in others:
                if hold.state is HELD:
                    self.session.watchdog.forget(hold)
                    self.session.holds.declare_lost(hold, "it was taken away by force_unlock() of the other side")
        return removed

    def named(self, owner: Owner) -> str:
        return f"{readable(self.side)} {super().named(owner)}"

    async def _wait(self, call: AcquireCall, busy: float) -> bool:
        return await waiting.until(
            self.session,
            self._channel,
            lambda: self._try(call),
            busy,
            call.deadline,
            channel_class=ReadWriteChannel,
            need=self.need,
        )

    def _holding(self, fields: Sequence[bytes]) -> Sequence[bytes]:
        return [field for field in fields if field != b"mode"]


def renew_reads(scripts: ScriptSet, holds: Sequence[Hold], lease: int) -> bytes:
    """The command that extends the leases of readers, and keeps up the locks of those with fixed ones."""
    return command(
        b"EVALSHA",
        scripts.read_renew,
        2 * len(holds),
        *[name for hold in holds for name in (hold.lock.key, suffixed(hold.lock.key, b""))],
        *[word for hold in holds for word in (hold.owner, lease if hold.renewed else 0)],
    )


class ReadLogic(SideLogic):
    """The side of which there may be many."""

    __slots__ = ()

    renewal = staticmethod(renew_reads)
    # A reader in Java, when it renews, shortens the whole lock to its own lease.
    renew_fixed_leases = True
    # Who writes may also read, but not the other way round.
    rank = 1
    side, other = READ, WRITE
    need = READER

    def acquire_command(self, owner: bytes, count: int, lease: int, *, waits: bool) -> bytes:
        # Its name when it began to write may be another one than it has now.
        writing = self.session.holds.live((self._other_identity, owner_id(owner)))
        writer = owner + WriteLogic.field_suffix if writing is None else writing.owner
        script = self.session.runtime.scripts.read_acquire
        return pack(script, self.key, self._leases, self._claim, owner, count, lease, writer)

    def release_command(self, owner: bytes, count: int) -> bytes:
        script = self.session.runtime.scripts.read_release
        return pack(script, self.key, self._leases, self._turn, self._channel, owner, count)

    async def is_locked(self) -> bool:
        """Whether anyone reads; a writer that also reads counts."""
        return bool(await self._call(pack(self.session.runtime.scripts.read_locked, self.key)))


class WriteLogic(SideLogic):
    """The side of which there is one; its holder may also read."""

    __slots__ = ()

    field_suffix = b":write"
    side, other = WRITE, READ
    need = WRITER

    def acquire_command(self, owner: bytes, count: int, lease: int, *, waits: bool) -> bytes:
        script = self.session.runtime.scripts.write_acquire
        return pack(script, self.key, self._claim, self._turn, owner, count, lease, int(waits))

    def release_command(self, owner: bytes, count: int) -> bytes:
        script = self.session.runtime.scripts.write_release
        return pack(script, self.key, self._leases, self._channel, owner, count)

    async def acquire(self, owner: Owner, lease: int | None, deadline: float | None) -> bool:
        """As that of a lock. Raises `LockUpgradeError` for an owner that only reads.

        While it waits for readers, new ones of this library hold back: for five seconds at most in a row, whichever
        writers wait, then readers have a turn of a second.
        """
        self.check(owner)
        waits = deadline is None or self.session.clock() < deadline
        had = False
        try:
            had = await super().acquire(owner, lease, deadline)
        finally:
            # A closed client leaves it to the two seconds that a claim lives.
            if waits and not had and not self.session.closed:
                script = self.session.runtime.scripts.write_give_up
                self.session.runtime.post(pack(script, self.key, self._claim, self._channel, owner.stem))
        return had

    async def is_locked(self) -> bool:
        """Whether anyone writes."""
        return bool(await self._call(command(b"HGET", self.key, b"mode")) == WRITE)

    # At every look: whoever shares this owner's name may have begun to read meanwhile.
    checks = True

    def check(self, owner: Owner) -> None:
        holds = self.session.holds
        if holds.live((self._other_identity, owner.id)) is not None and holds.live((self.identity, owner.id)) is None:
            raise LockUpgradeError(f"{self.named(owner)} can't be had while it reads: it would wait for itself")
