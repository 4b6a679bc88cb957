"""A soak test: processes acquire locks of every kind while network, processes and server fail; a judge of journals.

In its long form: `python -m tests.faults.soak --seconds 600 [--backend both] [--seed 7]`; `test_soak.py` is the
short form. A seed gives the same troubles and the same choices of all owners again, at times that are never the same.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import sched
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from redis import Redis

import pyredisson
from pyredisson.testing import Proxy, Server
from tests.support.children import Child

from .soak_worker import PERMITS, PROGRAM, Wanted, clock

LEASE = 1.0
"""Seconds: the watchdog's lease."""
OPTIONS = {"lock_watchdog_timeout": LEASE, "timeout": 0.3, "connect_timeout": 0.5, "retry_attempts": 3}
TIME_LIMIT = 20.0
"""Seconds within which every process has ended once nothing is wrong any more."""
LOCKS = {"lock": "lock", "fair": "fair", "fenced": "fenced", "spin": "lock", "non-reentrant": "single"}
LOCKS |= {"multi": "lock other", "write": "rw", "read": "rw"}
"""The names that a lock of each kind has."""
WANTED: list[Wanted] = [(kind, names.split()) for kind, names in LOCKS.items()]
WANTED += [("read", ["rw"])] * 2 + [("permit", ["permits"]), ("semaphore", ["semaphore"])]
BACKENDS = ("threads", "asyncio", "both")
SCRIPT = b"EVALSHA"
"""What the faults strike."""
Reset = tuple[float, float]
"""From when to when a server was being replaced by an empty one."""


@dataclass
class Report:
    found: list[str]
    journals: Journals
    kills: int
    resets: int

    def __str__(self) -> str:
        holds = self.journals.holds.values()
        counts = ", ".join(f"{kind} {count}" for kind, count in sorted(Counter(hold.kind for hold in holds).items()))
        head = f"{len(holds)} holds ({counts}), {sum(hold.lost for hold in holds)} of them lost"
        deaths = f"{self.kills} processes killed, {self.resets} servers replaced"
        return "\n".join([head, deaths, *self.found])


class Soak:
    """`processes` of `owners` in each of their backends; `seed` chooses what they do and what fails."""

    def __init__(self, backend: str, seed: int, directory: Path, *, processes: int = 3, owners: int = 3) -> None:
        self._backend, self._seed, self._directory = backend, seed, directory
        self._processes, self._owners = processes, owners
        self._started = 0
        self._children: list[Child] = []
        self._resets: list[Reset] = []
        self._closing = contextlib.ExitStack()

    def run(self, server: Server, seconds: float, *, deadly: bool = False) -> Report:
        """The server is this soak's own, and empty. `deadly`: with kills."""
        choice = random.Random(f"{self._seed}/{self._backend}")
        with self._closing, Proxy(server.host, server.port) as proxy, server.redis() as redis:
            prepare(server)
            self._children += [self._start(proxy) for _ in range(self._processes)]
            troubles = Troubles(proxy, self._children, choice)
            if deadly:
                troubles.all += [lambda: self._kill(choice, troubles, proxy), lambda: self._reset(choice, server)]
            troubles.run(clock() + seconds)
            found = self._end()
            journals = Journals.read(self._directory)
            found += judge(journals, self._resets) + self._left(redis, deadly)
            return Report(found, journals, self._started - self._processes, len(self._resets))

    def _start(self, proxy: Proxy) -> Child:
        self._started += 1
        journal, seed = self._directory / f"{self._started}.journal", f"{self._seed}/{self._started}"
        wanted, options = json.dumps([WANTED] * self._owners), json.dumps(OPTIONS)
        child = Child(PROGRAM, proxy.url, self._backend, journal, seed, wanted, options, "unruly")
        self._closing.callback(child.close)
        if child.receive() != "ready":
            raise RuntimeError("a process of the soak has not started")
        return child

    def _kill(self, choice: random.Random, troubles: Troubles, proxy: Proxy) -> None:
        index = choice.randrange(len(self._children))
        child = self._children[index]
        if choice.random() < 0.3 and child is not troubles.stopped:
            child.signal(signal.SIGKILL)
            self._children[index] = self._start(proxy)

    def _reset(self, choice: random.Random, server: Server) -> None:
        if choice.random() < 0.3:
            begin = clock()
            server.kill()
            time.sleep(choice.choice((0.0, 0.0, 1.0)) * choice.random())
            server.start()
            self._resets.append((begin, clock()))
            prepare(server)

    def _end(self) -> list[str]:
        for child in self._children:
            child.send()
        ends = [(child.receive(TIME_LIMIT), child.wait(TIME_LIMIT)) for child in self._children]
        return [f"a process ended with {end}" for end in ends if end != ("done", 0)]

    def _left(self, redis: Redis, deadly: bool) -> list[str]:
        """What must not be left when all have ended."""
        time.sleep(2 * LEASE)
        found = [f"left behind: {name}" for name in sorted({*" ".join(LOCKS.values()).split()}) if redis.exists(name)]
        permits = int(redis.get("semaphore") or 0)
        if permits != PERMITS and not deadly:
            found.append(f"the semaphore has {permits} permits of {PERMITS}")
        return found


