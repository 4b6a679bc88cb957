"""The fair lock: owners acquire it in the order of their arrival, in one queue with the waiters of Java Redisson."""

from collections.abc import Iterable

from redis.exceptions import RedisError

from pyredisson._core import AcquireCall, ReleaseCall, command, pack, prefixed
from pyredisson.errors import ClosedError
from pyredisson.logic import retry
from pyredisson.logic.holds import LOST, HoldKey
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.logic.locks.fair_queue import FairAcquireCall, FairWait, QueueTicket, TicketChannel
from pyredisson.logic.locks.hand_over import take_turn
from pyredisson.logic.locks.queued_wait import LockWaiter
from pyredisson.logic.locks.rlock import LockLogic, NonReentrantLockLogic
from pyredisson.logic.owners import Owner
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import LEFT, WAITING

MOST_NOTIFIED = 100
"""How many waiters `delete()` notifies. The others notice by their clients' next heartbeats that the queue is gone."""


class FairLockCommands(LockCommands):
    """The commands of the fair lock: a list and a sorted set in Redisson's format, and two keys of this library.

    Nobody subscribes to `channel` itself: it is only the beginning of the channels' names. Each waiter has a channel of
    its own, `channel_of` its ticket.
    """

    __slots__ = ("_channel", "_keys")

    kind = "fair"
    has_list = False

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key)
        self._channel = super().channel
        self._keys = (
            key,
            prefixed(b"redisson_lock_queue", key),
            prefixed(b"redisson_lock_timeout", key),
            prefixed(b"pyredisson_fair_waiters", key),
            prefixed(b"pyredisson_fair_clients", key),
        )

    def acquire(self, owner: bytes, count: int, lease: int, *, waits: bool, member: bytes = b"") -> bytes:
        session = self.session
        script = session.runtime.scripts.fair_acquire
        return pack(script, *self._keys, self._channel, owner, count, lease, session.fair_wait, int(waits))

    def release(self, owner: bytes, count: int, *, late: bool = False) -> bytes:
        script = self.session.runtime.scripts.fair_release
        return pack(script, *self._keys, self._channel, owner, count, self.session.fair_wait)

    def hand_over(self, owner: bytes, next_owner: bytes, lease: int) -> bytes:
        """As `release`, and enters the next owner if that is the head of the queue. Else that keeps its place there."""
        script = self.session.runtime.scripts.fair_hand_over
        return pack(script, *self._keys, self._channel, owner, self.session.fair_wait, next_owner, lease)

    def undo_acquire(self, owner: bytes) -> bytes:
        return self.leave((owner,), in_doubt=True)

    def force_release(self) -> bytes:
        script = self.session.runtime.scripts.fair_force_release
        return pack(script, *self._keys, self._channel, self.session.fair_wait)

    def delete(self) -> bytes:
        """Removes the lock and its queue. The reply is 1 if the lock was held."""
        return pack(self.session.runtime.scripts.fair_delete, *self._keys, self._channel, MOST_NOTIFIED)

    def wake_waiters(self) -> bytes:
        return self.heartbeat(b"", ())

    def heartbeat(self, client: bytes, waiters: Iterable[bytes]) -> bytes:
        """Reports that a client and all its waiters are alive, and asks which of these waiters are not in the queue.

        The script also removes dead waiters, and notifies the next waiter if the lock is free. With the client b"" it
        does only that.
        """
        script, settings = self.session.runtime.scripts.fair_heartbeat, (self._channel, client, self.session.fair_wait)
        return command(b"EVALSHA", script, len(self._keys), *self._keys, *settings, *waiters)

    def leave(self, owners: Iterable[bytes], *, in_doubt: bool) -> bytes:
        """Takes owners out of the queue for good. `in_doubt`: an acquire of theirs is undone, or may run late."""
        script = self.session.runtime.scripts.fair_leave
        settings = (self._channel, self.session.fair_wait, int(in_doubt))
        return command(b"EVALSHA", script, len(self._keys), *self._keys, *settings, *owners)

    def channel_of(self, ticket: QueueTicket) -> bytes:
        """The channel on which the waiter with that ticket is notified, and no other waiter."""
        return b"%b:%b" % (self._channel, ticket.name)


