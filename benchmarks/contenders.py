"""Threads or tasks that contend for one lock: each acquires it and releases it at once, for some seconds."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Protocol

import redis
import redis.asyncio

import pyredisson
import pyredisson.asyncio
from benchmarks.bare import BareLock, Commands
from benchmarks.handoff import RedisPyLock, Side
from pyredisson.testing import Server

SPARE = 30.0
"""Seconds after which a process that doesn't report is given up."""
HEAD_START = 0.1
"""Seconds until all contenders begin."""
TRIES = 5
"""How often it is measured if nobody acquires the lock: another program may have the machine meanwhile."""
THREADS, TASKS, BARE, REDIS_PY = "pyredisson", "pyredisson, tasks", "bare sockets", "redis-py Lock"


_Wait = tuple[float, float]
"""When the lock was acquired, and how long that took."""


@dataclass(frozen=True)
class Contention:
    """What the contenders of one process, or of several, have done."""

    seconds: float
    count: int
    """How often the lock was acquired in that time."""
    total: int
    """The same with the acquisitions of those that still waited at the end."""
    waits: Sequence[float]
    """How long each acquisition took, in seconds."""

    @property
    def rate(self) -> float:
        """Acquisitions a second."""
        return self.count / self.seconds

    @property
    def longest_wait(self) -> float:
        """In medians of all waits."""
        return max(self.waits) / median(self.waits)


def together(parts: Sequence[Contention]) -> Contention:
    """Of contenders in several processes, at the same time."""
    waits = [wait for part in parts for wait in part.waits]
    count, total = sum(part.count for part in parts), sum(part.total for part in parts)
    return Contention(parts[0].seconds, count, total, waits)


