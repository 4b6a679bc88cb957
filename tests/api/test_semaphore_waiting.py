"""Waiting for permits of both semaphores, also beside Java clients."""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

import pyredisson
from pyredisson.logic.permits import permit_wait
from pyredisson.testing import Proxy
from tests.support.backends import WOKEN
from tests.support.waiting import first_waiter

from .permits import CHANNEL, ID, KINDS, USED, Stock, wake_channel

pytestmark = pytest.mark.asyncio
OFTEN = 0.1
ONE_BY_ONE = [ID[:-1] + str(number) for number in range(3)]
expirable = pytest.mark.parametrize("stock", ["permit"], indirect=True)


@pytest.fixture(autouse=True)
def only_messages_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Usually a waiter makes an attempt every five seconds, also if it misses a message."""
    set_longest_wait(monkeypatch, 60)


def set_longest_wait(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(permit_wait, "LONGEST_WAIT", seconds)


@pytest.mark.parametrize(
    ("stock", "call"),
    [*product(KINDS, ("try_set_permits", "add_permits", "release")), ("permit", "set_permits")],
    indirect=["stock"],
)
async def test_every_way_to_add_permits_wakes_waiters_of_other_clients(stock: Stock, call: str) -> None:
    """Also those who wait for a semaphore that isn't there."""
    holder = stock.open()
    added: Any = 3
    if call == "release":
        await holder.try_set_permits(3)
        added = await holder.acquire(3)
    other = await stock.waiter(stock.open())
    await getattr(holder, call)(added)
    assert await other.result()
    assert stock.free() == 2


async def test_java_is_notified_of_every_permit(stock: Stock) -> None:
    """It wakes as many as the message says, and doesn't look again."""
    semaphore = stock.open()

    async def by_number() -> None:
        await semaphore.try_set_permits(2)
        await semaphore.acquire(2)
        await semaphore.release(2)
        await semaphore.release(3)
        await semaphore.reduce_permits(7)
        await semaphore.add_permits(2)
        await semaphore.drain_permits()
        await semaphore.add_permits(4)
        await semaphore.delete()

    async def by_id() -> None:
        await semaphore.try_set_permits(2)
        await semaphore.release(await semaphore.acquire_many(2))
        await semaphore.add_permits(3)
        ended = await semaphore.acquire_many(5, 60)
        stock.redis.zadd(USED, {bytes.fromhex(permit): 1 for permit in ended})
        await semaphore.acquire_many(1)  # of those that ended
        assert await semaphore.available_permits() == 4
        await semaphore.set_permits(1)
        await semaphore.set_permits(7)
        await semaphore.delete()

    if stock.kind == "semaphore":
        assert await stock.heard(by_number) == [2, 2, 5, 4]
    else:
        assert await stock.heard(by_id) == [2, 2, 5, 4, 6]


async def test_the_time_to_wait(stock: Stock) -> None:
    semaphore = await stock.made(2)
    started = time.monotonic()
    assert not await semaphore.try_acquire(3, 0.2)
    assert 0.2 <= time.monotonic() - started < WOKEN
    assert (stock.free(), stock.used()) == (2, set())
    # Giving up left nothing to be undone.
    assert not stock.redis.keys("pyredisson_permit*")
    other = stock.backend.spawn(lambda: semaphore.try_acquire(3, timedelta(seconds=30)))
    await stock.listened()
    stock.java_adds(1)
    assert await other.result()


async def test_no_script_runs_while_waiting(stock: Stock) -> None:
    semaphore = stock.open()
    before = stock.scripts()
    other = stock.backend.spawn(semaphore.acquire)
    await stock.backend.until(lambda: stock.scripts() == before + 2)
    for payload in ("0", "-3", "", "abc", "+1" if stock.kind == "semaphore" else "+", " 1", "1.0", "9" * 5000):
        stock.redis.publish(CHANNEL, payload)
    await stock.backend.sleep(0.3)
    assert stock.scripts() == before + 2
    stock.java_adds(1)
    await other.result()
    assert stock.scripts() == before + 3


@pytest.mark.parametrize("stock", ["semaphore"], indirect=True)
async def test_one_attempt_tells_all_what_the_subscription_has_missed(stock: Stock, proxy: Proxy) -> None:
    await (await stock.made(1)).acquire()
    there = stock.open(proxy.url)
    others = [await stock.waiter(there) for _ in range(30)]
    await stock.listened()
    before = stock.scripts()
    proxy.cut()
    await stock.backend.until(lambda: proxy.seen(b"SUBSCRIBE") == 6)
    await stock.listened()
    await stock.open().add_permits(30)
    for other in others:
        assert await other.result()
    # Some attempts of the first, the permits, and the attempts that acquire them.
    assert stock.scripts() - before <= 8 + 1 + 30


