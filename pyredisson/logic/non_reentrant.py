"""The lock that its holder can't take again."""

from __future__ import annotations

from pyredisson.errors import LockAlreadyHeldError
from pyredisson.logic.holds import shown
from pyredisson.logic.lock import Call, LockLogic


class NonReentrantLockLogic(LockLogic):
    """A lock whose holder is refused; put before another kind of lock, it makes that one so.

    `class NonReentrantFairLockLogic(NonReentrantLockLogic, FairLockLogic)`
    """

    __slots__ = ()

    async def _try(self, call: Call) -> float | None:
        hold = self.shared.holds.live((self.place, call.owner.id))
        if hold is not None:
            raise LockAlreadyHeldError(f"lock {shown(self.key)!r} is held already by its owner {shown(hold.owner)}")
        return await super()._try(call)
