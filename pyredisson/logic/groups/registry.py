"""What one client remembers for its groups of locks: their holds, and the acquires of members without a reply yet."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from pyredisson.logic.holds import LOST, HoldKey
from pyredisson.logic.losses import UnreleasedLosses

if TYPE_CHECKING:
    from pyredisson.logic.groups.group import GroupHold


class GroupRegistry:
    """The holds of the groups whose first member is a lock of this client. Threads need no mutex for it."""

    def __init__(self) -> None:
        self.holds: dict[Hashable, dict[Any, None]] = {}
        """By the key of the holds: the holds of one group and owner, one for each level, the innermost last."""
        self.pending_acquires: dict[HoldKey, float] = {}
        """Members of a red lock that were asked and have not replied yet, with the time when they were asked."""
        self._losses = UnreleasedLosses(self._has_loss, self._forget_losses)

    def levels(self, key: Hashable) -> list[Any]:
        """The holds with that key, the innermost last."""
        # A copy, made in one step: another call of the same owner may change the dict at any time.
        return list(self.holds.get(key, ()))

    def innermost(self, key: Hashable) -> Any:
        """The innermost hold with that key, lost or not; None: there is none."""
        levels = self.levels(key)
        return levels[-1] if levels else None

    def has(self, hold: GroupHold) -> bool:
        """Whether the hold was added and not removed yet."""
        return hold in self.holds.get(hold.key, ())

    def add(self, hold: GroupHold) -> None:
        """Adds a level, the innermost one from now on."""
        key = hold.key
        levels: dict[Any, None] = {}
        # Another call of the same owner may remove the last level meanwhile, and the inner dict with it.
        while self.holds.get(key) is not levels:
            levels = self.holds.setdefault(key, {})
            levels[hold] = None

    def remove(self, hold: GroupHold) -> None:
        """Removes one level. Idempotent."""
        key = hold.key
        levels = self.holds.get(key, {})
        if hold not in levels:
            return
        levels.pop(hold, None)
        if not levels and (removed := self.holds.pop(key, {})):
            # Another call of the same owner has added a level between the two `pop`s.
            self.holds.setdefault(key, removed).update(removed)

    def remember_lost(self, hold: GroupHold) -> None:
        """A hold was lost. It stays here until it is released; the oldest lost ones are forgotten above a limit."""
        self._losses.add(hold.key)

    def _has_loss(self, key: Hashable) -> bool:
        return any(hold.state is LOST for hold in self.levels(key))

    def _forget_losses(self, key: Hashable) -> None:
        for hold in self.levels(key):
            if hold.state is LOST:
                self.remove(hold)
