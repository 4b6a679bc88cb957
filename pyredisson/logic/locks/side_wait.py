"""Waiting for one side of a read-write lock: what wakes readers and writers, and which calls wait without any attempt.

A reader makes no attempt while it knows that a writer of its own client keeps it out. Such a reader isn't in the list
on the server: the writer wakes it at the end of its hold, or of its claim.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from pyredisson.logic.holds import Hold
from pyredisson.logic.locks.queued_wait import LOOK, LocalQueue, LockChannel, QueuedWait
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import OTHERS_FIRST, UNKNOWN_WAIT

if TYPE_CHECKING:
    from pyredisson.logic.locks.read_write_lock import SideLogic, WriteLogic

READER, WRITER = 1, 2
"""The kinds of waiters, in place of the amounts in `Channel.waiters`: here a `need` is a kind, not an amount."""
LET_IN = b"r"
"""The message that lets the readers of a client in: others read the lock."""
READERS = b":r"
"""The end of the name of a client's readers in the list of the clients that wait, see `waiting_list.lua`."""


class ReadWriteChannel(LockChannel):
    """The waiters of one read-write lock, of both sides."""

    __slots__ = ()

    def on_message(self, payload: bytes) -> None:
        """As for a lock. The name, or `look:MS`, ends with `:r` if it is meant for readers."""
        if payload == LET_IN:
            self._wake(READER)
            return
        if b":" not in payload:
            self.wake(1)
            return
        suffix = READERS if payload.endswith(READERS) else b""
        payload, side = payload.removesuffix(READERS), READER if suffix else WRITER
        if payload.startswith(LOOK):
            self.look(payload, side)
            if side == WRITER:
                # Readers of other clients were let in, past the claim of this one.
                self._wake(READER)
        elif not self._wake(side) and suffix in self.on_unused:
            self.on_unused[suffix](payload)

    def wake(self, supply: int) -> None:
        """Anyone of this client may be able to acquire the lock: all readers and one writer make attempts."""
        # Readers first: after a writer it is their turn, before the next writer makes an attempt and claims.
        self._wake(READER)
        self._wake(WRITER)

    def on_relayed(self, payload: bytes) -> None:
        """From Redisson: the last reader (`0`) or a writer (`1`) has released the lock."""
        # Of the last reader's release a writer hears first: the readers here wait for it.
        if payload == b"1" or (payload == b"0" and not self._wake(WRITER)):
            self.wake(1)

    def on_leave(self, need: int) -> None:
        """A waiter left with a wakeup that it did not use. A reader that gets in wakes the others, so one is enough."""
        if need == READER or not self._wake(WRITER):
            self._wake(READER, only_first=True)

    def _wake(self, side: int, *, only_first: bool = False) -> bool:
        """Wakes all readers (or `only_first`), or a writer that isn't awake. False: there is nobody of that side."""
        found = False
        for wakeup in list(self.waiters):
            if self.waiters.get(wakeup) != side or not wakeup.alive:
                continue
            # Whatever it was told of a later moment: an attempt is due at once.
            self.take_look(wakeup)
            if side == WRITER and wakeup.is_set():
                found = True
                continue
            wakeup.set()
            # Otherwise a finalizer that ran in here has just removed this waiter: the wakeup goes to the next one.
            if wakeup in self.waiters:
                found = True
                if side == WRITER or only_first:
                    break
        return found


class ClaimWait(float):
    """For how many seconds a writer waits that has claimed the lock: as long, new readers are refused."""

    __slots__ = ()


class ReaderQueue(LocalQueue):
    __slots__ = ()

    def set_holder(self, hold: Hold, events: int | None) -> None:
        """A reader keeps no reader out."""


