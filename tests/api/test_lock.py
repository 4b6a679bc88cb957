"""Acquiring and releasing a lock, and the queries about it: the contract, on both backends."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from pyredisson import LockNotHeldError, LockTimeoutError
from tests.support.backends import WOKEN, Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio


async def test_lock_and_unlock(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect().get_lock("orders")
    await lock.lock()
    assert len(server_state.holds("orders")) == 1
    await lock.unlock()
    assert server_state.redis.keys() == []


async def test_two_handles_of_one_name_are_the_same_lock(backend: Backend) -> None:
    client = backend.connect()
    await client.get_lock("orders").lock()
    other = client.get_lock(b"orders")
    assert await other.is_held()
    await other.lock()
    assert await client.get_lock("orders").get_hold_count() == 2
    await other.unlock()
    await other.unlock()
    assert not await other.is_locked()


async def test_another_owner_does_not_get_it(backend: Backend) -> None:
    lock = backend.connect().get_lock("orders")
    await lock.lock()
    assert await backend.as_another_owner(lock.try_lock) is False
    assert await backend.as_another_owner(lambda: lock.try_lock(wait_time=0.05)) is False
    assert await backend.connect().get_lock("orders").try_lock() is False


async def test_try_lock_says_whether(backend: Backend) -> None:
    lock = backend.connect().get_lock("orders")
    assert await lock.try_lock() is True
    assert await lock.is_held()


@pytest.mark.parametrize("wait", [0.2, timedelta(milliseconds=200)])
async def test_try_lock_waits_for_the_given_time(backend: Backend, wait: Any) -> None:
    client = backend.connect()
    await client.get_lock("orders", owner=1).lock()
    started = time.monotonic()
    assert not await client.get_lock("orders").try_lock(wait_time=wait)
    assert 0.2 <= time.monotonic() - started < WOKEN


async def test_an_endless_wait(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    lock, holder = client.get_lock("orders"), client.get_lock("orders", owner=1)
    await holder.lock()
    other = backend.spawn(lambda: lock.try_lock(wait_time=math.inf))
    await backend.until(lambda: server_state.listeners("orders") == 1)
    await holder.unlock()
    assert await other.result() is True


async def test_questions(backend: Backend) -> None:
    client = backend.connect()
    lock = client.get_lock("orders")
    assert not await lock.is_locked()
    assert not await lock.locked()
    assert not await lock.is_held()
    assert not await lock.is_held_by_current_thread()
    assert await lock.get_hold_count() == 0
    assert await lock.remain_time_to_live() is None
    await lock.lock(60)
    assert await lock.is_locked() is True
    assert await lock.locked() is True
    assert await lock.is_held() is True
    assert await lock.is_held_by_current_thread() is True
    assert await lock.get_hold_count() == 1
    left = await lock.remain_time_to_live()
    assert isinstance(left, float)
    assert 50 < left <= 60


async def test_questions_of_another_owner(backend: Backend) -> None:
    lock = backend.connect().get_lock("orders")
    await lock.lock()
    assert await backend.as_another_owner(lock.is_locked) is True
    assert await backend.as_another_owner(lock.is_held) is False
    assert await backend.as_another_owner(lock.get_hold_count) == 0


async def test_questions_through_another_client(backend: Backend) -> None:
    await backend.connect().get_lock("orders", owner=1).lock()
    other = backend.connect().get_lock("orders", owner=1)
    assert await other.is_locked() is True
    assert await other.is_held() is False
    assert await other.is_held_by(1) is False
    assert await other.get_hold_count() == 0


async def test_is_held_by(backend: Backend) -> None:
    client = backend.connect()
    await client.get_lock("orders", owner=7).lock()
    assert await client.get_lock("orders").is_held_by(7) is True
    assert await client.get_lock("orders").is_held_by(8) is False
    assert await client.get_lock("orders").is_held() is False


async def test_milliseconds_end_to_end(backend: Backend) -> None:
    lock = backend.connect().get_lock("orders")
    await lock.lock(timedelta(seconds=100, milliseconds=1))
    left = await lock.remain_time_to_live()
    assert left is not None
    assert 99 < left <= 100.001
    assert round(left * 1000) == pytest.approx(left * 1000)


async def test_a_key_that_never_expires(backend: Backend, admin: Redis) -> None:
    admin.hset("orders", "somebody", 1)
    assert await backend.connect().get_lock("orders").remain_time_to_live() == math.inf


async def test_force_unlock(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    lock = client.get_lock("orders")
    assert await lock.force_unlock() is False
    await client.get_lock("orders", owner=1).lock()
    await client.get_lock("orders", owner=1).lock()
    assert await lock.force_unlock() is True
    assert server_state.redis.keys() == []
    assert await lock.try_lock()


async def test_delete(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect().get_lock("orders")
    assert await lock.delete() is False
    await backend.as_another_owner(lock.lock)
    assert await lock.delete() is True
    assert server_state.redis.keys() == []


async def test_the_error_of_another_owner_names_the_holder(backend: Backend, server_state: ServerState) -> None:
    client, stranger = backend.connect(), backend.connect()
    await client.get_lock("orders", owner=1).lock()
    lock = stranger.get_lock("orders", owner=2)
    with pytest.raises(LockNotHeldError) as caught:
        await lock.unlock()
    message = str(caught.value)
    assert "orders" in message
    assert f"{stranger.id}:2" in message
    assert f"{client.id}, thread 1" in message
    assert server_state.holds("orders") == {f"{client.id}:1": "1"}


async def test_unlock_without_a_holder(backend: Backend) -> None:
    lock = backend.connect().get_lock("orders")
    with pytest.raises(LockNotHeldError, match="is free"):
        await lock.unlock()
    await lock.lock()
    await lock.unlock()
    with pytest.raises(RuntimeError, match="is free"):
        await lock.unlock()


async def test_a_lock_is_handed_over_by_its_owners_id(backend: Backend) -> None:
    client = backend.connect()
    await client.get_lock("orders", owner=5).lock()
    assert not await client.get_lock("orders", owner=6).try_lock()
    await backend.as_another_owner(client.get_lock("orders", owner=5).unlock)
    assert not await client.get_lock("orders").is_locked()


class TestProtocol:
    """`threading.Lock`'s methods, on the same state."""

    async def test_acquire_and_release(self, backend: Backend) -> None:
        lock = backend.connect().get_lock("orders")
        assert await lock.acquire() is True
        assert await lock.locked()
        assert await lock.is_held()
        await lock.release()
        assert not await lock.locked()
        with pytest.raises(RuntimeError):
            await lock.release()

    async def test_not_blocking(self, backend: Backend) -> None:
        lock = backend.connect().get_lock("orders")
        await lock.lock()
        started = time.monotonic()
        assert await backend.as_another_owner(lambda: lock.acquire(blocking=False)) is False
        assert await backend.as_another_owner(lambda: lock.acquire(False)) is False
        assert await backend.as_another_owner(lambda: lock.acquire(True, 0)) is False
        assert time.monotonic() - started < WOKEN

    async def test_timeout(self, backend: Backend) -> None:
        lock = backend.connect().get_lock("orders")
        await lock.lock()
        started = time.monotonic()
        assert await backend.as_another_owner(lambda: lock.acquire(timeout=0.2)) is False
        assert 0.2 <= time.monotonic() - started < WOKEN

    async def test_minus_one_waits_for_ever(self, backend: Backend, server_state: ServerState) -> None:
        lock = backend.connect().get_lock("orders")
        await lock.lock()
        other = backend.spawn(lambda: lock.acquire(True, -1))
        await backend.until(lambda: server_state.listeners("orders") == 1)
        await lock.release()
        assert await other.result() is True

    @pytest.mark.parametrize("arguments", [(False, 1), (False, 0), (True, -2), (True, -0.5)])
    async def test_what_threading_refuses(self, backend: Backend, arguments: tuple[bool, float]) -> None:
        with pytest.raises(ValueError, match="timeout"):
            await backend.connect().get_lock("orders").acquire(*arguments)


