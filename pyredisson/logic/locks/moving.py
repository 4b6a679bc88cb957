"""Moving a hold to another client: its owner hands it off, and of all that get the token, one adopts it.

In between the hold belongs to an owner of its own on the server, whose name is in the token and is used once. Nobody
renews it, so it ends with its lease if nobody adopts it. One command moves the hold from the former owner to that name,
and another one from there to the owner that adopts it, whose name is used once, too. So no late copy of either finds a
hold of later.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple
from uuid import uuid4

from pyredisson._core import AcquireCall, ReleaseCall
from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replication import NotConfirmed
from pyredisson._settings.durations import MAX_LEASE_MS
from pyredisson.errors import LockAlreadyHeldError, LockNotHeldError, NotReplicatedError
from pyredisson.logic import retry
from pyredisson.logic.holds import HAND_OFF_FAILED, HANDED_OFF, LOST, Hold, HoldKey, RenewedLease
from pyredisson.logic.locks.commands import HAS_BOTH_SIDES
from pyredisson.logic.locks.releasing import ReleasingLock
from pyredisson.logic.owners import Owner
from pyredisson.logic.retry import LIMITED_BY_RETRIES
from pyredisson.owners import FIRST_AUTOMATIC_ID

VERSION = 1
"""Of the token's format."""
KINDS = ("lock", "fair", "fenced", "spin", "read", "write", "non-reentrant lock", "non-reentrant fair")
TOKEN = re.compile("[A-Za-z0-9_-]+")
OWNER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d{10}(:write)?")


class HandedOff(NamedTuple):
    """A hold between two clients, as the token describes it."""

    kind: str
    key: str
    """The lock's key on the server. Bytes that are no UTF-8 are surrogates."""
    hold: str
    """The owner on the server until the hold is adopted."""
    lease: int = 0
    """In ms: what each renewal sets. 0: the lease is fixed."""
    at_most: int = 0
    """In ms: for how long it may still be renewed. 0: without limit."""
    fence: int = 0
    """The fencing token. 0: there is none."""
    name: str = ""
    """The lock's name, if that isn't the key: the former client has a `name_mapper`."""

    def token(self) -> str:
        """As a text: base64 of JSON."""
        fields = {name: value for name, value in self._asdict().items() if value}
        text = json.dumps({"v": VERSION, **fields}, separators=(",", ":"))
        return urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def of(cls, token: str) -> HandedOff:
        """What a token says. `TypeError` if it is no str, `ValueError` if `hand_off` can't have made it."""
        if not isinstance(token, str):
            raise TypeError(f"a token of hand_off() must be str, not {type(token).__name__}")
        try:
            # Python itself passes over other characters, or warns of some.
            text = token if TOKEN.fullmatch(token) else ""
            fields = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            version = fields.pop("v")
            found = cls(**fields)
            known = version == VERSION and found._is_valid()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            known = False
        if not known:
            raise ValueError("this is no token that hand_off() of this version has made")
        return found

    def _is_valid(self) -> bool:
        numbers, texts = self[3:6], (self.key, self.hold, self.name)
        return (
            self.kind in KINDS
            and all(type(text) is str for text in texts)
            and bool(self.key_bytes)
            and OWNER.fullmatch(self.hold) is not None
            and (self.kind == "write") == self.hold.endswith(":write")
            and all(type(number) is int and 0 <= number <= MAX_LEASE_MS * 2 for number in numbers)
        )

    @property
    def key_bytes(self) -> bytes:
        """The lock's key on the server. `ValueError` for a text that no key has."""
        return self.key.encode("utf-8", "surrogateescape")