class Troubles:
    """Makes one after the other, chosen by `random`, and ends each of them in time."""

    def __init__(self, proxy: Proxy, children: list[Child], random: random.Random) -> None:
        self._proxy, self._children, self._random = proxy, children, random
        self._later = sched.scheduler(clock, time.sleep)
        self.stopped: Child | None = None
        self.all: list[Callable[[], object]] = [
            lambda: proxy.drop_reply(SCRIPT, random.randint(1, 3)),
            lambda: proxy.cut_reply(SCRIPT, random.randint(1, 3)),
            lambda: proxy.cut_request(SCRIPT, random.randint(1, 3)),
            lambda: self._hold(proxy.hold_request),
            lambda: self._hold(proxy.hold_reply),
            self._slow,
            lambda: proxy.cut(reset=random.random() < 0.5),
            self._stall,
            proxy.blackhole,
            self._stop,
        ]

    def run(self, until: float) -> None:
        """Returns when `until` is over and nothing is wrong any more."""
        while clock() < until:
            self._random.choice(self.all)()
            self._wait(clock() + self._random.uniform(0.02, 0.3))
        for event in self._later.queue:
            event.action()

    def _wait(self, until: float) -> None:
        while clock() < until:
            self._later.run(blocking=False)
            time.sleep(0.01)

    def _in(self, shortest: float, longest: float, end: Callable[[], object]) -> None:
        self._later.enter(self._random.uniform(shortest, longest), 0, end)

    def _hold(self, hold: Callable[[bytes], pyredisson.testing.Hold]) -> None:
        fault = hold(SCRIPT)
        self._in(0.05, 1.5 * LEASE, lambda: deliver(fault))

    def _slow(self) -> None:
        self._proxy.latency(self._random.uniform(0, 0.05))
        self._in(0.1, 0.5, lambda: self._proxy.latency(0))

    def _stall(self) -> None:
        self._proxy.stall()
        self._in(0.05, 1.3 * LEASE, self._proxy.resume)

    def _stop(self) -> None:
        """One process at a time, mostly beyond its lease."""
        if self.stopped is None:
            child = self.stopped = self._random.choice(self._children)
            child.signal(signal.SIGSTOP)
            self._in(0.2, 2 * LEASE, self._go_on)

    def _go_on(self) -> None:
        if self.stopped is not None:
            self.stopped.signal(signal.SIGCONT)
            self.stopped = None


def deliver(hold: pyredisson.testing.Hold) -> None:
    if hold.held.is_set():
        # Both mean that one of the two ends has given up the connection meanwhile.
        with contextlib.suppress(ConnectionError, TimeoutError):
            hold.deliver(0.2)


def prepare(server: Server) -> None:
    """Permits, on a server that has none."""
    with pyredisson.connect(server.url) as client:
        client.get_semaphore("semaphore").try_set_permits(PERMITS)
        client.get_permit_expirable_semaphore("permits").try_set_permits(PERMITS)


@dataclass
class Hold:
    """From `begin` to `end` somebody had every reason to believe that he holds `name`."""

    identity: str
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
class Journals:
    holds: dict[str, Hold] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
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
    found, active = [], list[Hold]()
    for hold in holds:
        active = [other for other in active if other.end > hold.begin]
        if hold.mode.isdigit():
            others = active[:1] if len(active) >= int(hold.mode) else []
        else:
            others = [other for other in active if "exclusive" in {other.mode, hold.mode}]
        found += [f"overlap of {other} and {hold}" for other in others]
        active.append(hold)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each backend")
    parser.add_argument("--backend", choices=BACKENDS, help="one of them; without it all, one after the other")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--owners", type=int, default=4, help="in each process and backend")
    parser.add_argument("--gentle", action="store_true", help="kill no process and no server")
    options = parser.parse_args()
    failed = 0
    for backend in [options.backend] if options.backend else BACKENDS:
        print(f"{backend}: seed {options.seed}, {options.seconds:g} s", flush=True)
        directory = Path(tempfile.mkdtemp(prefix="pyredisson-soak-"))
        soak = Soak(backend, options.seed, directory, processes=options.processes, owners=options.owners)
        with Server() as server:
            report = soak.run(server, options.seconds, deadly=not options.gentle)
        print(f"{report}\nThe journals are in {directory}.", flush=True)
        failed |= bool(report.found)
    return failed


if __name__ == "__main__":
    sys.exit(main())
