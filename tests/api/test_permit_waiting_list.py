"""Many clients at one semaphore: a release wakes as many as there are permits, a far one gets its turn, in order."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pyredisson.testing import Proxy
from tests.support.backends import Backend
from tests.support.server_state import ServerState

from .permits import CHANNEL, KINDS, Permits, Stock

pytestmark = pytest.mark.asyncio
LIST, WOKEN = "pyredisson_waiting:{stock}", "pyredisson_woken:{stock}"
ROUNDS = 20
CALLS, MESSAGES = 3.2, 2.0
"""The most for one acquisition, with one caller in each client, however many clients there are."""
HOLD = 0.02
FAR = 0.02
"""Seconds that a far client's commands take, and its replies."""
TURNS = 8
PATIENT = 25.0
LATE = 4.0
"""Seconds, for a busy machine, in place of half a second; less than the five after which a waiter asks by itself."""


async def take(semaphore: Permits) -> None:
    await semaphore.release(await semaphore.acquire())


async def contend(backend: Backend, semaphores: list[Permits], rounds: int = ROUNDS) -> None:
    """Each of the semaphores has one caller, which acquires a permit so many times, and releases it at once."""

    async def work(semaphore: Permits) -> None:
        for _ in range(rounds):
            await take(semaphore)

    others = [backend.spawn(lambda each=each: work(each)) for each in semaphores]  # type: ignore[misc]
    for other in others:
        await other.result(PATIENT)


@pytest.mark.parametrize(
    ("stock", "clients", "permits"),
    [("semaphore", 2, 1), ("semaphore", 10, 5), ("semaphore", 50, 5), ("permit", 50, 5)],
    indirect=["stock"],
)
async def test_an_acquisition_costs_the_same_among_many_clients(
    backend: Backend, server_state: ServerState, stock: Stock, clients: int, permits: int
) -> None:
    semaphores = [await stock.made(permits), *[stock.open() for _ in range(clients - 1)]]
    # From here on each client listens, and the server knows the scripts.
    await contend(backend, semaphores, 1)
    server_state.redis.config_resetstat()
    await contend(backend, semaphores)
    stats: dict[str, Any] = server_state.redis.info("commandstats")
    acquisitions = ROUNDS * clients
    assert server_state.scripts() <= CALLS * acquisitions
    # Redisson's channel is silent, as no client of Redisson listens.
    assert stats.get("cmdstat_publish", {}).get("calls", 0) <= MESSAGES * acquisitions
    await backend.until(lambda: not server_state.redis.exists(LIST, WOKEN))


@pytest.mark.parametrize(("stock", "near", "permits"), [("semaphore", 20, 5), ("permit", 3, 1)], indirect=["stock"])
async def test_a_far_client_gets_its_turn(
    backend: Backend, proxy: Proxy, stock: Stock, near: int, permits: int
) -> None:
    await stock.made(permits)
    far = stock.open(proxy.url)
    await take(far)
    proxy.latency(FAR)
    over, turns = False, [0] * near

    async def work(number: int) -> None:
        semaphore = stock.open()
        while not over:
            taken = await semaphore.acquire()
            await backend.sleep(HOLD)
            await semaphore.release(taken)
            turns[number] += 1

    others = [backend.spawn(lambda number=number: work(number)) for number in range(near)]  # type: ignore[misc]
    await backend.until(lambda: min(turns) > 0, PATIENT)
    before = list(turns)
    for _ in range(TURNS):
        await take(far)
    meanwhile = [now - then for now, then in zip(turns, before, strict=True)]
    over = True
    for other in others:
        await other.result(PATIENT)
    # It waits for one turn of each other client, and asks for the next turn two latencies later.
    assert sum(meanwhile) <= near * (2 * TURNS + 2)


@pytest.mark.parametrize("stock", KINDS, indirect=True)
async def test_clients_acquire_permits_in_the_order_in_which_they_came(backend: Backend, stock: Stock) -> None:
    holder = await stock.made(1)
    taken = await holder.acquire()

    async def when() -> float:
        semaphore = stock.open()
        mine = await semaphore.acquire()
        acquired = time.monotonic()
        await semaphore.release(mine)
        return acquired

    others = []
    for number in range(1, 6):
        others.append(backend.spawn(when))
        await backend.until(lambda: stock.redis.zcard(LIST) == number and numsub(stock) == number)  # noqa: B023
    await holder.release(taken)
    times = [await other.result(LATE) for other in others]
    assert times == sorted(times)


def numsub(stock: Stock) -> int:
    """How many clients listen to Redisson's channel, after their own one."""
    return int(stock.redis.pubsub_numsub(CHANNEL)[0][1])


@pytest.mark.parametrize("listens", [False, True], ids=["is gone", "is frozen"])
async def test_a_client_that_does_not_come_costs_the_others_little(stock: Stock, listens: bool) -> None:
    holder = await stock.made(1)
    taken = await holder.acquire()
    with stock.redis.pubsub() as frozen:
        if listens:
            frozen.subscribe("pyredisson_wake:{stock}:frozen")
        stock.redis.zadd(LIST, {"frozen:1:1": 1})
        other = await stock.waiter(stock.open())
        await holder.release(taken)
        await other.result(LATE)
    assert stock.free() == 0


async def test_a_list_that_is_deleted(stock: Stock) -> None:
    """By an operator, say. The clients ask by themselves from time to time."""
    holder = await stock.made(1)
    taken = await holder.acquire()
    other = await stock.waiter(stock.open())
    stock.redis.delete(LIST)
    await holder.release(taken)
    await other.result()


async def test_java_wakes_one_after_the_other(stock: Stock) -> None:
    """The first one hears Java's message. Each one that has come wakes the next one, as long as permits are free."""
    holder = await stock.made(1)
    await holder.acquire()
    others = [await stock.waiter(stock.open()) for _ in range(6)]
    stock.java_adds(6)
    for other in others:
        await other.result(LATE)
    assert stock.free() == 0


async def test_the_second_one_hears_java_when_the_first_one_has_left(stock: Stock) -> None:
    holder = await stock.made(1)
    await holder.acquire()
    first = stock.open()
    leaver = stock.backend.spawn(lambda: first.try_acquire(1, 1.0))
    await stock.backend.until(lambda: stock.redis.zcard(LIST) == 1)
    others = [await stock.waiter(stock.open()) for _ in range(3)]
    assert not await leaver.result()
    await stock.backend.until(lambda: stock.redis.zcard(LIST) == 3)
    for number in range(3):
        stock.java_adds(1)
        await stock.backend.until(lambda: sum(other.done() for other in others) == number + 1, LATE)  # noqa: B023
    assert stock.free() == 0
