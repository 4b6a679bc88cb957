"""Reads the journals of a soak and finds errors: two owners that relied on the same thing at one time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Hold", "Journals", "judge"]

Reset = tuple[float, float]
"""From when to when a server was being replaced by an empty one."""


@dataclass
class Hold:
    """From `begin` to `end` somebody had every reason to believe that he holds `name`."""

    identity: str
    kind: str
    name: str
    mode: str
    """`exclusive`, `session`, or how many may hold it at once."""
    asked: float
    """When its acquire was called: the server granted it at some time between this and `begin`."""
    begin: float
    end: float
    token: int = 0
    released: float | None = None
    """When a release was called that said that it was one."""
    lost: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} {self.identity} [{self.begin:.6f}, {self.end:.6f}]"


@dataclass
class Failure:
    """An acquire that raised an error, or was refused within its waiting time (`error` is empty then)."""

    kind: str
    name: str
    asked: float
    at: float
    error: str = ""


@dataclass
class Journals:
    """What all processes of a soak have written."""

    holds: dict[str, Hold] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    counted: int = 0
    errors: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, directory: Path) -> Journals:
        journals = cls()
        for path in sorted(directory.glob("*.journal")):
            journals.add(path.read_text().splitlines())
        return journals

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "hold":
                identity, kind, name, mode, asked, begin = rest.split()
                self.holds[identity] = Hold(identity, kind, name, mode, float(asked), float(begin), float(begin))
            elif word == "counted":
                self.counted += 1
            elif word == "error":
                self.errors.append(rest)
            elif word in {"failed", "refused"}:
                kind, name, asked, at, *raised = rest.split()
                self.failures.append(Failure(kind, name, float(asked), float(at), *raised))
            else:
                identity, value = rest.split()
                self._note(word, self.holds[identity], value)

    def _note(self, word: str, hold: Hold, value: str) -> None:
        if word == "token":
            hold.token = int(value)
        elif word == "lost":
            hold.lost = True
        else:
            hold.end = max(hold.end, float(value))
            if word == "released":
                hold.released = float(value)


def judge(journals: Journals, resets: Sequence[Reset] = ()) -> list[str]:
    """What must not be, one line each; nothing is fine."""
    found = [f"unexpected: {error}" for error in journals.errors]
    holds = sorted(journals.holds.values(), key=lambda hold: hold.begin)
    found += [
        f"said to be released by a server that never had it: {hold}"
        for hold in holds
        if hold.released is not None and any(hold.begin < begin and hold.released > end for begin, end in resets)
    ]
    believed = [hold for hold in (_until_reset(hold, resets) for hold in holds) if hold is not None]
    for name in dict.fromkeys(hold.name for hold in believed):
        found += _overlaps([hold for hold in believed if hold.name == name])
    fenced = [hold for hold in believed if hold.token]
    found += [
        f"a later hold has no greater token: {one} {one.token}, {other} {other.token}"
        for one, other in itertools.pairwise(fenced)
        if one.token >= other.token
    ]
    return found


def _until_reset(hold: Hold, resets: Sequence[Reset]) -> Hold | None:
    """What an emptied server has forgotten excludes nobody: the belief counts until then."""
    if hold.kind == "semaphore" and resets and hold.end > resets[0][0]:
        # A semaphore has no owners: a permit from before the reset enlarges it when it is released afterwards.
        return None
    for begin, end in resets:
        if hold.asked < end and hold.end > begin:
            hold.end = begin
    return hold if hold.end >= hold.begin else None


def _overlaps(holds: list[Hold]) -> list[str]:
    found = []
    active: list[Hold] = []
    for hold in holds:
        active = [other for other in active if other.end > hold.begin]
        if hold.mode.isdigit():
            others = active[:1] if len(active) >= int(hold.mode) else []
        else:
            others = [other for other in active if "exclusive" in {other.mode, hold.mode}]
        found += [f"overlap of {other} and {hold}" for other in others]
        active.append(hold)
    return found
