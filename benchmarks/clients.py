"""Many clients with one caller each at one lock or semaphore: what an acquisition costs, and the longest wait."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from statistics import fmean, median
from time import perf_counter, process_time
from typing import Any, NamedTuple

import psutil

import pyredisson.asyncio
from benchmarks import Row, Target
from benchmarks.measure import in_fresh_process
from pyredisson.testing import Server

CLIENTS = (2, 10, 50, 200, 1_000)
ACQUISITIONS = 4_000
"""In one measurement, of all clients together; at least two of each client."""
KINDS = ("lock", "fair lock", "write lock", "read-write lock", "semaphore", "permits with ids")
"""Of a read-write lock every tenth client writes, and the others read."""
COUNTS = KINDS[-2:]
PERMITS = 5
"""With fewer clients than permits nobody waits."""


CROWD = (1_000, 100)
"""Clients that each hold a lock of their own and wait for one of ten hot ones; and so many for a first look."""
HOT = 10
UPKEEP = 20.0
"""Seconds for which they are watched: two rounds of renewals, at which each of them announces itself, too."""


class _Turn:
    """One caller: how it acquires and releases a lock or a permit."""

    def __init__(self, client: pyredisson.asyncio.Client, kind: str, number: int) -> None:
        self._permit: Any = None
        self.what: Any
        if kind == "lock":
            self.what = client.get_lock("hot")
        elif kind == "fair lock":
            self.what = client.get_fair_lock("hot")
        elif kind == "semaphore":
            self.what = client.get_semaphore("hot")
        elif kind == "permits with ids":
            self.what = client.get_permit_expirable_semaphore("hot")
        else:
            both = client.get_read_write_lock("hot")
            self.what = both.read_lock() if kind == "read-write lock" and number % 10 else both.write_lock()
        self._counts = kind in COUNTS

    async def acquire(self) -> None:
        if self._counts:
            self._permit = await self.what.acquire()
        else:
            await self.what.lock()

    async def release(self) -> None:
        if not self._counts:
            await self.what.unlock()
        elif self._permit is None:
            await self.what.release()
        else:
            await self.what.release(self._permit)


class Contended(NamedTuple):
    """What the acquisitions of one measurement have cost."""

    calls: float
    """Script calls for each."""
    messages: float
    """Messages that somebody receives, for each."""
    server: float
    """Microseconds of the server's time in scripts for each."""
    longest: float
    """The longest wait, in rounds: the number of clients times the time between two acquisitions. This time is the
    median for a lock, and the average for a semaphore, as several clients acquire it at a time. The first acquisition
    of each client doesn't count: all clients are in one process, which makes all first attempts before it reads a
    reply."""
    passed: float
    """The most acquisitions by others during one wait, by the number of clients. It doesn't depend on the machine."""


def rows(*, quick: bool) -> list[Row]:
    """For each number of clients: script calls, the server's time beside few clients, and the longest wait."""
    before = sys.getswitchinterval()
    # A thousand clients have two thousand threads here, which would ask each other for the interpreter all the time.
    sys.setswitchinterval(0.1)
    try:
        contended = [row for kind in KINDS for row in _rows(kind, CLIENTS[:4] if quick else CLIENTS, 1 if quick else 5)]
    finally:
        sys.setswitchinterval(before)
    return contended + _crowd_rows(CROWD[quick])


def _rows(kind: str, counts: Sequence[int], repeats: int) -> list[Row]:
    samples: dict[int, list[Contended]] = {count: [] for count in counts}
    for _ in range(repeats):
        for count in counts:
            with Server() as server:
                samples[count].append(asyncio.run(_contend(server, kind, count)))

    fewest = next(count for count in counts if kind not in COUNTS or count > PERMITS)

    def middle(count: int, field: str) -> float:
        figures: list[float] = [getattr(sample, field) for sample in samples[count]]
        return median(figures)

    return [
        row
        for count in counts
        for row in (
            Row(
                name=f"{kind}, {count:,} clients, calls",
                what="script calls for each acquisition, one caller in each client",
                unit="",
                ours=middle(count, "calls"),
                target=Target("ours", "<=", 3.2),
            ),
            Row(
                name=f"{kind}, {count:,} clients, messages",
                what="messages that somebody receives, for each acquisition",
                unit="",
                ours=middle(count, "messages"),
                target=Target("ours", "<=", 2.0),
            ),
            Row(
                name=f"{kind}, {count:,} clients, server",
                what=f"the server's time in scripts for each acquisition, beside {fewest} clients",
                unit="us",
                ours=middle(count, "server"),
                baselines={f"{fewest} clients": middle(fewest, "server")},
                ratio=middle(count, "server") / middle(fewest, "server"),
                target=Target("ratio", "<=", 1.5),
            ),
            Row(
                name=f"{kind}, {count:,} clients, longest wait",
                what="in rounds: the number of clients times the time between two acquisitions",
                unit="",
                ours=middle(count, "longest"),
                target=Target("ours", "<=", 2.0) if count == 200 and kind != "read-write lock" else None,
            ),
            Row(
                name=f"{kind}, {count:,} clients, passed by",
                what="the most acquisitions by others during one wait, by the number of clients",
                unit="",
                ours=middle(count, "passed"),
                target=Target("ours", "<=", 2.0) if kind != "read-write lock" else None,
            ),
        )
    ]


