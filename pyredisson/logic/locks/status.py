"""What can be asked of a lock, and the errors that say who holds it."""

import contextlib
import dataclasses
import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from redis.exceptions import RedisError

from pyredisson._core import command, pack
from pyredisson._diagnostics import readable
from pyredisson._protocol.replies import NoReply, Reply
from pyredisson.errors import LockLostError, LockNotHeldError, LockTimeoutError
from pyredisson.holder import ANNOUNCED, Holder, for_how_long, holder_of, who, with_announcement
from pyredisson.identity import connection_name, identity
from pyredisson.logic import retry
from pyredisson.logic.announcement import client_key, hold_field
from pyredisson.logic.holds import Hold, RenewedLease
from pyredisson.logic.locks.commands import NO_KEY, LockCommands
from pyredisson.logic.owners import Owner, owner_id
from pyredisson.logic.session import Session
from pyredisson.version import VERSION

WRITER = b":write"
"""The end of a writer's name."""


class LockStatus:
    """The queries of a lock, and its errors. `ReleasingLock` and `LockLogic` add releasing and acquiring."""

    __slots__ = ("commands", "identity", "key", "renewal", "session")

    commands_type: type[LockCommands] = LockCommands

    def __init__(self, session: Session, key: bytes) -> None:
        self.session, self.key = session, key
        self.commands = self.commands_type(session, key)
        self.identity: Hashable = key
        """The lock in the table of holds."""
        self.renewal: RenewedLease | None = None
        """The lease of an acquire that names none. None: the client's, renewed until the release."""

    @property
    def renewed_ms(self) -> int:
        return self.session.lease_ms if self.renewal is None else self.renewal.renewed

    async def is_locked(self) -> bool:
        """Whether any owner holds it."""
        return bool(await self._query(command(b"EXISTS", self.key)))

    async def hold_count(self, owner_id: int) -> int:
        """How many levels that owner of this client holds, as the server and the local clock both say."""
        session = self.session
        key = (self.identity, owner_id)
        hold = session.holds.valid(key)
        if hold is None:
            session.check_open()
            return 0
        reply = await self._query(command(b"HGET", self.key, hold.owner))
        if session.holds.table.get(key) is not hold or session.holds.expire_if_due(hold):
            return 0
        if reply is None:
            session.holds.declare_lost(hold)
            return 0
        # The number on the server is a copy of ours, and may be an old one.
        return hold.count

    async def is_held(self, owner: Owner) -> bool:
        """Whether the owner holds the lock, as the server says and the local clock confirms."""
        return await self.hold_count(owner.id) > 0

    async def remain_time_to_live(self) -> float | None:
        """Seconds until the lock frees itself; None: it is free; inf: never."""
        milliseconds = int(await self._query(command(b"PTTL", self.key)))
        if milliseconds == NO_KEY:
            return None
        return math.inf if milliseconds < 0 else milliseconds / 1000

    def hold_of(self, owner_id: int) -> Hold | None:
        """The latest hold of the owner, lost or not."""
        return self.session.holds.table.get((self.identity, owner_id))

    def expire_if_due(self, hold: Hold) -> bool:
        """Declares the hold lost if its lease has ended. True: it is not held any more."""
        return self.session.holds.expire_if_due(hold)

    async def holder(self) -> Holder | None:
        """Who holds the lock; None: nobody. Of several readers one, and of a writer that also reads the writer."""
        _, holder = await self.who_holds_it(self._query)
        return holder

    async def who_holds_it(self, ask: Callable[[bytes], Awaitable[Reply]]) -> tuple[str, Holder | None]:
        """The words that follow the lock's name in a message, and the holder. `ask` sends a command.

        The holder is the writer, or of several readers the first one by name. The announcement is read with a second
        command. It adds what it can, and raises nothing: it may be on another server of a cluster, and the user may
        have no right to read it.
        """
        ttl, count, *fields = await ask(pack(self.session.runtime.scripts.lock_holder, self.key))
        if not fields:
            return "is free", None
        field: bytes = fields[0] if fields[0].endswith(WRITER) else min(fields)
        if field.endswith(WRITER):
            # A writer may read, too.
            count = 1
        holder = holder_of(field, ttl)
        if own := holder.client_id == self.session.id:
            holder = self._own(holder, field)
        elif holder.client_id is not None:
            rest = field.partition(b":")[2]
            payload = command(b"HMGET", client_key(holder.client_id), *ANNOUNCED, hold_field(rest, self.key))
            with contextlib.suppress(NoReply, RedisError):
                holder = with_announcement(holder, await retry.send_once(self.session.runtime, payload))
        name = f"{readable(field)} of this client" if own else who(holder, field)
        if holder.kept:
            return f"is kept for another {holder.time_to_live:.1f} s after a run on {name}", holder
        # Only readers are several.
        name = name if count <= 1 else f"{count} readers, one of them {name}"
        return f"is held by {name}, {for_how_long(holder)}", holder

    def _own(self, holder: Holder, field: bytes) -> Holder:
        """A holder of this client, with what the client knows without asking."""
        session, process, since = self.session, identity(), None
        for name in self._identities():
            hold = session.holds.table.get((name, owner_id(field)))
            if hold is not None and hold.owner == field:
                since = datetime.now(UTC) - timedelta(seconds=session.clock() - hold.begun)
        return dataclasses.replace(
            holder,
            client_name=session.config.client_name or connection_name(process),
            since=since,
            foreign=False,
            version=VERSION,
            **process._asdict(),
        )

    async def not_held_error(self, owner: Owner) -> LockNotHeldError:
        """The error for a release by an owner without a hold. If that was handed off, the server isn't asked."""
        ended = self.session.holds.handed_off.get((self.identity, owner.id))
        if ended is not None:
            how, when = ended
            text = f"{self.named(owner)} {how} {self.session.clock() - when:.3f} s ago"
            error = LockNotHeldError(text, name=readable(self.key), owner=readable(owner.name))
            error.handed_off = True
            return error
        found, holder = await self.who_holds_it(self._query)
        text = f"{self.label} {found}; owner {readable(owner.name)} has no hold of it"
        return LockNotHeldError(text, name=readable(self.key), owner=readable(owner.name), holder=holder)

    async def timed_out(self, owner: Owner, wait: float) -> LockTimeoutError:
        """The error after a wait of so many seconds. The server is asked once who holds the lock."""
        try:
            found, holder = await self.who_holds_it(partial(retry.send_once, self.session.runtime))
        except (NoReply, RedisError) as problem:
            found, holder = f"was not acquired, and who holds it can't be told: {problem}", None
        text = f"{self.label} {found}; owner {readable(owner.name)} waited {wait:g} s for it"
        return LockTimeoutError(text, name=readable(self.key), owner=readable(owner.name), holder=holder)

    def loss_of(self, owner: Owner, hold: Hold) -> LockLostError:
        ago = self.session.clock() - hold.valid_until
        text = f"{self.named(owner)} was lost {ago:.3f} s ago: {hold.reason}"
        return LockLostError(text, name=readable(self.key), owner=readable(owner.name))

    def _identities(self) -> Sequence[Hashable]:
        """All that the lock is in the table of holds: also the other side of a read-write lock."""
        other = self.commands.other_identity
        return (self.identity,) if other is None else (self.identity, other)

    @property
    def blocked_by(self) -> Sequence[Hashable]:
        """The locks whose holds keep a waiter out, as the table of holds knows them."""
        return self._identities()

    @property
    def label(self) -> str:
        """The lock, for messages."""
        return f"lock {readable(self.key)!r}"

    def named(self, owner: Owner) -> str:
        """The lock and the owner, for messages."""
        return f"{self.label} of owner {readable(owner.name)}"

    async def _query(self, payload: bytes, *, idempotent: bool = True) -> Reply:
        session = self.session
        session.check_open()
        reply, _ = await retry.send(session.runtime, payload, retries=session.retries, idempotent=idempotent)
        return reply
