"""100,000 held locks: the processor time of their renewal, and their memory."""

from __future__ import annotations

import time
from typing import NamedTuple

import psutil

import pyredisson
from benchmarks import Row, Target
from benchmarks.measure import in_fresh_process, one_core
from pyredisson.testing import Cluster, Server

LOCKS = 100_000
MASTERS = 3
ROUND = 10.0
"""Seconds between two renewals of a lock, with the default lease of 30 s."""


class Upkeep(NamedTuple):
    """The cost of holding all these locks."""

    cpu: float
    """Share of one core, in percent."""
    total: float
    """Resident memory of the process, in MB."""
    each: float
    """Growth of resident memory, in bytes a lock."""


def rows(*, quick: bool) -> list[Row]:
    """Processor time of whole renewal rounds; memory of the process, and of one lock."""
    rounds = 1 if quick else 2
    with one_core(), Server() as server:
        upkeep = in_fresh_process(hold, server.url, rounds=rounds)
    with one_core(), Cluster(masters=MASTERS, replicas=0) as cluster:
        on_cluster = in_fresh_process(hold, cluster.url, rounds=rounds)
    return [
        _row(
            "renewal of 100,000 locks, CPU *",
            "processor time of the whole process while one client's watchdog renews them, default lease",
            upkeep.cpu,
            (5, "% of a core"),
        ),
        _row(
            "renewal of 100,000 locks on 3 masters, CPU *",
            "the same on a cluster; there a script call takes the locks of one slot only, six on average",
            on_cluster.cpu,
            (5, "% of a core"),
        ),
        _row(
            "renewal of 100,000 locks, memory",
            "resident memory of that process, the interpreter and all handles included",
            upkeep.total,
            (100, "MB"),
        ),
        _row(
            "a held lock, resident",
            "growth of resident memory per lock, its handle and name included",
            upkeep.each,
            (1024, "bytes"),
        ),
    ]


def _row(name: str, what: str, ours: float, most: tuple[float, str]) -> Row:
    """A row whose figure is to be no more than `most`, a number and its unit."""
    number, unit = most
    return Row(name=name, what=what, unit=unit, ours=ours, target=Target("ours", "<=", number))


def hold(url: str, rounds: int) -> Upkeep:
    """Acquires all locks of one client, measures their renewal, and checks that none was lost."""
    process = psutil.Process()
    with pyredisson.connect(url) as client:
        with client.get_lock("first"):
            before = process.memory_info().rss
        locks = [client.get_lock(f"lock-{i:06}") for i in range(LOCKS)]
        for lock in locks:
            lock.lock()
        # In the first round each lock is renewed when it is due, and from the second on together with its slot.
        time.sleep(ROUND)
        began, cpu_before = time.monotonic(), time.process_time()
        time.sleep(rounds * ROUND)
        cpu, elapsed = time.process_time() - cpu_before, time.monotonic() - began
        memory = process.memory_info().rss
        for lock in (locks[0], locks[LOCKS // 2], locks[-1]):
            left = lock.remain_time_to_live()
            if left is None or left < ROUND:
                raise AssertionError(f"{lock} wasn't renewed: {left} s left")
        if any(lock.lost.is_set() for lock in locks):
            raise AssertionError("locks were lost while they were to be renewed")
    return Upkeep(cpu / elapsed * 100, memory / 1e6, (memory - before) / LOCKS)