async def _contend(server: Server, kind: str, count: int) -> Contended:
    rounds = max(2, ACQUISITIONS // count)
    waits: list[float] = []
    passed: list[int] = []
    acquired: list[float] = []

    async def work(client: pyredisson.asyncio.Client, number: int, times: int) -> None:
        turn = _Turn(client, kind, number)
        for at in range(times):
            began, before = perf_counter(), len(acquired)
            await turn.acquire()
            passed.append(len(acquired) - before)
            acquired.append(perf_counter())
            if at:
                waits.append(acquired[-1] - began)
            await turn.release()

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(pyredisson.asyncio.connect(server.url)) for _ in range(count)]
        if kind in COUNTS:
            await _Turn(clients[0], kind, 0).what.try_set_permits(PERMITS)
        # Each client connects and listens. One that holds or waits announces itself, once: that calls a script, too.
        await asyncio.gather(*(work(client, number, 1) for number, client in enumerate(clients)))
        announced = -1
        with server.redis() as admin:
            while announced < (announced := len(admin.keys("pyredisson_client:*"))):  # noqa: ASYNC110
                # No event tells of it.
                await asyncio.sleep(1.0)
            passed.clear()
            acquired.clear()
            admin.config_resetstat()
            await asyncio.gather(*(work(client, number, rounds) for number, client in enumerate(clients)))
            stats: dict[str, Any] = admin.info("commandstats")
    scripts = [entry for name, entry in stats.items() if name.startswith("cmdstat_eval")]
    published = stats.get("cmdstat_publish", {"calls": 0})["calls"]
    turns = [after - before for before, after in pairwise(acquired)]
    turn = fmean(turns) if kind in COUNTS else median(turns)
    total = len(acquired)
    return Contended(
        calls=sum(entry["calls"] for entry in scripts) / total,
        # The release of a lock publishes on Redisson's channel, too, to which nobody listens.
        messages=published / total - (kind not in (*COUNTS, "fair lock")),
        server=sum(entry["usec"] for entry in scripts) / total,
        longest=max(waits) / (count * turn),
        passed=max(passed) / count,
    )


# --- What they cost that hold and wait


class Crowd(NamedTuple):
    """What many clients cost that hold and wait, all of them in one process."""

    cpu: float
    """Milliseconds of processor time a second, for each client."""
    server: float
    """Percent of a core that the server uses for all of them."""
    commands: float
    """Commands a second of each client."""
    memory: float
    """KiB of resident memory for each client, its connections and threads included."""
    back: float
    """Seconds from the restart of an empty server until each client holds a lock on it again."""


def _crowd_rows(count: int) -> list[Row]:
    crowd = in_fresh_process(_crowd, count)
    what = {
        "cpu": ("processor time for each client", "ms/s"),
        "server": ("the server's processor time for all of them", "% of a core"),
        "commands": ("of each client", "1/s"),
        "memory": ("of each client, its connections and threads included", "KiB"),
        "back": ("from the restart of an empty server until each client holds a lock again", "s"),
    }
    each = f"{count:,} clients that hold and wait"
    return [
        Row(name=f"{each}, {field}", what=text, unit=unit, ours=getattr(crowd, field))
        for field, (text, unit) in what.items()
    ]


def _crowd(count: int) -> Crowd:
    # Each client would say that the server is away.
    logging.getLogger("pyredisson").setLevel(logging.CRITICAL)
    with Server() as server:
        return asyncio.run(_hold_and_wait(server, count))


async def _hold_and_wait(server: Server, count: int) -> Crowd:
    process = psutil.Process()
    memory = process.memory_info().rss
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(pyredisson.asyncio.connect(server.url)) for _ in range(count)]
        await asyncio.gather(*(client.get_lock(f"own {at}").lock() for at, client in enumerate(clients)))
        waiting = [asyncio.create_task(client.get_lock(f"hot {at % HOT}").lock()) for at, client in enumerate(clients)]
        with server.redis() as admin:
            while admin.zcard(f"pyredisson_waiting:{{hot {HOT - 1}}}") < count // HOT - 1:  # noqa: ASYNC110
                # No event tells of it.
                await asyncio.sleep(0.1)
            grown = process.memory_info().rss - memory
            # The first renewals, and what comes with the first announcement.
            await asyncio.sleep(UPKEEP / 2)
            before, cpu, began = admin.info(), process_time(), perf_counter()
            await asyncio.sleep(UPKEEP)
            after, passed = admin.info(), perf_counter() - began
        cpu = process_time() - cpu
        used = sum(after[name] - before[name] for name in ("used_cpu_user_main_thread", "used_cpu_sys_main_thread"))
        commands = after["total_commands_processed"] - before["total_commands_processed"]
        began = perf_counter()
        server.restart()
        await asyncio.gather(*(client.get_lock(f"new {at}").lock() for at, client in enumerate(clients)))
        back = perf_counter() - began
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return Crowd(
        cpu / passed * 1000 / count, used / passed * 100, commands / passed / count, grown / 1024 / count, back
    )