@pytest.mark.parametrize(("stock", "messages"), [("semaphore", 1), ("semaphore", 4), ("permit", 1)], indirect=["stock"])
async def test_messages_wake_as_many_as_there_are_permits(stock: Stock, messages: int) -> None:
    """One message says that four permits are free; or four in a row say how many there are: 1, 2, 3, 4."""
    semaphore = stock.open()
    others = [await stock.waiter(semaphore) for _ in range(6)]
    before = stock.scripts()
    with stock.redis.pipeline(transaction=True) as together:
        for number in range(1, messages + 1):
            together.incrby("stock", 4 // messages)
            together.publish(CHANNEL, number * (4 // messages))
        together.execute()
    await stock.backend.until(lambda: sum(other.done() for other in others) == 4)
    # One more, which enters the others in the list.
    assert stock.scripts() <= before + 5 + (messages > 1)
    stock.java_adds(2)
    for other in others:
        await other.result()
    assert stock.free() == 0


@pytest.mark.parametrize("announced", [1, 3])
async def test_a_small_need_does_not_wait_behind_a_large_one(stock: Stock, announced: int) -> None:
    """Also if the large one is woken in vain, as another caller has acquired some of what the message announced."""
    semaphore = stock.open()
    large, small = await stock.waiter(semaphore, 3), await stock.waiter(semaphore, 1)
    stock.redis.set("stock", 1)
    stock.redis.publish(CHANNEL, announced)
    await small.result()
    assert not large.done()
    stock.java_adds(3)
    assert await large.result()


async def test_a_waiter_that_leaves_with_a_wakeup_passes_it_on(stock: Stock) -> None:
    semaphore = stock.open()
    other = await stock.waiter(semaphore)
    woken, leave = first_waiter(semaphore.client, wake_channel(semaphore.client), 2)
    stock.redis.set("stock", 2)
    stock.redis.publish(CHANNEL, "2")
    await stock.backend.until(woken.is_set)
    assert not other.done()
    leave()
    await other.result()


@pytest.mark.parametrize(("wait", "longest"), [(None, OFTEN), (30, OFTEN), (1, 60)])
async def test_a_message_that_was_lost(
    stock: Stock, monkeypatch: pytest.MonkeyPatch, wait: float | None, longest: float
) -> None:
    """A waiter makes an attempt from time to time, and when its time is over."""
    set_longest_wait(monkeypatch, longest)
    semaphore = stock.open()
    other = stock.backend.spawn(semaphore.acquire if wait is None else lambda: semaphore.try_acquire(1, wait))
    await stock.listened()
    stock.redis.incrby("stock", 1)
    await other.result()
    assert stock.free() == 0


async def test_a_deleted_one_is_waited_for(stock: Stock) -> None:
    semaphore = await stock.made(0)
    other = await stock.waiter(semaphore)
    await semaphore.delete()
    await stock.backend.sleep(0.05)
    assert not other.done()
    await semaphore.try_set_permits(1)
    await other.result()


async def test_closed_while_waiting(stock: Stock) -> None:
    semaphore = stock.open()
    other = await stock.waiter(semaphore)
    await semaphore.client.close()
    with pytest.raises(pyredisson.ClosedError):
        await other.result()


@expirable
async def test_a_holder_that_died_frees_its_permit_when_the_lease_ends(stock: Stock) -> None:
    stock.redis.set("stock", 1)
    semaphore, before, started = stock.open(), stock.scripts(), time.monotonic()
    stock.java_acquires(ID, 2)
    assert set(await semaphore.try_acquire(1, 30)) == stock.used()
    assert 1.9 < time.monotonic() - started < 2 + WOKEN
    # One try, one when messages were sure to arrive, and one that had it.
    assert stock.scripts() == before + 3


@expirable
async def test_several_that_end_one_after_the_other(stock: Stock) -> None:
    stock.redis.set("stock", 3)
    semaphore, started = stock.open(), time.monotonic()
    for permit, left in zip(ONE_BY_ONE, (0.1, 0.2, 0.3), strict=True):
        stock.java_acquires(permit, left)
    assert set(await semaphore.acquire(3)) == stock.used()
    assert 0.25 < time.monotonic() - started < WOKEN
    assert stock.free() == 0


@expirable
async def test_java_releases_by_id(stock: Stock) -> None:
    """Of several it publishes only their number, and not how many are free."""
    stock.redis.set("stock", 4)
    for permit in ONE_BY_ONE:
        stock.java_acquires(permit, 600)
    semaphore = stock.open()
    other, before = await stock.waiter(semaphore, 3), stock.scripts()
    stock.java_releases(*ONE_BY_ONE[:2])
    permits = await other.result()
    assert (len(permits), stock.scripts()) == (3, before + 1)
    other = await stock.waiter(semaphore)
    stock.java_releases(ONE_BY_ONE[2])
    permits += await other.result()
    assert stock.used() == set(permits)
