"""The reentrant lock: a hash with one field, its owner, and how often it is held."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any

from redis.exceptions import InvalidResponse, RedisError

from pyredisson._core import AcquireCall, CallQueues, HoldLevel, OwnerCall, command, enter, pack, prefixed, replace
from pyredisson._diagnostics import debug, logger, readable
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.errors import LockLostError, LockNotHeldError, LockTimeoutError
from pyredisson.holder import Holder, for_how_long, holder_of
from pyredisson.logic import retry, waiting
from pyredisson.logic.holds import ENDED, GIVEN_BACK, GONE, HELD, LOST, Hold, HoldKey, Owner, merge_lost
from pyredisson.logic.session import Session

CHANNEL = b"redisson_lock__channel"
TURN_LOOK = 1.0
"""Seconds after which a call looks whether its turn has come, though its signal wasn't set."""
TURN_PATIENCE = 3.0
"""Seconds to wait for its turn, for a call that has no time to wait for the lock."""
DONE_IN_PART = 2
"""The reply to a release after which dead waiters are still to be dropped before the next one can be told."""
AGAIN = -1.0
"""In place of seconds to wait: the lock is to be asked for at once."""
FREE = -2
"""PTTL's answer when there is no key."""
UNFINISHED = -3
"""The reply of an acquire that did as much as one call may, and has to be sent again."""


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

    __slots__ = ("_channel", "identity", "key", "session")

    prefix = CHANNEL
    """Of the channel on which a release is published."""
    wakeup = b"0"
    """What is published there when the lock is free."""
    field_suffix = b""
    """What follows the owner's name in its field of the hash."""
    renewal = staticmethod(renew)
    renew_fixed_leases = False
    checks = False
    """Whether `check` has something to say before each try."""
    rank = 0
    """Which lock of those with the same name a group takes first."""

    def __init__(self, session: Session, key: bytes) -> None:
        self.session = session
        self.key = key
        self.identity: Hashable = key
        """The lock in the table of holds."""
        self._channel = prefixed(self.prefix, key)

    def acquire_command(self, owner: bytes, count: int, lease: int, *, waits: bool) -> bytes:
        """Takes the lock, or counts up to `count` holds; idempotent. `waits`: whoever asks is going to wait.

        Its reply is None when it was taken (or a list of one number, the fencing token), else the time left
        to the holder in ms (-1: endless), or `FREE` if an earlier hold was to be counted that isn't there.
        """
        return pack(self.session.runtime.scripts.lock_acquire, self.key, owner, count, lease)

    def release_command(self, owner: bytes, count: int) -> bytes:
        """Leaves the owner with `count` holds; idempotent. Its reply is None if it has none."""
        return pack(self.session.runtime.scripts.lock_release, self.key, self._channel, owner, count)

    def undo_command(self, owner: bytes) -> bytes:
        """Undoes a fresh acquire that may have run, or may run late, under a name that is not used again."""
        return self.release_command(owner, 0)

    def force_command(self) -> bytes:
        """Removes the lock whoever holds it. Its reply is 1 if anything was removed."""
        return pack(self.session.runtime.scripts.lock_force_release, self.key, self._channel)

    def abandon_command(self, hold: Hold) -> bytes:
        """What frees the lock of that hold, when the client is closed."""
        return self.release_command(hold.owner, 0)

    def lost_command(self) -> bytes | None:
        """Wakes waiters if nobody holds the lock; idempotent. None: nobody listens."""
        if not self._channel:
            return None
        return pack(self.session.runtime.scripts.lock_lost, self.key, self._channel, self.wakeup)

    def acquire(self, owner: Owner, lease: int | None, deadline: float | None) -> Coroutine[Any, Any, bool]:
        """Waits for the lock until `deadline` (None: as long as it takes). False: not had in time.

        The lease is in milliseconds; None: kept until released, renewed by the watchdog.
        """
        return self._acquire(AcquireCall(owner, lease, deadline))

    async def _acquire(self, call: AcquireCall) -> bool:
        try:
            busy = await self._try(call)
            if busy is None:
                return True
            if call.deadline is not None and self.session.clock() >= call.deadline:
                return False
            return await self._wait(call, busy)
        except BaseException:
            self._abandon(call)
            raise

    def _abandon(self, call: AcquireCall) -> None:
        """Gives back what an acquire got that was interrupted, or whose client was closed, before it returned."""
        hold, call.hold = call.hold, None
        if hold is not None:
            self.release_in_background(call.owner, hold, HoldLevel())

    async def _wait(self, call: AcquireCall, busy: float) -> bool:
        """What `acquire` does after a first try that told it to wait `busy` seconds at most."""
        return await waiting.until(self.session, self._channel, lambda: self._try(call), busy, call.deadline)

    async def _try(self, call: AcquireCall) -> float | None:
        """One acquire. None: taken; else how long to wait for the holder at most, in seconds."""
        session = self.session
        if session.closed:
            session.check_open()
        turns = call.owner.calls.in_flight
        key = (self.identity, call.owner.id)
        while True:
            try:
                if not turns.enter(key, call) and not await self._turn_comes(turns, key, call, call.deadline):
                    return 0.0
                outcome = await self._ask(call, key)
            finally:
                turns.leave(key, call)
            if outcome is not AGAIN:
                return outcome

    async def _ask(self, call: AcquireCall, key: HoldKey) -> float | None:
        """Sends one acquire command. None: taken; `AGAIN`: to be asked once more; else the seconds to wait at most."""
        session, owner = self.session, call.owner
        if self.checks:
            self.check(owner)
        hold = session.holds.table.get(key)
        now = session.clock()
        if hold is not None and (hold.state is not HELD or hold.valid_until <= now) and not session.holds.proven(hold):
            if hold.state is not LOST:
                # Its release is under way, and must not meet what is acquired now.
                owner.new_epoch()
            hold = None
        if hold is None:
            count, name = 1, owner.name + self.field_suffix
        else:
            count, name = hold.count + 1, hold.owner
        epoch, settled = owner.epoch, owner.calls.background_releases
        ms = session.lease if call.lease is None else call.lease
        payload = self.acquire_command(name, count, ms, waits=call.deadline is None or now < call.deadline)
        try:
            try:
                reply = await session.runtime.send(payload)
            except (NoReply, RedisError) as problem:
                reply, now = await self._send_again(call, payload, problem)
            if reply is None or reply.__class__ is list:
                if reply is not None:
                    (call.token,) = reply
                ends = now + ms / 1000
                known = session.clock()
                late = ends <= known and (hold is None or hold.valid_until <= known)
                if not late and self._keep(call, key, name, hold, settled, now, ends):
                    if session.closed:
                        session.check_open()
                    if debug.on:
                        logger.debug("%s is acquired", self.named(owner))
                    return None
                return self._decline(call, name, late=late)
            if reply.__class__ is not int:
                raise InvalidResponse(f"an acquire of lock {readable(self.key)!r} was answered with {reply!r}")
        except BaseException as error:
            if call.hold is None and (owner.epoch != epoch or _may_have_run(error)):
                self._restore(owner, key, name)
            raise
        if reply == UNFINISHED:
            return AGAIN
        if hold is not None:
            session.holds.declare_lost(hold, GONE)
            if reply == FREE:
                return AGAIN
        # A message may be lost: no waiter sleeps longer than a lease, however long the holder's is.
        return (session.lease if reply < 0 else min(reply + 1, session.lease)) / 1000

    async def _send_again(
        self, call: AcquireCall, payload: bytes, problem: NoReply | RedisError
    ) -> tuple[Reply, float]:
        session = self.session
        return await retry.repeat(
            session.runtime,
            payload,
            problem,
            attempts=session.attempts,
            deadline=call.deadline,
            on_doubt=call.owner.new_epoch,
        )

    def _keep(
        self,
        call: AcquireCall,
        key: HoldKey,
        name: bytes,
        hold: Hold | None,
        settled: int,
        sent_at: float,
        ends: float,
    ) -> bool:
        """Writes down what the server granted: one more level of `hold`, or a new hold above a lost one.

        False: what it was to be added to was given back meanwhile, in the background and under the same name.
        """
        session = self.session
        if hold is not None:
            if hold.nest(call, ends, HELD):
                session.watchdog.watch_nested(hold, sent_at)
                return True
            if hold.state is not LOST:
                return False
            # Lost while the command was on its way, and it stays lost: what the server granted is a new hold.
        table = session.holds.table
        under = table.get(key)
        if under is not None:
            under = merge_lost(under)
        new = Hold(key, self, name, call.lease, ends, under, HELD)
        new.token = call.token
        new.taken_by = call.owner
        enter(table, new, call)
        if call.owner.calls.background_releases != settled:
            self._abandon(call)
            return False
        session.watchdog.watch(new, sent_at)
        return True

    def _decline(self, call: AcquireCall, name: bytes, *, late: bool) -> float:
        """Undoes in the background what the server granted and nobody may use, and says when to ask again.

        `late`: it became known after its lease had ended, so another owner may hold the lock by now.
        """
        owner = call.owner
        owner.new_epoch()
        owner.follow()
        self.session.runtime.post(self.undo_command(name))
        if late:
            logger.info("lock %r was granted after the end of its lease: it is released", readable(self.key))
            if call.deadline is not None and self.session.clock() >= call.deadline:
                return 0.0
        return AGAIN

    def _restore(self, owner: Owner, key: HoldKey, name: bytes) -> None:
        """An acquire may have run, or may run late: the server is told what is held, or to undo it."""
        hold = self.session.holds.table.get(key)
        if hold is not None and hold.state is HELD and hold.owner == name:
            self._state(owner, hold, hold.count)
        else:
            owner.new_epoch()
            self.session.runtime.post(self.undo_command(name))

    async def _turn_comes(self, turns: CallQueues, key: HoldKey, call: OwnerCall, deadline: float | None) -> bool:
        """Waits until no earlier call of this owner has a command on its way to the lock; False: not by `deadline`.

        All of them speak in the owner's name, and state how many holds it has: each must know what became of the
        one before it. Calls take turns in the order in which they came. A call without time to wait is given the
        time of a reply, as its own command would be.
        """
        runtime, clock = self.session.runtime, self.session.clock
        freed = runtime.wakeup()
        if turns.wait(key, call, freed):
            return True
        if self.session.runtime.blocking and turns.is_on_this_thread(key):
            raise RuntimeError(
                f"lock {readable(self.key)!r} was asked for in the middle of a call for it on this thread"
            )
        if deadline is not None:
            deadline = max(deadline, clock() + TURN_PATIENCE)
        while not turns.enter(key, call):
            left = TURN_LOOK if deadline is None else min(TURN_LOOK, deadline - clock())
            if left <= 0:
                return False
            await runtime.wait(freed, left)
            freed.clear()
        return True

    def release_in_background(self, owner: Owner, hold: Hold, level: HoldLevel) -> None:
        """Gives back one level of a hold: here at once, on the server in the background.

        Idempotent, also where an earlier call of it, or the release itself, was interrupted halfway.
        """
        hold.drop(level, HELD, GIVEN_BACK)
        self._dropped(hold)
        if not level.told:
            self._state(owner, hold, hold.count)
            level.told = True

    def _state(self, owner: Owner, hold: Hold, count: int) -> None:
        """Tells the server in the background that the owner has `count` levels of this hold left.

        What runs in the background must not meet a later hold, so that one gets another name.
        """
        owner.new_epoch()
        owner.calls.background_releases += 1
        present = self.session.holds.table.get(hold.key)
        if present is None or present is hold or present.owner != hold.owner:
            self.session.runtime.post(self.release_command(hold.owner, count))

    def _dropped(self, hold: Hold) -> None:
        """A level of the hold is given back; with the last one it leaves the table of holds. Idempotent."""
        if hold.count:
            return
        table = self.session.holds.table
        if not replace(table, hold):
            above = table.get(hold.key)
            if above is not None and above.lost_below is hold:
                above.lost_below = hold.lost_below
        self.session.watchdog.forget(hold)
        if hold.state is not LOST and hold.listeners is not None:
            hold.end(GIVEN_BACK)

    def check(self, owner: Owner) -> None:
        """Raises if this owner must not have it."""

    async def release(self, owner: Owner, hold: Hold | None, level: HoldLevel | None = None) -> None:
        """Gives back one level of `hold_of(owner)`; raises if there is none, or if it was lost meanwhile.

        Does nothing if that `level` is given back by somebody else before its turn comes. However it ends, the level
        is given back: what was lost, or can't be told to the server now, in the background.
        """
        session = self.session
        if session.closed:
            session.check_open()
        if hold is None:
            raise await self._not_held_error(owner)
        if level is None:
            level = HoldLevel()
        turns = owner.calls.in_flight
        key = hold.key
        try:
            if not turns.enter(key, level):
                if session.runtime.blocking and turns.is_on_this_thread(key):
                    # A garbage collection ends a block in the middle of a call on this very thread.
                    self.release_in_background(owner, hold, level)
                    return
                await self._turn_comes(turns, key, level, None)
            if level.done:
                return
            if (hold.state is not HELD or hold.valid_until <= session.clock()) and not session.holds.proven(hold):
                raise await self._not_releasable(owner, hold)
            count = hold.count - 1
            # Before the release is sent: a renewal that finds the key gone must not call that a loss.
            if not count and not hold.change(HELD, GIVEN_BACK):
                raise await self._not_releasable(owner, hold)
            payload = self.release_command(hold.owner, count)
            try:
                reply = await session.runtime.send(payload)
            except (NoReply, RedisError) as problem:
                reply = await self._release_again(owner, hold, payload, problem)
            if reply == DONE_IN_PART:
                self.finish_release()
            level.told = True
            left = hold.drop(level, HELD, GIVEN_BACK)
            self._dropped(hold)
            if 0 <= left < count:
                # Another level was given back meanwhile, in the background.
                self._state(owner, hold, left)
        except BaseException:
            self.release_in_background(owner, hold, level)
            raise
        finally:
            turns.leave(key, level)
        if reply is None:
            session.holds.declare_lost(hold, GONE, given_back=not count)
        if hold.state is LOST:
            raise self.loss_of(owner, hold)
        if debug.on:
            logger.debug("%s is released: %d holds are left", self.named(owner), hold.count)

    def finish_release(self) -> None:
        """Has the rest done of a release that replied `DONE_IN_PART`; only a lock with a queue has such."""

    async def _release_again(self, owner: Owner, hold: Hold, payload: bytes, problem: NoReply | RedisError) -> Reply:
        """Sends a release again. Its reply is None if the owner had nothing there."""
        session = self.session
        last = hold.state is GIVEN_BACK
        try:
            reply, _ = await retry.repeat(
                session.runtime,
                payload,
                problem,
                attempts=session.attempts,
                # Then it is lost, whatever becomes of the release.
                expires=hold.valid_until,
                # An earlier copy may have given back the last hold; behind any other one is left.
                if_done=_given_back if last else None,
                on_doubt=owner.new_epoch,
            )
        except RedisError as error:
            if hold.valid_until <= session.clock():
                session.holds.declare_lost(hold, ENDED, given_back=last)
            if hold.state is LOST:
                raise self.loss_of(owner, hold) from error
            raise
        return reply

    async def _not_releasable(self, owner: Owner, hold: Hold) -> LockNotHeldError:
        """Why a hold can't be released: it was lost, or another call has given it back."""
        if hold.state is LOST and hold.count:
            return self.loss_of(owner, hold)
        return await self._not_held_error(owner)

    async def delete(self) -> bool:
        """Removes all that there is of the lock; was it held."""
        return await self.force_release()

    async def force_release(self) -> bool:
        """Removes the lock, whoever holds it; was it held."""
        return await self._remove(self.force_command(), "force_unlock()")

    async def _remove(self, payload: bytes, how: str) -> bool:
        ours = [hold for hold in list(self.session.holds.table.values()) if hold.key[0] == self.identity]
        # Not sent again: a second run may hit the next holder.
        removed = await self._call(payload, idempotent=False)
        if removed == 1:
            for hold in ours:
                if hold.state is HELD:
                    self.session.watchdog.forget(hold)
                    self.session.holds.declare_lost(hold, f"it was taken away by {how}")
        return bool(removed == 1)

    async def is_locked(self) -> bool:
        """Whether anyone holds it."""
        return bool(await self._call(command(b"EXISTS", self.key)))

    async def hold_count(self, owner_id: int) -> int:
        """How often that owner of this client holds it, as the server and the local clock both say."""
        session = self.session
        key = (self.identity, owner_id)
        hold = session.holds.live(key)
        if hold is None:
            session.check_open()
            return 0
        reply = await self._call(command(b"HGET", self.key, hold.owner))
        if session.holds.table.get(key) is not hold or not session.holds.proven(hold):
            return 0
        if reply is None:
            session.watchdog.forget(hold)
            session.holds.declare_lost(hold, GONE)
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
        return self.session.holds.table.get((self.identity, owner_id))

    async def _not_held_error(self, owner: Owner) -> LockNotHeldError:
        said, holder = await self.holder(self._call)
        return LockNotHeldError(
            f"{self.named(owner)} is not held: {said}",
            name=readable(self.key),
            owner=readable(owner.name),
            holder=holder,
        )

    async def timed_out(self, owner: Owner, wait: float) -> LockTimeoutError:
        """What to raise after waiting so many seconds; the server is asked once who holds it, and may not answer."""
        try:
            said, holder = await self.holder(self.session.runtime.send)
        except (NoReply, RedisError) as problem:
            said, holder = f"who holds it can't be told: {problem}", None
        return LockTimeoutError(
            f"{self.named(owner)} was not had in {wait:g} s: {said}",
            name=readable(self.key),
            owner=readable(owner.name),
            holder=holder,
        )

    async def holder(self, ask: Callable[[bytes], Awaitable[Reply]]) -> tuple[str, Holder | None]:
        """Who holds it now, of several the first one: as a message says it, and as an error has it."""
        fields = sorted(self._holding(await ask(command(b"HKEYS", self.key))))
        left = int(await ask(command(b"PTTL", self.key)))
        if not fields or left == FREE:
            return "nobody holds it", None
        names = ", ".join(map(readable, fields[:3])) + (f" and {len(fields) - 3} more" if len(fields) > 3 else "")
        return f"it is held by {names}, {for_how_long(left)}", holder_of(fields[0], left)

    def _holding(self, fields: Sequence[bytes]) -> Sequence[bytes]:
        """Those fields of the lock's hash that are owners."""
        return fields

    async def _call(self, payload: bytes, *, idempotent: bool = True) -> Reply:
        session = self.session
        session.check_open()
        return await retry.call(session.runtime, payload, attempts=session.attempts, idempotent=idempotent)

    def loss_of(self, owner: Owner, hold: Hold) -> LockLostError:
        """The error for a hold that was lost."""
        ago = self.session.clock() - hold.valid_until
        text = f"{self.named(owner)} was lost {ago:.3f} s ago: {hold.reason}"
        return LockLostError(text, name=readable(self.key), owner=readable(owner.name))

    def named(self, owner: Owner) -> str:
        """The lock and the owner, for messages."""
        return f"lock {readable(self.key)!r} of owner {readable(owner.name)}"


def _may_have_run(error: BaseException) -> bool:
    """Whether the command that ended with this error may have run; what Redis refuses has not."""
    return isinstance(error, InvalidResponse) or not isinstance(error, RedisError)


def _given_back(reply: Reply) -> Reply:
    """The reply to a release when an earlier copy may have done it."""
    return 1 if reply is None else reply
