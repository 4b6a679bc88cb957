"""What the semaphores and latches of one client share."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from pyredisson.logic.exactly_once import REMEMBERED
from pyredisson.logic.permits.permit_queue import PermitQueues

DOUBT_LASTS = REMEMBERED
"""Seconds after the end of an acquire for which a late copy of it could still come."""


class PermitRegistry:
    """The state of one client that its semaphores and latches share."""

    def __init__(self) -> None:
        self.in_doubt: dict[bytes, float] = {}
        """For each acquire that was in doubt, the id of its first permit, and until when a late copy could come. The
        release of that permit keeps late copies of the acquire from running."""
        self._next_purge = 0.0
        self.reported_not_set: set[tuple[str, bytes]] = set()
        """The kind and name of each semaphore and latch for which it was logged that it doesn't exist."""
        self.queues = PermitQueues()
        """The waiters of each semaphore that is contended in this client."""
        self.claim_numbers = itertools.count(1)
        """Makes a name for each waiter that claims permits."""

    def note_doubt(self, first: bytes, now: float) -> None:
        """An acquire has ended that is in doubt. `first`: the id of its first permit."""
        if now >= self._next_purge:
            # Permits may end with their leases, without a release by this client.
            self._next_purge = now + DOUBT_LASTS
            for permit, until in self.in_doubt.copy().items():
                if until <= now:
                    self.in_doubt.pop(permit, None)
        self.in_doubt[first] = now + DOUBT_LASTS

    def forget_doubts(self, permits: Iterable[bytes]) -> None:
        """These permits are released."""
        for permit in permits:
            self.in_doubt.pop(permit, None)
