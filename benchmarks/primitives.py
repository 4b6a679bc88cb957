"""The other primitives without contention, beside bare loops of their scripts; and two scenes with many tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import Any

import pyredisson
import pyredisson.asyncio
from benchmarks import Row, Target
from benchmarks.bare import PipeliningProtocol
from benchmarks.measure import interleave, one_core, timed
from benchmarks.recorded import Recorded
from pyredisson.testing import Server

TASKS = 500
PERMITS = 50
READERS = 64
PAIRS = 200
"""Pairs of calls in one round that looks at the server's time."""
THEIRS = "redis-py's Lock"
EACH = 8
"""Operations of every task in one round of a scene with many tasks."""

Step = Callable[[], object]


def rows(*, quick: bool) -> list[Row]:
    """Pairs of calls without contention, each beside its own scripts; then the throughput of many tasks."""
    rounds = 8 if quick else 40
    pairs = [_pair(name, what, make, rounds) for name, what, make in _PAIRS]
    return [*pairs, *_servers_time(rounds), *_crowds(2 if quick else 8)]


def _semaphore(client: pyredisson.Client) -> Step:
    semaphore = client.get_semaphore("permits")
    semaphore.try_set_permits(2 * TASKS)

    def pair() -> None:
        semaphore.acquire()
        semaphore.release()

    return pair


def _read_lock(client: pyredisson.Client) -> Step:
    lock = client.get_read_write_lock("read").read_lock()

    def pair() -> None:
        lock.lock()
        lock.unlock()

    return pair


def _latch(client: pyredisson.Client) -> Step:
    latch = client.get_count_down_latch("latch")

    def pair() -> None:
        latch.try_set_count(1)
        latch.count_down()

    return pair


def _fenced_lock(client: pyredisson.Client) -> Step:
    lock = client.get_fenced_lock("fenced")

    def pair() -> None:
        lock.lock_and_get_token()
        lock.unlock()

    return pair


_PAIRS: list[tuple[str, str, Callable[[pyredisson.Client], Step]]] = [
    ("semaphore, 1 thread *", "acquire() + release() of one permit that is free", _semaphore),
    ("read lock, 1 thread *", "lock() + unlock() of the read side, which nobody else holds", _read_lock),
    ("latch, 1 thread *", "try_set_count(1) + count_down()", _latch),
    ("fenced lock, 1 thread *", "lock_and_get_token() + unlock() of a free lock", _fenced_lock),
]


def _pair(name: str, what: str, make: Callable[[pyredisson.Client], Step], rounds: int) -> Row:
    with one_core(), ExitStack() as stack:
        server = stack.enter_context(Server())
        client = stack.enter_context(pyredisson.connect(server.url))
        recorded = Recorded(client._runtime, make(client))
        bare, connection = recorded.loop(server)
        stack.callback(connection.close)
        # The bare loop continues in the name of the recorded client, so another client is measured.
        other = stack.enter_context(pyredisson.connect(server.url))
        samples = interleave({"bare loop": timed(bare, 200), "pyredisson": timed(make(other), 200)}, rounds)
    return Row(
        name=name,
        what=f"{what}, beside the same scripts over a socket with hiredis",
        unit="us/pair",
        ours=samples.median("pyredisson"),
        baselines=samples.medians("pyredisson"),
        ratio=samples.ratio("pyredisson", "bare loop"),
        target=Target("ratio", "<=", 1.3),
    )


def _servers_time(rounds: int) -> list[Row]:
    """What each kind of lock costs the server, in which all clients share one thread."""
    with one_core(), Server() as server, pyredisson.connect(server.url) as client, server.redis() as redis:

        def measured(step: Step) -> Callable[[], float]:
            def run() -> float:
                redis.config_resetstat()
                for _ in range(PAIRS):
                    step()
                stats = redis.info("commandstats")
                used = [stats[name]["usec"] for name in ("cmdstat_set", "cmdstat_evalsha") if name in stats]
                return float(sum(used)) / PAIRS

            return run

        sides = client.get_read_write_lock("sides")
        permits = client.get_permit_expirable_semaphore("permits")
        permits.try_set_permits(1)
        locks = {
            "lock": client.get_lock("lock"),
            "fair lock": client.get_fair_lock("fair"),
            "fenced lock": client.get_fenced_lock("fenced"),
            "write lock": sides.write_lock(),
            "read lock": sides.read_lock(),
        }
        ours: dict[str, Step] = {name: partial(_lock_and_unlock, lock) for name, lock in locks.items()}
        ours["permit with an id"] = lambda: permits.release(permits.acquire())
        lock = redis.lock("theirs", timeout=30)
        theirs = measured(lambda: (lock.acquire(), lock.release()))
        samples = interleave({THEIRS: theirs} | {name: measured(step) for name, step in ours.items()}, rounds)
    return [
        Row(
            name=f"{name}, the server's time",
            what=f"a pair of calls without contention, as the server counts it for its commands; beside {THEIRS}",
            unit="us/pair",
            ours=samples.median(name),
            baselines={THEIRS: samples.median(THEIRS)},
            ratio=samples.ratio(name, THEIRS),
        )
        for name in ours
    ]


