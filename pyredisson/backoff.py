"""How long a waiter of a spin lock pauses between two tries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from pyredisson.durations import seconds

Random = Callable[[], float]
"""Gives numbers in [0, 1)."""

SHORTEST = 0.0001
"""Seconds; a shorter pause would only keep the server busy."""


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Pauses that grow by `multiplier` from `initial_delay` to `max_delay` seconds, and are cut at random.

    `jitter="equal"` takes off up to half of a pause, `"full"` up to all of it: waiters that began at the same
    moment don't go on asking at the same moments. Durations are seconds or a timedelta, 0.1 ms at least.
    """

    initial_delay: float = 0.001
    max_delay: float = 0.128
    multiplier: float = 2
    jitter: Literal["equal", "full"] = "equal"

    def __post_init__(self) -> None:
        for name in ("initial_delay", "max_delay"):
            object.__setattr__(self, name, seconds(getattr(self, name), name, minimum=SHORTEST))
        if self.max_delay < self.initial_delay:
            raise ValueError(f"max_delay ({self.max_delay:g} s) is below initial_delay ({self.initial_delay:g} s)")
        if isinstance(self.multiplier, bool) or not isinstance(self.multiplier, (int, float)):
            raise TypeError(f"multiplier must be a number, not {type(self.multiplier).__name__}")
        if not self.multiplier >= 1:
            raise ValueError(f"multiplier must be at least 1, not {self.multiplier}")
        if self.jitter not in ("equal", "full"):
            raise ValueError(f'jitter must be "equal" or "full", not {self.jitter!r}')

    def delays(self, random: Random) -> Iterator[float]:
        """One pause after another, in seconds, without end."""
        kept = 0.5 if self.jitter == "equal" else 0.0
        delay = self.initial_delay
        while True:
            yield delay * (kept + (1 - kept) * random())
            delay = min(delay * self.multiplier, self.max_delay)


@dataclass(frozen=True, slots=True)
class ConstantBackoff:
    """Pauses of `delay` seconds (or a timedelta), 0.1 ms at least."""

    delay: float = 0.064

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", seconds(self.delay, "delay", minimum=SHORTEST))

    def delays(self, random: Random) -> Iterator[float]:
        """One pause after another, in seconds, without end."""
        while True:
            yield self.delay


Backoff = ExponentialBackoff | ConstantBackoff

USUAL = ExponentialBackoff()


def backoff_of(value: Backoff) -> Backoff:
    """A backoff that a user gave. `TypeError` for anything else."""
    if not isinstance(value, (ExponentialBackoff, ConstantBackoff)):
        raise TypeError(f"backoff must be an ExponentialBackoff or a ConstantBackoff, not {type(value).__name__}")
    return value
