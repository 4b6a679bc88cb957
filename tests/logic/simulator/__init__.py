"""A deterministic simulation for the logic: a seed decides who runs when, what the network does and what breaks."""

from .judge import Violation
from .schedule import KINDS, Logic, Report, run

__all__ = ["KINDS", "Logic", "Report", "Violation", "run"]
