"""The lock that its holder can't take again."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pyredisson.errors import LockAlreadyHeldError
from pyredisson.logic.holds import Owner, shown
from pyredisson.logic.lock import Call, LockLogic


class NonReentrantLockLogic(LockLogic):
    """A lock whose holder is refused; put before another kind of lock, it makes that one so.

    `class NonReentrantFairLockLogic(NonReentrantLockLogic, FairLockLogic)`
    """

    __slots__ = ()

    def acquire(self, owner: Owner, lease: int | None, deadline: float | None) -> Coroutine[Any, Any, bool]:
        """As `LockLogic.acquire`; `LockAlreadyHeldError` for the holder, before anything is sent."""
        # Two calls for one owner at the same moment: under names of their own the server gives it to only one.
        return super().acquire(owner.apart(), lease, deadline)

    async def _try(self, call: Call) -> float | None:
        self._refuse_holder(call.owner)
        busy = await super()._try(call)
        if busy is not None:
            # Perhaps it is another call for this owner that got it.
            self._refuse_holder(call.owner)
        return busy

    def _refuse_holder(self, owner: Owner) -> None:
        hold = self.shared.holds.live((self.place, owner.id))
        if hold is not None:
            raise LockAlreadyHeldError(f"lock {shown(self.key)!r} is held already by its owner {shown(hold.owner)}")
