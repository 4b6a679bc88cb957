"""The lock that its holder can't acquire again."""

from __future__ import annotations

from pyredisson._diagnostics import readable
from pyredisson.errors import LockAlreadyHeldError
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner


class NonReentrantLockLogic(LockLogic):
    """A lock that refuses its holder. As the first base class it makes another kind of lock non-re-entrant:

    `class NonReentrantFairLockLogic(NonReentrantLockLogic, FairLockLogic)`
    """

    __slots__ = ()

    checks_owner = True

    def check_owner(self, owner: Owner) -> None:
        hold = self.session.holds.valid((self.identity, owner.id))
        if hold is not None:
            name, holder = readable(self.key), readable(hold.owner)
            raise LockAlreadyHeldError(f"lock {name!r} is held already by its owner {holder}")
