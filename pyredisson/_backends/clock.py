"""The clock of both backends."""

import functools
import time
from collections.abc import Callable

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It also counts the time in which the machine is suspended, as the server's clock does."""


clock: Callable[[], float] = functools.partial(time.clock_gettime, CLOCK)
"""Seconds since some moment in the past; never set back. A partial instead of a function, because every call reads the
clock, and calling a Python function would cost more."""