class WriterQueue(LocalQueue):
    __slots__ = ("asking", "claimed_events", "claimed_until", "readers_first_until")

    def __init__(self, member: bytes = b"") -> None:
        super().__init__(member)
        self.asking: WriterWait | None = None
        """A writer whose attempt is on its way: it acquires the lock, or claims it, or has readers make attempts."""
        self.claimed_until = 0.0
        """Until when a writer that waits here has claimed the lock, as far as known."""
        self.claimed_events: int | None = None
        """The events of the channel at that time. After a message the claim may be gone."""
        self.readers_first_until = 0.0
        """Until when writers leave the lock to readers of this client that the latest release could not enter."""

    def set_holder(self, hold: Hold, events: int | None) -> None:
        """A writer has acquired the lock. No claim has outlived that."""
        super().set_holder(hold, events)
        self.claimed_until = 0.0

    def put_off_until(self) -> float:
        return max(self.others_first_until, self.readers_first_until)

    def keep_out_until(self, now: float) -> float | None:
        """Until when a writer of this client keeps new readers out at most. None: no writer is known to do so."""
        if self.is_held:
            return self.next_look(now, True)
        events = None if self.channel is None else self.channel.events
        if self.waiters and self.claimed_until > now and self.claimed_events == events:
            return self.claimed_until
        # An attempt of a closed event loop has no outcome, and keeps nobody out.
        asks = self.asking is not None and self.asking.wakeup.alive
        return now + UNKNOWN_WAIT if asks else None


def wake_readers(session: Session, identity: Hashable) -> None:
    """Has the readers of this client make attempts. `identity`: of the readers' side.

    Also a reader whose attempt is on its way: it may have been refused before, and its reply come after this.
    """
    readers = session.lock_queues.get(identity)
    for waiter in () if readers is None else list(readers.waiters):
        waiter.wake()


class ReaderWait(QueuedWait):
    __slots__ = ()

    channel_class = ReadWriteChannel
    need = READER
    queue_class = ReaderQueue
    lock: SideLogic

    def is_contender(self, *, stuck: bool = False) -> bool:
        """All readers may acquire the lock at the same time."""
        return True

    def _must_ask(self) -> bool:
        return self._starts_with_attempt(alone=False)

    def _starts_with_attempt(self, *, alone: bool) -> bool:
        """As for a lock, but it is a writer of the same client that keeps this reader out."""
        session = self.session
        # Before the look at the writer: so its release finds this reader, or this reader finds the release.
        self.sleep()
        now, writers = session.clock(), self.lock.writers
        # The writers may know another channel of that name, which gets no messages any more.
        until = writers.keep_out_until(now) if writers is not None and writers.channel is self.channel else None
        self.look_at = now if until is None else min(until, now + session.lease_ms / 1000)
        return until is None and self.wake_up()

    def end(self) -> None:
        if self.call.hold is not None and self.channel is not None and self.channel.take_look(self.wakeup) is None:
            # What has woken a reader that has got in has woken all others, too.
            self.wakeup.clear()
        super().end()


class WriterWait(QueuedWait):
    __slots__ = ()

    channel_class = ReadWriteChannel
    need = WRITER
    queue_class = WriterQueue
    lock: WriteLogic
    queue: WriterQueue

    def _starts_with_attempt(self, *, alone: bool) -> bool:
        if not super()._starts_with_attempt(alone=alone):
            return False
        if not self.lock.readers_come_first(self.call):
            return True
        self.look_at = self.session.clock() + OTHERS_FIRST
        return False

    async def ask(self) -> bool:
        self.queue.asking = self
        try:
            return await super().ask()
        finally:
            self._asked()

    def _asked(self) -> None:
        """The outcome of the attempt is known. If readers were wrong to rely on it, one of them makes an attempt.

        If that one gets in, the others do, too. If it is refused, it is in the list for all of them.
        """
        session, queue = self.session, self.queue
        if queue.asking is self:
            queue.asking = None
        hold: Hold | None = self.call.hold
        # A lease that isn't renewed may end without a message, and earlier than they look.
        if queue.keep_out_until(session.clock()) is None or (hold is not None and hold.leases is not None):
            readers = session.lock_queues.get(self.lock.commands.other_identity)
            if readers is not None:
                readers.wake_first()

    def _refused(self, now: float, wait: float, *, joined: bool = False) -> None:
        super()._refused(now, wait, joined=joined)
        # The first writer is told when readers of other clients are let in, and others are not.
        claimed = wait.__class__ is ClaimWait and self.call.place == 0
        self.queue.claimed_until = now + wait if claimed else 0.0
        self.queue.claimed_events = self.channel.events

    def end(self) -> None:
        """Readers ask the server from now on: the claim is withdrawn, or the claimant has the lock."""
        queue = self.queue
        if queue is not None:
            # Below zero until the readers are told: the repetition of an interrupted call tells them.
            queue.claimed_until = -abs(queue.claimed_until)
        super().end()
        if queue is not None and queue.claimed_until < 0:
            if self.call.hold is None:
                wake_readers(self.session, self.lock.commands.other_identity)
            queue.claimed_until = 0.0
