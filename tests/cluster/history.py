"""The history of a load, and what must not be in it: overlaps of holds, locks that nobody gets, keys that stay."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyredisson.testing import ClusterNode, ReplicatedNode
from tests.faults.soak_judge import Journals, judge

__all__ = ["Failure", "History", "left_behind", "starved"]

Period = tuple[float, float]
Taken = set[tuple[str, str, str]]
"""Backends, kinds and names of holds."""
LASTING = ("redisson_lock_token", "pyredisson_", "{")
"""How names of keys begin that may stay: the tokens of fenced locks, and what the server removes by itself."""


@dataclass
class Failure:
    """An acquire that raised an error, or was refused within its waiting time (`error` is empty then)."""

    kind: str
    name: str
    asked: float
    at: float
    error: str


@dataclass
class History(Journals):
    """What the processes of a load have written until now. `update` reads on."""

    directory: Path = Path()
    backends: dict[str, str] = field(default_factory=dict)
    """The backend of each hold."""
    failures: list[Failure] = field(default_factory=list)
    _read: dict[Path, int] = field(default_factory=dict)

    def update(self) -> None:
        for path in sorted(self.directory.glob("*.journal")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            known = len(self.holds)
            self.add(whole.decode().splitlines())
            for identity in itertools.islice(self.holds, known, None):
                self.backends[identity] = path.stem

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            word, _, rest = line.partition(" ")
            if word in {"failed", "refused"}:
                kind, name, asked, at, *error = rest.split()
                self.failures.append(Failure(kind, name, float(asked), float(at), " ".join(error)))
            else:
                super().add([line])

    def taken_since(self, moment: float) -> Taken:
        """What was granted since then."""
        return {
            (self.backends[hold.identity], hold.kind, hold.name)
            for hold in self.holds.values()
            if hold.begin > moment and hold.end >= hold.begin > hold.asked
        }

    def faults(self) -> list[str]:
        """Overlaps, fencing tokens that decrease, errors that nobody expects; one line each."""
        found = [f"unexpected: {error}" for error in self.errors]
        holds = list(self.holds.values())
        for name in dict.fromkeys(hold.name for hold in holds):
            # Only the tokens of one lock rise in one sequence.
            found += judge(Journals({str(number): hold for number, hold in enumerate(holds) if hold.name == name}))
        return found

    def disturbances(self) -> list[str]:
        """Holds that were lost, and acquires that failed, both of which are right during some faults."""
        lost = [f"lost: {hold}" for hold in self.holds.values() if hold.lost]
        return lost + [str(failure) for failure in self.failures]

    def summary(self) -> str:
        kinds = sorted({hold.kind for hold in self.holds.values()})
        counts = ", ".join(f"{kind} {sum(hold.kind == kind for hold in self.holds.values())}" for kind in kinds)
        errors = sorted({failure.error or "refused" for failure in self.failures})
        lost = sum(hold.lost for hold in self.holds.values())
        return f"{len(self.holds)} holds ({counts}), {lost} lost, {len(self.failures)} failed acquires {errors}"


def starved(history: History, since: float, bound: float) -> list[str]:
    """The locks that an owner waited for, and nobody acquired, for longer than `bound` seconds after `since`."""
    grants: dict[tuple[str, str], list[float]] = {}
    waits: dict[tuple[str, str], list[Period]] = {}
    for hold in history.holds.values():
        grants.setdefault((hold.kind, hold.name), []).append(hold.begin)
        waits.setdefault((hold.kind, hold.name), []).append((hold.asked, hold.begin))
    for failure in history.failures:
        waits.setdefault((failure.kind, failure.name), []).append((failure.asked, failure.at))
    found = []
    for lock, periods in waits.items():
        moments = sorted(grants.get(lock, []))
        longest = max(longest_gap(moments, max(asked, since), end) for asked, end in periods)
        if longest > bound:
            found.append(f"nobody acquired {lock[0]} {lock[1]!r} for {longest:.2f} s")
    return found


def longest_gap(moments: Sequence[float], begin: float, end: float) -> float:
    """The longest part of a period without any of the sorted moments."""
    within = moments[bisect_right(moments, begin) : bisect_left(moments, end)]
    return max(later - earlier for earlier, later in itertools.pairwise((begin, *within, end)))


def left_behind(nodes: Sequence[ClusterNode | ReplicatedNode], besides: Iterable[str] = ()) -> list[str]:
    """The keys of these masters that belong to no semaphore (`besides`), and that no lease and no lifetime removes."""
    allowed = set(besides)
    found = []
    for node in nodes:
        keys = [key for key in node.ask("KEYS", "*") if key not in allowed and not key.startswith(LASTING)]
        found += [f"{key} on {node.port}, for {node.ask('PTTL', key)} ms" for key in keys]
    return found
