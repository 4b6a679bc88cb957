"""The lock that gives a token with every acquire, above all tokens before it."""

from __future__ import annotations

from pyredisson._core import AcquireCall, command, pack, prefixed
from pyredisson._diagnostics import readable
from pyredisson.errors import LockNotHeldError
from pyredisson.logic.holds import Owner
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.session import Session

DELETED = b"pyredisson_fenced_newest"
"""The prefix of a key that lives for a day: the newest token of a counter that was deleted."""


class FencedLockLogic(LockLogic):
    """A lock beside whose hash stands a counter without a TTL."""

    __slots__ = ("_deleted", "_newest")

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key)
        self._newest = prefixed(b"redisson_lock_token", key)
        self._deleted = prefixed(DELETED, key)

    def acquire_command(self, owner: bytes, count: int, lease: int, *, waits: bool) -> bytes:
        """As `LockLogic.acquire_command`. A late copy makes a gap between tokens, which harms nobody."""
        script = self.session.runtime.scripts.fenced_acquire
        return pack(script, self.key, self._newest, self._deleted, owner, count, lease)

    async def lock_token(self, owner: Owner, lease: int | None) -> int:
        """Waits as long as it takes; the token of this acquire."""
        call = AcquireCall(owner, lease, None)
        await self._acquire(call)
        return call.token

    async def try_token(self, owner: Owner, lease: int | None, deadline: float | None) -> int | None:
        """As `acquire`, with the token of this acquire; None: not had in time."""
        call = AcquireCall(owner, lease, deadline)
        return call.token if await self._acquire(call) else None

    async def newest_token(self) -> int:
        """The token that was given last, to whomever; 0: none yet, or it was deleted."""
        return int(await self._call(command(b"GET", self._newest)) or 0)

    def token_of(self, owner: Owner) -> int:
        """The token of the owner's latest acquire that it has not given back, lost or not. Asks nobody."""
        hold = self.hold_of(owner.id)
        if hold is None or not hold.token:
            text = f"{self.named(owner)} has no token: it is not held as a fenced lock"
            raise LockNotHeldError(text, name=readable(self.key), owner=readable(owner.name))
        return hold.token

    async def delete(self) -> bool:
        """Removes the lock, whoever holds it, and the counter; was there anything."""
        payload = pack(self.session.runtime.scripts.fenced_delete, self.key, self._newest, self._deleted, self._channel)
        return await self._remove(payload, "delete()")
