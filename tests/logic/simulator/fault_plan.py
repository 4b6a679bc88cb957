"""The faults of a schedule: what fails and how often, drawn from the seed. They end after some time."""

from __future__ import annotations

from random import Random

FAULTS_END = 1020.0
"""No faults happen from then on, so that the final state can be checked."""
LONGEST_PAUSE = 15.0
"""Seconds for which a process may stand still."""
REPLY_TIMEOUT = 3.0
PASSING = (
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script.",
    "READONLY You can't write against a read only replica.",
)


class FaultPlan:
    """Draws every fault. `calm`: messages and replies arrive; only cancellations happen."""

    def __init__(self, random: Random, *, calm: bool) -> None:
        self._random = random
        self.calm = calm
        self.slowest = random.choice((0.001, 0.005, 0.02))
        """The longest way to the server or back, in seconds."""
        self.cancels = random.choice((0.0, 0.2, 0.5))
        self.pipelined = random.random() < 0.5

        def chance(highest: float) -> float:
            return 0.0 if calm or random.random() < 0.5 else random.random() * highest

        self._lost = chance(0.2)
        self._unanswered = chance(0.3)
        self._late = chance(0.2)
        self._unreachable = chance(0.3)
        self._passing = chance(0.2)
        self.subscription_cuts = chance(3.0)
        """How many subscription connections fail, a client."""
        self.flushes = chance(4.0)
        self.deaths = chance(1.0)
        self.pauses = chance(3.0)
        self.forces = 0.2 if calm and random.random() < 0.2 else chance(0.3)
        self._faults = self._lost + self._unanswered + self._late

    def delay(self) -> float:
        """One way."""
        return self.slowest * (0.05 + 0.95 * self._random.random())

    def fate(self, now: float) -> str | None:
        """The fate of a request: None, or it is lost, gets no reply or arrives late."""
        if not self._faults or now >= FAULTS_END:
            return None
        die = self._random.random()
        if die < self._lost:
            return "lost"
        if die < self._lost + self._unanswered:
            return "unanswered"
        return "late" if die < self._faults else None

    def unreachable(self, now: float) -> bool:
        """Whether connecting fails."""
        return bool(self._unreachable) and now < FAULTS_END and self._random.random() < self._unreachable

    def passing(self, now: float) -> str | None:
        """An error reply that passes by itself."""
        if not self._passing or now >= FAULTS_END or self._random.random() >= self._passing:
            return None
        return self._random.choice(PASSING)

    def times(self, average: float) -> list[float]:
        """When something happens that happens so often in a schedule."""
        count = int(average) + (self._random.random() < average % 1)
        return [1000 + self._random.random() * (FAULTS_END - 1000) for _ in range(count)]
