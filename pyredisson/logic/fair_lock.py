"""The fair lock: who asks first has it first, in one queue with the waiters of Java Redisson."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from redis.exceptions import NoScriptError, RedisError

from pyredisson._core import Call, command, pack, prefixed
from pyredisson.errors import ClosedError
from pyredisson.fresh_error import fresh
from pyredisson.logic import calls
from pyredisson.logic.fair_line import Line, OwnChannel, Turn
from pyredisson.logic.holds import logger, trace
from pyredisson.logic.lock import LockLogic
from pyredisson.logic.non_reentrant import NonReentrantLockLogic
from pyredisson.logic.shared import Shared
from pyredisson.logic.waiting import UNHEARD_WAIT
from pyredisson.runtime import Cut, Signal

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

    def __init__(self, shared: Shared, key: bytes) -> None:
        super().__init__(shared, key)
        self._keys = (
            key,
            prefixed(b"redisson_lock_queue", key),
            prefixed(b"redisson_lock_timeout", key),
            prefixed(b"pyredisson_fair_waiters", key),
            prefixed(b"pyredisson_fair_clients", key),
        )

    def acquire_command(self, owner: bytes, count: int, lease: int, *, waits: bool) -> bytes:
        shared = self.shared
        head = shared.runtime.scripts.fair_acquire
        return pack(head, *self._keys, self._channel, owner, count, lease, shared.fair_wait, int(waits))

    def release_command(self, owner: bytes, count: int) -> bytes:
        shared = self.shared
        return pack(shared.runtime.scripts.fair_release, *self._keys, self._channel, owner, count, shared.fair_wait)

    def undo_command(self, owner: bytes) -> bytes:
        return self.leave_command((owner,), doubt=True)

    def force_command(self) -> bytes:
        shared = self.shared
        return pack(shared.runtime.scripts.fair_force_release, *self._keys, self._channel, shared.fair_wait)

    def delete_command(self) -> bytes:
        """Removes the lock and its queue. Its reply is 1 if it was held."""
        return pack(self.shared.runtime.scripts.fair_delete, *self._keys, self._channel, TOLD)

    def tick_command(self, client: bytes, waiters: Iterable[bytes]) -> bytes:
        """A sign of life of a client, which asks after some of its waiters; b"": of nobody."""
        shared = self.shared
        settings = (self._channel, client, shared.fair_wait)
        return command(b"EVALSHA", shared.runtime.scripts.fair_tick, len(self._keys), *self._keys, *settings, *waiters)

    def lost_command(self) -> bytes:
        shared = self.shared
        return pack(shared.runtime.scripts.fair_lost, *self._keys, self._channel, shared.fair_wait)

    def leave_command(self, owners: Iterable[bytes], *, doubt: bool) -> bytes:
        """Takes owners out of the queue, for good; idempotent. `doubt`: an acquire of theirs is undone, or may come."""
        shared = self.shared
        scripts = shared.runtime.scripts
        settings = (self._channel, shared.fair_wait, int(doubt))
        return command(b"EVALSHA", scripts.fair_leave, len(self._keys), *self._keys, *settings, *owners)

    async def _acquire(self, call: Call) -> bool:
        shared = self.shared
        owner = call.owner
        standing = owner.overlap.standing
        # Two calls of one owner each need a place, and must not give up each other's.
        call.owner = turn = Turn(owner.apart() if owner.name in standing else owner)
        place = turn.name
        channel = shared.hub.listening(self._own_channel(turn))
        if isinstance(channel, OwnChannel):
            turn.channel, turn.seen = channel, channel.calls
        try:
            standing.add(place)
            if not await super()._acquire(call):
                self._give_up(turn)
                return False
            if turn.freed is not None:
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

    async def _try(self, call: Call) -> float | None:
        shared = self.shared
        shared.check_open()
        turn = call.owner
        assert isinstance(turn, Turn)
        if self.checks:
            # Who is refused has nothing to take back.
            self.check(turn)
        if not turn.asked:
            turn.asked = call.deadline is None or shared.clock() < call.deadline
        return await super()._try(call)

    def finish_release(self) -> None:
        self.shared.runtime.spawn(self._drop_dead)

    async def _drop_dead(self) -> None:
        """Drops dead waiters from the head of the queue, so many in a call, until the next one was told."""
        shared = self.shared
        more = 1
        try:
            while more and not shared.closed:
                *_, more, _ = await calls.call(shared.runtime, self.tick_command(b"", ()), attempts=shared.attempts)
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
        with self.shared.hub.mutex:
            line = self.shared.lines.get(self.key)
            for turn in line.turns if line is not None else ():
                if turn.id == owner_id:
                    turn.look = True
                    if turn.freed is not None:
                        turn.freed.set()

    def _give_up(self, turn: Turn) -> None:
        """Leaves the queue, in the background. Idempotent."""
        if not turn.asked or turn.left:
            return
        # Its place may stay in the queue, as one that is gone, until it comes to the queue's end.
        turn.owner.rename()
        self.shared.runtime.post(self.leave_command((turn.name,), doubt=False))
        # Last: if this is interrupted it is done once more.
        turn.left = True

    async def _wait(self, call: Call, busy: float) -> bool:
        turn = call.owner
        assert isinstance(turn, Turn)
        turn.freed = self.shared.runtime.signal()
        try:
            return await self._stand(call, turn, turn.freed, busy)
        except BaseException:
            # Interrupted on the way out, perhaps before it had parted.
            self._part(turn)
            raise

    async def _stand(self, call: Call, turn: Turn, freed: Signal, busy: float) -> bool:
        """Waits in line."""
        shared, deadline = self.shared, call.deadline
        runtime = shared.runtime
        looked = shared.clock()
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
                shared.check_open()
                if turn.name != name:
                    # It had to take another one, and stands at the end of the line.
                    shared.hub.leave(turn.joined, freed)
                    name = turn.name
                    turn.channel = channel = self._listen(turn, freed)
                    seen = -1
                if channel.error is not None:
                    raise fresh(channel.error)
                now = shared.clock()
                if deadline is not None and now >= deadline:
                    return False
                look_at = looked + (patience if channel.confirmed else UNHEARD_WAIT)
                if channel.calls != seen or turn.look or now >= look_at:
                    seen, turn.look = channel.calls, False
                    again = await self._try(call)
                    if again is None:
                        return True
                    looked = shared.clock()
                    line.tick_at = min(line.tick_at, looked + again)
                    continue
                wakes_at = look_at if deadline is None else min(look_at, deadline)
                if line.leader is turn:
                    if now >= line.tick_at:
                        if not await self._tick(line):
                            turn.look = True
                        continue
                    wakes_at = min(wakes_at, line.tick_at)
                trace.look()
                if trace.on:
                    logger.debug("%s waits in the queue for %.3f s at most", self.named(turn), wakes_at - now)
                await runtime.wait(freed, wakes_at - now)
                if trace.on and freed.is_set():
                    logger.debug("%s is woken", self.named(turn))
        finally:
            self._part(turn)

    async def _tick(self, line: Line) -> bool:
        """Tells the server that this client's waiters are alive. False: nobody knows."""
        shared = self.shared
        runtime = shared.runtime
        line.tick_at = shared.clock() + TICK
        with shared.hub.mutex:
            named = {turn.name: turn for turn in islice(line.turns, NAMED)}
        payload = self.tick_command(shared.id.encode(), named)
        try:
            try:
                reply = await runtime.send(payload)
            except NoScriptError as problem:
                reply, _ = await calls.repeat(runtime, payload, problem, attempts=0)
        except (Cut, RedisError):
            # An acquire meets the same trouble, and knows what to do about it.
            return False
        left, known, told, more, strayed = reply
        if more:
            line.tick_at = shared.clock()
        elif left >= 0:
            # A holder that died publishes nothing.
            line.tick_at = min(line.tick_at, shared.clock() + (left + 1) / 1000)
        if told:
            # A subscription that has fallen silent must not cost a waiter its turn.
            shared.hub.message(b"%b:%b" % (self._channel, told), b"0")
        if known < 0 or (not known and line.known) or (strayed and len(strayed) == len(named)):
            # Paused for too long, or keys were deleted: nobody's place is safe.
            self._look_again(line, list(line.turns))
        elif strayed:
            # Redisson dropped them, by another clock or after a pause.
            self._look_again(line, [named[name] for name in strayed])
        line.known = True
        return True

    def _look_again(self, line: Line, turns: list[Turn]) -> None:
        """Has them stand in line again if they don't."""
        with self.shared.hub.mutex:
            for turn in turns:
                if turn in line.turns:
                    if len(turns) < len(line.turns):
                        # At the end, as in the queue.
                        del line.turns[turn]
                        line.turns[turn] = None
                    turn.look = True
                    if turn.freed is not None:
                        turn.freed.set()

    def _line_up(self, turn: Turn, tick_at: float) -> Line:
        shared = self.shared
        with shared.hub.mutex:
            line = shared.lines.get(self.key)
            if line is None:
                line = shared.lines[self.key] = Line(self._farewell)
            line.tick_at = min(line.tick_at, tick_at)
            line.turns[turn] = None
            # Not the one who is next: that would hand over the lead with every lock.
            line.leader = turn
        return line

    def _part(self, turn: Turn) -> None:
        """Waits no more. Idempotent."""
        shared = self.shared
        freed = turn.freed
        if freed is not None:
            # Another call for the same owner may be waiting for the same message.
            freed.set()
            # Not its present name, which may have changed since.
            shared.hub.leave(turn.joined, freed)
        with shared.hub.mutex:
            line = shared.lines.get(self.key)
            if line is None or turn not in line.turns:
                return
            del line.turns[turn]
            if not line.turns:
                del shared.lines[self.key]
            elif line.leader is turn:
                line.leader = next(reversed(line.turns))
                if line.leader.freed is not None:
                    line.leader.freed.set()

    def _listen(self, turn: Turn, freed: Signal) -> OwnChannel:
        turn.joined = self._own_channel(turn)
        channel = self.shared.hub.join(turn.joined, freed, OwnChannel)
        assert isinstance(channel, OwnChannel)
        return channel

    def _farewell(self, owners: list[bytes]) -> bytes:
        return self.leave_command(owners, doubt=True)

    def _own_channel(self, turn: Turn) -> bytes:
        return b"%b:%b" % (self._channel, turn.name)


class NonReentrantFairLockLogic(NonReentrantLockLogic, FairLockLogic):
    """The fair lock that its holder can't take again."""

    __slots__ = ()