class TestBlocks:
    """`with lock:` and `with lock.hold(...):`."""

    async def test_with(self, backend: Backend, server_state: ServerState) -> None:
        lock = backend.connect().get_lock("orders")
        async with lock as entered:
            assert entered is lock
            assert await lock.is_held()
        assert server_state.redis.keys() == []

    async def test_the_bodys_exception_comes_through(self, backend: Backend) -> None:
        lock = backend.connect().get_lock("orders")
        with pytest.raises(KeyError) as caught:
            async with lock:
                raise KeyError("mine")
        assert not hasattr(caught.value, "__notes__")
        assert not await lock.is_locked()

    async def test_hold(self, backend: Backend) -> None:
        lock = backend.connect().get_lock("orders")
        async with lock.hold(wait_time=1, lease_time=timedelta(seconds=60)) as entered:
            assert repr(entered) == repr(lock)
            assert await lock.is_held()
            left = await lock.remain_time_to_live()
            assert left is not None
            assert 50 < left <= 60
        assert not await lock.is_locked()

    async def test_hold_in_vain(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        await client.get_lock("orders", owner=1).lock()
        with pytest.raises(LockTimeoutError) as caught:
            async with client.get_lock("orders", owner=2).hold(wait_time=0.1):
                pytest.fail("entered a lock that another one holds")
        assert isinstance(caught.value, TimeoutError)
        assert "orders" in str(caught.value)
        assert f"{client.id}:2" in str(caught.value)
        assert server_state.holds("orders") == {f"{client.id}:1": "1"}

    @pytest.mark.parametrize("wait", [None, math.inf])
    async def test_hold_waits_as_long_as_it_takes(
        self, backend: Backend, server_state: ServerState, wait: float | None
    ) -> None:
        lock = backend.connect().get_lock("orders")
        await lock.lock()

        async def work() -> bool:
            async with lock.hold(wait):
                return await lock.is_held()

        other = backend.spawn(work)
        await backend.until(lambda: server_state.listeners("orders") == 1)
        await lock.unlock()
        assert await other.result() is True
