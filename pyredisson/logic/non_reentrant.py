"""The lock that its holder can't take again."""

from __future__ import annotations

from pyredisson.errors import LockAlreadyHeldError
from pyredisson.logic.holds import Owner, shown
from pyredisson.logic.lock import LockLogic


class NonReentrantLockLogic(LockLogic):
    """A lock whose holder is refused; put before another kind of lock, it makes that one so.

    `class NonReentrantFairLockLogic(NonReentrantLockLogic, FairLockLogic)`
    """

    __slots__ = ()

    checks = True

    def check(self, owner: Owner) -> None:
        hold = self.shared.holds.live((self.place, owner.id))
        if hold is not None:
            raise LockAlreadyHeldError(f"lock {shown(self.key)!r} is held already by its owner {shown(hold.owner)}")
