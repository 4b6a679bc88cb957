"""The semaphore whose permits have ids and leases: a string with the free ones, a sorted set with those in use."""

from __future__ import annotations

from binascii import hexlify, unhexlify
from collections.abc import Iterable, Sequence

from pyredisson._core import command, pack, prefixed, suffixed
from pyredisson._diagnostics import readable
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.errors import PermitNotHeldError
from pyredisson.logic import exactly_once, retry, waiting
from pyredisson.logic.holds import HELD, LOST, Hold, HoldKey
from pyredisson.logic.permits.claims import Claimant, claim_key, turn_key
from pyredisson.logic.permits.expirable_acquire import Attempt, ExpirablePermitChannel
from pyredisson.logic.permits.semaphore import CHANNEL
from pyredisson.logic.session import Session

IN_USE = b"timeout"
"""What follows a semaphore's name in that of its permits in use."""
WITHDRAWN = b"pyredisson_permit_withdrawn"
ENDLESS = -1


def renew_permits(scripts: ScriptSet, holds: Sequence[Hold], lease: int) -> bytes:
    """The command that extends the leases of permits, of whatever semaphores."""
    return command(
        b"EVALSHA",
        scripts.permit_renew,
        len(holds),
        *[suffixed(hold.commands.key, IN_USE) for hold in holds],
        lease,
        *[unhexlify(hold.owner) for hold in holds],
    )


class PermitCommands:
    """The commands of one semaphore whose permits have ids and leases."""

    __slots__ = ("_claim", "_claims_period", "channel", "in_use", "key", "session")

    renew = staticmethod(renew_permits)
    renews_fixed_leases = False

    def __init__(self, session: Session, key: bytes) -> None:
        self.session = session
        self.key = key
        self.in_use = suffixed(key, IN_USE)
        """The key of the permits in use."""
        self.channel = prefixed(CHANNEL, key)
        self._claim = claim_key(key)
        self._claims_period = turn_key(key)

    def acquire(self, ids: Sequence[bytes], lease: int, claimant: bytes = b"") -> bytes:
        """Takes permits with these ids, or none; idempotent. Its reply is None if they were taken.

        Else after how many ms to ask again (-1: when there is a message), and how many are free. What can't be
        taken is claimed for the waiter `claimant`, if that is named.
        """
        return command(
            b"EVALSHA",
            self.session.runtime.scripts.permit_acquire,
            5,
            self.key,
            self.in_use,
            self._withdrawn(ids[0]),
            self._claim,
            self._claims_period,
            self.channel,
            lease,
            claimant,
            *ids,
        )

    def release(self, ids: Sequence[bytes], *, all_or_none: bool) -> bytes:
        """Gives back permits; idempotent. No late copy of their acquire takes them after this.

        Its reply is empty if that was done, else how many of them are unknown, and which are unknown or have ended.
        """
        doubtful = self.session.permits.in_doubt
        withdrawn = [self._withdrawn(permit) for permit in ids if permit in doubtful]
        return command(
            b"EVALSHA",
            self.session.runtime.scripts.permit_release,
            2 + len(withdrawn),
            self.key,
            self.in_use,
            *withdrawn,
            self.channel,
            int(all_or_none),
            *ids,
        )

    def abandon(self, hold: Hold) -> bytes:
        """What gives back the permit of that hold, when the client is closed."""
        return self.release([unhexlify(hold.owner)], all_or_none=False)

    def wake_waiters(self) -> None:
        """Waiters look often enough: a permit that is gone frees none where the semaphore is gone too."""

    def _withdrawn(self, permit: bytes) -> bytes:
        return prefixed(WITHDRAWN, self.key) + b":" + hexlify(permit)