def _lock_and_unlock(lock: pyredisson.Lock) -> None:
    lock.lock()
    lock.unlock()


def _crowds(rounds: int) -> list[Row]:
    with one_core(), ExitStack() as stack, asyncio.Runner() as runner:
        server = stack.enter_context(Server())
        client = stack.enter_context(pyredisson.connect(server.url))
        semaphore = Recorded(client._runtime, _semaphore(client))
        read_lock = Recorded(client._runtime, _read_lock(client))
        crowd = runner.run(_Crowd.gather(server))
        semaphores = interleave(
            {
                "bare protocol": lambda: runner.run(crowd.bare(semaphore, TASKS)),
                "pyredisson": lambda: runner.run(crowd.semaphore()),
            },
            rounds,
        )
        locks = interleave(
            {
                "bare protocol": lambda: runner.run(crowd.bare(read_lock, READERS)),
                "pyredisson": lambda: runner.run(crowd.readers_and_a_writer()),
            },
            rounds,
        )
        runner.run(crowd.close())
    return [
        Row(
            name=f"{TASKS} tasks on a semaphore of {PERMITS} *",
            what="acquire() and release() of one permit, in which the tasks wait for each other, beside a bare "
            "protocol that pipelines the scripts of as many tasks that never wait",
            unit="pairs/s",
            ours=semaphores.median("pyredisson"),
            baselines=semaphores.medians("pyredisson"),
            ratio=semaphores.ratio("pyredisson", "bare protocol"),
            target=Target("ratio", ">=", 0.5),
        ),
        Row(
            name=f"{READERS} readers and a writer *",
            what="lock() and unlock() of the read side while one task takes the write side again and again, beside "
            "a bare protocol that pipelines the readers' scripts, without a writer",
            unit="pairs/s",
            ours=locks.median("pyredisson"),
            baselines=locks.medians("pyredisson"),
            ratio=locks.ratio("pyredisson", "bare protocol"),
            target=Target("ratio", ">=", 0.5),
        ),
    ]


class _Crowd:
    """Many tasks of one client, and one bare connection beside it."""

    def __init__(
        self, client: pyredisson.asyncio.Client, transport: asyncio.Transport, line: PipeliningProtocol
    ) -> None:
        self._client = client
        self._transport = transport
        self._line = line
        self._semaphore = client.get_semaphore("crowded")
        self._lock = client.get_read_write_lock("crowded lock")

    @classmethod
    async def gather(cls, server: Server) -> _Crowd:
        loop = asyncio.get_running_loop()
        transport, line = await loop.create_connection(PipeliningProtocol, server.host, server.port)
        crowd = cls(pyredisson.asyncio.connect(server.url), transport, line)
        await crowd._semaphore.try_set_permits(PERMITS)
        return crowd

    async def close(self) -> None:
        self._transport.close()
        await self._client.close()

    async def bare(self, recorded: Recorded, tasks: int) -> float:
        """Pairs per second of tasks that send the recorded commands."""

        async def work() -> None:
            for _ in range(EACH):
                for index in range(len(recorded)):
                    await self._line.call(recorded.next(index))

        return await _rate(work, tasks)

    async def semaphore(self) -> float:
        async def work() -> None:
            for _ in range(EACH):
                await self._semaphore.acquire()
                await self._semaphore.release()

        return await _rate(work, TASKS)

    async def readers_and_a_writer(self) -> float:
        async def write() -> None:
            lock = self._lock.write_lock()
            while True:
                await lock.lock()
                await lock.unlock()

        async def work() -> None:
            lock = self._lock.read_lock()
            for _ in range(EACH):
                await lock.lock()
                await lock.unlock()

        writer = asyncio.create_task(write())
        rate = await _rate(work, READERS)
        writer.cancel()
        await asyncio.wait([writer])
        return rate


async def _rate(work: Callable[[], Awaitable[None]], tasks: int) -> float:
    began = perf_counter()
    await asyncio.gather(*(_task(work) for _ in range(tasks)))
    return EACH * tasks / (perf_counter() - began)


async def _task(work: Callable[[], Awaitable[Any]]) -> None:
    await work()
