"""The re-entrant lock: acquiring it, also when the outcome of a command is in doubt. Releasing it: `releasing`."""

from collections.abc import Coroutine
from typing import Any

from redis.exceptions import InvalidResponse, RedisError, TryAgainError

from pyredisson._core import AcquireCall
from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replication import NotConfirmed
from pyredisson._protocol.replies import NoReply, Reply
from pyredisson.errors import LockAlreadyHeldError
from pyredisson.logic import retry
from pyredisson.logic.holds import HELD, LOST, Hold, HoldKey
from pyredisson.logic.locks.commands import HOLD_GONE, NOT_FINISHED
from pyredisson.logic.locks.moving import MovingLock
from pyredisson.logic.locks.queued_wait import LockWaiter, QueuedWait
from pyredisson.logic.owners import Owner
from pyredisson.logic.retry import not_replicated

TRY_AGAIN = -1.0
"""The result of an attempt after which the next one is made at once. Compared by identity; no wait is negative."""


class LockLogic(MovingLock):
    """Acquires and releases a lock; owners and durations were checked before. CONTRIBUTING.md adds a kind of lock."""

    __slots__ = ()

    checks_owner = False
    """Whether `check_owner` is to be called before each attempt."""
    is_handed_on = True
    """Whether the waiters of one client are in a `LocalQueue`, in the order of which a release hands the lock on."""
    call_type: type[AcquireCall] = AcquireCall
    waiter_type: type[LockWaiter] = QueuedWait
    order_in_group = 0
    """Of locks with the same name, a group acquires those with the lowest number first."""

    def check_owner(self, owner: Owner) -> None:
        """Raises if this owner must not acquire the lock."""

    # Acquiring: prepare, send, apply what the server granted; or wait and make another attempt.

    def acquire(self, owner: Owner, lease: int | None, deadline: float | None) -> Coroutine[Any, Any, bool]:
        """Waits for the lock until `deadline` (None: without limit). False: it was not acquired by then.

        The lease is in milliseconds; None: the watchdog renews it until the lock is released.
        """
        return self._acquire(self.new_call(owner, lease, deadline))

    def new_call(self, owner: Owner, lease: int | None, deadline: float | None) -> AcquireCall:
        if lease is not None and owner.name == owner.renewed_name:
            # A renewal of an earlier hold may be on its way. It would lengthen the fixed lease.
            owner.new_epoch()
        return self.call_type(owner, lease, deadline)

    async def _acquire(self, call: AcquireCall) -> bool:
        session = self.session
        if call.lease is None:
            call.lease = self.renewal
        try:
            wait, acquired = None, False
            joins = session.lock_queues and self.is_handed_on and self._joins_at_once(call)
            if not joins:
                if self.is_handed_on and session.channels.by_name:
                    call.events = session.channels.events(self.commands.waiting_channel)
                wait = await self._attempt(call)
                acquired = wait is None
            if not acquired and (joins or call.deadline is None or session.clock() < call.deadline):
                if tracing.on:
                    self._tell_waiting(call)
                acquired = await self._wait(call, wait)
            if call.member and not acquired:
                self._leave_list(call)
            if tracing.on:
                self._tell_end(call, acquired=acquired)
            return acquired
        except BaseException as error:
            # A cancellation, an interrupt or the end of the client after the lock was acquired.
            self.release_acquired(call)
            if call.member:
                self._leave_list(call)
            # An answer, and no failure, see `retry`: the lock was not acquired in time.
            refused = isinstance(error, TryAgainError)
            if tracing.on:
                self._tell_end(call, acquired=False, error=None if refused else error)
            if refused:
                return False
            raise

    async def _wait(self, call: AcquireCall, wait: float | None) -> bool:
        """Waits until the lock is acquired. `wait`: the result of the first attempt, in seconds; None: it made none."""
        while True:
            waiter = self.waiter_type(self, call, self.commands.waiting_channel)
            try:
                if not await waiter.run(wait):
                    return False
            except BaseException:
                # An interrupt may have come on the way out, before the waiter had left.
                waiter.end()
                raise
            if call.hold.valid_until > self.session.clock():
                return True
            # The lock was handed on, and the caller goes on so late that the lease has ended: the same as for an
            # attempt of its own, see `_apply`.
            logger.info("lock %r was handed on, and its lease has ended: it is released", readable(self.key))
            self._release_late_entry(call)
            wait = 0.0

    def _release_late_entry(self, call: AcquireCall) -> None:
        """Releases what a release has acquired for the call, whose lease has ended. An attempt is due."""
        self.release_acquired(call)

    def _leave_list(self, call: AcquireCall) -> None:
        """The call waits no longer, and an attempt of its own may have entered its client in the list. Idempotent."""
        queue = self.session.lock_queues.get(self.identity)
        if queue is not None and queue.waiters and queue.member == call.member:
            # The place is theirs now.
            queue.listed = True
        else:
            if queue is not None and queue.member == call.member:
                queue.member = self.session.new_member()
            self.session.leave_list(self.commands.leave_list(call.member))
        # An interrupt before this line repeats the command.
        call.member = b""

    def _joins_at_once(self, call: AcquireCall) -> bool:
        """Whether the call waits behind others of its client before it makes any attempt."""
        queue = self.session.lock_queues.get(self.identity)
        return queue is not None and bool(queue.waiters or queue.is_held) and self.may_wait(call)

    def may_wait(self, call: AcquireCall) -> bool:
        """False: the call has no time to wait, or its owner has a hold, by which the server may grant it another."""
        session = self.session
        if not session.local_hand_over_time or (call.deadline is not None and call.deadline <= session.clock()):
            return False
        for identity in self._identities():
            hold = session.holds.table.get((identity, call.owner.id))
            if hold is not None and hold.state is not LOST:
                return False
        return True

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
            payload = None
            try:
                if not in_flight.enter(hold_key, call) and not await call.owner.calls.wait_for_turn(
                    session.runtime, hold_key, call, self.key, call.deadline
                ):
                    return 0.0
                payload = self._prepare(call, hold_key)
                # The first try is spelled out here and in `release`: each coroutine would cost some percent in asyncio.
                try:
                    reply = await session.lock_sender.send(payload)
                except (NoReply, RedisError) as problem:
                    reply, call.sent_at = await self._send_again(call, payload, problem)
                if reply is None or reply.__class__ is list:
                    wait = self._apply(call, hold_key, reply)
                elif (remaining := reply if reply.__class__ is int else note_place(call, reply)) is not None:
                    wait = self._refused(call, remaining)
                else:
                    raise InvalidResponse(f"an acquire of lock {readable(self.key)!r} was answered with {reply!r}")
            except BaseException as error:
                if payload is not None and call.hold is None and retry.may_have_run(error, call.in_doubt):
                    self._undo_attempt(call, hold_key)
                else:
                    call.member = b""
                if isinstance(error, NotConfirmed):
                    raise not_replicated(self.named(call.owner), error) from None
                raise
            finally:
                in_flight.leave(hold_key, call)
            if wait is not TRY_AGAIN:
                return wait

    async def _send_again(
        self, call: AcquireCall, payload: bytes, problem: NoReply | RedisError
    ) -> tuple[Reply, float]:
        def on_doubt() -> None:
            call.in_doubt = True
            call.owner.new_epoch()

        session = self.session
        if not call.began:
            call.began = call.sent_at
        return await retry.send(
            session.lock_sender,
            payload,
            failure=problem,
            retries=session.retries,
            deadline=call.deadline,
            on_doubt=on_doubt,
        )

    def _prepare(self, call: AcquireCall, hold_key: HoldKey) -> bytes:
        """Decides whether the acquire adds a level to a hold or begins a new one; returns its command."""
        session, owner = self.session, call.owner
        if self.checks_owner:
            self.check_owner(owner)
        ended = session.holds.begin_attempt(call, hold_key, session.lease_ms)
        if ended is not None:
            session.holds.expire_if_due(ended)
            if ended.state is not LOST:
                # Its release is on its way, and must not reach the hold that is acquired now.
                owner.new_epoch()
            # A release that was posted meanwhile has begun another epoch: this acquire gets its name below.
            call.overtaken = False
        target = call.target
        if target is None:
            count, call.name = 1, self.name_for(call) + self.commands.owner_suffix
        else:
            count, call.name = target.count + 1, target.owner
        commands = self.commands
        waits = call.deadline is None or call.sent_at < call.deadline
        if not commands.has_list:
            return commands.acquire(call.name, count, call.lease_ms, waits=waits)
        call.place, member = -1, session.list_member(self.identity)
        if waits:
            call.member = member
        return commands.acquire(call.name, count, call.lease_ms, waits=waits, member=member)

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
            call.began = call.began or call.sent_at
            self.undo_grant(call)
            if call.deadline is not None and session.clock() >= call.deadline:
                return 0.0
            return TRY_AGAIN
        if not self.record(call, hold_key, valid_until):
            self.undo_grant(call)
            return TRY_AGAIN
        # The command that acquires the lock takes its client out of the list.
        call.member = b""
        if session.closed:
            session.check_open()
        return None

    def _refused(self, call: AcquireCall, reply: int) -> float:
        """What to do after a reply that isn't a success: `TRY_AGAIN`, or how many seconds to wait."""
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

    # Other operations

    async def extend_hold(self, owner: Owner, lease: int) -> None:
        """Makes the owner's hold last for so many ms from now on, at least. Raises if it has none, or has lost it."""
        hold = self.hold_of(owner.id)
        if hold is None:
            raise await self.not_held_error(owner)
        if not await self.extend(hold, lease):
            if hold.state is LOST:
                raise self.loss_of(owner, hold)
            raise await self.not_held_error(owner)

    async def extend(self, hold: Hold, lease: int) -> bool:
        """The same for this hold, but not beyond its limit. False: it is not held any more.

        After an error the server may have done it. The command never shortens a lease, and changes nothing for an owner
        that doesn't hold the lock. Where a copy may run late, the next hold of the owner has another name.
        """
        session, owner, runtime = self.session, hold.acquired_by, self.session.runtime
        session.check_open()
        if session.holds.expire_if_due(hold) or owner is None:
            return False
        lease = hold.within_limit(lease, session.clock())
        payload = hold.commands.restore(runtime.scripts, (hold,), lease)
        try:
            (known,), sent_at = await retry.send(runtime, payload, retries=session.retries, on_doubt=owner.new_epoch)
        except BaseException as error:
            if retry.may_have_run(error, False):
                owner.new_epoch()
            raise
        if known != 1:
            session.holds.declare_lost(hold)
            return False
        if hold.lengthen(lease, sent_at + lease / 1000, HELD):
            return True
        if hold.state is LOST:
            # Its lease had ended here before the reply came: on the server it must not last for the new one.
            self._post_count(owner, hold, 0)
        return False

    async def delete(self) -> bool:
        """Removes everything that the lock has on the server; returns whether it was held."""
        return await self.force_release()

    async def force_release(self) -> bool:
        """Removes the lock, with both sides of a read-write lock, whoever holds it; returns whether it was held."""
        return await self._remove(self.commands.force_release(), "force_unlock()")

    async def _remove(self, payload: bytes, operation: str) -> bool:
        table = list(self.session.holds.table.values())
        taken = [hold for identity in self._identities() for hold in table if hold.key[0] == identity]
        # Not sent again: a second run may remove the hold of the next owner.
        removed = bool(await self._query(payload, idempotent=False) == 1)
        for hold in taken if removed else ():
            side = "" if hold.key[0] == self.identity else " of the other side"
            self.session.holds.declare_lost(hold, f"it was taken away by {operation}{side}")
        return removed


def note_place(call: AcquireCall, reply: Reply) -> int | None:
    """Notes what a refusal says to a call that waits, see `wait_in_list.lua`. Returns the ms. None: no refusal."""
    numbers = reply.split() if reply.__class__ is bytes else ()
    if len(numbers) != 3 or not all(number.removeprefix(b"-").isdigit() for number in numbers):
        return None
    remaining, call.place, foreign = map(int, numbers)
    call.foreign = foreign == 1
    return remaining


# --- The lock that its holder can't acquire again


class NonReentrantLockLogic(LockLogic):
    """A lock that refuses its holder. As the first base class it makes another kind of lock non-re-entrant."""

    __slots__ = ()

    checks_owner = True

    @property
    def moved_kind(self) -> str:
        return f"non-reentrant {super().moved_kind}"

    def check_owner(self, owner: Owner) -> None:
        hold = self.session.holds.valid((self.identity, owner.id))
        if hold is not None:
            raise LockAlreadyHeldError(f"{self.label} is held already by its owner {readable(hold.owner)}")
