"""The semaphore whose permits have ids and leases: a string with the number of free permits, and a sorted set with the
permits in use."""

from __future__ import annotations

from binascii import hexlify, unhexlify
from collections.abc import Iterable, Sequence
from os import urandom

from pyredisson._diagnostics import readable, tracing
from pyredisson._protocol.replication import NotConfirmed
from pyredisson._protocol.replies import Reply
from pyredisson.errors import PermitNotHeldError
from pyredisson.logic import retry
from pyredisson.logic.holds import HELD, LOST, Hold, HoldKey
from pyredisson.logic.permits import permit_wait
from pyredisson.logic.permits.commands import ENDLESS, ID_BYTES, IN_USE, Listing, PermitCommands
from pyredisson.logic.permits.counter import PermitPool
from pyredisson.logic.permits.permit_wait import PermitCall, Refusal
from pyredisson.logic.session import Session

SOME_ENDED = -2
"""In the reply of an acquire: an earlier copy has acquired the permits, and some of them have ended since."""
NO_SEMAPHORE = -3
"""In the reply of an acquire: there is no semaphore."""


class ExpirableAcquire(PermitCall):
    """One acquire. All its attempts use the same ids, so it acquires its permits once, however often it is sent."""

    __slots__ = ("_in_doubt", "_lease", "_may_have_acquired", "ids", "sent_at")

    pool: PermitExpirableSemaphoreLogic

    def __init__(self, pool: PermitExpirableSemaphoreLogic, permits: int, lease: int, deadline: float | None) -> None:
        super().__init__(pool, permits, deadline)
        self.ids = _new_ids(permits)
        self.sent_at = 0.0
        """When the command was sent that acquired the permits: their leases don't begin before that."""
        self._lease = lease
        self._in_doubt = False
        """Whether a copy with the present ids may have run, or may run late."""
        self._may_have_acquired = False
        """Whether permits with the present ids may exist on the server, now or later."""

    async def attempt(self, listing: Listing) -> Refusal | None:
        """One attempt. None: acquired."""
        clock = self.pool.session.clock
        while True:
            reply, sent_at = await self._send(listing)
            if reply is None:
                if self._lease < 0 or clock() < sent_at + self._lease / 1000:
                    if self._in_doubt:
                        self._note_doubt()
                    self.sent_at = sent_at
                    return None
                # The reply came after the end of the lease, so another caller may have the permits by now.
                self._release_and_renew_ids()
                if self.deadline is not None and clock() >= self.deadline:
                    return Refusal(0, 0.0)
                continue
            milliseconds, free, *place = reply
            self._may_have_acquired = self._in_doubt
            if milliseconds == SOME_ENDED:
                # The reply of the copy that acquired them was lost. The remaining ones are released.
                self._release_and_renew_ids()
                continue
            if milliseconds == NO_SEMAPHORE:
                self.pool.report_missing()
            # 0: a permit ends in this millisecond.
            return Refusal.of(free, max(milliseconds, 1) if milliseconds >= 0 else 0, *place)

    def undo(self) -> None:
        """Releases in the background what may have been acquired, or may be acquired late."""
        if self._may_have_acquired:
            self._note_doubt()
            self.pool.release_in_background(self.ids)

    async def _send(self, listing: Listing) -> tuple[Reply, float]:
        """Sends the command. Returns the reply, and when the command was sent."""
        semaphore = self.pool
        session = semaphore.session
        session.check_open()
        payload = semaphore.commands.acquire(self.ids, self._lease, listing)
        # Before the command is sent: after an interrupt `undo` has to release the permits.
        self._may_have_acquired = True
        try:
            return await retry.send(
                session.expirable_permit_sender,
                payload,
                retries=session.retries,
                deadline=self.deadline,
                on_doubt=self._on_doubt,
            )
        except NotConfirmed as problem:
            raise semaphore.not_confirmed(problem) from None
        except Exception as error:
            self._may_have_acquired = retry.may_have_run(error, self._in_doubt)
            raise

    def _release_and_renew_ids(self) -> None:
        """Releases the permits with the present ids in the background, and goes on with new ids."""
        self._note_doubt()
        self.pool.release_in_background(self.ids)
        self.ids = _new_ids(len(self.ids))
        self._in_doubt = self._may_have_acquired = False

    def _on_doubt(self) -> None:
        self._in_doubt = True

    def _note_doubt(self) -> None:
        """From now on a release of these permits leaves a key on the server, which keeps late copies from running."""
        session = self.pool.session
        session.permits.note_doubt(self.ids[0], session.clock())


