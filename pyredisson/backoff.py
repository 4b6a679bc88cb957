"""The pauses between two tries of a waiter for a spin lock."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from pyredisson._settings.durations import Duration, seconds

Jitter = Literal["equal", "full"]

Random = Callable[[], float]
"""Returns a random number in [0, 1)."""

MIN_DELAY = 0.0001
"""The shortest pause, in seconds: one that is shorter than a round trip only keeps the server busy."""


@dataclass(frozen=True, slots=True, init=False)
class ExponentialBackoff:
    """Pauses that grow from `initial_delay` to `max_delay`, each `multiplier` times as long as the one before.

    Each pause is shortened at random, by up to a half (`jitter="equal"`) or up to all of it (`jitter="full"`), so that
    waiters that began at the same moment don't all try again at the same moments. Durations are seconds or a
    timedelta, at least 0.1 ms. The defaults are Redisson's: 1 ms, 128 ms and 2.

    Raises `TypeError` or `ValueError` for an argument that can't be used.
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
        initial = seconds(initial_delay, "initial_delay", minimum=MIN_DELAY)
        maximum = seconds(max_delay, "max_delay", minimum=MIN_DELAY)
        if maximum < initial:
            raise ValueError(f"max_delay ({maximum:g} s) is below initial_delay ({initial:g} s)")
        if isinstance(multiplier, bool) or not isinstance(multiplier, (int, float)):
            raise TypeError(f"multiplier must be a number, not {type(multiplier).__name__}")
        if not multiplier >= 1:
            raise ValueError(f"multiplier must be at least 1, not {multiplier}")
        if jitter not in ("equal", "full"):
            raise ValueError(f'jitter must be "equal" or "full", not {jitter!r}')
        for name, value in zip(self.__slots__, (initial, maximum, multiplier, jitter), strict=True):
            object.__setattr__(self, name, value)

    def delays(self, random: Random) -> Iterator[float]:
        """The pauses of one wait, in seconds; there is no last one."""
        fixed_part = 0.5 if self.jitter == "equal" else 0.0
        delay = self.initial_delay
        while True:
            yield delay * (fixed_part + (1 - fixed_part) * random())
            delay = min(delay * self.multiplier, self.max_delay)


@dataclass(frozen=True, slots=True, init=False)
class ConstantBackoff:
    """Pauses of the same length, `delay`: seconds or a timedelta, at least 0.1 ms. The default is Redisson's, 64 ms.

    Raises `TypeError` or `ValueError` for an argument that can't be used.
    """

    delay: float

    def __init__(self, delay: Duration = 0.064) -> None:
        object.__setattr__(self, "delay", seconds(delay, "delay", minimum=MIN_DELAY))

    def delays(self, random: Random) -> Iterator[float]:
        """The pauses of one wait, in seconds; there is no last one."""
        while True:
            yield self.delay


Backoff = ExponentialBackoff | ConstantBackoff

DEFAULT_BACKOFF = ExponentialBackoff()
"""For a spin lock that is made without a backoff."""


def backoff_of(value: Backoff) -> Backoff:
    """Checks a backoff that a user passed. `TypeError` for anything else."""
    if not isinstance(value, (ExponentialBackoff, ConstantBackoff)):
        raise TypeError(f"backoff must be an ExponentialBackoff or a ConstantBackoff, not {type(value).__name__}")
    return value
