"""What the processes of a load have recorded, and what must not be in it.

Exclusion, counts and tokens are checked by porcupine (`checker/`), as a question of linearizability; what is no such
question is checked here. The checker is built once, as is the clock that can be stepped for a server.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pyredisson.testing import Server
from pyredisson.testing.server import find_executable

NEVER = float("inf")
HEARD = 0.2
"""Seconds within which the server has heard of a caller that is far away, on a busy machine."""
MOST_TURNS = 4
"""How often another owner acquires a lock at most while a caller waits for it: one turn, and one series."""
IN_ORDER = ("lock", "fenced", "non-reentrant", "write", "fair", "election", "singleton")
"""The locks whose waiters have turns, one after the other."""
SAME_WAIT = 0.5
"""Seconds between two waits for a lock that count as one."""
Period = tuple[float, float]
"""From when to when."""


@dataclass
class Hold:
    """From `begin` to `end` somebody had every reason to believe that he holds `name`."""

    identity: str
    owner: str
    kind: str
    name: str
    mode: str
    """`exclusive`, `shared`, or how many may hold it at once."""
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
class LatchCall:
    name: str
    word: str
    asked: float
    result: str = "unknown"
    at: float = NEVER


@dataclass
class History:
    """The journals of a directory."""

    directory: Path = Path()
    holds: dict[str, Hold] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    latches: dict[str, LatchCall] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    writers: dict[str, str] = field(default_factory=dict)
    """The journal of each hold."""
    forgotten: list[Period] = field(default_factory=list)
    """When a server was being replaced by an empty one."""
    stepped: list[Period] = field(default_factory=list)
    """When the clock of a server was stepped: leases may end."""
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
                self.writers[identity] = path.stem
        return len(self.holds)

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            word, _, rest = line.partition(" ")
            match [word, *rest.split()]:
                case ["hold", identity, owner, kind, name, mode, asked, begin]:
                    times = float(asked), float(begin), float(begin)
                    self.holds[identity] = Hold(identity, owner, kind, name, mode, *times)
                case ["failed" | "refused", kind, name, asked, at, *raised]:
                    self.failures.append(Failure(kind, name, float(asked), float(at), *raised))
                case ["latch", identity, name, what, asked]:
                    self.latches[identity] = LatchCall(name, what, float(asked))
                case ["result", identity, result, at]:
                    call = self.latches[identity]
                    call.result, call.at = result, float(at)
                case ["token", identity, token]:
                    self.holds[identity].token = int(token)
                case ["lost", identity, _]:
                    self.holds[identity].lost = True
                case ["still" | "released", identity, at]:
                    hold = self.holds[identity]
                    hold.end = max(hold.end, float(at))
                    if word == "released":
                        hold.released = float(at)
                case _:
                    self.errors.append(rest)

    def summary(self) -> str:
        kinds = sorted({hold.kind for hold in self.holds.values()})
        counts = ", ".join(f"{kind} {sum(hold.kind == kind for hold in self.holds.values())}" for kind in kinds)
        errors = sorted({failure.error or "refused" for failure in self.failures})
        lost = sum(hold.lost for hold in self.holds.values())
        return f"{len(self.holds)} holds ({counts}), {lost} lost, {len(self.failures)} failed acquires {errors}"

    def violations(self) -> list[str]:
        """What must not be, one line each."""
        found = [f"unexpected: {error}" for error in self.errors]
        found += [
            f"said to be released by a server that never had it: {hold}"
            for hold in self.holds.values()
            if hold.released is not None
            and hold.kind != "red"  # Other members of a red lock have it still.
            and any(hold.begin < begin and hold.released > end for begin, end in self.forgotten)
        ]
        return found + check([*self._of_holds(), *self._of_latches()], self.directory / "violation")

    def _of_holds(self) -> Iterator[dict[str, Any]]:
        """The acquire and the end of each hold. The end is when the belief ends: nobody loses by an earlier one."""
        for hold in self.holds.values():
            end = self._until_forgotten(hold)
            if end is None and not hold.token:
                continue
            owner = hold.identity if hold.mode.isdigit() else hold.owner
            words = {"name": hold.name, "owner": owner, "mode": hold.mode, "hold": str(hold), "token": hold.token}
            yield words | {"word": "acquire", "call": hold.asked, "return": hold.begin}
            # Of a hold that was forgotten before it was known, the token counts.
            yield words | {"word": "release", "call": hold.asked if end is None else end, "return": end or NEVER}

    def _until_forgotten(self, hold: Hold) -> float | None:
        """The end of the belief that counts: what a server has forgotten excludes nobody. None: it doesn't count."""
        if hold.kind == "semaphore" and self.forgotten and hold.end > self.forgotten[0][0]:
            # A semaphore has no owners: a permit from before enlarges it when it is released afterwards.
            return None
        end = hold.end
        for begin, until in (*self.forgotten, *self.stepped):
            if hold.asked < until and end > begin:
                end = begin
        return end if end >= hold.begin else None

    def _of_latches(self) -> Iterator[dict[str, Any]]:
        for name in sorted({call.name for call in self.latches.values()}):
            for begin, until in self.forgotten:
                yield {"name": name, "mode": "latch", "word": "forget", "call": begin, "return": until}
        for call in self.latches.values():
            words = {"name": call.name, "mode": "latch", "word": call.word}
            sets = call.word.startswith("set")
            changes = sets or call.word == "down"
            if call.result == "unknown" and changes:
                yield words | {"result": "unknown", "call": call.asked, "return": NEVER}
            elif call.result not in ("unknown", "False") or sets:
                yield words | {"result": call.result, "call": call.asked, "return": call.at}
            if changes and any(call.asked < until and call.at > begin for begin, until in self.forgotten):
                # A first copy of it may have changed what the former server had.
                yield words | {"result": "unknown", "call": call.asked, "return": NEVER}


