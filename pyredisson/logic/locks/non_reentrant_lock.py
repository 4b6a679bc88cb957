"""The lock that its holder can't take again."""

from __future__ import annotations

from pyredisson._diagnostics import readable
from pyredisson.errors import LockAlreadyHeldError
from pyredisson.logic.holds import Owner
from pyredisson.logic.locks.rlock import LockLogic


class NonReentrantLockLogic(LockLogic):
    """A lock whose holder is refused; put before another kind of lock, it makes that one so.

    `class NonReentrantFairLockLogic(NonReentrantLockLogic, FairLockLogic)`
    """

    __slots__ = ()

    checks = True

    def check(self, owner: Owner) -> None:
        hold = self.session.holds.live((self.identity, owner.id))
        if hold is not None:
            raise LockAlreadyHeldError(
                f"lock {readable(self.key)!r} is held already by its owner {readable(hold.owner)}"
            )
