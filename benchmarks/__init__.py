"""Benchmarks of pyredisson beside baselines. A benchmark returns rows; a row has a value, baselines and a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Row", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """The bound for one figure of a row: for its ratio, or for pyredisson's own value in the unit of the row."""

    of: Literal["ratio", "ours"]
    sign: Literal["<=", ">="]
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table. A row with baselines has a ratio: pyredisson to the first baseline."""

    name: str
    """Short; `*` marks a row that was measured with everything pinned to one core."""
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
        """The figure that the target is about; without a target the ratio, if there is one."""
        if self.ratio is None or (self.target is not None and self.target.of == "ours"):
            return self.ours
        return self.ratio

    @property
    def judged_unit(self) -> str:
        """`x` for a ratio."""
        return "x" if self.judged is self.ratio else self.unit

    @property
    def target_text(self) -> str:
        """The target as the table shows it."""
        if self.target is None:
            return ""
        return f"{self.target.sign} {self.target.bound:g} {self.judged_unit}"

    @property
    def used(self) -> float | None:
        """The figure relative to its target: 1 just meets the target, less is better; None without a target."""
        if self.target is None:
            return None
        if self.target.sign == "<=":
            return self.judged / self.target.bound
        return self.target.bound / self.judged

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.used is None else self.used <= 1
