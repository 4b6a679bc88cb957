"""A deterministic world for the logic: a seed decides who runs when, what the network does and what breaks."""

from .schedule import Report, Violation, run

__all__ = ["Report", "Violation", "run"]
