"""Re-entrancy and leases: who may come in again, and how long a lock is kept."""

from __future__ import annotations

import time

import pytest

from pyredisson import LockNotHeldError

from .worlds import Behind, World

pytestmark = pytest.mark.asyncio

WATCHDOG = 1.2


async def test_the_holder_comes_in_again(world: World, behind: Behind) -> None:
    lock = world.connect().get_lock("orders", owner=1)
    for count in (1, 2, 3):
        assert await lock.try_lock()
        assert list(behind.holds("orders").values()) == [str(count)]
        assert await lock.get_hold_count() == count
    for count in (2, 1):
        await lock.unlock()
        assert list(behind.holds("orders").values()) == [str(count)]
        assert await lock.is_held()
    await lock.unlock()
    assert behind.redis.keys() == []
    with pytest.raises(LockNotHeldError):
        await lock.unlock()


async def test_the_calling_owner_comes_in_again(world: World) -> None:
    lock = world.connect().get_lock("orders")
    async with lock, lock, lock.hold():
        assert await lock.get_hold_count() == 3
        assert await world.elsewhere(lock.try_lock) is False
    assert not await lock.is_locked()


async def test_all_ways_in_count_together(world: World) -> None:
    lock = world.connect().get_lock("orders")
    await lock.lock()
    await lock.acquire()
    assert await lock.try_lock(1, 10)
    async with lock:
        assert await lock.get_hold_count() == 4
    await lock.release()
    await lock.unlock()
    await lock.unlock()
    assert not await lock.is_locked()


@pytest.mark.parametrize("again", [0.05, None])
async def test_an_inner_hold_does_not_shorten_the_outer_lease(
    world: World, behind: Behind, again: float | None
) -> None:
    lock = world.connect(lock_watchdog_timeout=WATCHDOG).get_lock("orders")
    await lock.lock(60)
    await lock.lock(again)
    assert behind.redis.pttl("orders") > 50_000
    await world.sleep(WATCHDOG / 2)
    # The watchdog has looked at it, if it was asked to.
    assert behind.redis.pttl("orders") > 50_000
    await lock.unlock()
    assert behind.redis.pttl("orders") > 50_000
    assert await lock.is_held()
    assert not lock.lost.is_set()
    await lock.unlock()


async def test_a_short_inner_hold_does_not_stop_the_renewal(world: World) -> None:
    lock = world.connect(lock_watchdog_timeout=WATCHDOG).get_lock("orders")
    await lock.lock()
    await lock.lock(0.1)
    await world.sleep(0.2)
    assert await lock.get_hold_count() == 2
    await lock.unlock()
    await world.sleep(WATCHDOG * 1.3)
    assert await lock.get_hold_count() == 1
    await lock.unlock()


async def test_a_renewed_inner_hold_ends_its_renewal_with_itself(world: World, behind: Behind) -> None:
    lock = world.connect(lock_watchdog_timeout=1.5).get_lock("orders")
    await lock.lock(0.3)
    await lock.lock()
    await world.sleep(2)
    assert await lock.get_hold_count() == 2
    await lock.unlock()
    assert await lock.is_held()
    await world.until(lambda: not behind.redis.exists("orders"))


async def test_a_longer_inner_lease_counts(world: World, behind: Behind) -> None:
    lock = world.connect().get_lock("orders")
    await lock.lock(0.1)
    await lock.lock(60)
    await lock.unlock()
    assert behind.redis.pttl("orders") > 50_000
    await world.sleep(0.15)
    assert await lock.is_held()


async def test_the_watchdog_keeps_a_lock(world: World, behind: Behind) -> None:
    lock = world.connect(lock_watchdog_timeout=WATCHDOG).get_lock("orders")
    await lock.lock()
    assert behind.redis.pttl("orders") <= WATCHDOG * 1000
    until = time.monotonic() + WATCHDOG * 1.4
    while time.monotonic() < until:
        assert 0 < behind.redis.pttl("orders") <= WATCHDOG * 1000
        await world.sleep(0.05)
    assert await lock.is_held()
    await lock.unlock()


async def test_the_watchdog_does_not_touch_a_lock_given_back(world: World, behind: Behind) -> None:
    client = world.connect(lock_watchdog_timeout=1.5)
    lock = client.get_lock("orders")
    await lock.lock()
    await lock.unlock()
    await client.get_lock("stock").lock()
    scripts = behind.scripts()
    await world.until(lambda: behind.scripts() >= scripts + 2)
    assert behind.redis.keys() == [b"stock"]


async def test_a_fixed_lease_is_not_renewed(world: World, behind: Behind) -> None:
    client = world.connect(lock_watchdog_timeout=1.5)
    await client.get_lock("renewed").lock()
    lock = client.get_lock("orders")
    await lock.lock(1.8)
    started = time.monotonic()
    await world.until(lambda: not behind.redis.exists("orders"))
    assert time.monotonic() - started < 3
    assert not await lock.is_held()
    assert await client.get_lock("renewed").is_held()


async def test_without_a_lease_the_default_is_half_a_minute(world: World, behind: Behind) -> None:
    await world.connect().get_lock("orders").lock()
    assert 29_000 < behind.redis.pttl("orders") <= 30_000
