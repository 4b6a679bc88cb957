"""The fair lock: the server's time for a hand-off with queues of different lengths, and how fast a queue drains."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from time import perf_counter
from typing import Any

import hiredis
from redis import Redis

import pyredisson
import pyredisson.asyncio
from benchmarks import Row, Target
from benchmarks.bare import BareSocket
from benchmarks.measure import interleave, one_core
from pyredisson.logic.locks.fair_lock import FairLockLogic
from pyredisson.testing import Server

LENGTHS = (10, 1_000, 10_000)
CYCLES = 200
LEASE = 30_000
QUIET = 10
"""Script calls in 0.4 s."""
QUEUE = b"redisson_lock_queue:{fair}"


def rows(*, quick: bool) -> list[Row]:
    """The server's time for one hand-off, and hand-offs per second."""
    return [*_server_time(3 if quick else 60), *_drain(1 if quick else 5)]


def _server_time(rounds: int) -> list[Row]:
    with one_core(), ExitStack() as stack:
        contenders = {}
        for length in LENGTHS:
            # A server for each queue: the server's statistics are measured.
            queue = _Queue(stack.enter_context(Server()), stack, length)
            contenders[f"{length:,} waiters"] = queue.cycle
        samples = interleave(contenders, rounds)
    shortest, *longer = contenders
    return [
        Row(
            name=f"fair hand-off, server, {name} *",
            what="the server's time for the two scripts of a hand-off, release and acquire, beside a short queue",
            unit="us",
            ours=samples.median(name),
            baselines={shortest: samples.median(shortest)},
            ratio=samples.ratio(name, shortest),
            target=Target("ratio", "<=", 1.2),
        )
        for name in longer
    ]


class _Queue:
    """A queue whose first owner has the lock. A step hands it to the next owner; the former holder queues again."""

    def __init__(self, server: Server, stack: ExitStack, length: int) -> None:
        self._admin: Redis = stack.enter_context(server.redis())
        self._line = BareSocket(server.port)
        stack.callback(self._line.close)
        client = stack.enter_context(pyredisson.connect(server.url))
        lock = client.get_fair_lock("fair")
        # Loads the scripts; the connection learns which form of them the server accepts.
        lock.lock()
        lock.unlock()
        logic = lock._logic
        assert isinstance(logic, FairLockLogic)
        self._logic = logic
        self._scripts = client._session.runtime.scripts
        waiters = str(uuid.uuid4()).encode()
        self._alive = logic.commands.heartbeat(waiters, ())
        self._owners = [b"%b:%d" % (waiters, number) for number in range(length + 1)]
        self._holder = 0
        for owner in self._owners:
            self._call(self._acquire(owner))

    def cycle(self) -> float:
        """The server's time for a hand-off, in microseconds."""
        # Without a heartbeat between two rounds the waiters of a client would count as dead.
        self._call(self._scripts.as_eval(self._alive))
        self._admin.config_resetstat()
        for _ in range(CYCLES):
            holder = self._owners[self._holder]
            self._holder = (self._holder + 1) % len(self._owners)
            self._call(self._logic.commands.release(holder, 0))
            if self._call(self._acquire(self._owners[self._holder])) is not None:
                raise AssertionError("the head of the queue didn't get the lock")
            # With EVAL, because EVALSHA is what is counted.
            self._call(self._scripts.as_eval(self._acquire(holder)))
        calls = self._admin.info("commandstats")["cmdstat_evalsha"]
        if calls["calls"] != 2 * CYCLES:
            raise AssertionError(f"{calls['calls']} calls in {CYCLES} hand-offs")
        return float(calls["usec"]) / CYCLES

    def _acquire(self, owner: bytes) -> bytes:
        return self._logic.commands.acquire(owner, 1, LEASE, waits=True)

    def _call(self, payload: bytes) -> Any:
        self._line.socket.sendall(payload)
        reply = self._line.receive()
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply


def _drain(rounds: int) -> list[Row]:
    with one_core(), Server() as server, asyncio.Runner() as runner:

        def rate(waiters: int) -> Callable[[], float]:
            return lambda: runner.run(drained(server, waiters))

        samples = interleave({"1,000": rate(1_000), "10,000": rate(10_000)}, rounds)
    what = "tasks of two clients queue for one fair lock, then each takes it and gives it back at once"
    return [
        Row(
            name="fair lock, 1,000 in the queue *",
            what=f"hand-offs a second: 1,000 {what}",
            unit="hand-offs/s",
            ours=samples.median("1,000"),
            target=Target("ours", ">=", 1_500),
        ),
        Row(
            name="fair lock, 10,000 in the queue *",
            what=f"hand-offs a second: 10,000 {what}; beside 1,000",
            unit="hand-offs/s",
            ours=samples.median("10,000"),
            baselines={"1,000 in the queue": samples.median("1,000")},
            ratio=samples.ratio("10,000", "1,000"),
            target=Target("ratio", ">=", 0.8),
        ),
    ]


async def drained(server: Server, waiters: int) -> float:
    """Hand-offs per second, from the first release until every task had the lock."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(pyredisson.asyncio.connect(server.url)) for _ in range(2)]
        admin = stack.enter_context(server.redis())
        first = clients[0].get_fair_lock("fair")
        await first.lock()

        async def work(client: pyredisson.asyncio.Client) -> None:
            async with client.get_fair_lock("fair"):
                pass

        tasks = [asyncio.create_task(work(clients[number % 2])) for number in range(waiters)]
        # Waits until only heartbeats arrive. By then every waiter has also asked again after its subscription was
        # confirmed.
        calls, before = 0, -QUIET
        while admin.llen(QUEUE) < waiters or calls >= before + QUIET:
            await asyncio.sleep(0.4)
            calls, before = admin.info("commandstats")["cmdstat_evalsha"]["calls"], calls
        began = perf_counter()
        await first.unlock()
        await asyncio.gather(*tasks)
        return waiters / (perf_counter() - began)
