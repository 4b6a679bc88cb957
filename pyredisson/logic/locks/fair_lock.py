"""The fair lock: who asks first has it first, in one queue with the waiters of Java Redisson."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from redis.exceptions import NoScriptError, RedisError

from pyredisson._core import AcquireCall, command, pack, prefixed
from pyredisson._diagnostics import debug, logger
from pyredisson._protocol.error_copies import copy_error
from pyredisson._protocol.no_reply import NoReply
from pyredisson.errors import ClosedError
from pyredisson.logic import retry
from pyredisson.logic.locks.fair_queue import LocalQueue, OwnChannel, QueueTicket
from pyredisson.logic.locks.non_reentrant_lock import NonReentrantLockLogic
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import UNCONFIRMED_WAIT

TICK = 0.4
"""Seconds between two signs of life of a client; its waiters lose their places after 1.5 s without one."""
NAMED = 16
"""How many waiters of a client a tick asks after: an eviction strikes those who came first."""
TOLD = 100
"""How many waiters are told at once that the queue was deleted."""
LOOK = 60.0
"""Seconds, about, after which a waiter to whom nothing happened looks again: its score must not grow old."""


class FairLockLogic(LockLogic):
    """A lock with a queue on the server. A release tells the next in line, by a channel of its own, and nobody else.

    One waiter of a client, the last to come, ticks for all of them: it tells the server that they are alive,
    and has it look whether the head of the queue is, and knows that it is its turn.
    """

    __slots__ = ("_keys",)

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key)
        self._keys = (
            key,
            prefixed(b"redisson_lock_queue", key),
            prefixed(b"redisson_lock_timeout", key),
            prefixed(b"pyredisson_fair_waiters", key),
            prefixed(b"pyredisson_fair_clients", key),
        )

    def acquire_command(self, owner: bytes, count: int, lease: int, *, waits: bool) -> bytes:
        session = self.session
        head = session.runtime.scripts.fair_acquire
        return pack(head, *self._keys, self._channel, owner, count, lease, session.fair_wait, int(waits))

    def release_command(self, owner: bytes, count: int) -> bytes:
        session = self.session
        return pack(session.runtime.scripts.fair_release, *self._keys, self._channel, owner, count, session.fair_wait)

    def undo_command(self, owner: bytes) -> bytes:
        return self.leave_command((owner,), doubt=True)

    def force_command(self) -> bytes:
        session = self.session
        return pack(session.runtime.scripts.fair_force_release, *self._keys, self._channel, session.fair_wait)

    def delete_command(self) -> bytes:
        """Removes the lock and its queue. Its reply is 1 if it was held."""
        return pack(self.session.runtime.scripts.fair_delete, *self._keys, self._channel, TOLD)

    def heartbeat_command(self, client: bytes, waiters: Iterable[bytes]) -> bytes:
        """A sign of life of a client, which asks after some of its waiters; b"": of nobody."""
        session = self.session
        settings = (self._channel, client, session.fair_wait)
        return command(
            b"EVALSHA", session.runtime.scripts.fair_heartbeat, len(self._keys), *self._keys, *settings, *waiters
        )

    def lost_command(self) -> bytes:
        session = self.session
        return pack(session.runtime.scripts.fair_lost, *self._keys, self._channel, session.fair_wait)

    def leave_command(self, owners: Iterable[bytes], *, doubt: bool) -> bytes:
        """Takes owners out of the queue, for good; idempotent. `doubt`: an acquire of theirs is undone, or may come."""
        session = self.session
        scripts = session.runtime.scripts
        settings = (self._channel, session.fair_wait, int(doubt))
        return command(b"EVALSHA", scripts.fair_leave, len(self._keys), *self._keys, *settings, *owners)

    async def _acquire(self, call: AcquireCall) -> bool:
        session = self.session
        owner = call.owner
        standing = owner.calls.queued_names
        # Two calls of one owner each need a place, and must not give up each other's.
        call.owner = turn = QueueTicket(owner.apart() if owner.name in standing else owner)
        place = turn.name
        channel = session.channels.confirmed_channel(self._own_channel(turn))
        if isinstance(channel, OwnChannel):
            turn.channel, turn.seen = channel, channel.calls
        try:
            standing.add(place)
            if not await super()._acquire(call):
                self._give_up(turn)
                return False
            if turn.wakeup is not None:
                hold = self.hold_of(owner.id)
                if hold is not None and hold.owner != turn.name:
                    # Another call of this owner got it, and this one was counted to that: nobody needs its place.
                    self._give_up(turn)
            if len(standing) > 1:
                self._rouse(owner.id)
            return True
        except BaseException:
            self._abandon(call)
            self._give_up(turn)
            raise
        finally:
            standing.discard(place)

    async def _try(self, call: AcquireCall) -> float | None:
        session = self.session
        session.check_open()
        turn = call.owner
        assert isinstance(turn, QueueTicket)
        if self.checks:
            # Who is refused has nothing to take back.
            self.check(turn)
        if not turn.asked:
            turn.asked = call.deadline is None or session.clock() < call.deadline
        return await super()._try(call)

    def finish_release(self) -> None:
        self.session.runtime.spawn(self._drop_dead)

    async def _drop_dead(self) -> None:
        """Drops dead waiters from the head of the queue, so many in a call, until the next one was told."""
        session = self.session
        more = 1
        try:
            while more and not session.closed:
                *_, more, _ = await retry.call(
                    session.runtime, self.heartbeat_command(b"", ()), attempts=session.attempts
                )
        except (ClosedError, RedisError):
            # The ticks of living waiters go on with it.
            return

    async def force_release(self) -> bool:
        removed = await super().force_release()
        if removed:
            await self._drop_dead()
        return removed

    async def delete(self) -> bool:
        """Removes the lock and its queue; was it held. Living waiters of this library stand in line again."""
        return await self._remove(self.delete_command(), "delete()")

    def _rouse(self, owner_id: int) -> None:
        """What one call of an owner has got, its others have too."""
        with self.session.channels.mutex:
            line = self.session.local_queues.get(self.key)
            for turn in line.turns if line is not None else ():
                if turn.id == owner_id:
                    turn.look = True
                    if turn.wakeup is not None:
                        turn.wakeup.set()

    def _give_up(self, turn: QueueTicket) -> None:
        """Leaves the queue, in the background. Idempotent."""
        if not turn.asked or turn.left:
            return
        # Its place may stay in the queue, as one that is gone, until it comes to the queue's end.
        turn.owner.new_epoch()
        self.session.runtime.post(self.leave_command((turn.name,), doubt=False))
        # Last: if this is interrupted it is done once more.
        turn.left = True

    async def _wait(self, call: AcquireCall, busy: float) -> bool:
        turn = call.owner
        assert isinstance(turn, QueueTicket)
        turn.wakeup = self.session.runtime.wakeup()
        try:
            return await self._stand(call, turn, turn.wakeup, busy)
        except BaseException:
            # Interrupted on the way out, perhaps before it had parted.
            self._part(turn)
            raise

    async def _stand(self, call: AcquireCall, turn: QueueTicket, freed: Wakeup, busy: float) -> bool:
        """Waits in line."""
        session, deadline = self.session, call.deadline
        runtime = session.runtime
        looked = session.clock()
        patience = LOOK * (0.75 + runtime.jitter() / 2)
        try:
            line = self._line_up(turn, looked + min(TICK, busy))
            name = turn.name
            known = turn.channel
            turn.channel = channel = self._listen(turn, freed)
            seen = channel.calls
            if channel.confirmed:
                # What was published after the acquire was sent has been heard, if the channel was heard before.
                seen = turn.seen if channel is known else -1
            while True:
                freed.clear()
                session.check_open()
                if turn.name != name:
                    # It had to take another one, and stands at the end of the line.
                    session.channels.leave(turn.joined, freed)
                    name = turn.name
                    turn.channel = channel = self._listen(turn, freed)
                    seen = -1
                if channel.error is not None:
                    raise copy_error(channel.error)
                now = session.clock()
                if deadline is not None and now >= deadline:
                    return False
                look_at = looked + (patience if channel.confirmed else UNCONFIRMED_WAIT)
                if channel.calls != seen or turn.look or now >= look_at:
                    seen, turn.look = channel.calls, False
                    again = await self._try(call)
                    if again is None:
                        return True
                    looked = session.clock()
                    line.heartbeat_at = min(line.heartbeat_at, looked + again)
                    continue
                wakes_at = look_at if deadline is None else min(look_at, deadline)
                if line.leader is turn:
                    if now >= line.heartbeat_at:
                        if not await self._heartbeat(line):
                            turn.look = True
                        continue
                    wakes_at = min(wakes_at, line.heartbeat_at)
                debug.look()
                if debug.on:
                    logger.debug("%s waits in the queue for %.3f s at most", self.named(turn), wakes_at - now)
                await runtime.wait(freed, wakes_at - now)
                if debug.on and freed.is_set():
                    logger.debug("%s is woken", self.named(turn))
        finally:
            self._part(turn)

    async def _heartbeat(self, line: LocalQueue) -> bool:
        """Tells the server that this client's waiters are alive. False: nobody knows."""
        session = self.session
        runtime = session.runtime
        line.heartbeat_at = session.clock() + TICK
        with session.channels.mutex:
            named = {turn.name: turn for turn in islice(line.turns, NAMED)}
        payload = self.heartbeat_command(session.id.encode(), named)
        try:
            try:
                reply = await runtime.send(payload)
            except NoScriptError as problem:
                reply, _ = await retry.repeat(runtime, payload, problem, attempts=0)
        except (NoReply, RedisError):
            # An acquire meets the same trouble, and knows what to do about it.
            return False
        left, known, told, more, strayed = reply
        if more:
            line.heartbeat_at = session.clock()
        elif left >= 0:
            # A holder that died publishes nothing.
            line.heartbeat_at = min(line.heartbeat_at, session.clock() + (left + 1) / 1000)
        if told:
            # A subscription that has fallen silent must not cost a waiter its turn.
            session.channels.deliver(b"%b:%b" % (self._channel, told), b"0")
        if known < 0 or (not known and line.known) or (strayed and len(strayed) == len(named)):
            # Paused for too long, or keys were deleted: nobody's place is safe.
            self._look_again(line, list(line.turns))
        elif strayed:
            # Redisson dropped them, by another clock or after a pause.
            self._look_again(line, [named[name] for name in strayed])
        line.known = True
        return True

    def _look_again(self, line: LocalQueue, turns: list[QueueTicket]) -> None:
        """Has them stand in line again if they don't."""
        with self.session.channels.mutex:
            for turn in turns:
                if turn in line.turns:
                    if len(turns) < len(line.turns):
                        # At the end, as in the queue.
                        del line.turns[turn]
                        line.turns[turn] = None
                    turn.look = True
                    if turn.wakeup is not None:
                        turn.wakeup.set()

    def _line_up(self, turn: QueueTicket, heartbeat_at: float) -> LocalQueue:
        session = self.session
        with session.channels.mutex:
            line = session.local_queues.get(self.key)
            if line is None:
                line = session.local_queues[self.key] = LocalQueue(self._farewell)
            line.heartbeat_at = min(line.heartbeat_at, heartbeat_at)
            line.turns[turn] = None
            # Not the one who is next: that would hand over the lead with every lock.
            line.leader = turn
        return line

    def _part(self, turn: QueueTicket) -> None:
        """Waits no more. Idempotent."""
        session = self.session
        freed = turn.wakeup
        if freed is not None:
            # Another call for the same owner may be waiting for the same message.
            freed.set()
            # Not its present name, which may have changed since.
            session.channels.leave(turn.joined, freed)
        with session.channels.mutex:
            line = session.local_queues.get(self.key)
            if line is None or turn not in line.turns:
                return
            del line.turns[turn]
            if not line.turns:
                del session.local_queues[self.key]
            elif line.leader is turn:
                line.leader = next(reversed(line.turns))
                if line.leader.wakeup is not None:
                    line.leader.wakeup.set()

    def _listen(self, turn: QueueTicket, freed: Wakeup) -> OwnChannel:
        turn.joined = self._own_channel(turn)
        channel = self.session.channels.join(turn.joined, freed, OwnChannel)
        assert isinstance(channel, OwnChannel)
        return channel

    def _farewell(self, owners: list[bytes]) -> bytes:
        return self.leave_command(owners, doubt=True)

    def _own_channel(self, turn: QueueTicket) -> bytes:
        return b"%b:%b" % (self._channel, turn.name)


class NonReentrantFairLockLogic(NonReentrantLockLogic, FairLockLogic):
    """The fair lock that its holder can't take again."""

    __slots__ = ()
