"""The time of the import, and the memory that Python allocates for a held lock."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable

import pyredisson
from benchmarks import Row, Target
from benchmarks.measure import in_fresh_process, interleave, one_core
from pyredisson.testing import Server

TIMED_IMPORT = "from time import perf_counter as t; began = t(); import {}; print(t() - began)"


def rows(*, quick: bool) -> list[Row]:
    """The import beside redis-py's, and the memory for one of many held locks."""
    return [_imports(5 if quick else 21), _memory(10_000 if quick else 100_000)]


def _imports(rounds: int) -> Row:
    with one_core(), tempfile.TemporaryDirectory() as cache:
        # With its own bytecode cache: otherwise compilation would be timed where writing bytecode is disabled.
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}
        contenders = {name: _import(name, environment) for name in ("redis", "pyredisson")}
        samples = interleave(contenders, rounds)
    return Row(
        name="import pyredisson *",
        what="time that it adds to `import redis`, in fresh interpreters",
        unit="ms",
        ours=samples.difference("pyredisson", "redis"),
        baselines={"import redis": samples.median("redis")},
        target=Target("ours", "<=", 60),
    )


def _memory(count: int) -> Row:
    with one_core(), Server() as server:
        each = in_fresh_process(hold, server.url, count)
    return Row(
        name="a held lock, allocated",
        what=f"growth of tracemalloc's sum per lock, of {count:,} held ones, its handle and name included",
        unit="bytes",
        ours=each,
        target=Target("ours", "<=", 1024),
    )


def hold(url: str, count: int) -> float:
    """Acquires `count` locks of one client; returns the bytes per lock."""
    with pyredisson.connect(url) as client:
        with client.get_lock("first"):
            tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        locks = [client.get_lock(f"lock-{i:06}") for i in range(count)]
        for lock in locks:
            lock.lock()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return (after - before) / count


def _import(module: str, environment: dict[str, str]) -> Callable[[], float]:
    """A contender that returns the milliseconds of one import."""
    command = [sys.executable, "-c", TIMED_IMPORT.format(module)]

    def run() -> float:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return 1000 * float(done.stdout)

    return run
