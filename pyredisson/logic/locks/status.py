"""What can be asked of a lock, and the errors that say who holds it."""

import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial

from redis.exceptions import RedisError

from pyredisson._core import command
from pyredisson._diagnostics import readable
from pyredisson._protocol.replies import NoReply, Reply
from pyredisson.errors import LockLostError, LockNotHeldError, LockTimeoutError
from pyredisson.holder import Holder
from pyredisson.logic import holders, retry
from pyredisson.logic.holds import Hold, RenewedLease
from pyredisson.logic.locks.commands import NO_KEY, LockCommands
from pyredisson.logic.owners import Owner
from pyredisson.logic.session import Session


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
        found = await holders.find(self.session, self.key, self._identities(), self._query)
        return None if found is None else found.holder

    async def who_holds_it(self, ask: Callable[[bytes], Awaitable[Reply]]) -> tuple[str, Holder | None]:
        """The words that follow the lock's name in a message, and the holder."""
        found = await holders.find(self.session, self.key, self._identities(), ask)
        return ("is free", None) if found is None else (found.text(), found.holder)

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
        """All that the lock is in the table of holds."""
        return (self.identity,)

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