def _new_ids(permits: int) -> list[bytes]:
    random = urandom(ID_BYTES * permits)
    return [random[i : i + ID_BYTES] for i in range(0, len(random), ID_BYTES)]


# --- The semaphore


class PermitExpirableSemaphoreLogic(PermitPool):
    """The operations of such a semaphore; numbers, ids and durations were checked before.

    A permit that the watchdog renews is a `Hold`, whose owner is the permit.
    """

    __slots__ = ("_identity",)

    commands_type = PermitCommands
    commands: PermitCommands

    def __init__(self, session: Session, key: bytes, *, must_exist: bool = False) -> None:
        super().__init__(session, key, must_exist=must_exist)
        # Not the bare key: that is the identity of a lock with the same name.
        self._identity = (IN_USE, key)

    # Acquiring

    async def acquire(self, permits: int, lease: int | None, deadline: float | None, renewed: bool) -> list[str]:
        """Waits for so many permits until `deadline` (None: without limit). Returns their ids; empty: not in time.

        The lease is in milliseconds. None: it is endless or, if `renewed`, the watchdog renews it until the release.
        Raises `NotSetError` if the semaphore must exist, but doesn't exist or is deleted during the wait.
        """
        session = self.session
        if not permits:
            session.check_open()
            return []
        if renewed:
            lease = session.lease_ms
        call = ExpirableAcquire(self, permits, ENDLESS if lease is None else lease, deadline)
        try:
            if await permit_wait.acquire(call):
                if renewed:
                    self._renew(call.ids, call.sent_at)
                session.check_open()
                if tracing.on:
                    self.tell_ended("acquired", call, holds=self._holds_of(call.ids))
                return [permit.hex() for permit in call.ids]
        except BaseException as error:
            # A cancellation, an interrupt or the end of the client, perhaps after the permits were acquired.
            call.undo()
            self.tell_ended("failed", call, error)
            raise
        call.undo()
        self.tell_ended("timed_out", call)
        return []

    def _renew(self, ids: Sequence[bytes], sent_at: float) -> None:
        """Has the watchdog renew these permits from now on."""
        session = self.session
        valid_until = sent_at + session.lease_ms / 1000
        for permit in ids:
            hold = Hold(self._hold_key(permit), self.commands, hexlify(permit), None, valid_until, HELD)
            hold.begun = sent_at
            session.holds.table[hold.key] = hold
            session.watchdog.watch(hold, sent_at)

    # Releasing

    async def release(self, ids: Sequence[bytes], must: bool) -> int:
        """Releases all of these permits, or none if one of them is unknown or has expired. Returns how many.

        In the second case it raises `PermitNotHeldError` if `must`. Whatever else it raises, all of the permits that
        exist are released in the background.
        """
        unknown = await self._release(ids)
        if not unknown:
            return len(ids)
        if must:
            names = ", ".join(permit.hex() for permit in unknown)
            raise PermitNotHeldError(f"semaphore {readable(self.key)!r} has no permit in use with id {names}")
        return 0

    async def _release(self, ids: Sequence[bytes]) -> list[bytes]:
        """Releases all of these permits, or none; then returns which are unknown or have expired."""
        session = self.session
        if not ids:
            session.check_open()
            return []

        def reply_if_done(reply: Reply) -> Reply:
            # All are unknown, and an earlier copy may have run: that copy has released them, if the server had them.
            known = all(session.server_may_know(hold, payload) for hold in holds)
            return [] if known and reply and reply[0] == len(ids) else reply

        holds = self._holds_of(ids)
        try:
            session.check_open()
            if lost := self._lost(holds):
                return lost
            payload = self.commands.release(ids, all_or_none=True)
            for hold in holds:
                session.holds.begin_release(hold)
            reply, _ = await retry.send(session.runtime, payload, retries=session.retries, reply_if_done=reply_if_done)
            unknown: list[bytes] = reply[1:]
            for hold in holds:
                self._finish_release(hold, unknown)
            if not unknown:
                session.permits.forget_doubts(ids)
                if tracing.on:
                    self.tell_released(len(ids), len(holds))
            return unknown
        except BaseException:
            self.release_in_background(ids)
            for hold in holds:
                # An interrupt may have struck when it was out of the table already.
                session.holds.discard(hold)
                if session.observing is not None:
                    session.observing.hold_ended(hold)
            self.tell_released(len(ids), len(holds))
            raise

    def _lost(self, holds: Sequence[Hold]) -> list[bytes]:
        """The permits that are known to be lost. Any of them that still exist are released in the background."""
        lost = [hold for hold in holds if self.session.holds.expire_if_due(hold) and hold.state is LOST]
        ids = [unhexlify(hold.owner) for hold in lost]
        if ids:
            self.release_in_background(ids)
        return ids

    def _finish_release(self, hold: Hold, unknown: Iterable[bytes]) -> None:
        """Ends the release of a hold: it was done if `unknown` is empty, else refused because of these permits."""
        holds = self.session.holds
        if not unknown:
            holds.discard(hold)
        elif unhexlify(hold.owner) in unknown:
            holds.declare_lost_on_release(hold)
            holds.discard(hold)
        else:
            self._cancel_release(hold)

    def _cancel_release(self, hold: Hold) -> None:
        session = self.session
        if session.holds.cancel_release(hold):
            session.watchdog.watch(hold, hold.valid_until - session.lease_ms / 1000)

    def release_in_background(self, ids: Sequence[bytes]) -> None:
        """Releases the permits, as far as they exist: here at once, on the server in the background. Idempotent."""
        session = self.session
        for hold in self._holds_of(ids):
            session.holds.discard(hold)
        session.runtime.post(self.commands.release(ids, all_or_none=False))
        # After the command was made, which reads them.
        session.permits.forget_doubts(ids)

    # Leases

    async def lease_left(self, permit: bytes) -> int:
        """The remaining lease of a permit in ms, or `ENDLESS`. Raises `PermitNotHeldError` if there is none."""
        remaining: int | None = await self.query(self.commands.read_lease(permit))
        if remaining is None:
            raise PermitNotHeldError(f"semaphore {readable(self.key)!r} has no permit in use with id {permit.hex()}")
        return remaining

    async def update_lease(self, permit: bytes, lease: int | None) -> bool:
        """Sets a lease of so many ms from now on (None: endless), and ends the renewal. False: unknown or expired."""
        session, holds = self.session, self._holds_of((permit,))
        try:
            for hold in holds:
                # Stops the renewal, which would set the lease of the watchdog again.
                session.holds.begin_release(hold)
            payload = self.commands.update_lease(permit, ENDLESS if lease is None else lease)
            known = await self.query(payload) is not None
            for hold in holds:
                if known and session.observing is not None:
                    # The permit isn't released yet.
                    session.observing.forget(hold)
                self._finish_release(hold, () if known else (permit,))
        except BaseException:
            # The lease may be the old one or the new one. With a renewal the permit doesn't end in either case.
            for hold in holds:
                self._cancel_release(hold)
            raise
        return known

    # Other operations

    async def counts(self) -> tuple[int | None, int]:
        """The number of free permits (None: there is no semaphore), and of permits in use."""
        free, in_use = await self.query(self.commands.count())
        return free, in_use

    async def set(self, permits: int) -> None:
        """Sets the number of permits, free and in use together."""
        await self.once(lambda slot: self.commands.set(slot, permits))

    def _hold_key(self, permit: bytes) -> HoldKey:
        return self._identity, int.from_bytes(permit)

    def _holds_of(self, ids: Sequence[bytes]) -> list[Hold]:
        """The holds of those permits that the watchdog renews."""
        found = map(self.session.holds.table.get, map(self._hold_key, ids))
        return [hold for hold in found if hold is not None]
