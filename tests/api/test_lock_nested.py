"""Nested holds and their leases."""

from __future__ import annotations

import time

import pytest

from pyredisson import LockNotHeldError
from tests.support.backends import Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio

WATCHDOG = 1.2


async def test_the_holder_comes_in_again(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect().get_lock("orders", owner=1)
    for count in (1, 2, 3):
        assert await lock.try_lock()
        assert list(server_state.holds("orders").values()) == [str(count)]
        assert await lock.get_hold_count() == count
    for count in (2, 1):
        await lock.unlock()
        assert list(server_state.holds("orders").values()) == [str(count)]
        assert await lock.is_held()
    await lock.unlock()
    assert server_state.redis.keys() == []
    with pytest.raises(LockNotHeldError):
        await lock.unlock()


async def test_the_calling_owner_comes_in_again(backend: Backend) -> None:
    lock = backend.connect().get_lock("orders")
    async with lock, lock, lock.hold():
        assert await lock.get_hold_count() == 3
        assert await backend.as_another_owner(lock.try_lock) is False
    assert not await lock.is_locked()


async def test_all_ways_in_count_together(backend: Backend) -> None:
    lock = backend.connect().get_lock("orders")
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
    backend: Backend, server_state: ServerState, again: float | None
) -> None:
    lock = backend.connect(lock_watchdog_timeout=WATCHDOG).get_lock("orders")
    await lock.lock(60)
    await lock.lock(again)
    assert server_state.redis.pttl("orders") > 50_000
    await backend.sleep(WATCHDOG / 2)
    # The watchdog has looked at it, if it was asked to.
    assert server_state.redis.pttl("orders") > 50_000
    await lock.unlock()
    assert server_state.redis.pttl("orders") > 50_000
    assert await lock.is_held()
    assert not lock.lost.is_set()
    await lock.unlock()


async def test_a_short_inner_hold_does_not_stop_the_renewal(backend: Backend) -> None:
    lock = backend.connect(lock_watchdog_timeout=WATCHDOG).get_lock("orders")
    await lock.lock()
    await lock.lock(0.1)
    await backend.sleep(0.2)
    assert await lock.get_hold_count() == 2
    await lock.unlock()
    await backend.sleep(WATCHDOG * 1.3)
    assert await lock.get_hold_count() == 1
    await lock.unlock()


async def test_a_renewed_inner_hold_ends_its_renewal_with_itself(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect(lock_watchdog_timeout=3).get_lock("orders")
    await lock.lock(2)
    await lock.lock()
    await backend.sleep(3.5)
    assert await lock.get_hold_count() == 2
    await lock.unlock()
    assert await lock.is_held()
    await backend.until(lambda: not server_state.redis.exists("orders"))


async def test_a_longer_inner_lease_counts(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect().get_lock("orders")
    await lock.lock(2)
    await lock.lock(60)
    await lock.unlock()
    assert server_state.redis.pttl("orders") > 50_000
    await backend.sleep(2.05)
    assert await lock.is_held()


async def test_the_watchdog_keeps_a_lock(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect(lock_watchdog_timeout=WATCHDOG).get_lock("orders")
    await lock.lock()
    assert server_state.redis.pttl("orders") <= WATCHDOG * 1000
    until = time.monotonic() + WATCHDOG * 1.4
    while time.monotonic() < until:
        assert 0 < server_state.redis.pttl("orders") <= WATCHDOG * 1000
        await backend.sleep(0.05)
    assert await lock.is_held()
    await lock.unlock()


async def test_the_watchdog_does_not_renew_a_released_lock(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(lock_watchdog_timeout=1.5)
    lock = client.get_lock("orders")
    await lock.lock()
    await lock.unlock()
    await client.get_lock("stock").lock()
    scripts = server_state.scripts()
    await backend.until(lambda: server_state.scripts() >= scripts + 2)
    assert server_state.redis.keys() == [b"stock"]


async def test_a_fixed_lease_is_not_renewed(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(lock_watchdog_timeout=1.5)
    await client.get_lock("renewed").lock()
    lock = client.get_lock("orders")
    await lock.lock(1.8)
    started = time.monotonic()
    await backend.until(lambda: not server_state.redis.exists("orders"))
    assert time.monotonic() - started < 3
    assert not await lock.is_held()
    assert await client.get_lock("renewed").is_held()


async def test_without_a_lease_the_default_is_half_a_minute(backend: Backend, server_state: ServerState) -> None:
    await backend.connect().get_lock("orders").lock()
    assert 29_000 < server_state.redis.pttl("orders") <= 30_000
