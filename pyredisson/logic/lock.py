"""The reentrant lock: a hash with one field, its owner, and how often it is held."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Hashable, Sequence
from typing import Any

from redis.exceptions import RedisError

from pyredisson._core import Call, command, pack, prefixed
from pyredisson.errors import LockLostError, LockNotHeldError
from pyredisson.logic import calls, waiting
from pyredisson.logic.holds import (
    GIVEN_BACK,
    GONE,
    HELD,
    LOST,
    Hold,
    HoldKey,
    Level,
    Overlap,
    Owner,
    buried,
    shown,
)
from pyredisson.logic.shared import Shared
from pyredisson.runtime import Cut, Reply
from pyredisson.scripts import ScriptSet

CHANNEL = b"redisson_lock__channel"
GATE_LOOK = 1.0
"""Seconds after which a call looks whether another one of its owner is over, though nobody said so."""
FREE = -2
"""PTTL's answer when there is no key."""


def renew(scripts: ScriptSet, holds: Sequence[Hold], lease: int) -> bytes:
    """The command that extends the leases of locks, each a hash with its owner's field in it."""
    return command(
        b"EVALSHA",
        scripts.lock_renew,
        len(holds),
        *[hold.lock.key for hold in holds],
        lease,
        *[hold.owner for hold in holds],
    )


