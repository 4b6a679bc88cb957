"""The re-entrant lock: acquiring and releasing it, also when the outcome of a command is in doubt."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from redis.exceptions import InvalidResponse, RedisError

from pyredisson._core import AcquireCall, ReleaseCall
from pyredisson._diagnostics import debug, logger, readable
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.replication import NotConfirmed
from pyredisson.errors import LockNotHeldError
from pyredisson.logic import retry
from pyredisson.logic.holds import HELD, LEASE_ENDED, LOST, RELEASING, Hold, HoldKey
from pyredisson.logic.locks import hand_over
from pyredisson.logic.locks.commands import HOLD_GONE, LOCK_FREE, NOT_FINISHED, PARTLY_DONE
from pyredisson.logic.locks.queued_wait import QueuedWait, joins_at_once
from pyredisson.logic.locks.status import LockStatus
from pyredisson.logic.owners import Owner
from pyredisson.logic.ports import Sender
from pyredisson.logic.replicas import not_replicated

TRY_AGAIN = -1.0
"""The result of an attempt after which the next one is made at once. Compared by identity; no wait is negative."""


class LockLogic(LockStatus):
    """Acquires and releases a lock; owners and durations were checked before.

    A new kind of lock needs its scripts (`lua/`, registered in `_protocol/scripts.py`), a module in `logic/locks` with
    its commands (`commands_type`, a subclass of `LockCommands`) or its way of waiting (`_wait`), and a public class in
    `_api/aio`, from which `make twins` generates the one in `_api/sync`. CONTRIBUTING.md shows each step.
    """

    __slots__ = ()

    checks_owner = False
    """Whether `check_owner` is to be called before each attempt."""
    is_handed_on = True
    """Whether a release may hand the lock on to a waiter of the same client."""
    order_in_group = 0
    """Of locks with the same name, a group acquires those with the lowest number first."""

    def check_owner(self, owner: Owner) -> None:
        """Raises if this owner must not acquire the lock."""

    # Acquiring: prepare, send, apply what the server granted; or wait and make another attempt.

    def acquire(self, owner: Owner, lease: int | None, deadline: float | None) -> Coroutine[Any, Any, bool]:
        """Waits for the lock until `deadline` (None: without limit). False: it was not acquired by then.

        The lease is in milliseconds; None: the watchdog renews it until the lock is released.
        """
        return self._acquire(AcquireCall(owner, lease, deadline))

    async def _acquire(self, call: AcquireCall) -> bool:
        session = self.session
        waiter: QueuedWait | None = None
        try:
            if session.lock_queues and self.is_handed_on and joins_at_once(self, call):
                waiter = QueuedWait(self, call)
                return await waiter.run(None)
            if not session.channels.is_empty:
                call.events = session.channels.events(self.commands.channel)
            wait = await self._attempt(call)
            if wait is None:
                return True
            if call.deadline is not None and self.session.clock() >= call.deadline:
                return False
            return await self._wait(call, wait)
        except BaseException:
            if waiter is not None:
                waiter.end()
            # A cancellation, an interrupt or the end of the client after the lock was acquired.
            self.release_acquired(call)
            raise

    async def _wait(self, call: AcquireCall, wait: float) -> bool:
        """Makes attempts until the lock is acquired. `wait` is the result of the first attempt, in seconds."""
        waiter = QueuedWait(self, call)
        try:
            return await waiter.run(wait)
        except BaseException:
            waiter.end()
            raise

    async def _attempt(self, call: AcquireCall) -> float | None:
        """One attempt to acquire. None: acquired; else how many seconds to wait for the holder at most.

        0.0: nothing was sent, because an earlier call of the owner had the turn until the deadline.
        """
        session = self.session
        if session.closed:
            session.check_open()
        in_flight = call.owner.calls.in_flight
        hold_key = (self.identity, call.owner.id)
        while True:
            try:
                if not in_flight.enter(hold_key, call) and not await call.owner.calls.wait_for_turn(
                    session.runtime, hold_key, call, self.key, call.deadline
                ):
                    return 0.0
                wait = await self._attempt_in_turn(call, hold_key)
            finally:
                in_flight.leave(hold_key, call)
            if wait is not TRY_AGAIN:
                return wait

    async def _attempt_in_turn(self, call: AcquireCall, hold_key: HoldKey) -> float | None:
        """Sends one acquire command. None: acquired; `TRY_AGAIN`; else how many seconds to wait at most."""
        payload = self._prepare(call, hold_key)
        try:
            # The first try is spelled out here and in `release`: a coroutine around it would cost a tenth in asyncio.
            try:
                reply = await self.session.lock_sender.send(payload)
            except (NoReply, RedisError) as problem:
                reply, call.sent_at = await self._send_again(call, payload, problem)
            if reply is None or reply.__class__ is list:
                return self._apply(call, hold_key, reply)
            if reply.__class__ is not int:
                raise InvalidResponse(f"an acquire of lock {readable(self.key)!r} was answered with {reply!r}")
        except BaseException as error:
            if call.hold is None and retry.may_have_run(error, call.in_doubt):
                self._undo_attempt(call, hold_key)
            if isinstance(error, NotConfirmed):
                raise not_replicated(self.named(call.owner), error) from None
            raise
        return self._refused(call, reply)

    async def _send_again(
        self, call: AcquireCall, payload: bytes, problem: NoReply | RedisError
    ) -> tuple[Reply, float]:
        def on_doubt() -> None:
            call.in_doubt = True
            call.owner.new_epoch()

        session = self.session
        return await retry.send_again(
            session.lock_sender,
            payload,
            problem,
            retries=session.retries,
            deadline=call.deadline,
            on_doubt=on_doubt,
        )

    def _prepare(self, call: AcquireCall, hold_key: HoldKey) -> bytes:
        """Decides whether the acquire adds a level to a hold or begins a new one; returns its command."""
        session, owner = self.session, call.owner
        if self.checks_owner:
            self.check_owner(owner)
        target = session.holds.table.get(hold_key)
        # A lease counts from before its command was sent.
        call.sent_at = now = session.clock()
        if target is not None and (target.state is not HELD or target.valid_until <= now):
            session.holds.expire_if_due(target)
            if target.state is not LOST:
                # Its release is on its way, and must not reach the hold that is acquired now.
                owner.new_epoch()
            target = None
        call.target = target
        call.in_doubt = call.overtaken = False
        call.lease_ms = session.lease_ms if call.lease is None else call.lease
        if target is None:
            count, call.name = 1, self.name_for(call) + self.commands.owner_suffix
        else:
            count, call.name = target.count + 1, target.owner
        waits = call.deadline is None or now < call.deadline
        return self.commands.acquire(call.name, count, call.lease_ms, waits=waits)

    def name_for(self, call: AcquireCall) -> bytes:
        """The name of the owner for a new hold."""
        name: bytes = call.owner.name
        return name

    def _apply(self, call: AcquireCall, hold_key: HoldKey, reply: Reply) -> float | None:
        """Records what the server granted, or undoes it where it must not be used."""
        session, target = self.session, call.target
        if reply is not None:
            (call.token,) = reply
        valid_until = call.sent_at + call.lease_ms / 1000
        now = session.clock()
        if valid_until <= now and (target is None or target.valid_until <= now):
            logger.info("lock %r was granted after the end of its lease: it is released", readable(self.key))
            self.undo_grant(call)
            if call.deadline is not None and session.clock() >= call.deadline:
                return 0.0
            return TRY_AGAIN
        if not self.record(call, hold_key, valid_until):
            self.undo_grant(call)
            return TRY_AGAIN
        if session.closed:
            session.check_open()
        if debug.on:
            logger.debug("%s is acquired", self.named(call.owner))
        return None

    def record(self, call: AcquireCall, hold_key: HoldKey, valid_until: float) -> bool:
        """Adds a level to the target of the call, or a new hold above a lost one.

        False: the hold to which the server has added was released meanwhile, in the background.
        """
        session, target = self.session, call.target
        if target is not None:
            if session.holds.add_level(target, call, valid_until):
                session.watchdog.watch_nested(target, call.sent_at)
                return True
            if target.state is not LOST:
                return False
            # Lost while the command was on its way, and it stays lost: the server has granted a new hold.
        hold = Hold(hold_key, self.commands, call.name, call.lease, valid_until, HELD)
        hold.token = call.token
        hold.acquired_by = call.owner
        session.holds.add(hold, call)
        if call.overtaken:
            # The background release has the same name, and may run after this acquire.
            self.release_acquired(call)
            return False
        session.watchdog.watch(hold, call.sent_at)
        return True

    def _refused(self, call: AcquireCall, reply: int) -> float:
        """What to do after a reply other than that of success: `TRY_AGAIN`, or how many seconds to wait."""
        session = self.session
        if reply == NOT_FINISHED:
            return TRY_AGAIN
        if call.target is not None:
            session.holds.declare_lost(call.target)
            if reply == HOLD_GONE:
                return TRY_AGAIN
        # A dead holder publishes nothing: the next attempt comes when its lease has ended. And a message may get lost:
        # no waiter sleeps longer than `lock_watchdog_timeout`. One millisecond more, as the server rounds down.
        return (session.lease_ms if reply < 0 else min(reply + 1, session.lease_ms)) / 1000

    # Undoing an acquire. `undo_acquire` is sent if no Hold was recorded, `release` if one was. So a kind of lock whose
    # acquire has a further effect on the server must undo it in both commands.

    def undo_grant(self, call: AcquireCall) -> None:
        """Undoes in the background what the server granted and must not be used."""
        call.owner.new_epoch()
        self.session.runtime.post(self.commands.undo_acquire(call.name))

    def _undo_attempt(self, call: AcquireCall, hold_key: HoldKey) -> None:
        """Undoes in the background an attempt that may have run, or may run late."""
        hold = self.session.holds.table.get(hold_key)
        if hold is not None and hold.state is HELD and hold.owner == call.name:
            # It may have added a level: the number of levels is stated again.
            self._post_count(call.owner, hold, hold.count)
        else:
            call.owner.new_epoch()
            self.session.runtime.post(self.commands.undo_acquire(call.name))

    def release_acquired(self, call: AcquireCall) -> None:
        """Releases what the call has acquired, because its caller never gets it."""
        hold, call.hold = call.hold, None
        if hold is not None:
            self.release_in_background(call.owner, hold, ReleaseCall())

    # Releasing: check, begin, send, finish. The outcomes of `release`:
    # - It returns: the level is released, or its release was handed to the background by a finalizer. If a reply was
    #   lost and the same server doesn't know the hold any more, the earlier copy has released the last level.
    # - `LockNotHeldError`: the owner has no hold, or another call has released it.
    # - `LockLostError`: the hold was lost before; or its lease ended while no server replied; or the server doesn't
    #   know the hold. After a lost reply, the last case is also a server that was restarted or replaced: it can't be
    #   found out whether the earlier copy had released the lock on the old one.
    # - `ClosedError`: the client was closed, which releases all its holds.
    # - A Redis error or an interrupt: the release goes on in the background.

    async def release(self, owner: Owner, hold: Hold | None, call: ReleaseCall | None = None) -> None:
        """Releases one level of `hold_of(owner)`. Raises if there is none, or if it was lost.

        Afterwards the level counts as released, whatever happens: what can't be sent now is sent in the background.
        A caller that may be interrupted outside this coroutine passes `call`, so that it can call
        `release_in_background` with the same one. Does nothing if the level of `call` is dropped already.
        """
        session = self.session
        if session.closed:
            session.check_open()
        if hold is None:
            raise await self.not_held_error(owner)
        if call is None:
            call = ReleaseCall()
        in_flight, hold_key = owner.calls.in_flight, hold.key
        try:
            if not in_flight.enter(hold_key, call) and not await self._wait_to_release(owner, hold, call):
                return
            if call.dropped:
                return
            count = hold.count - 1
            if session.holds.expire_if_due(hold) or (not count and not session.holds.begin_release(hold)):
                raise await self._find_release_error(owner, hold)
            if count or not session.lock_queues or hand_over.choose_successor(self, call) is None:
                payload = self.commands.release(hold.owner, count)
                try:
                    reply = await session.runtime.send(payload)
                except (NoReply, RedisError) as problem:
                    reply = await self._send_release_again(owner, hold, payload, problem)
                if session.lock_queues and not count:
                    hand_over.on_released(self, reply)
            else:
                reply = await hand_over.hand_over(self, owner, hold, call)
            self._finish_release(owner, hold, call, count, reply)
        except BaseException:
            self.release_in_background(owner, hold, call)
            raise
        finally:
            in_flight.leave(hold_key, call)
        if hold.state is LOST:
            raise self.loss_of(owner, hold)
        if debug.on:
            logger.debug("%s is released: %d holds remain", self.named(owner), hold.count)

    async def _wait_to_release(self, owner: Owner, hold: Hold, call: ReleaseCall) -> bool:
        """Waits for earlier calls of the owner. False: the release was handed to the background instead."""
        if self.session.runtime.blocking and owner.calls.in_flight.is_on_this_thread(hold.key):
            # A finalizer runs this release in the middle of another call on this thread. Waiting for that call would
            # be a deadlock.
            self.release_in_background(owner, hold, call)
            return False
        return await owner.calls.wait_for_turn(self.session.runtime, hold.key, call, self.key, None)

    async def send_release(self, owner: Owner, hold: Hold) -> Reply:
        """Releases the last level on the server. The reply is None if the server didn't know the hold."""
        payload = self.commands.release(hold.owner, 0)
        try:
            return await self.session.runtime.send(payload)
        except (NoReply, RedisError) as problem:
            return await self._send_release_again(owner, hold, payload, problem)

    async def _send_release_again(
        self, owner: Owner, hold: Hold, payload: bytes, problem: NoReply | RedisError
    ) -> Reply:
        """Sends a release again. The reply is None if the server didn't know the hold."""
        # An earlier copy may have released the last level; then the second copy finds nothing.
        reply_if_done = _reply_if_done if hold.state is RELEASING else None
        reply, _ = await self.retry_release(
            owner, hold, self.session.runtime, payload, problem, reply_if_done, owner.new_epoch
        )
        return reply

    async def retry_release(
        self,
        owner: Owner,
        hold: Hold,
        sender: Sender,
        payload: bytes,
        problem: NoReply | RedisError,
        reply_if_done: Callable[[Reply], Reply] | None,
        on_doubt: Callable[[], None],
    ) -> tuple[Reply, float]:
        """Sends a command again that releases a level. Returns the reply, and when the copy was sent."""
        session = self.session
        try:
            return await retry.send_again(
                sender,
                payload,
                problem,
                retries=session.retries,
                # The lease has ended by then. The retry at once, after a lost reply, is made all the same. A pause ends
                # at this moment at the latest, for the last retry; no pause begins after it.
                expires=hold.valid_until,
                reply_if_done=reply_if_done,
                on_doubt=on_doubt,
            )
        except RedisError as error:
            if hold.valid_until <= session.clock():
                session.holds.declare_lost_on_release(hold, LEASE_ENDED)
            if hold.state is LOST:
                raise self.loss_of(owner, hold) from error
            raise

    def _finish_release(self, owner: Owner, hold: Hold, call: ReleaseCall, count: int, reply: Reply) -> None:
        """Applies the reply to a release after which `count` levels should remain."""
        holds = self.session.holds
        if reply is None:
            # `release` raises the loss at its end: the level has to be dropped before.
            holds.declare_lost_on_release(hold)
        elif reply == PARTLY_DONE:
            self.on_partly_released()
        call.reported = True
        remaining = holds.drop_level(hold, call)
        if 0 <= remaining < count:
            # Another level was released meanwhile, in the background.
            self._post_count(owner, hold, remaining)

    def on_partly_released(self) -> None:
        """Called after a release that replied `PARTLY_DONE`, which only fair locks do: has the rest of it done."""

    async def _find_release_error(self, owner: Owner, hold: Hold) -> LockNotHeldError:
        """Returns the error for a hold that can't be released: it was lost, or another call has released it.

        In the second case the server is asked who holds the lock now, which may raise an error of its own.
        """
        if hold.state is LOST and hold.count:
            return self.loss_of(owner, hold)
        return await self.not_held_error(owner)

    def release_in_background(self, owner: Owner, hold: Hold, call: ReleaseCall) -> None:
        """Releases one level of a hold: here at once, on the server in the background.

        Idempotent, also if an earlier call of it, or the release itself, was interrupted.
        """
        self.session.holds.drop_level(hold, call)
        if not call.reported:
            self._post_count(owner, hold, hold.count)
            call.reported = True
        if call.successor is not None:
            hand_over.abandon(call)
        if self.session.lock_queues:
            hand_over.forget_if_idle(self.session, self.identity)

    def _post_count(self, owner: Owner, hold: Hold, count: int) -> None:
        """Sends in the background how many levels of this hold remain.

        The command may run late. Three things keep it away from a newer hold of the owner:
        1. The new epoch: an acquire that is prepared from now on has another name on the server.
        2. `overtaken`: an acquire whose command has the old name, and may be on its way, is undone and repeated.
        3. The check of the table: nothing is sent if a newer hold with the same name was recorded already.
        """
        owner.new_epoch()
        call = owner.calls.in_flight.current_call(hold.key)
        if isinstance(call, AcquireCall):
            call.overtaken = True
        present = self.session.holds.table.get(hold.key)
        if present is None or present is hold or present.owner != hold.owner:
            self.session.runtime.post(self.commands.release(hold.owner, count))

    # Other operations

    async def extend(self, owner: Owner, hold: Hold, lease: int) -> None:
        """Makes a hold last for so many ms from now on, at least. The hold is lost if the server doesn't know it.

        This is done by the command of an acquire, which states the same number of levels again and never shortens a
        lease: each kind of lock stores its leases in its own way. After an error the caller must release the hold.
        """
        session = self.session
        payload = self.commands.acquire(hold.owner, hold.count, lease, waits=False)
        reply, sent_at = await retry.send(session.runtime, payload, retries=session.retries, on_doubt=owner.new_epoch)
        if reply is not None and reply.__class__ is not list:
            session.holds.declare_lost(hold)
            return
        if reply is not None:
            (hold.token,) = reply
        if hold.state is HELD:
            session.holds.extend(hold, sent_at + lease / 1000)
            session.watchdog.watch_nested(hold, sent_at)

    async def delete(self) -> bool:
        """Removes everything that the lock has on the server; returns whether it was held."""
        return await self.force_release()

    async def force_release(self) -> bool:
        """Removes the lock, whoever holds it; returns whether it was held."""
        return await self._remove(self.commands.force_release(), "force_unlock()")

    async def _remove(self, payload: bytes, operation: str) -> bool:
        holds = self.session.holds.of_lock(self.identity)
        # Not sent again: a second run may remove the hold of the next owner.
        removed = bool(await self._query(payload, idempotent=False) == 1)
        if removed:
            self.session.holds.take_away(holds, f"it was taken away by {operation}")
        return removed


def _reply_if_done(reply: Reply) -> Reply:
    """The reply to the release of the last level, if an earlier copy of it may have run on the same server."""
    return LOCK_FREE if reply is None else reply
