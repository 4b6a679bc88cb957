"""The fenced lock: every acquire returns a fencing token, which is greater than all earlier tokens of the lock."""

from pyredisson._core import command, pack, prefixed
from pyredisson._diagnostics import readable
from pyredisson._protocol.replies import number_in
from pyredisson.errors import LockNotHeldError
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner
from pyredisson.logic.session import Session

NEWEST_BEFORE_DELETE = b"pyredisson_fenced_newest"
"""The prefix of the key that contains, for a day, the newest token of a counter that was deleted."""


class FencedLockCommands(LockCommands):
    """The commands of the fenced lock. It has a second key: the counter of the tokens, which has no TTL."""

    __slots__ = ("_keys", "counter")

    kind = "fenced"

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key)
        self.counter = prefixed(b"redisson_lock_token", key)
        self._keys = (key, self.counter, prefixed(NEWEST_BEFORE_DELETE, key))

    def acquire(self, owner: bytes, count: int, lease: int, *, waits: bool, member: bytes = b"") -> bytes:
        """As `LockCommands.acquire`. A late copy may skip a token, which does no harm."""
        script, lasts = self.session.runtime.scripts.fenced_acquire, self.session.list_lasts if waits else 0
        return pack(script, *self._keys, *self.list_keys, owner, count, lease, member, lasts)

    def hand_over(self, owner: bytes, next_owner: bytes, lease: int) -> bytes:
        script, member = self.session.runtime.scripts.fenced_hand_over, self.session.listed_member(self.key)
        return pack(script, *self._keys, self.list_keys[0], owner, next_owner, lease, member)

    def delete(self) -> bytes:
        """Removes the lock, whoever holds it, and the counter. The reply is 1 if one of them existed."""
        script = self.session.runtime.scripts.fenced_delete
        return pack(script, *self._keys, *self.list_keys, self.channel, *self._waking)


class FencedLockLogic(LockLogic):
    __slots__ = ()

    commands_type = FencedLockCommands
    commands: FencedLockCommands

    async def lock_token(self, owner: Owner, lease: int | None) -> int:
        """Acquires the lock, waits for it without limit, and returns the token of this acquire."""
        call = self.new_call(owner, lease, None)
        await self._acquire(call)
        return call.token

    async def try_token(self, owner: Owner, lease: int | None, deadline: float | None) -> int | None:
        """As `lock_token`, with a deadline. None: not acquired in time."""
        call = self.new_call(owner, lease, deadline)
        return call.token if await self._acquire(call) else None

    async def newest_token(self) -> int:
        """The latest token that any owner received. 0: none yet, or the counter was deleted."""
        return number_in(await self._query(command(b"GET", self.commands.counter))) or 0

    def token_of(self, owner: Owner) -> int:
        """The token of the owner's present hold, even if that hold is lost. Sends nothing."""
        hold = self.hold_of(owner.id)
        if hold is None or not hold.token:
            text = f"{self.named(owner)} has no token: it is not held as a fenced lock"
            raise LockNotHeldError(text, name=readable(self.key), owner=readable(owner.name))
        return hold.token

    async def delete(self) -> bool:
        return await self._remove(self.commands.delete(), "delete()")
