"""Releasing a lock, and recording or undoing an acquire, also when the outcome of a command is in doubt."""

from collections.abc import Callable

from redis.exceptions import RedisError

from pyredisson._core import AcquireCall, ReleaseCall
from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replies import NoReply, Reply
from pyredisson.errors import LockNotHeldError
from pyredisson.logic import retry
from pyredisson.logic.holds import HELD, LEASE_ENDED, LOST, RELEASING, Hold, HoldKey, RenewedLease
from pyredisson.logic.locks import hand_over
from pyredisson.logic.locks.commands import LOCK_FREE, PARTLY_DONE
from pyredisson.logic.locks.queued_wait import LockWaiter
from pyredisson.logic.locks.status import LockStatus
from pyredisson.logic.observing import end_of_acquire
from pyredisson.logic.owners import Owner
from pyredisson.logic.ports import Sender


class ReleasingLock(LockStatus):
    """Releases a lock, in the foreground and in the background. Records acquires, or undoes them."""

    __slots__ = ()

    # Releasing: check, begin, send, finish. The outcomes of `release`:
    # - It returns: the level is released, or its release was handed to the background by a finalizer. If a reply was
    #   lost and the server that had the hold doesn't know it any more, the earlier copy has released the last level.
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
        if hold is None:
            raise await self.not_held_error(owner)
        if session.closed:
            session.check_open()
        if call is None:
            call = ReleaseCall()
        in_flight, hold_key = owner.calls.in_flight, hold.key
        try:
            if not in_flight.enter(hold_key, call) and not await self._wait_to_release(owner, hold, call):
                return
            if call.dropped:
                return
            count = session.holds.begin_level_release(hold)
            if count < 0:
                raise await self._find_release_error(owner, hold)
            contended = session.lock_queues or session.fair_queues
            if count or not contended or self.choose_successor(call) is None:
                payload = self.commands.release(hold.owner, count)
                try:
                    reply = await session.runtime.send(payload)
                except (NoReply, RedisError) as problem:
                    reply = await self.send_release(owner, hold, payload, problem)
                if not count and (session.lock_queues or session.channels.by_name):
                    self.on_released(reply)
            else:
                reply = await hand_over.hand_over(self, owner, hold, call)
            self._finish_release(owner, hold, call, count, reply)
        except BaseException:
            call.hands_over = False
            self.release_in_background(owner, hold, call)
            raise
        finally:
            in_flight.leave(hold_key, call)
        if hold.state is LOST:
            raise self.loss_of(owner, hold)
        if tracing.debug:
            logger.debug("%s is released: %d holds remain", self.named(owner), hold.count)

    def choose_successor(self, releaser: ReleaseCall) -> object | None:
        """Whom the release of a last level enters in the same step, of the waiters of this client. None: nobody."""
        return hand_over.choose_successor(self, releaser)

    def on_released(self, reply: Reply) -> None:
        """The last level was released, and not handed on."""
        hand_over.on_released(self, reply)

    async def _wait_to_release(self, owner: Owner, hold: Hold, call: ReleaseCall) -> bool:
        """Waits for earlier calls of the owner. False: the release was handed to the background instead."""
        if self.session.runtime.blocking and owner.calls.in_flight.is_on_this_thread(hold.key):
            # A finalizer runs this in the middle of another call on this thread: waiting for that would be a deadlock.
            self.release_in_background(owner, hold, call)
            return False
        return await owner.calls.wait_for_turn(self.session.runtime, hold.key, call, self.key, None)

    async def send_release(
        self, owner: Owner, hold: Hold, payload: bytes, problem: NoReply | RedisError | None = None
    ) -> Reply:
        """Sends a release, again after a `problem`. The reply is None if the server didn't know the hold."""
        runtime = self.session.runtime
        # An earlier copy may have released the last level; then the second copy finds nothing.
        if_done = (lambda reply: LOCK_FREE if reply is None else reply) if hold.state is RELEASING else None
        reply, _ = await self.retry_release(owner, hold, runtime, payload, problem, if_done, owner.new_epoch)
        return reply

    async def retry_release(
        self,
        owner: Owner,
        hold: Hold,
        sender: Sender,
        payload: bytes,
        problem: NoReply | RedisError | None,
        reply_if_done: Callable[[Reply], Reply] | None,
        on_doubt: Callable[[], None],
    ) -> tuple[Reply, float]:
        """Sends a command that releases a level, as `retry.send`. Returns the reply, and when the copy was sent."""
        session = self.session

        def if_done(reply: Reply) -> Reply:
            return reply_if_done(reply) if reply_if_done and session.server_may_know(hold, payload) else reply

        try:
            return await retry.send(
                sender,
                payload,
                failure=problem,
                retries=session.retries,
                # The lease has ended by then. The retry at once, after a lost reply, is made all the same. A pause ends
                # at this moment at the latest, for the last retry; no pause begins after it.
                expires=hold.valid_until,
                reply_if_done=if_done,
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
        """The error for a hold that was lost, or that another call has released: then it asks who holds the lock."""
        if hold.state is LOST and hold.count:
            return self.loss_of(owner, hold)
        return await self.not_held_error(owner)

    def release_in_background(self, owner: Owner, hold: Hold, call: ReleaseCall) -> None:
        """Releases one level of a hold: here at once, on the server in the background. Idempotent after interrupts."""
        self.session.holds.drop_level(hold, call)
        if not call.reported:
            self._post_count(owner, hold, hold.count)
            call.reported = True
        if call.successor is not None:
            hand_over.abandon(call)
        if self.session.lock_queues:
            hand_over.forget_if_idle(self.session, self.identity)
        if self.session.observing is not None and hold.state is not HELD:
            # An interrupt may have prevented the call of the listener.
            self.session.observing.hold_ended(hold)

    def _post_count(self, owner: Owner, hold: Hold, count: int) -> None:
        """Sends in the background how many levels of this hold remain.

        The command may run late. Three things keep it away from a newer hold of the owner:
        1. The new epoch: an acquire that is prepared from now on has another name on the server.
        2. `overtaken`: an acquire whose command has the old name, and may be on its way, is undone and repeated.
        3. The check of the table: nothing is sent if a newer hold with the same name was recorded already. A lost hold
           is an older one, or of no use any more.
        """
        owner.new_epoch()
        call = owner.calls.in_flight.current_call(hold.key)
        if isinstance(call, AcquireCall):
            call.overtaken = True
        present = self.session.holds.table.get(hold.key)
        if present is None or present is hold or present.owner != hold.owner or present.state is LOST:
            self.session.runtime.post(self.commands.release(hold.owner, count, late=True))

    # After an acquire

    def record(self, call: AcquireCall, hold_key: HoldKey, valid_until: float) -> bool:
        """Adds a level to the target, or a new hold. False: the target was released meanwhile, in the background."""
        session, target = self.session, call.target
        if session.holds.handed_off:
            session.holds.handed_off.pop(hold_key, None)
        if call.lease.__class__ is RenewedLease:
            call.lease = call.lease.begin(call.sent_at)
        if target is not None:
            if target.add_level(call, valid_until, HELD):
                session.watchdog.watch_nested(target, call.sent_at)
                return True
            if target.state is not LOST:
                return False
            # Lost while the command was on its way, and it stays lost: the server has granted a new hold.
        if session.holds.begin_hold(call, hold_key, self.commands, valid_until, session.watchdog):
            return True
        hold = Hold(hold_key, self.commands, call.name, call.lease, valid_until, HELD)
        session.holds.add(hold, call)
        if call.overtaken:
            # The background release has the same name, and may run after this acquire.
            self.release_acquired(call)
            return False
        session.watchdog.watch(hold, call.sent_at)
        return True

    # For the log and the observer. In the caller's own thread or task, also after a hand-over by another one.

    def _tell_waiting(self, call: AcquireCall) -> None:
        """The call was refused, or comes behind others of its client."""
        session = self.session
        if tracing.debug:
            logger.debug("owner %s waits for %s", readable(call.owner.name), self.label)
        if session.observing is not None:
            # A call that has made no attempt begins now.
            call.began = call.began or call.sent_at or session.clock()
            session.observing.wait_begins(call, self.commands, call.owner.id)

    def _tell_end(self, call: AcquireCall, *, acquired: bool, error: BaseException | None = None) -> None:
        observing, owner_id = self.session.observing, call.owner.id
        if tracing.debug:
            logger.debug("%s %s", self.named(call.owner), end_of_acquire("is", acquired=acquired, error=error))
        if observing is None:
            return
        if not acquired:
            what, began = "timed_out" if error is None else "failed", call.began or call.sent_at
            observing.call_ended(what, call, self.commands, owner_id, began=began, error=error)
        elif call.hold is not call.target:
            observing.acquired(call, self.commands, owner_id, call.hold, began=call.began)
        elif observing.is_waiting(call):
            # Another level of a hold.
            observing.call_ended("acquired", call, self.commands, owner_id, began=call.began)

    # Undoing an acquire. `undo_acquire` is sent if no Hold was recorded, `release` if one was. So a kind of lock whose
    # acquire has a further effect on the server must undo it in both commands.

    def undo_grant(self, call: AcquireCall) -> None:
        """Undoes in the background what the server granted and must not be used."""
        call.owner.new_epoch()
        self.session.runtime.post(self.commands.undo_acquire(call.name))

    def undo_entry(self, waiter: LockWaiter) -> None:
        """Undoes in the background a hand-over that may have entered the waiter, or may do so late."""
        self.undo_grant(waiter.call)

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
