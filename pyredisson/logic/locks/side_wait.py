"""Waiting for one side of a read-write lock: what wakes readers and writers, and which calls wait without any attempt.

A reader makes no attempt while it knows that a writer of its own client keeps it out. The end of that writer's hold, or
of its claim, is what the reader waits for anyway, and both are announced by a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyredisson._core import AcquireCall
from pyredisson.logic.channels import Channel
from pyredisson.logic.holds import HELD, LOST, Hold
from pyredisson.logic.locks.queued_wait import OTHERS_FIRST, UNKNOWN_WAIT, LocalQueue, QueuedWait
from pyredisson.logic.waiting import LOOKING, WAITING

if TYPE_CHECKING:
    from pyredisson.logic.locks.read_write_lock import SideLogic

READER, WRITER = 1, 2
"""The kinds of waiters, in place of the amounts in `Channel.waiters`: here a `need` is a kind, not an amount."""


class ReadWriteChannel(Channel):
    """The waiters of one read-write lock."""

    __slots__ = ("writer_events",)

    def __init__(self) -> None:
        super().__init__()
        self.writer_events = self.events
        """The latest of the `events` that may concern a writer's hold: not the release of the last reader."""

    def on_message(self, payload: bytes) -> None:
        """The last reader (`0`) or a writer (`1`) has released the lock."""
        if payload != b"0":
            self.writer_events = self.events
        if payload == b"1":
            # Readers first: after a writer it is their turn, before the next writer makes an attempt and claims.
            self._wake_readers()
            self._wake_writer()
        elif payload == b"0" and not self._wake_writer():
            # Readers wait for a writer: it has held the lock, or claimed it. The writer comes next.
            self._wake_readers()

    def on_confirmed(self) -> None:
        self.writer_events = self.events
        self._wake_readers()
        self._wake_writer()

    def on_leave(self, need: int) -> None:
        """Each message that concerns readers wakes all of them, so only a writer passes its wakeup on."""
        if need == WRITER and not self._wake_writer():
            self._wake_readers()

    def _wake_readers(self) -> None:
        for wakeup in list(self.waiters):
            if self.waiters.get(wakeup) == READER:
                wakeup.set()

    def _wake_writer(self) -> bool:
        """Wakes a writer that isn't awake. False: there is no writer."""
        found = False
        for wakeup in list(self.waiters):
            if self.waiters.get(wakeup) != WRITER or not wakeup.alive:
                continue
            if wakeup.is_set():
                found = True
                continue
            wakeup.set()
            if wakeup in self.waiters:
                return True
            # A finalizer that ran in here has just removed this waiter: the wakeup goes to the next one.
        return found


class ClaimWait(float):
    """For how many seconds a writer waits that has claimed the lock: as long, new readers are refused."""

    __slots__ = ()


class ReaderQueue(LocalQueue):
    """The readers of one client that wait for the same lock."""

    __slots__ = ()

    def set_holder(self, hold: Hold, events: int | None) -> None:
        """A reader keeps no reader out."""


class WriterQueue(LocalQueue):
    """The writers of one client that wait for the same lock."""

    __slots__ = ("asking", "claimed_until", "readers_first_until")

    def __init__(self, member: bytes = b"") -> None:
        super().__init__(member)
        self.asking: WriterWait | None = None
        """A writer whose attempt is on its way: it acquires the lock, or claims it, or has readers make attempts."""
        self.claimed_until = 0.0
        """Until when a writer that waits here has claimed the lock, as far as known."""
        self.readers_first_until = 0.0
        """Until when writers leave the lock to readers of this client that the latest release could not enter."""

    @property
    def is_held(self) -> bool:
        """As for a lock. The message of a reader that came after the writer's acquire was sent before it."""
        holder, channel, events = self.holder, self.channel, self.holder_events
        if holder is None or holder.state is not HELD or events is None or not isinstance(channel, ReadWriteChannel):
            return False
        return channel.writer_events <= events and channel.confirmed

    def set_holder(self, hold: Hold, events: int | None) -> None:
        """A writer has acquired the lock. No claim has outlived that."""
        super().set_holder(hold, events)
        self.claimed_until = 0.0

    def put_off_until(self) -> float:
        return max(self.others_first_until, self.readers_first_until)


