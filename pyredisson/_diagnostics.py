"""What the library tells a user beside results and errors: its log, its warnings, and names in messages."""

from __future__ import annotations

import logging
import sys
import warnings

logger = logging.getLogger("pyredisson")


class DebugFlag:
    """Whether the logger takes DEBUG, as it was at the last look: to ask the logger itself for each call would cost one
    or two hundredths of an uncontended lock and unlock."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False

    def look(self) -> None:
        """Asks the logger. To be called now and then: many times a second at most, once in a few calls at least."""
        self.on = logger.isEnabledFor(logging.DEBUG)


debug = DebugFlag()
"""One for the process, as the logger is."""


def readable(name: bytes) -> str:
    """A name for a message."""
    return name.decode("utf-8", "backslashreplace")


def warn_user(message: str) -> None:
    """A `RuntimeWarning` at the line of the user's program that called the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pyredisson."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
