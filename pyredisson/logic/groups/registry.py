"""What one client remembers for its groups of locks: their holds, and which members have not replied."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from pyredisson.logic.holds import LOST, HoldKey
from pyredisson.logic.losses import UnreleasedLosses


class GroupRegistry:
    """The holds of the groups whose first member is a lock of this client. Threads need no mutex for it."""

    def __init__(self) -> None:
        self.holds: dict[Hashable, dict[Any, None]] = {}
        """By `GroupHold.key`, which names the group and its owner: the `GroupHold`s, the innermost last."""
        self.unanswered: dict[HoldKey, float] = {}
        """Members to which an acquire was sent that has no reply yet, with the time of the sending."""
        self._lost = UnreleasedLosses(self._is_lost, self._forget_lost)

    def add(self, key: Hashable, hold: object) -> None:
        """Adds a level, the innermost one from now on, to a group's holds."""
        levels: dict[Any, None] = {}
        # Another call of the same owner may remove the last level meanwhile, and the inner dict with it.
        while self.holds.get(key) is not levels:
            levels = self.holds.setdefault(key, {})
            levels[hold] = None

    def remove(self, key: Hashable, hold: object) -> None:
        """Removes one level of a group's holds. Idempotent."""
        levels = self.holds.get(key, {})
        if hold not in levels:
            return
        levels.pop(hold, None)
        if not levels and (removed := self.holds.pop(key, {})):
            # Another call of the same owner has added a level between the two `pop`s.
            self.holds.setdefault(key, removed).update(removed)

    def remember_lost(self, key: Hashable) -> None:
        """A hold was lost. It stays here until it is released; the oldest lost ones are forgotten above a limit."""
        self._lost.add(key)

    def _is_lost(self, key: Hashable) -> bool:
        return any(hold.state is LOST for hold in list(self.holds.get(key, ())))

    def _forget_lost(self, key: Hashable) -> None:
        for hold in list(self.holds.get(key, {})):
            if hold.state is LOST:
                self.remove(key, hold)
