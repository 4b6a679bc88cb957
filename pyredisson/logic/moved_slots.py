"""Finds the holds of slots that other servers serve now."""

import math
from collections import deque
from collections.abc import Callable, Iterable

from pyredisson._protocol.routing import Changes
from pyredisson.logic.holds import Hold, HoldTable

SCAN_INTERVAL = 0.2
"""Seconds between two searches for the holds of slots that have moved. Each of them looks at all holds of the client,
and slots may be moved one by one."""


class MovedSlots:
    """The slots that have moved, and whose holds are still to be checked. Times are in s of the runtime's clock."""

    def __init__(self, holds: HoldTable, slot_of: Callable[[bytes], int]) -> None:
        self._holds = holds
        self._slot_of = slot_of
        self.moved_at = -math.inf
        """When slots have moved last."""
        self._unchecked: deque[Iterable[int]] = deque()
        self._next_scan = -math.inf

    def note(self, now: float) -> float:
        """Slots have moved now. Returns the time from which on acquires are sent to the new servers."""
        # A hold that is granted at this very moment may be older.
        self.moved_at = math.nextafter(now, math.inf)
        return self.moved_at

    def add(self, changes: Changes) -> None:
        """Takes no mutex."""
        # In `moved_slots` the keys have moved, too, unless an administrator has assigned a slot by force.
        self._unchecked.extend((changes.moved_slots, changes.failed_over_slots))

    def take_holds(self, now: float) -> tuple[list[Hold], float]:
        """The holds that are to be checked now, and when to ask again."""
        if not self._unchecked:
            return [], math.inf
        if now < self._next_scan:
            return [], self._next_scan
        self._next_scan = now + SCAN_INTERVAL
        moved: set[int] = set()
        while self._unchecked:
            moved.update(self._unchecked.popleft())
        slot_of = self._slot_of
        return [hold for hold in list(self._holds.table.values()) if slot_of(hold.commands.key) in moved], math.inf