class FairLockLogic(LockLogic):
    """A lock with a queue on the server. A release notifies the head of the queue, on a channel of its own.

    If the head is a waiter of the same client, a release enters it instead. So no other client is passed over, and
    nothing limits for how long the lock is handed on.
    """

    __slots__ = ()

    is_handed_on = False
    commands_type = FairLockCommands
    call_type = FairAcquireCall
    waiter_type = FairWait
    commands: FairLockCommands

    async def _acquire(self, call: AcquireCall) -> bool:
        assert isinstance(call, FairAcquireCall)
        owner: Owner = call.owner
        queued_names, name = owner.calls.queued_names, owner.name
        if queued_names.setdefault(name, call) is not call:
            # Two calls of one owner each need a place, and must not give up the place of the other.
            call.owner = owner.for_one_call()
            name = call.owner.name
        ticket = call.ticket = QueueTicket(call.owner, name)
        channels = self.session.channels
        if channels.by_name:
            ticket.channel_name = self.commands.channel_of(ticket)
            channel = channels.confirmed_channel(ticket.channel_name)
            if isinstance(channel, TicketChannel):
                ticket.channel, ticket.attempt_reasons_before = channel, channel.attempt_reasons
        try:
            queued_names[name] = call
            acquired = await super()._acquire(call)
            if acquired:
                self._after_acquire(ticket, len(queued_names) > 1)
            else:
                self._leave_queue(ticket)
            # Not in a `finally`: an interrupt there would leave the lock acquired.
            queued_names.pop(name, None)
            return acquired
        except BaseException:
            self.release_acquired(call)
            self._leave_queue(ticket)
            queued_names.pop(name, None)
            raise

    def _after_acquire(self, ticket: QueueTicket, others_wait: bool) -> None:
        if ticket.waiter is not None:
            hold = self.hold_of(ticket.owner.id)
            if hold is not None and hold.owner != ticket.name:
                # Another call of this owner acquired the lock, and this call has added a level: it needs no place.
                self._leave_queue(ticket)
        if others_wait:
            # What one call of an owner has acquired, its other calls can acquire too.
            with self.session.channels.mutex:
                queue = self.session.fair_queues.get(self.key)
                for other in () if queue is None else list(queue.tickets):
                    if other.owner.id == ticket.owner.id:
                        other.request_attempt()

    def _prepare(self, call: AcquireCall, hold_key: HoldKey) -> bytes:
        assert isinstance(call, FairAcquireCall)
        # This raises for an owner that must not acquire the lock: its ticket doesn't count as queued.
        payload = super()._prepare(call, hold_key)
        if not call.ticket.may_be_queued:
            call.ticket.may_be_queued = call.deadline is None or call.sent_at < call.deadline
        return payload

    def name_for(self, call: AcquireCall) -> bytes:
        assert isinstance(call, FairAcquireCall)
        return call.ticket.name

    def _release_late_entry(self, call: AcquireCall) -> None:
        assert isinstance(call, FairAcquireCall)
        super()._release_late_entry(call)
        ticket = call.ticket
        ticket.name, ticket.channel_name, ticket.needs_attempt = ticket.owner.name, b"", True

    def undo_grant(self, call: AcquireCall) -> None:
        assert isinstance(call, FairAcquireCall)
        super().undo_grant(call)
        call.ticket.name = call.ticket.owner.name

    def _leave_queue(self, ticket: QueueTicket) -> None:
        """Leaves the queue, in the background. Idempotent."""
        if not ticket.may_be_queued or ticket.withdrawn:
            return
        # On the server the name may stay in the queue, as if its waiter had left, until it comes to one of the
        # queue's ends. So a later acquire needs another name.
        ticket.owner.new_epoch()
        self.session.runtime.post(self.commands.leave((ticket.name,), in_doubt=ticket.entry_in_doubt))
        # Last: if an interrupt strikes before, it is sent once more.
        ticket.withdrawn = True

    def choose_successor(self, releaser: ReleaseCall) -> LockWaiter | None:
        """The first of this client's waiters. The server enters it only if it is the head of the queue."""
        session = self.session
        queue = session.fair_queues.get(self.key)
        waiter = queue.first_waiter() if queue is not None and session.local_hand_over_time else None
        if waiter is None or not waiter.is_ready(WAITING, session.clock(), session.holds.table, LOST):
            return None
        return waiter if waiter.choose(releaser) and take_turn(waiter, releaser) else None

    def undo_entry(self, waiter: LockWaiter) -> None:
        """The waiter keeps its name, and so its place. Its next attempt finds out whether it was entered."""
        call = waiter.call
        assert isinstance(call, FairAcquireCall)
        ticket = call.ticket
        # Before the look at the state: whoever leaves after that look undoes the entry.
        ticket.entry_in_doubt = True
        if waiter.state is LEFT:
            self.undo_grant(call)
        else:
            call.owner.new_epoch()
            ticket.request_attempt()

    def release_acquired(self, call: AcquireCall) -> None:
        assert isinstance(call, FairAcquireCall)
        hold = call.hold
        super().release_acquired(call)
        if hold is not None and hold.owner == call.ticket.name:
            # The release may run after a later attempt.
            call.ticket.name = call.ticket.owner.name

    def on_partly_released(self) -> None:
        self.session.runtime.spawn(self._remove_dead_waiters)

    async def _remove_dead_waiters(self) -> None:
        """Removes dead waiters from the head of the queue, some in each call, until the next waiter was notified."""
        session, payload, unfinished = self.session, self.commands.heartbeat(b"", ()), 1
        try:
            while unfinished and not session.closed:
                reply, _ = await retry.send(session.runtime, payload, retries=session.retries)
                *_, unfinished, _ = reply
        except (ClosedError, RedisError):
            # The heartbeats of living waiters go on with it.
            return

    async def force_release(self) -> bool:
        removed = await super().force_release()
        if removed:
            await self._remove_dead_waiters()
        return removed

    async def delete(self) -> bool:
        """Removes the lock and its queue; returns whether it was held. Living waiters of this library queue again."""
        return await self._remove(self.commands.delete(), "delete()")


class NonReentrantFairLockLogic(NonReentrantLockLogic, FairLockLogic):
    __slots__ = ()