def passed_over(history: History) -> list[str]:
    """Without faults: who waited while another owner acquired the same lock more often than its turns allow."""
    found = []
    by_lock: dict[tuple[str, str], list[Hold]] = {}
    for hold in history.holds.values():
        if hold.kind in IN_ORDER and not history.writers.get(hold.identity, "").startswith("java"):
            by_lock.setdefault((hold.kind, hold.name), []).append(hold)
    for (kind, _), holds in by_lock.items():
        for hold in holds:
            others = [each.owner for each in holds if hold.asked + HEARD < each.begin < hold.begin]
            most = max(map(others.count, set(others)), default=0)
            if most > MOST_TURNS:
                found.append(f"{hold} waited since {hold.asked:.6f}, and another owner acquired it {most} times")
            if kind == "fair":
                later = [each for each in holds if each.asked > hold.asked + HEARD and each.begin < hold.begin]
                found += [f"{each} came {each.asked - hold.asked:.3f} s after {hold}" for each in later]
    return found


def starved(history: History, since: float, bound: float, locks: Container[tuple[str, str]]) -> list[str]:
    """Which of the locks were free for longer than `bound` seconds after `since` while somebody waited for them."""
    held: dict[str, list[Period]] = {}
    waits: dict[tuple[str, str], list[Period]] = {}
    for hold in history.holds.values():
        held.setdefault(hold.name, []).append((hold.begin, hold.end))
        waits.setdefault((hold.kind, hold.name), []).append((hold.asked, hold.begin))
    for failure in history.failures:
        waits.setdefault((failure.kind, failure.name), []).append((failure.asked, failure.at))
    found = []
    for lock, periods in waits.items():
        holds, longest = joined(held.get(lock[1], []), 0), 0.0
        for asked, end in joined(periods, SAME_WAIT):
            free = max(asked, since)
            for begin, until in holds:
                if begin < end and until > free:
                    longest, free = max(longest, begin - free), until
            longest = max(longest, end - free)
        if longest > bound and lock in locks:
            found.append(f"nobody acquired {lock[0]} {lock[1]!r} for {longest:.2f} s")
    return found


def joined(periods: Iterable[Period], gap: float) -> list[Period]:
    """Periods that overlap, or have less than `gap` seconds between them, as one."""
    found: list[Period] = []
    for begin, end in sorted(periods):
        if found and begin < found[-1][1] + gap:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def check(operations: list[dict[str, Any]], pictures: Path) -> list[str]:
    """The names whose operations are no history of a lock, each with the path of porcupine's picture."""
    times = [each[key] for each in operations for key in ("call", "return") if each[key] != NEVER]
    last = max(times, default=0.0) + 1
    for each in operations:
        for key in ("call", "return"):
            each[key] = round(min(each[key], last) * 1e9)
    text = json.dumps(operations)
    done = subprocess.run([checker(), pictures], input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.splitlines()


HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "campaign"


def built(name: str, sources: list[Path], build: Callable[[Path], object]) -> Path:
    """The path of a program, which is built if it is missing or older than its sources."""
    BUILD.mkdir(parents=True, exist_ok=True)
    program = BUILD / name
    # Several processes of one test run build at the same time.
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists() or program.stat().st_mtime < max(file.stat().st_mtime for file in sources):
            build(program)
    return program


@cache
def checker() -> Path:
    """The program of `checker/`. Skips the test where it can't be built."""
    folder = HERE / "checker"

    def build(program: Path) -> None:
        if shutil.which("go") is None:
            pytest.skip("no go on this machine: apt install golang-go")
        if subprocess.run(["go", "mod", "download"], cwd=folder, check=False).returncode:
            pytest.skip("porcupine can't be downloaded")
        subprocess.run(["go", "build", "-o", program, "."], cwd=folder, check=True)

    return built("checker", list(folder.iterdir()), build)


class SteppedServer(Server):
    """A server whose time of day can be stepped. Its monotonic clock goes on as it was."""

    def __init__(self, directory: Path, tls: bool = False) -> None:
        source = HERE / "clock.c"
        command = ("gcc", "-O2", "-shared", "-fPIC", source, "-o")
        library = built("clock.so", [source], lambda program: subprocess.run((*command, program), check=True))
        self._offset = directory / "offset"
        self._offset.write_bytes(bytes(8))
        program = directory / "server"
        program.write_text(
            f'#!/bin/sh\nCLOCK_OFFSET={self._offset} LD_PRELOAD={library} exec {find_executable(None)} "$@"\n', "utf-8"
        )
        program.chmod(0o700)
        super().__init__(executable=program, tls=tls)

    def step(self, seconds: float) -> None:
        """From now on its clock is ahead by so many seconds, or behind."""
        # Not as a new file: the server has mapped this one.
        with self._offset.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("q", round(seconds * 1e6)), 0)