def in_threads(sides: Sequence[Side], seconds: float, begins: float | None = None) -> Contention:
    """A thread for each of the sides. `begins`: when, on the clock of `time.monotonic`, which all processes share."""
    start = time.monotonic() + HEAD_START if begins is None else begins
    end = start + seconds
    waits: list[list[_Wait]] = [[] for _ in sides]

    def work(side: Side, mine: list[_Wait]) -> None:
        time.sleep(max(start - time.monotonic(), 0))
        while (asked := time.monotonic()) < end:
            side.lock()
            acquired = time.monotonic()
            side.unlock()
            mine.append((acquired, acquired - asked))

    threads = [threading.Thread(target=work, args=each) for each in zip(sides, waits, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _contention(seconds, end, waits)


class AsyncSide(Protocol):
    """A lock for tasks."""

    async def lock(self) -> object: ...
    async def unlock(self) -> object: ...


async def in_tasks(
    sides: Sequence[AsyncSide], seconds: float, begins: float | None = None, *, in_order: bool = False
) -> Contention:
    """A task for each of the sides. `in_order`: raises unless the lock was acquired in the order of the calls."""
    start = time.monotonic() + HEAD_START if begins is None else begins
    end = start + seconds
    waits: list[list[_Wait]] = [[] for _ in sides]
    numbers, latest = itertools.count(), -1

    async def work(side: AsyncSide, mine: list[_Wait]) -> None:
        nonlocal latest
        await asyncio.sleep(max(start - time.monotonic(), 0))
        while (asked := time.monotonic()) < end:
            number = next(numbers)
            await side.lock()
            acquired = time.monotonic()
            if in_order and number < latest:
                raise AssertionError(f"call {number} acquired the lock after call {latest}")
            latest = number
            await side.unlock()
            mine.append((acquired, acquired - asked))

    await asyncio.gather(*map(work, sides, waits))
    return _contention(seconds, end, waits)


def _contention(seconds: float, end: float, waits: list[list[_Wait]]) -> Contention:
    in_time = [wait for mine in waits for acquired, wait in mine if acquired < end]
    return Contention(seconds, len(in_time), sum(map(len, waits)), in_time)


class RedisPyTaskLock:
    """The lock of redis.asyncio, which polls."""

    def __init__(self, client: redis.asyncio.Redis, name: str) -> None:
        self._lock = client.lock(name, timeout=30, sleep=0.1)

    async def lock(self) -> None:
        await self._lock.acquire()

    async def unlock(self) -> None:
        await self._lock.release()


class Processes:
    """Two processes whose threads or tasks contend for one lock."""

    def __init__(self, orders: Sequence[Connection]) -> None:
        self._orders = orders

    def contend(self, name: str, seconds: float) -> list[Contention]:
        """Of each process. All contenders begin at the same time."""
        begins = time.monotonic() + HEAD_START
        for orders in self._orders:
            orders.send((name, seconds, begins))
        return [_received(orders, seconds + SPARE) for orders in self._orders]


def _received(orders: Connection, seconds: float) -> Any:
    if not orders.poll(seconds):
        raise AssertionError(f"a process didn't report within {seconds:g} s")
    return orders.recv()


@contextmanager
def processes(server: Server, contenders: int) -> Iterator[Processes]:
    """Two processes of so many contenders each."""
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        orders = []
        for _ in range(2):
            here, there = spawn.Pipe()
            commands = [Commands(server, "bare contended") for _ in range(contenders)]
            process = spawn.Process(target=_serve, args=(server.url, server.port, commands, there))
            process.start()
            there.close()
            stack.callback(_end, process, here)
            orders.append(here)
        for each in orders:
            # It has imported everything and connected.
            _received(each, SPARE)
        yield Processes(orders)


def _end(process: multiprocessing.process.BaseProcess, orders: Connection) -> None:
    # It ends as its pipe is closed. If it hangs in a lock it is ended here.
    orders.close()
    process.join(SPARE)
    if process.is_alive():
        process.kill()
        process.join()


def _serve(url: str, port: int, commands: list[Commands], orders: Connection) -> None:
    """Contends as ordered, until the other end of the pipe is closed."""
    with ExitStack() as stack:
        client = stack.enter_context(pyredisson.connect(url))
        plain = stack.enter_context(redis.Redis(host=Server.host, port=port))
        bare = [BareLock(port, each) for each in commands]
        for each in bare:
            stack.callback(each.close)
        sides: dict[str, list[Side]] = {
            THREADS: [client.get_lock("contended")] * len(commands),
            REDIS_PY: [RedisPyLock(plain) for _ in commands],
            BARE: [*bare],
        }
        with asyncio.Runner() as runner:
            tasks = runner.run(connected(url))
            orders.send("ready")
            while True:
                try:
                    name, seconds, begins = orders.recv()
                except EOFError:
                    break
                if name == TASKS:
                    locks = [tasks.get_lock("contended by tasks")] * len(commands)
                    orders.send(runner.run(in_tasks(locks, seconds, begins)))
                else:
                    orders.send(in_threads(sides[name], seconds, begins))
            runner.run(tasks.close())


async def connected(url: str, **fields: Any) -> pyredisson.asyncio.Client:
    """A client, made inside the event loop."""
    return pyredisson.asyncio.connect(url, **fields)


class Counted:
    """Notes how many calls an acquisition takes, beside the rate of acquisitions."""

    def __init__(self, admin: redis.Redis) -> None:
        self._admin = admin
        self._calls: dict[str, list[float]] = {}

    def measured(self, name: str, contend: Callable[[], Contention], *others: str) -> Callable[[], float]:
        """A contender that returns the rate. Calls of scripts are counted, and those of the `others` commands."""
        commands = ("eval", "evalsha", *others)

        def run() -> float:
            for _ in range(TRIES):
                before = self._count(commands)
                done = contend()
                if done.count:
                    break
            else:
                raise AssertionError(f"{name}: nobody acquired the lock, {TRIES} times")
            self._calls.setdefault(name, []).append((self._count(commands) - before) / done.total)
            return done.rate

        return run

    def calls(self, name: str) -> float:
        """The median of the calls for one acquisition."""
        return median(self._calls[name])

    def _count(self, commands: Sequence[str]) -> int:
        stats: dict[str, Any] = self._admin.info("commandstats")
        return sum(stats[f"cmdstat_{name}"]["calls"] for name in commands if f"cmdstat_{name}" in stats)
