"""Threads with and without the global lock: 1, 2 and 8 threads on as many locks of two servers.

The build without the lock is that of `.venv-3.14t`: `make venv PYTHON=python3.14t VENV=.venv-3.14t`. This
module is also the program that each build runs.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import pyredisson
from benchmarks import Row, Target
from benchmarks.measure import Samples, interleave
from pyredisson.testing import Server

ROOT = Path(__file__).parent.parent
FREE_THREADED = ROOT / ".venv-3.14t/bin/python"
# hiredis switches the lock on where it is installed, unless that is refused.
BUILDS = {"without the lock": [str(FREE_THREADED), "-X", "gil=0"], "with the lock": [sys.executable]}
THREADS = (1, 2, 8)
SECONDS = 0.2
"""How long the threads of one round work."""


def rows(*, quick: bool) -> list[Row]:
    """Nothing where there is no environment of a build without the lock."""
    if not FREE_THREADED.exists():
        return []
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(2)]
        workers = {build: _Worker(python, servers, stack) for build, python in BUILDS.items()}
        contenders: dict[str, Callable[[], float]] = {}
        for build, worker in workers.items():
            for threads in THREADS:
                contenders[f"pairs {build} {threads}"] = partial(worker.work, threads)
                contenders[f"processor {build} {threads}"] = partial(worker.processor_time, threads)
        samples = interleave(contenders, 4 if quick else 25)
    return [
        *(_processor_time(samples, threads) for threads in THREADS[1:]),
        *(_pairs(samples, threads) for threads in THREADS),
    ]


def _processor_time(samples: Samples, threads: int) -> Row:
    here, there = "processor without the lock {}", "processor with the lock {}"
    return Row(
        name=f"no global lock, {threads} threads, processor time",
        what=f"the client's processor time for a pair, {threads} threads on {threads} locks, beside one thread",
        unit="us/pair",
        ours=samples.median(here.format(threads)),
        baselines={
            "1 thread": samples.median(here.format(1)),
            "with the lock": samples.median(there.format(threads)),
            "with the lock, 1 thread": samples.median(there.format(1)),
        },
        ratio=samples.ratio(here.format(threads), here.format(1)),
        target=Target("ratio", "<=", 1.0),
    )


def _pairs(samples: Samples, threads: int) -> Row:
    here, there = f"pairs without the lock {threads}", f"pairs with the lock {threads}"
    return Row(
        name=f"no global lock, {threads} thread{'s' * (threads > 1)}",
        what=f"pairs a second of {threads} threads on {threads} locks of two servers, beside the build with the lock",
        unit="pairs/s",
        ours=samples.median(here),
        baselines={"with the lock": samples.median(there)},
        ratio=samples.ratio(here, there),
    )


class _Worker:
    """A process that locks and unlocks, on an interpreter of its own."""

    def __init__(self, python: list[str], servers: list[Server], stack: ExitStack) -> None:
        command = [*python, "-m", "benchmarks.free_threading", *(server.url for server in servers)]
        self._process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        )
        stack.callback(self._process.communicate, "")
        self._processor_time = 0.0

    def work(self, threads: int) -> float:
        """Pairs a second of so many threads."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{threads}\n")
        self._process.stdin.flush()
        pairs, self._processor_time = map(float, self._process.stdout.readline().split())
        return pairs

    def processor_time(self, threads: int) -> float:
        """Microseconds of processor time for one pair of so many threads."""
        self.work(threads)
        return self._processor_time


def main() -> None:
    """Reads numbers of threads, and writes their pairs a second and the processor time of a pair."""
    with ExitStack() as stack:
        clients = [stack.enter_context(pyredisson.connect(url)) for url in sys.argv[1:]]
        locks = [clients[number % len(clients)].get_lock(f"lock-{number}") for number in range(max(THREADS))]
        for line in sys.stdin:
            print(*_together(locks[: int(line)]), flush=True)


def _together(locks: list[pyredisson.Lock]) -> tuple[float, float]:
    counts = [0] * len(locks)

    def work(number: int) -> None:
        lock, count, ends = locks[number], 0, perf_counter() + SECONDS
        while perf_counter() < ends:
            for _ in range(10):
                lock.lock()
                lock.unlock()
            count += 10
        counts[number] = count

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(locks))]
    began, processor_time = perf_counter(), process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pairs = sum(counts)
    return pairs / (perf_counter() - began), (process_time() - processor_time) / pairs * 1e6


if __name__ == "__main__":
    main()
