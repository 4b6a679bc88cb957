"""Warnings for users whose program does what it surely isn't meant to."""

from __future__ import annotations

import sys
import warnings


def warn_user(message: str) -> None:
    """A `RuntimeWarning` at the line of the user's program that called the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pyredisson."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