class PermitExpirableSemaphoreLogic:
    """What such a semaphore does; numbers, ids and durations come in checked.

    The ids are made here, so an acquire that is executed twice takes its permits once. A permit that the watchdog
    renews is a `Hold` whose owner is the permit.
    """

    __slots__ = ("_identity", "_memory", "commands", "key", "must_exist", "session")

    def __init__(self, session: Session, key: bytes, *, must_exist: bool = False) -> None:
        self.session = session
        self.must_exist = must_exist
        self.key = key
        self.commands = PermitCommands(session, key)
        self._memory = exactly_once.memory(key)
        # Not the key alone, by which a lock of that name would be found.
        self._identity = (IN_USE, key)

    async def acquire(self, permits: int, lease: int | None, deadline: float | None, renewed: bool) -> list[str]:
        """Waits for so many permits until `deadline` (None: as long as it takes); their ids. Empty: not had in time.

        The lease is in milliseconds; None: endless or, if `renewed`, kept by the watchdog until given back. Raises
        `NotSetError` if the semaphore must exist, and doesn't or ceases to.
        """
        session = self.session
        if not permits:
            session.check_open()
            return []
        if renewed:
            lease = session.lease
        attempt = Attempt(self, permits, ENDLESS if lease is None else lease, deadline)
        try:
            busy = await attempt.take()
            had = busy is None
            if busy is not None and (deadline is None or session.clock() < deadline):
                claimant = attempt.claimant = Claimant(session, self.key, self.commands.channel, permits)
                had = await waiting.until(
                    session,
                    self.commands.channel,
                    attempt.take_again,
                    claimant.rest(busy),
                    deadline,
                    channel_class=ExpirablePermitChannel,
                    need=permits,
                    wakeup=claimant.wakeup,
                )
            if had:
                if renewed:
                    self._keep(attempt.ids, attempt.sent_at)
                if session.closed:
                    session.check_open()
                return [permit.hex() for permit in attempt.ids]
        except BaseException:
            attempt.give_up()
            raise
        attempt.give_up()
        return []

    async def release(self, ids: Sequence[bytes], must: bool) -> int:
        """Gives back all of these permits; or none if one is unknown or has ended: then raises if it `must`.

        How many were given back. Whatever else it raises, what is there of them is given back in the background.
        """
        gone = await self._release(ids)
        if not gone:
            return len(ids)
        if must:
            names = ", ".join(permit.hex() for permit in gone)
            raise PermitNotHeldError(f"semaphore {readable(self.key)!r} has no permit in use with id {names}")
        return 0

    async def _release(self, ids: Sequence[bytes]) -> list[bytes]:
        """Gives back all of these permits; or none, and says which are unknown or have ended."""
        session = self.session
        if not ids:
            session.check_open()
            return []

        def given_back(reply: Reply) -> Reply:
            # All unknown after a doubt: an earlier copy has given them back.
            return [] if reply and reply[0] == len(ids) else reply

        holds = self._holds_of(ids)
        try:
            session.check_open()
            if lost := self._lost(holds):
                return lost
            payload = self.commands.release(ids, all_or_none=True)
            for hold in holds:
                session.holds.begin_release(hold)
            reply, _ = await retry.send(session.runtime, payload, attempts=session.attempts, if_done=given_back)
            gone: list[bytes] = reply[1:]
            for hold in holds:
                self._told(hold, gone)
            if not gone:
                session.permits.in_doubt.difference_update(ids)
            return gone
        except BaseException:
            self.release_in_background(ids)
            raise

    def _lost(self, holds: Sequence[Hold]) -> list[bytes]:
        """Which of them are known to be lost; what may be left of those is given back in the background."""
        lost = [hold for hold in holds if self.session.holds.expire_if_due(hold) and hold.state is LOST]
        ids = [unhexlify(hold.owner) for hold in lost]
        if ids:
            self.release_in_background(ids)
        return ids

    def release_in_background(self, ids: Sequence[bytes]) -> None:
        """Gives back what is there of these permits: here at once, on the server in the background. Idempotent."""
        session = self.session
        for hold in self._holds_of(ids):
            session.holds.discard(hold)
        session.runtime.post(self.commands.release(ids, all_or_none=False))
        session.permits.in_doubt.difference_update(ids)

    async def lease_left(self, permit: bytes) -> int:
        """How many ms a permit lasts; `ENDLESS`. Raises if it is unknown or has ended."""
        left: int | None = await self._call(
            command(b"EVALSHA", self.session.runtime.scripts.permit_lease, 1, self.commands.in_use, permit)
        )
        if left is None:
            raise PermitNotHeldError(f"semaphore {readable(self.key)!r} has no permit in use with id {permit.hex()}")
        return left

    async def update_lease(self, permit: bytes, lease: int | None) -> bool:
        """Sets how many ms a permit lasts from now on (None: for ever), renewed no more; False: it isn't held."""
        scripts = self.session.runtime.scripts
        payload = command(
            b"EVALSHA", scripts.permit_lease, 1, self.commands.in_use, permit, ENDLESS if lease is None else lease
        )
        holds = self._holds_of((permit,))
        try:
            for hold in holds:
                self.session.holds.begin_release(hold)
            held = await self._call(payload) is not None
            for hold in holds:
                self._told(hold, () if held else (permit,))
        except BaseException:
            # It may last as long as before, or as long as was asked for: in neither case may it end meanwhile.
            for hold in holds:
                self._resume(hold)
            raise
        return held

    async def counts(self) -> tuple[int | None, int]:
        """How many permits are free (None: there is no such semaphore), and how many in use."""
        free, used = await self._call(
            pack(self.session.runtime.scripts.permit_count, self.key, self.commands.in_use, self.commands.channel)
        )
        return free, used

    async def try_set(self, permits: int) -> bool:
        """Makes the semaphore if there is none."""
        self.session.check_open()
        slot = self.session.slots.take()
        payload = pack(
            self.session.runtime.scripts.semaphore_set,
            self.key,
            self._memory + slot.suffix,
            slot.number,
            permits,
            0,
            self.commands.channel,
        )
        return bool(await self.session.slots.call(slot, payload))

    async def set(self, permits: int) -> None:
        """Makes it so many permits, whether free or in use."""
        self.session.check_open()
        slot = self.session.slots.take()
        payload = pack(
            self.session.runtime.scripts.permit_set,
            self.key,
            self.commands.in_use,
            self._memory + slot.suffix,
            slot.number,
            permits,
            self.commands.channel,
        )
        await self.session.slots.call(slot, payload)

    async def add(self, permits: int) -> None:
        """Makes it so many permits more."""
        self.session.check_open()
        if permits:
            slot = self.session.slots.take()
            payload = pack(
                self.session.runtime.scripts.semaphore_add,
                self.key,
                self._memory + slot.suffix,
                slot.number,
                permits,
                self.commands.channel,
                0,
            )
            await self.session.slots.call(slot, payload)

    async def delete(self) -> bool:
        """Removes the semaphore, with all permits in use; was there one."""
        session = self.session
        session.check_open()
        slot = session.slots.take()
        payload = exactly_once.delete_command(
            session.runtime.scripts, slot, self._memory, self.commands.channel, b"", self.key, self.commands.in_use
        )
        return bool(await session.slots.call(slot, payload))

    async def _call(self, payload: bytes) -> Reply:
        session = self.session
        session.check_open()
        reply, _ = await retry.send(session.runtime, payload, attempts=session.attempts)
        return reply

    def _hold_key(self, permit: bytes) -> HoldKey:
        return self._identity, int.from_bytes(permit)

    def _holds_of(self, ids: Sequence[bytes]) -> list[Hold]:
        """Those of them that are renewed."""
        found = map(self.session.holds.table.get, map(self._hold_key, ids))
        return [hold for hold in found if hold is not None]

    def _keep(self, ids: Sequence[bytes], sent_at: float) -> None:
        """Has them renewed from now on."""
        session = self.session
        ends = sent_at + session.lease / 1000
        for permit in ids:
            hold = Hold(self._hold_key(permit), self.commands, hexlify(permit), None, ends, HELD)
            session.holds.add_permit(hold)
            session.watchdog.watch(hold, sent_at)

    def _resume(self, hold: Hold) -> None:
        session = self.session
        if session.holds.cancel_release(hold):
            session.watchdog.watch(hold, hold.valid_until - session.lease / 1000)

    def _told(self, hold: Hold, gone: Iterable[bytes]) -> None:
        """What becomes of a paused hold: the server was done with it, or refused because of these."""
        if not gone:
            self.session.holds.discard(hold)
        elif unhexlify(hold.owner) in gone:
            self.session.holds.declare_lost_on_release(hold)
            self.session.holds.discard(hold)
        else:
            self._resume(hold)