class LockLogic:
    """What a lock does; owners and durations come in checked.

    The other kinds of lock are made from it by other commands: `acquire_command` and its like, `field_suffix`,
    `renewal`; or by another way of waiting, `_wait`.
    """

    __slots__ = ("_channel", "key", "place", "shared")

    prefix = CHANNEL
    """Of the channel on which a release is published."""
    freed = b"0"
    """What is published there when the lock is free."""
    field_suffix = b""
    """What follows the owner's name in its field of the hash."""
    renewal = staticmethod(renew)
    kept = False
    checks = False
    """Whether `check` has something to say before each try."""
    rank = 0
    """Which lock of those with the same name a group takes first."""

    def __init__(self, shared: Shared, key: bytes) -> None:
        self.shared = shared
        self.key = key
        self.place: Hashable = key
        """The lock in the table of holds."""
        self._channel = prefixed(self.prefix, key)

    def acquire_command(self, owner: bytes, count: int, lease: int, *, waits: bool) -> bytes:
        """Takes the lock, or counts up to `count` holds; idempotent. `waits`: whoever asks is going to wait.

        Its reply is None when it was taken (or a list of one number, the fencing token), else the time left
        to the holder in ms (-1: endless), or `FREE` if an earlier hold was to be counted that isn't there.
        """
        return pack(self.shared.runtime.scripts.lock_acquire, self.key, owner, count, lease)

    def release_command(self, owner: bytes, count: int) -> bytes:
        """Leaves the owner with `count` holds; idempotent. Its reply is None if it has none."""
        return pack(self.shared.runtime.scripts.lock_release, self.key, self._channel, owner, count)

    def undo_command(self, owner: bytes) -> bytes:
        """Undoes a fresh acquire that may have run, or may run late, under a name that is not used again."""
        return self.release_command(owner, 0)

    def force_command(self) -> bytes:
        """Removes the lock whoever holds it. Its reply is 1 if anything was removed."""
        return pack(self.shared.runtime.scripts.lock_force_release, self.key, self._channel)

    def abandon_command(self, hold: Hold) -> bytes:
        """What frees the lock of that hold, when the client is closed."""
        return self.release_command(hold.owner, 0)

    def lost_command(self) -> bytes | None:
        """Wakes waiters if nobody holds the lock; idempotent. None: nobody listens."""
        if not self._channel:
            return None
        return pack(self.shared.runtime.scripts.lock_lost, self.key, self._channel, self.freed)

    def acquire(self, owner: Owner, lease: int | None, deadline: float | None) -> Coroutine[Any, Any, bool]:
        """Waits for the lock until `deadline` (None: as long as it takes). False: not had in time.

        The lease is in milliseconds; None: kept until released, renewed by the watchdog.
        """
        return self._acquire(Call(owner, lease, deadline))

    async def _acquire(self, call: Call) -> bool:
        try:
            busy = await self._try(call)
            if busy is None:
                return True
            if call.deadline is not None and self.shared.clock() >= call.deadline:
                return False
            return await self._wait(call, busy)
        except BaseException:
            # Interrupted on the way out with the lock in its hands.
            hold = self.hold_of(call.owner.id)
            if call.took and hold is not None and hold.state is HELD:
                self.settle(call.owner, hold, hold.count - 1)
            raise

    async def _wait(self, call: Call, busy: float) -> bool:
        """What `acquire` does after a first try that told it to wait `busy` seconds at most."""
        return await waiting.until(self.shared, self._channel, lambda: self._try(call), busy, call.deadline)

    async def _try(self, call: Call) -> float | None:
        """One acquire. None: taken; else how long to wait for the holder at most, in seconds."""
        shared = self.shared
        if shared.closed:
            shared.check_open()
        owner, deadline = call.owner, call.deadline
        key = (self.place, owner.id)
        overlap = owner.overlap
        gates = overlap.gates
        try:
            if gates.setdefault(key, call) is not call:
                await self._next_turn(overlap, key, call)
            if self.checks:
                self.check(owner)
            hold = shared.holds.table.get(key)
            now = shared.clock()
            under = None
            if hold is not None and (hold.state is not HELD or hold.ends <= now) and not shared.holds.proven(hold):
                under = self._ended(owner, hold)
                hold = None
            if hold is None:
                count, name = 1, owner.name + self.field_suffix
            else:
                count, name = hold.count + 1, hold.owner
            runtime = shared.runtime
            doubts, settled = owner.doubts, overlap.settled
            ms = shared.lease if call.lease is None else call.lease
            payload = self.acquire_command(name, count, ms, waits=deadline is None or now < deadline)
            try:
                try:
                    busy = await runtime.send(payload)
                except (Cut, RedisError) as problem:
                    busy, now = await calls.repeat(
                        runtime,
                        payload,
                        problem,
                        attempts=shared.attempts,
                        deadline=deadline,
                        on_doubt=owner.rename,
                    )
                if busy.__class__ is list:
                    (call.token,) = busy
                    busy = None
                if busy is None and (overlap.settled == settled or (hold is not None and hold.state is not GIVEN_BACK)):
                    self._keep(call, key, name, hold, under, now, now + ms / 1000)
                    if shared.closed:
                        shared.check_open()
                    call.took = True
                    return None
                if busy is None:
                    # What was given back meanwhile, in the background, may be what this call got, under the same name.
                    runtime.post(self.undo_command(name))
            except BaseException as error:
                if owner.doubts != doubts or not isinstance(error, RedisError):
                    self._put_back(owner, key, name, count - 1)
                raise
            return await self._refused(call, hold, busy)
        finally:
            # No call of a function: a signal could strike after one, and leave the gate shut.
            if key in gates and gates[key] is call:
                del gates[key]
            if overlap.waiting:
                _open(overlap)

    def _keep(
        self, call: Call, key: HoldKey, name: bytes, hold: Hold | None, under: Hold | None, sent_at: float, ends: float
    ) -> None:
        """Writes down what the server gave: one more level of `hold`, or a new one above a lost one."""
        shared = self.shared
        if hold is not None and hold.state is not HELD:
            # Called lost while this was on its way, and lost it stays: what the server gave is a new hold.
            under, hold = hold, None
        if hold is None:
            hold = Hold(key, self, name, call.lease, ends, under and buried(under), HELD)
            hold.token = call.token
            shared.holds.table[key] = hold
            shared.watchdog.watch(hold, sent_at)
        else:
            hold.nest(call.lease)
            hold.token = max(hold.token, call.token)
            hold.ends = max(hold.ends, ends)
            shared.watchdog.watch_nested(hold, sent_at)

    def _put_back(self, owner: Owner, key: HoldKey, name: bytes, count: int) -> None:
        """An acquire may have run, or run late: puts it back as it was, under a name that is not used again."""
        hold = self.shared.holds.table.get(key)
        if hold is not None and hold.state is HELD and hold.owner == name:
            self.settle(owner, hold, count)
        else:
            owner.rename()
            self.shared.runtime.post(self.undo_command(name))

    async def _next_turn(self, overlap: Overlap, key: HoldKey, call: object) -> None:
        """Waits until no other command of this owner is on its way to the lock.

        All of them speak in the owner's name, and state how many holds it has: each must know what became of the
        one before it. That takes a round trip; nobody waits for the lock in here.
        """
        freed = self.shared.runtime.signal()
        try:
            overlap.waiting[freed] = None
            while overlap.gates.setdefault(key, call) is not call:
                await self.shared.runtime.wait(freed, GATE_LOOK)
                freed.clear()
        finally:
            overlap.waiting.pop(freed, None)

    async def _refused(self, call: Call, hold: Hold | None, busy: int | None) -> float | None:
        """What to do when the lock wasn't had, though `hold` was to be counted further: as `_try`."""
        shared = self.shared
        if busy is None:
            call.owner.follow()
            return await self._try(call)
        if hold is not None:
            shared.holds.lose(hold, GONE)
            if busy == FREE:
                return await self._try(call)
        # A message may be lost: nobody sleeps longer than a lease, however long the holder's is.
        return (shared.lease if busy < 0 else min(busy + 1, shared.lease)) / 1000

    def _ended(self, owner: Owner, hold: Hold) -> Hold | None:
        """A hold that was lost, and has still to be given back."""
        if hold.state is LOST:
            return hold
        # Its release is under way, and must not meet what is taken now.
        owner.rename()
        return None

    def settle(self, owner: Owner, hold: Hold, count: int) -> None:
        """Leaves `owner` with `count` holds: here at once, on the server in the background. Idempotent.

        What runs in the background must not meet a later hold, so that one gets another name.
        """
        owner.rename()
        owner.overlap.settled += 1
        self._cut_down(hold, count)
        self.shared.runtime.post(self.release_command(hold.owner, count))

    def _cut_down(self, hold: Hold, count: int) -> None:
        if count:
            hold.cut_down(count)
        else:
            hold.count = 0
            table = self.shared.holds.table
            if table.get(hold.key) is hold:
                if hold.under is not None:
                    # A lost one, which its owner has still to give back.
                    table[hold.key] = hold.under
                else:
                    del table[hold.key]
            self.shared.watchdog.forget(hold)
            if hold.state is not LOST:
                hold.state = GIVEN_BACK
                if hold.listeners is not None:
                    hold.end(GIVEN_BACK)

    def check(self, owner: Owner) -> None:
        """Raises if this owner must not have it."""

    async def release(self, owner: Owner, hold: Hold | None, level: Level | None = None) -> None:
        """Gives back one hold of `hold_of(owner)`; raises if there is none, or if it was lost meanwhile.

        Does nothing if that `level` of the hold was given back by the time of its turn.
        """
        shared = self.shared
        if shared.closed:
            shared.check_open()
        if hold is None:
            raise await self._stranger(owner)
        overlap = owner.overlap
        gates = overlap.gates
        key = hold.key
        mine: list[None] = []
        try:
            if gates.setdefault(key, mine) is not mine:
                await self._next_turn(overlap, key, mine)
            if level is not None and (level.done or hold.count <= level.target):
                return
            if hold.state is GIVEN_BACK or not hold.count:
                # Another call has given it back.
                raise await self._stranger(owner)
            if hold.state is LOST:
                above = shared.holds.table.get(key)
                if above is not None and above.under is hold:
                    # Meanwhile another call took the lock anew, perhaps under the same name.
                    hold.count -= 1
                    if not hold.count:
                        above.under = None
                    raise LockLostError(self.loss_of(owner, hold))
            count = hold.count - 1
            runtime = shared.runtime
            payload = self.release_command(hold.owner, count)
            try:
                proven = (hold.state is HELD and hold.ends > shared.clock()) or shared.holds.proven(hold)
                if proven and not count:
                    # Before the release is sent: a renewal that finds the key gone must not call that a loss.
                    hold.state = GIVEN_BACK
                try:
                    reply = await runtime.send(payload)
                except (Cut, RedisError) as problem:
                    reply, _ = await calls.repeat(
                        runtime,
                        payload,
                        problem,
                        attempts=shared.attempts,
                        # An earlier copy has done it; that is what the caller asked for.
                        none_after_cut=0 if count else 1,
                        on_doubt=owner.rename,
                    )
                self._cut_down(hold, count)
            except BaseException:
                self.settle(owner, hold, count)
                raise
            finally:
                if level is not None:
                    level.done = True
        finally:
            # As in `_try`.
            if key in gates and gates[key] is mine:
                del gates[key]
            if overlap.waiting:
                _open(overlap)
        if reply is None and proven:
            shared.holds.lose(hold, GONE, given_back=not count)
        if hold.state is LOST:
            raise LockLostError(self.loss_of(owner, hold))

    async def force_release(self) -> bool:
        """Removes the lock, whoever holds it; was it held."""
        return await self._remove(self.force_command(), "force_unlock()")

    async def _remove(self, payload: bytes, how: str) -> bool:
        ours = [hold for hold in list(self.shared.holds.table.values()) if hold.key[0] == self.place]
        # Not sent again: a second run may hit the next holder.
        removed = await self._call(payload, idempotent=False)
        if removed == 1:
            for hold in ours:
                if hold.state is HELD:
                    self.shared.watchdog.forget(hold)
                    self.shared.holds.lose(hold, f"it was taken away by {how}")
        return bool(removed == 1)

    async def is_locked(self) -> bool:
        """Whether anyone holds it."""
        return bool(await self._call(command(b"EXISTS", self.key)))

    async def hold_count(self, owner_id: int) -> int:
        """How often that owner of this client holds it, as the server and the local clock both say."""
        shared = self.shared
        key = (self.place, owner_id)
        hold = shared.holds.live(key)
        if hold is None:
            shared.check_open()
            return 0
        reply = await self._call(command(b"HGET", self.key, hold.owner))
        if shared.holds.table.get(key) is not hold or not shared.holds.proven(hold):
            return 0
        if reply is None:
            shared.watchdog.forget(hold)
            shared.holds.lose(hold, GONE)
            return 0
        # The number there is a copy of ours, and may be a late one.
        return hold.count

    async def remain_time_to_live(self) -> float | None:
        """Seconds until it frees itself; None: free; inf: never."""
        left = int(await self._call(command(b"PTTL", self.key)))
        if left == FREE:
            return None
        return math.inf if left < 0 else left / 1000

    def hold_of(self, owner_id: int) -> Hold | None:
        """The owner's hold, lost or not."""
        return self.shared.holds.table.get((self.place, owner_id))

    async def _stranger(self, owner: Owner) -> LockNotHeldError:
        fields: list[Any] = await self._call(command(b"HKEYS", self.key))
        holder = "nobody holds it" if not fields else f"it is held by {shown(fields[0])}"
        return LockNotHeldError(f"{self.named(owner)} is not held: {holder}")

    async def _call(self, payload: bytes, *, idempotent: bool = True) -> Reply:
        shared = self.shared
        shared.check_open()
        return await calls.call(shared.runtime, payload, attempts=shared.attempts, idempotent=idempotent)

    def loss_of(self, owner: Owner, hold: Hold) -> str:
        """What to say of a lost hold."""
        ago = self.shared.clock() - hold.ends
        return f"{self.named(owner)} was lost {ago:.3f} s ago: {hold.reason}"

    def named(self, owner: Owner) -> str:
        """The lock and the owner, for messages."""
        return f"lock {shown(self.key)!r} of owner {shown(owner.name)}"


def _open(overlap: Overlap) -> None:
    for signal in list(overlap.waiting):
        signal.set()
