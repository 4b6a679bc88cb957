"""lock() and unlock() of free locks on asyncio: one task, and 500 tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Any

import redis.asyncio

import pyredisson.asyncio
from benchmarks import Row, Target
from benchmarks.bare import BareProtocol, Commands, PipeliningProtocol
from benchmarks.measure import interleave, one_core
from pyredisson.testing import Server

TASKS = 500

Pair = Callable[[], Awaitable[None]]
Maker = Callable[[str], Pair]


def rows(*, quick: bool) -> list[Row]:
    """One task beside a bare protocol; 500 tasks beside a pipelining protocol, and beside redis.asyncio's Lock."""
    return [_one_task(8 if quick else 40), *_many_tasks(2 if quick else 8)]


def _one_task(rounds: int) -> Row:
    async def pairs(pair: Pair) -> float:
        count = 200
        began = perf_counter()
        for _ in range(count):
            await pair()
        return (perf_counter() - began) / count * 1e6

    with one_core(), Server() as server, asyncio.Runner() as runner:
        stack = AsyncExitStack()
        makers = runner.run(_makers(server, stack, BareProtocol))
        contenders = {name: _run(runner, pairs, make("one")) for name, make in makers.items()}
        samples = interleave(contenders, rounds)
        runner.run(stack.aclose())
    return Row(
        name="asyncio, 1 task *",
        what="lock() + unlock() of a free lock, beside the same two scripts over a bare asyncio protocol",
        unit="us/pair",
        ours=samples.median("pyredisson"),
        baselines=samples.medians("pyredisson"),
        ratio=samples.ratio("pyredisson", "bare protocol"),
        target=Target("ratio", "<=", 1.15),
    )


def _many_tasks(rounds: int) -> list[Row]:
    async def together(each: tuple[int, list[Pair]]) -> float:
        count, pairs = each

        async def work(pair: Pair) -> None:
            for _ in range(count):
                await pair()

        began = perf_counter()
        await asyncio.gather(*map(work, pairs))
        return count * len(pairs) / (perf_counter() - began)

    with one_core(), Server() as server, asyncio.Runner() as runner:
        stack = AsyncExitStack()
        makers = runner.run(_makers(server, stack, PipeliningProtocol))
        contenders = {}
        for name, make in makers.items():
            # redis.asyncio needs ten times as long for a pair.
            each = 1 if name.startswith("redis") else 8
            contenders[name] = _run(runner, together, (each, [make(f"lock-{i}") for i in range(TASKS)]))
        samples = interleave(contenders, rounds)
        runner.run(stack.aclose())
    ours = samples.median("pyredisson")
    medians = samples.medians("pyredisson")
    theirs = medians.pop("redis.asyncio Lock")
    return [
        Row(
            name="asyncio, 500 tasks *",
            what="pairs a second of 500 tasks on 500 locks, beside one bare protocol that pipelines",
            unit="pairs/s",
            ours=ours,
            baselines=medians,
            ratio=samples.ratio("pyredisson", "bare protocol"),
            target=Target("ratio", ">=", 0.8),
        ),
        Row(
            name="asyncio, 500 tasks, beside redis.asyncio *",
            what="the same, beside redis.asyncio's Lock",
            unit="pairs/s",
            ours=ours,
            baselines={"redis.asyncio Lock": theirs},
            ratio=samples.ratio("pyredisson", "redis.asyncio Lock"),
            target=Target("ratio", ">=", 8),
        ),
    ]


async def _makers(server: Server, stack: AsyncExitStack, protocol: type[BareProtocol]) -> dict[str, Maker]:
    """For each contender a factory: it takes a name, and returns a function that locks and unlocks that lock."""
    loop = asyncio.get_running_loop()
    transport, line = await loop.create_connection(protocol, server.host, server.port)
    stack.callback(transport.close)
    client = await stack.enter_async_context(pyredisson.asyncio.connect(server.url))
    theirs = redis.asyncio.Redis(host=server.host, port=server.port, max_connections=TASKS)
    stack.push_async_callback(theirs.aclose)

    def bare(name: str) -> Pair:
        commands = Commands(server, name)

        async def pair() -> None:
            taken = await line.call(commands.acquire)
            if taken is not None or await line.call(commands.release) != 1:
                raise AssertionError("the bare protocol didn't lock and unlock")

        return pair

    def ours(name: str) -> Pair:
        lock = client.get_lock(name)

        async def pair() -> None:
            await lock.lock()
            await lock.unlock()

        return pair

    def their_lock(name: str) -> Pair:
        lock = theirs.lock(f"redis-py:{name}", timeout=30)

        async def pair() -> None:
            if not await lock.acquire():
                raise AssertionError("redis.asyncio's lock wasn't free")
            await lock.release()

        return pair

    return {"bare protocol": bare, "pyredisson": ours, "redis.asyncio Lock": their_lock}


def _run(
    runner: asyncio.Runner, function: Callable[[Any], Coroutine[Any, Any, float]], argument: Any
) -> Callable[[], float]:
    return lambda: runner.run(function(argument))
