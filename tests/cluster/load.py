"""A load on several servers: two processes, one of threads and one of tasks, that contend for the same locks.

Its history, and what must not be in it: overlaps of holds, locks that nobody gets, keys that stay.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyredisson
from pyredisson.testing import Cluster, Sentinels
from tests.faults.soak import Journals, judge
from tests.faults.soak_worker import PERMITS, PROGRAM, Wanted, clock
from tests.support.children import Child
from tests.support.kinds import LOCKS
from tests.support.waiting import eventually

BACKENDS = ("threads", "asyncio")
LEASE = 3.0
"""Seconds: the watchdog's lease. What a failed server has forgotten to release is free after it."""
OPTIONS = {"lock_watchdog_timeout": LEASE, "timeout": 1.0, "connect_timeout": 1.0, "topology_refresh_interval": 1.0}
END_SECONDS = 30.0
FACTORIES: dict[str, Callable[[pyredisson.Client, str], Any]] = {
    "semaphore": lambda client, name: client.get_semaphore(name),
    "permit": lambda client, name: client.get_permit_expirable_semaphore(name),
}
"""What has permits. Their keys stay."""
ALL = (*LOCKS, *FACTORIES)


def wants(tag: str, kinds: Sequence[str] = tuple(LOCKS), prefix: str = "load") -> list[Wanted]:
    """Locks of these kinds whose keys are all on the slot of `tag`; readers and writers have the same lock."""
    return [(kind, [f"{prefix}-{'rw' if kind in {'read', 'write'} else kind}{{{tag}}}"]) for kind in kinds]


class Load:
    """Runs as a context manager, behind which it is judged. `owners`: what each wants in both processes."""

    def __init__(
        self, servers: Cluster | Sentinels, directory: Path, owners: Sequence[Sequence[Wanted]], **options: Any
    ) -> None:
        self._servers, self._url, self._directory = servers, servers.url, directory
        self._owners = [list(wanted) for wanted in owners]
        self._undisturbed = options.pop("undisturbed", False)
        self._options = OPTIONS | options
        self._children: list[Child] = []
        self.history = History(directory=directory)
        self.wanted = {(kind, name) for wanted in owners for kind, names in wanted for name in names}
        self._counters = {name for kind, name in self.wanted if kind in FACTORIES}

    def __enter__(self) -> Self:
        """Returns when every lock was acquired on each backend."""
        with pyredisson.connect(self._url) as client:
            for kind, name in self.wanted:
                if kind in FACTORIES:
                    FACTORIES[kind](client, name).try_set_permits(PERMITS)
        for backend in BACKENDS:
            journal = self._directory / f"{backend}.journal"
            arguments = self._url, backend, journal, backend, json.dumps(self._owners), json.dumps(self._options)
            self._children.append(Child(PROGRAM, *arguments))
        try:
            self.wait_until_all_are_taken()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if error is None:
                self._end()
        finally:
            self._close()

    def wait_until_all_are_taken(self) -> None:
        """Returns when each backend has acquired every lock since now.

        The time for that is long: the owners of both backends contend for locks that promise no owner its share.
        """
        everything = {(backend, *each) for backend in BACKENDS for each in self.wanted}
        self._wait_until_taken(lambda taken: everything - taken, END_SECONDS)

    def wait_until_served(self, seconds: float, names: str = "") -> None:
        """Returns when since now every lock whose name contains `names` was acquired, and some of them by each backend.

        So neither a lock nor a client waits for a server that doesn't answer.
        """
        locks = {each for each in self.wanted if names in each[1]}

        def missing(taken: Taken) -> set[Any]:
            found = [each for each in taken if names in each[2]]
            return locks - {each[1:] for each in found} | set(BACKENDS) - {backend for backend, *_ in found}

        self._wait_until_taken(missing, seconds)

    def _wait_until_taken(self, missing: Callable[[Taken], set[Any]], seconds: float) -> None:
        """Returns when nothing is `missing` in what was acquired since now."""
        begin = clock()

        def left() -> set[Any]:
            self.history.update()
            return missing(self.history.taken_since(begin))

        try:
            eventually(lambda: not left(), seconds)
        except AssertionError:
            raise AssertionError(
                f"not taken within {seconds:g} s: {sorted(map(str, left()))}; {self.history.summary()}"
            ) from None

    def wait_until_taken(self, count: int) -> None:
        """Returns when so many holds have begun since now."""
        aim = self.history.update() + count
        eventually(lambda: self.history.update() >= aim, END_SECONDS)

    def _end(self) -> None:
        """Ends the load when every lock was acquired on each backend once more, and judges it.

        No two holds overlap, nothing stays on the servers, and no lock was waited for, and acquired by nobody, for
        longer than two leases since this was called. `undisturbed`: no hold was lost, and no acquire has failed.
        """
        calm_since = clock()
        self.wait_until_all_are_taken()
        for child in self._children:
            child.send()
        for child in self._children:
            assert [child.receive(END_SECONDS) for _ in range(2)] == ["ready", "done"]
            assert child.wait(END_SECONDS) == 0
        self.history.update()
        found = self.history.faults()
        found += starved(self.history, calm_since, 2 * LEASE)
        # Until all leases have ended.
        with contextlib.suppress(AssertionError):
            eventually(lambda: not self._left(), 2 * LEASE)
        found += self._left()
        if self._undisturbed:
            found += self.history.disturbances()
        assert not found, "\n".join([*found, self.history.summary()])

    def _left(self) -> list[str]:
        """Keys that belong to no semaphore, and that no lease and no lifetime removes; permits in use."""
        servers = self._servers
        found = []
        for node in servers.masters() if isinstance(servers, Cluster) else (servers.master(),):
            keys = set(node.ask("KEYS", "*")) - self._counters
            found += [f"{key} on {node.port}" for key in keys if not key.startswith(LASTING)]
        with pyredisson.connect(self._url) as client:
            for kind, name in sorted(self.wanted):
                if kind in FACTORIES and (permits := FACTORIES[kind](client, name).available_permits()) != PERMITS:
                    found.append(f"{kind} {name!r} has {permits} permits of {PERMITS}")
        return found

    def _close(self) -> None:
        for child in self._children:
            child.close()


Taken = set[tuple[str, str, str]]
"""Backends, kinds and names of holds."""
LASTING = ("redisson_lock_token", "pyredisson_", "{")
"""How names of keys begin that may stay: the tokens of fenced locks, and what the server removes by itself."""


@dataclass
class History(Journals):
    """What the processes of a load have written until now."""

    directory: Path = Path()
    backends: dict[str, str] = field(default_factory=dict)
    """The backend of each hold."""
    _read: dict[Path, int] = field(default_factory=dict)

    def update(self) -> int:
        """Reads what was written since the last time. Returns how many holds are known."""
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
        return len(self.holds)

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
    waits: dict[tuple[str, str], list[tuple[float, float]]] = {}
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