def reader_joins_at_once(lock: SideLogic, call: AcquireCall) -> bool:
    """Whether a reader waits before it makes any attempt."""
    session = lock.session
    writers = session.lock_queues.get(lock.other_identity)
    if writers is None or _kept_out_until(writers, session.clock()) is None:
        return False
    channel = writers.channel
    return channel is not None and channel.confirmed and _may_wait(lock, call)


def _may_wait(lock: SideLogic, call: AcquireCall) -> bool:
    """False: the call has no time to wait, or its owner has a hold, by which the server may grant it another one."""
    session = lock.session
    if not session.local_hand_over_time or (call.deadline is not None and call.deadline <= session.clock()):
        return False
    table, owner = session.holds.table, call.owner.id
    mine, other = table.get((lock.identity, owner)), table.get((lock.other_identity, owner))
    return (mine is None or mine.state is LOST) and (other is None or other.state is LOST)


def _kept_out_until(writers: LocalQueue, now: float) -> float | None:
    """Until when a writer of this client keeps new readers out at most. None: no writer is known to do so."""
    if writers.is_held:
        return writers.next_look(now, True)
    if not isinstance(writers, WriterQueue):
        return None
    if writers.waiters and writers.claimed_until > now:
        return writers.claimed_until
    return None if writers.asking is None else now + UNKNOWN_WAIT


class ReaderWait(QueuedWait):
    """The wait of a reader."""

    __slots__ = ()

    channel_class = ReadWriteChannel
    need = READER
    queue_class = ReaderQueue
    joins_quietly = False
    lock: SideLogic

    def is_contender(self, waiters: dict[Any, None], *, stuck: bool = False) -> bool:
        """All readers may acquire the lock at the same time."""
        return True

    def _starts_with_attempt(self, *, alone: bool) -> bool:
        """As for a lock, but it is a writer of the same client that keeps this reader out."""
        session = self.lock.session
        # Before the look at the writer: so its release finds this reader, or this reader finds the release.
        self.sleep()
        now, writers = session.clock(), session.lock_queues.get(self.lock.other_identity)
        # The writers may know another channel of that name, which gets no messages any more.
        known = writers is not None and writers.channel is self.channel
        until = _kept_out_until(writers, now) if writers is not None and known else None
        self.look_at = now if until is None else min(until, now + session.lease_ms / 1000)
        return until is None and self.wake_up()


def readers_come_first(lock: SideLogic, call: AcquireCall) -> bool:
    """Whether a writer leaves the lock to readers of its client that are about to make attempts, for a moment.

    After a release that could enter none of them, as they did not sleep, the same writer would nearly always be first:
    it hears of the release before they do.
    """
    readers = lock.session.lock_queues.get(lock.other_identity)
    if readers is None or not any(waiter.state in (LOOKING, WAITING) for waiter in list(readers.waiters)):
        return False
    return _may_wait(lock, call)


class WriterWait(QueuedWait):
    """The wait of a writer."""

    __slots__ = ()

    channel_class = ReadWriteChannel
    need = WRITER
    queue_class = WriterQueue
    lock: SideLogic
    queue: WriterQueue

    def _starts_with_attempt(self, *, alone: bool) -> bool:
        if not super()._starts_with_attempt(alone=alone):
            return False
        if not readers_come_first(self.lock, self.call):
            return True
        self.look_at = self.lock.session.clock() + OTHERS_FIRST
        return False

    async def _attempt(self) -> bool:
        self.queue.asking = self
        try:
            return await super()._attempt()
        finally:
            self._asked()

    def _asked(self) -> None:
        """The outcome of the attempt is known. Readers that relied on it make attempts, if they were wrong."""
        session, queue = self.lock.session, self.queue
        if queue.asking is self:
            queue.asking = None
        readers = session.lock_queues.get(self.lock.other_identity)
        if readers is not None and _kept_out_until(queue, session.clock()) is None:
            for waiter in list(readers.waiters):
                if waiter.state is WAITING:
                    waiter.wakeup.set()

    def _refused(self, now: float, wait: float, *, joined: bool = False) -> None:
        super()._refused(now, wait, joined=joined)
        self.queue.claimed_until = self.look_at if wait.__class__ is ClaimWait else 0.0

    def end(self) -> None:
        """Readers that come from now on ask the server: the claim is withdrawn, or the claimant has the lock."""
        queue = self.lock.session.lock_queues.get(self.lock.identity)
        if isinstance(queue, WriterQueue):
            queue.claimed_until = 0.0
        super().end()
