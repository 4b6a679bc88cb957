"""When leases are renewed: at the points of a grid, so that many holds share a call and the threads wake seldom."""

from __future__ import annotations

ROUNDS_PER_LEASE = 3
"""A lease is renewed after each third of it."""
GRID_STEP_MS = 50
"""How far two points of the grid are apart. Each point with holds costs two wake-ups of threads."""
STEPS_PER_ROUND = (20, 100)
"""How many points the grid has at least and at most in the time of one round. Fewer points have leases renewed earlier
than necessary, and more renewals in one write."""


class RenewalGrid:
    """The points of the grid for leases of one length. Times are in ms of the runtime's clock."""

    __slots__ = ("_steps", "round", "step")

    def __init__(self, lease_ms: int) -> None:
        self.round = max(1, lease_ms // ROUNDS_PER_LEASE)
        """How long after an acquire or a renewal the next renewal is due."""
        fewest, most = STEPS_PER_ROUND
        self.step = max(1, min(self.round // fewest, max(GRID_STEP_MS, self.round // most)))
        """How far two points are apart."""
        self._steps = self.round // self.step

    def next_renewal(self, sent_at: float) -> int:
        """When a lease is to be renewed that was granted by a command sent at `sent_at`, in seconds."""
        return int(sent_at * 1000) // self.step * self.step + self.round

    def next_renewal_of_slot(self, sent_at: float, slot: int) -> int:
        """The same, or somewhat earlier: at a point at which all holds of that slot are renewed.

        A script call takes the locks of one slot only. A client with a few locks in each of many slots would need a
        call for each lock if they were due at different points.
        """
        step = self.next_renewal(sent_at) // self.step
        return (step - (step - slot) % self._steps) * self.step
