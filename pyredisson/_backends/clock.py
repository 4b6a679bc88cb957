"""The clock of both backends."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts on while the machine is suspended, as the server's clock does."""


clock: Callable[[], float] = functools.partial(time.clock_gettime, CLOCK)
"""Seconds since some moment in the past, never set back. Not a function of ours: it is read for every call."""
