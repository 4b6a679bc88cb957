"""Many clients with one caller each at one lock: what an acquisition costs, and how long the longest wait is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import pyredisson.asyncio
from benchmarks import Row, Target
from pyredisson.testing import Server

CLIENTS = (2, 10, 50, 200, 1_000)
ACQUISITIONS = 4_000
"""In one measurement, of all clients together; at least two of each client."""
FEWEST = CLIENTS[0]
KINDS = ("lock", "write lock", "read-write lock")
"""Of the last kind every tenth client writes, and the others read."""


def _lock_of(client: pyredisson.asyncio.Client, kind: str, number: int) -> Any:
    if kind == "lock":
        return client.get_lock("hot")
    both = client.get_read_write_lock("hot")
    return both.read_lock() if kind == "read-write lock" and number % 10 else both.write_lock()


class Contended(NamedTuple):
    """What the acquisitions of one measurement have cost."""

    calls: float
    """Script calls for each."""
    messages: float
    """Messages for each. One of them goes to Redisson's channel, to which nobody listens."""
    server: float
    """Microseconds of the server's time in scripts for each."""
    longest: float
    """The longest wait, in times of the number of clients by the median time between two acquisitions."""


def rows(*, quick: bool) -> list[Row]:
    """For each number of clients: script calls, the server's time beside two clients, and the longest wait."""
    return [row for kind in KINDS for row in _rows(kind, CLIENTS[:4] if quick else CLIENTS, 1 if quick else 5)]


def _rows(kind: str, counts: Sequence[int], repeats: int) -> list[Row]:
    samples: dict[int, list[Contended]] = {count: [] for count in counts}
    for _ in range(repeats):
        for count in counts:
            with Server() as server:
                samples[count].append(asyncio.run(_contend(server, kind, count)))

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
                what="the server's time in scripts for each acquisition, beside two clients",
                unit="us",
                ours=middle(count, "server"),
                baselines={f"{FEWEST} clients": middle(FEWEST, "server")},
                ratio=middle(count, "server") / middle(FEWEST, "server"),
                target=Target("ratio", "<=", 1.5),
            ),
            Row(
                name=f"{kind}, {count:,} clients, longest wait",
                what="in rounds: the number of clients times the median time between two acquisitions",
                unit="",
                ours=middle(count, "longest"),
                target=Target("ours", "<=", 2.0) if count == 200 and kind != "read-write lock" else None,
            ),
        )
    ]


async def _contend(server: Server, kind: str, count: int) -> Contended:
    rounds = max(2, ACQUISITIONS // count)
    waits: list[float] = []
    acquired: list[float] = []

    async def work(client: pyredisson.asyncio.Client, number: int, times: int) -> None:
        lock = _lock_of(client, kind, number)
        for _ in range(times):
            began = perf_counter()
            await lock.lock()
            acquired.append(perf_counter())
            waits.append(acquired[-1] - began)
            await lock.unlock()

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(pyredisson.asyncio.connect(server.url)) for _ in range(count)]
        # Each client connects and listens.
        await asyncio.gather(*(work(client, number, 1) for number, client in enumerate(clients)))
        waits.clear()
        acquired.clear()
        with server.redis() as admin:
            admin.config_resetstat()
            await asyncio.gather(*(work(client, number, rounds) for number, client in enumerate(clients)))
            stats: dict[str, Any] = admin.info("commandstats")
    scripts = [entry for name, entry in stats.items() if name.startswith("cmdstat_eval")]
    published = stats.get("cmdstat_publish", {"calls": 0})["calls"]
    turn = median(after - before for before, after in pairwise(acquired))
    total = len(acquired)
    return Contended(
        calls=sum(entry["calls"] for entry in scripts) / total,
        # Each release publishes on Redisson's channel, too.
        messages=published / total - 1,
        server=sum(entry["usec"] for entry in scripts) / total,
        longest=max(waits) / (count * turn),
    )
