"""The library's log, its warnings, and names in messages."""

from __future__ import annotations

import logging
import sys
import warnings

logger = logging.getLogger("pyredisson")


class DebugFlag:
    """Whether the logger was enabled for DEBUG when it was last asked. Asking it in every call would cost one or two
    percent of an uncontended lock and unlock."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False

    def look(self) -> None:
        """Asks the logger. It should be called a few times a second, but not for every command."""
        self.on = logger.isEnabledFor(logging.DEBUG)


debug = DebugFlag()
"""The flag of the process, which has one such logger."""


def readable(name: bytes) -> str:
    """A name as text, for a message."""
    return name.decode("utf-8", "backslashreplace")


def warn_user(message: str) -> None:
    """Issues a `RuntimeWarning` for the line of the user's program that called the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pyredisson."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
