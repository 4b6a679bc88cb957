"""What the semaphores and latches of one client share."""

from __future__ import annotations

import itertools

from pyredisson.logic.permits.permit_queue import PermitQueues


class PermitRegistry:
    """The state of one client that its semaphores and latches share."""

    def __init__(self) -> None:
        self.in_doubt: set[bytes] = set()
        """For each acquire that is in doubt, the id of its first permit. The release of that permit keeps late copies
        of the acquire from running."""
        self.reported_not_set: set[tuple[str, bytes]] = set()
        """The kind and name of each semaphore and latch for which it was logged that it doesn't exist."""
        self.queues = PermitQueues()
        """The waiters of each semaphore that is contended in this client."""
        self.claim_numbers = itertools.count(1)
        """Makes a name for each waiter that claims permits."""
