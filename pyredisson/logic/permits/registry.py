"""What one client remembers for its semaphores and latches."""

from __future__ import annotations

import itertools


class PermitRegistry:
    """The semaphores and latches of one client share this."""

    def __init__(self) -> None:
        self.in_doubt: set[bytes] = set()
        """Permit ids whose acquire may still run, late: a release of such a permit must keep that from happening."""
        self.reported_not_set: set[tuple[str, bytes]] = set()
        """Semaphores and latches that don't exist on the server, which was logged: their kind and their name."""
        self.claim_numbers = itertools.count(1)
        """Makes a name for each waiter that claims permits."""