class MovingLock(ReleasingLock):
    """Moves a hold to another client, and takes one over."""

    __slots__ = ()

    @property
    def moved_kind(self) -> str:
        """The kind of the lock in the token, one of `KINDS`."""
        return self.commands.kind

    # --- By the former owner

    async def hand_off(self, owner: Owner, hold: Hold | None, name: str | bytes | None) -> str:
        """Moves the owner's hold to a name of its own; returns the token. `name`: the lock's; None: it is the key.

        An error that is raised before anything is sent changes nothing. After any other one the hold has ended: what
        the command may have done is undone in the background, and the lock is released.
        """
        session = self.session
        if hold is None:
            raise await self.not_held_error(owner)
        session.check_open()
        call, in_flight = ReleaseCall(), owner.calls.in_flight
        try:
            await owner.calls.wait_for_turn(session.runtime, hold.key, call, self.key, None)
            session.holds.expire_if_due(hold)
            if hold.count > 1 and hold.state is not LOST:
                raise LockAlreadyHeldError(f"{self.named(owner)} can't be handed off: it is held {hold.count} times")
            handed = self._described(hold, name)
            await self._move(owner, hold, call, handed.hold.encode())
        finally:
            in_flight.leave(hold.key, call)
        if hold.state is LOST:
            raise self.loss_of(owner, hold)
        if tracing.debug:
            logger.debug("%s is handed off", self.named(owner))
        return handed.token()

    async def _move(self, owner: Owner, hold: Hold, call: ReleaseCall, nobody: bytes) -> None:
        """Moves the only level of a hold to the name `nobody`, which is used once."""
        session, runtime = self.session, self.session.runtime
        payload = self.commands.move(hold.owner, nobody, hold.next_lease(session.lease_ms, session.clock()))
        # Before: an interrupt may come behind the call.
        sends = True
        try:
            if session.holds.begin_level_release(hold):
                sends = False
                raise await self._find_release_error(owner, hold)
            reply, _ = await self.retry_release(owner, hold, runtime, payload, None, None, owner.new_epoch)
            if reply == HAS_BOTH_SIDES:
                # Nothing has changed on the server.
                if session.holds.cancel_release(hold):
                    session.watchdog.watch(hold, hold.valid_until - self.renewed_ms / 1000)
                sends = False
                raise LockAlreadyHeldError(f"{self.named(owner)} can't be handed off: its owner reads and writes")
            if reply is None:
                session.holds.declare_lost_on_release(hold)
            else:
                session.holds.note_end(hold, HANDED_OFF)
            call.reported = True
            session.holds.drop_level(hold, call)
            self.on_handed_off()
        except BaseException:
            if sends:
                if hold.state is not LOST:
                    session.holds.note_end(hold, HAND_OFF_FAILED)
                self.release_in_background(owner, hold, call)
                runtime.post(self.commands.release(nobody, 0, late=True))
            raise

    def _described(self, hold: Hold, name: str | bytes | None) -> HandedOff:
        # The list is empty if another thread has released the last level meanwhile.
        level = (*found, None)[0] if isinstance(found := hold.leases, list) else found
        lease, at_most = self.session.lease_ms if level is None else 0, 0
        if isinstance(level, RenewedLease):
            lease, at_most = level.renewed, level.rest(self.session.clock()).at_most or 0
        return HandedOff(
            kind=self.moved_kind,
            key=self.key.decode("utf-8", "surrogateescape"),
            hold=f"{uuid4()}:{FIRST_AUTOMATIC_ID}{self.commands.owner_suffix.decode()}",
            lease=lease,
            at_most=at_most,
            fence=hold.token,
            name=name if isinstance(name, str) else "",
        )

    def on_handed_off(self) -> None:
        """The waiters of this client must not rely on a release of the former owner."""
        self.session.forget_lock_queue(self.identity)

    # --- By the next owner

    async def adopt(self, owner: Owner, handed: HandedOff) -> None:
        """Takes over what was handed off. Raises `LockNotHeldError` if it isn't there: adopted already, or ended.

        After any other error, or an interrupt, the hold is nobody's again: what the command may have done is undone in
        the background. So the token is as good as before.
        """
        self.session.check_open()
        turn, in_flight, hold_key = ReleaseCall(), owner.calls.in_flight, (self.identity, owner.id)
        # None: as for an acquire without a lease, or a fixed one that isn't known yet.
        lease = RenewedLease(handed.lease, handed.at_most) if handed.at_most else self.renewal
        call = AcquireCall(owner, lease, LIMITED_BY_RETRIES)
        try:
            await owner.calls.wait_for_turn(self.session.runtime, hold_key, turn, self.key, None)
            if self.session.holds.valid(hold_key) is not None:
                raise LockAlreadyHeldError(f"{self.named(owner)} is held already: it can't adopt another hold")
            adopted = await self._adopt(call, hold_key, handed)
        except BaseException:
            if call.hold is not None:
                # An interrupt.
                self._put_back(call, handed)
            raise
        finally:
            in_flight.leave(hold_key, turn)
        if not adopted:
            found, holder = await self.who_holds_it(self._query)
            why = "what was handed off isn't there: it was adopted already, or its lease has ended"
            text = f"{self.label} {found}; {why}"
            raise LockNotHeldError(text, name=readable(self.key), owner=readable(owner.name), holder=holder)

    async def _adopt(self, call: AcquireCall, hold_key: HoldKey, handed: HandedOff) -> bool:
        session, owner, sender = self.session, call.owner, self.session.lock_sender
        # A name for this call alone: no copy of the command that is late finds a later hold of the owner.
        call.name = owner.for_one_call().name + self.commands.owner_suffix
        call.token = handed.fence
        if handed.lease:
            call.lease_ms = session.lease_ms if call.lease is None else call.lease

        def on_doubt() -> None:
            call.in_doubt = True

        try:
            payload = self.commands.move(handed.hold.encode(), call.name, call.lease_ms)
            reply, call.sent_at = await retry.send(sender, payload, retries=session.retries, on_doubt=on_doubt)
            adopted = isinstance(reply, list) and self._record_adopted(call, hold_key, handed, reply[0])
            if session.closed:
                session.check_open()
            if adopted and tracing.on:
                self._tell_end(call, acquired=True)
        except BaseException as error:
            if retry.may_have_run(error, call.in_doubt):
                self._put_back(call, handed)
            if isinstance(error, NotConfirmed):
                raise NotReplicatedError(f"{self.named(owner)} was not adopted: {error}") from None
            raise
        if not adopted and (reply is not None or call.in_doubt):
            self._put_back(call, handed)
        return adopted

    def _record_adopted(self, call: AcquireCall, hold_key: HoldKey, handed: HandedOff, lease: int) -> bool:
        """The server has moved the hold, which lasts for so many ms. False: that has ended already."""
        if lease < 0:
            # Somebody has removed the expiry.
            lease = self.session.lease_ms
        valid_until = call.sent_at + lease / 1000
        if valid_until <= self.session.clock():
            return False
        if not handed.lease:
            call.lease = lease
        return self.record(call, hold_key, valid_until)

    def _put_back(self, call: AcquireCall, handed: HandedOff) -> None:
        """Undoes an adoption in the background."""
        hold, call.hold = call.hold, None
        if hold is not None:
            self.session.holds.discard(hold)
        self.session.runtime.post(self.commands.move(call.name, handed.hold.encode(), 0))
