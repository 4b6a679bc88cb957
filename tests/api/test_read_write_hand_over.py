"""A release that enters readers or a writer of the same client: the number of calls, and what others may rely on."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from pyredisson import LockLostError
from pyredisson.asyncio import WriteLock
from tests.support.backends import TIME_LIMIT

from .read_write import Orders, finished, sides

pytestmark = pytest.mark.asyncio
ROUNDS = 20
TRIES = 5
LONG = 60.0
"""A hand-over time that doesn't end in a test: then the number of calls doesn't depend on the machine."""
BY_TIME = 3
"""Attempts that waiters make after some time by themselves, as on a machine that stands still for a second."""
SIDES = ("read", "write")
both_sides = pytest.mark.parametrize("side", [0, 1], ids=SIDES)


async def cycle(lock: Any, count: int) -> None:
    """Acquires and releases it so many times."""
    for _ in range(count):
        await lock.lock()
        await lock.unlock()


async def write_after_a_wait(orders: Orders) -> WriteLock:
    """A writer that has waited for a reader, so that its client knows that it holds the lock."""
    read = orders.read(99)
    await read.lock()
    writing = orders.writes(1)
    await orders.asleep(writers=1)
    await read.unlock()
    await finished(writing)
    return orders.write(1)


async def test_one_call_lets_all_readers_in(orders: Orders) -> None:
    write = await write_after_a_wait(orders)
    before = orders.scripts()
    readers = orders.reads(*range(2, 66))
    await orders.asleep(readers=64)
    # They know that the writer keeps them out, and make no attempt.
    await write.unlock()
    await finished(readers)
    assert before + 1 <= orders.scripts() <= before + 1 + BY_TIME
    assert len(orders.holds()) == 65
    for owner in range(2, 66):
        await orders.read(owner).unlock()
    assert orders.redis.keys() == []


async def test_readers_wait_for_a_claim_of_their_client(orders: Orders) -> None:
    """They make no attempt: neither when they come, nor when the last reader has left and the writer is next."""
    await orders.read(99).lock()
    writing = orders.writes(1)
    await orders.asleep(writers=1)
    before = orders.scripts()
    readers = orders.reads(*range(2, 10))
    await orders.asleep(readers=8)
    await orders.read(99).unlock()
    await finished(writing)
    await orders.write(1).unlock()
    await finished(readers)
    # The releases of the first reader and of the writer, and the attempt of the writer.
    assert before + 3 <= orders.scripts() <= before + 3 + BY_TIME


async def test_calls_of_readers_beside_a_writer(orders: Orders) -> None:
    """At most three calls for each hold, refused attempts included."""
    ended, writes = False, 0

    async def write() -> None:
        nonlocal writes
        lock = orders.write()
        while not ended:
            await cycle(lock, 1)
            writes += 1

    await cycle(orders.write(1), 1)
    before = orders.scripts()
    writing = orders.backend.spawn(write)
    await finished([orders.backend.spawn(lambda: cycle(orders.read(), ROUNDS)) for _ in range(16)])
    ended = True
    await writing.result()
    assert orders.scripts() - before <= 3 * (16 * ROUNDS + writes)


async def test_one_call_for_each_acquisition_by_writers(orders: Orders) -> None:
    """On a busy machine many releases find nobody asleep. So the best of some tries counts."""
    orders.connect(local_hand_over_time=LONG)
    await cycle(orders.write(99), 1)
    calls: list[int] = []
    while len(calls) < TRIES and min(calls, default=math.inf) > 1.15 * 32 * ROUNDS:
        before = orders.scripts()
        await finished([orders.backend.spawn(lambda: cycle(orders.write(), ROUNDS)) for _ in range(32)])
        calls.append(orders.scripts() - before)
        await orders.gone()
    assert min(calls) <= 1.15 * 32 * ROUNDS, calls


@pytest.mark.parametrize("busy", ["read", "write"])
async def test_neither_side_of_one_client_starves_the_other(orders: Orders, busy: str) -> None:
    """However long writers may hand the lock on, readers come before the next one; and a writer comes in, too."""
    orders.connect(local_hand_over_time=LONG)
    ended = False

    async def work() -> None:
        lock = orders.sides()[busy == "write"]
        while not ended:
            await cycle(lock, 1)

    others = [orders.backend.spawn(work) for _ in range(4)]
    lock = orders.sides(1)[busy == "read"]
    for _ in range(20):
        assert await lock.try_lock(wait_time=TIME_LIMIT)
        await lock.unlock()
    ended = True
    await finished(others)


async def test_the_leases_of_readers(orders: Orders) -> None:
    orders.connect(lock_watchdog_timeout=2)
    write = orders.write(1)
    await write.lock(lease_time=100)
    renewed, fixed = orders.read(2), orders.read(3)
    others = [*orders.reads(2), orders.backend.spawn(lambda: fixed.lock(lease_time=20))]
    await orders.asleep(readers=2)
    await write.unlock()
    await finished(others)
    assert 15_000 < orders.redis.pttl("orders") <= 20_000
    await orders.backend.sleep(2.6)
    for lock in (renewed, fixed):
        assert await lock.is_held()
        await cycle(lock, 1)
        await lock.unlock()
    assert orders.redis.keys() == []


@both_sides
async def test_the_hold_was_lost(orders: Orders, side: int) -> None:
    """A release that finds its lock gone enters nobody; the waiter gets the lock all the same."""
    orders.connect(local_hand_over_time=LONG)
    write, waiter = orders.write(1), orders.sides(2)[side]
    await write.lock()
    waiting = orders.backend.spawn(waiter.lock)
    await orders.asleep(readers=1 - side, writers=side)
    orders.redis.delete("orders")
    with pytest.raises(LockLostError, match="was lost"):
        await write.unlock()
    await waiting.result()
    await waiter.unlock()
    assert orders.redis.keys() == []


@pytest.mark.parametrize("seconds", [0, LONG])
async def test_no_writer_beside_others_and_nothing_is_left_behind(orders: Orders, seconds: float) -> None:
    """Of two clients; also where nothing is handed on."""
    orders.connect(local_hand_over_time=seconds)
    clients = [orders.client, orders.backend.connect()]
    inside: list[str] = []
    wrong: list[list[str]] = []

    async def work(owner: int) -> None:
        for turn in range(ROUNDS):
            side = int((turn + owner) % 3 == 0)
            lock = sides(clients[owner % 4 == 0], owner)[side]
            async with lock:
                inside.append(SIDES[side])
                now = list(inside)
                if "write" in now and len(now) > 1:
                    wrong.append(now)
                assert await lock.is_held()
                inside.remove(SIDES[side])

    await finished([orders.backend.spawn(partial(work, owner)) for owner in range(1, 13)])
    assert not wrong
    await orders.gone()
    session = getattr(orders.client, "_target", orders.client)._session
    assert session.lock_queues == {}
    assert not session.holds.table
