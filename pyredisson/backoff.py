"""How long a waiter of a spin lock pauses between two tries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from pyredisson._settings.durations import Duration, seconds

Jitter = Literal["equal", "full"]

Random = Callable[[], float]
"""Gives numbers in [0, 1)."""

SHORTEST = 0.0001
"""Seconds; a shorter pause would only keep the server busy."""


@dataclass(frozen=True, slots=True, init=False)
class ExponentialBackoff:
    """Pauses that grow by `multiplier` from `initial_delay` to `max_delay` seconds, and are cut at random.

    `jitter="equal"` takes off up to half of a pause, `"full"` up to all of it: waiters that began at the same
    moment don't go on asking at the same moments. Durations are seconds or a timedelta, 0.1 ms at least.
    """

    initial_delay: float
    max_delay: float
    multiplier: float
    jitter: Jitter

    def __init__(
        self,
        initial_delay: Duration = 0.001,
        max_delay: Duration = 0.128,
        multiplier: float = 2,
        jitter: Jitter = "equal",
    ) -> None:
        first = seconds(initial_delay, "initial_delay", minimum=SHORTEST)
        most = seconds(max_delay, "max_delay", minimum=SHORTEST)
        if most < first:
            raise ValueError(f"max_delay ({most:g} s) is below initial_delay ({first:g} s)")
        if isinstance(multiplier, bool) or not isinstance(multiplier, (int, float)):
            raise TypeError(f"multiplier must be a number, not {type(multiplier).__name__}")
        if not multiplier >= 1:
            raise ValueError(f"multiplier must be at least 1, not {multiplier}")
        if jitter not in ("equal", "full"):
            raise ValueError(f'jitter must be "equal" or "full", not {jitter!r}')
        for name, value in zip(self.__slots__, (first, most, multiplier, jitter), strict=True):
            object.__setattr__(self, name, value)

    def delays(self, random: Random) -> Iterator[float]:
        """One pause after another, in seconds, without end."""
        kept = 0.5 if self.jitter == "equal" else 0.0
        delay = self.initial_delay
        while True:
            yield delay * (kept + (1 - kept) * random())
            delay = min(delay * self.multiplier, self.max_delay)


@dataclass(frozen=True, slots=True, init=False)
class ConstantBackoff:
    """Pauses of `delay` seconds (or a timedelta), 0.1 ms at least."""

    delay: float

    def __init__(self, delay: Duration = 0.064) -> None:
        object.__setattr__(self, "delay", seconds(delay, "delay", minimum=SHORTEST))

    def delays(self, random: Random) -> Iterator[float]:
        """One pause after another, in seconds, without end."""
        while True:
            yield self.delay


Backoff = ExponentialBackoff | ConstantBackoff

DEFAULT_BACKOFF = ExponentialBackoff()


def backoff_of(value: Backoff) -> Backoff:
    """A backoff that a user gave. `TypeError` for anything else."""
    if not isinstance(value, (ExponentialBackoff, ConstantBackoff)):
        raise TypeError(f"backoff must be an ExponentialBackoff or a ConstantBackoff, not {type(value).__name__}")
    return value
