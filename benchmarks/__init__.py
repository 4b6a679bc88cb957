"""What pyredisson costs beside its baselines: each benchmark gives rows, and a row knows its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Row", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """A promise about one figure of a row: its ratio, or our own value in the row's unit."""

    of: Literal["ratio", "ours"]
    sign: Literal["<=", ">="]
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. The ratio is ours to the first baseline, and is always given with a baseline."""

    name: str
    """Short; `*` marks what ran with everything pinned to one core."""
    what: str
    """What was measured, in a sentence."""
    unit: str
    ours: float
    baselines: Mapping[str, float] = field(default_factory=dict)
    """In the same unit."""
    ratio: float | None = None
    target: Target | None = None
    """None: shown for comparison only."""

    @property
    def judged(self) -> float:
        """The figure that the target, or who reads a row without one, looks at."""
        if self.ratio is None or (self.target is not None and self.target.of == "ours"):
            return self.ours
        return self.ratio

    @property
    def judged_unit(self) -> str:
        """`x` for a ratio."""
        return "x" if self.judged is self.ratio else self.unit

    @property
    def target_text(self) -> str:
        """As the table shows it."""
        if self.target is None:
            return ""
        return f"{self.target.sign} {self.target.bound:g} {self.judged_unit}"

    @property
    def used(self) -> float | None:
        """How much of what the target allows was used up: 1 is just met, less is better."""
        if self.target is None:
            return None
        if self.target.sign == "<=":
            return self.judged / self.target.bound
        return self.target.bound / self.judged

    @property
    def met(self) -> bool | None:
        """Whether the target is kept; None without one."""
        return None if self.used is None else self.used <= 1
