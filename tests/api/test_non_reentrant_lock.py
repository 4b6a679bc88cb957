"""The non-reentrant lock: its holder can't acquire it again, gets an error at once, and keeps its hold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from pyredisson import LockAlreadyHeldError, LockLostError, LockNotHeldError
from pyredisson.asyncio import NonReentrantLock
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.server_state import ServerState
from tests.support.waiting import waiters

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def lock(backend: Backend) -> Any:
    return backend.connect().get_non_reentrant_lock("orders")


async def held_in_a_block(lock: Any) -> None:
    async with lock:
        pass


async def held_in_a_scope(lock: Any) -> None:
    async with lock.hold(wait_time=1):
        pass


WAYS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "lock": lambda lock: lock.lock(),
    "lock with a lease": lambda lock: lock.lock(5),
    "try_lock": lambda lock: lock.try_lock(),
    "try_lock that waits": lambda lock: lock.try_lock(wait_time=5),
    "acquire": lambda lock: lock.acquire(),
    "acquire that doesn't wait": lambda lock: lock.acquire(blocking=False),
    "acquire in a time": lambda lock: lock.acquire(timeout=5),
    "with": held_in_a_block,
    "hold": held_in_a_scope,
}
AGAIN = pytest.mark.parametrize("again", WAYS.values(), ids=list(WAYS))


async def test_it_is_a_lock(lock: Any, backend: Backend, server_state: ServerState) -> None:
    async with lock:
        (count,) = server_state.holds("orders").values()
        assert count == "1"
        assert 29 < await lock.remain_time_to_live() <= 30
        assert await lock.is_held()
        assert await lock.get_hold_count() == 1
        assert await backend.as_another_owner(lock.try_lock) is False
    assert server_state.redis.keys() == []
    assert await lock.try_lock()
    await lock.unlock()
    with pytest.raises(LockNotHeldError):
        await lock.unlock()


@AGAIN
async def test_its_holder_is_refused_before_anything_is_sent(
    lock: Any, server_state: ServerState, again: Callable[[Any], Awaitable[Any]]
) -> None:
    await lock.lock()
    before = server_state.holds("orders")
    commands = server_state.commands()
    with pytest.raises(LockAlreadyHeldError) as refused:
        await again(lock)
    # HGETALL, which asked for the holds, counts for one.
    assert server_state.commands() == commands
    (owner,) = before
    assert "'orders'" in str(refused.value)
    assert owner in str(refused.value)
    assert server_state.holds("orders") == before
    assert await lock.get_hold_count() == 1
    await lock.unlock()
    assert server_state.redis.keys() == []


async def test_a_refused_block_does_not_release_the_outer_one(lock: Any, server_state: ServerState) -> None:
    async with lock:
        with pytest.raises(LockAlreadyHeldError):
            await held_in_a_block(lock)
        assert await lock.is_held()
        assert len(server_state.holds("orders")) == 1


async def test_another_handle_of_the_name_is_the_same_lock(backend: Backend) -> None:
    client = backend.connect()
    await client.get_non_reentrant_lock("orders").lock()
    with pytest.raises(LockAlreadyHeldError):
        await client.get_non_reentrant_lock(b"orders").try_lock()
    assert await client.get_non_reentrant_lock("stock").try_lock()


async def test_it_is_the_one_who_asks_that_refuses(backend: Backend, server_state: ServerState) -> None:
    """As in Redisson: a plain lock of the same name still comes in again."""
    client = backend.connect()
    await client.get_non_reentrant_lock("orders").lock()
    assert await client.get_lock("orders").try_lock()
    assert list(server_state.holds("orders").values()) == ["2"]
    await client.get_lock("orders").unlock()
    await client.get_non_reentrant_lock("orders").unlock()
    await client.get_lock("orders").lock()
    with pytest.raises(LockAlreadyHeldError):
        await client.get_non_reentrant_lock("orders").try_lock()


async def test_another_owner_waits_for_its_turn(backend: Backend, server_state: ServerState) -> None:
    holder, waiter = (
        backend.connect().get_non_reentrant_lock("orders"),
        backend.connect().get_non_reentrant_lock("orders"),
    )
    await holder.lock()
    other = backend.spawn(lambda: waiter.try_lock(wait_time=TIME_LIMIT))
    await backend.until(lambda: server_state.listeners("orders") == 1)
    await holder.unlock()
    assert await other.result() is True


async def test_a_lost_lock_can_be_acquired_again(lock: Any, server_state: ServerState) -> None:
    await lock.lock(0.05)
    assert await lock.lost.wait(TIME_LIMIT)
    assert await lock.try_lock(wait_time=TIME_LIMIT)
    with pytest.raises(LockAlreadyHeldError):
        await lock.try_lock()
    await lock.unlock()
    with pytest.raises(LockLostError):
        await lock.unlock()
    assert server_state.redis.keys() == []


async def test_it_is_renewed(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect(lock_watchdog_timeout=1.5).get_non_reentrant_lock("orders")
    await lock.lock()
    await backend.sleep(2)
    assert await lock.is_held()
    await lock.unlock()
    assert server_state.redis.keys() == []


async def test_an_acquire_whose_reply_is_lost_runs_exactly_once(
    backend: Backend, proxy: Proxy, server_state: ServerState
) -> None:
    lock = backend.connect(proxy.url, timeout=0.8).get_non_reentrant_lock("orders")
    lost = proxy.drop_reply(b"orders")
    await lock.lock()
    assert lost.happened.is_set()
    assert list(server_state.holds("orders").values()) == ["1"]
    with pytest.raises(LockAlreadyHeldError):
        await lock.try_lock()
    await lock.unlock()
    assert server_state.redis.keys() == []


class TestOneOwnerInSeveralCalls:
    async def test_one_of_many_threads_gets_it(self, threads: Backend, server_state: ServerState) -> None:
        client = threads.connect()
        start = threading.Barrier(8)
        outcomes: list[str] = []

        def ask() -> Any:
            async def work() -> None:
                start.wait(TIME_LIMIT)
                try:
                    await client.get_non_reentrant_lock("orders", owner=7).lock()
                    outcomes.append("taken")
                except LockAlreadyHeldError:
                    outcomes.append("refused")

            return work()

        others = [threads.spawn(ask) for _ in range(8)]
        for other in others:
            await other.result()
        assert sorted(outcomes) == ["refused"] * 7 + ["taken"]
        lock = client.get_non_reentrant_lock("orders", owner=7)
        assert list(server_state.holds("orders").values()) == ["1"]
        assert await lock.get_hold_count() == 1
        await lock.unlock()
        assert server_state.redis.keys() == []

    async def test_one_of_many_tasks_gets_it(self, tasks: Backend, server_state: ServerState) -> None:
        client = tasks.connect()
        # The second group: one task asks several times at the same moment.
        for lock in (client.get_non_reentrant_lock("orders", owner=7), client.get_non_reentrant_lock("stock")):
            outcomes = await asyncio.gather(*(lock.lock() for _ in range(8)), return_exceptions=True)
            assert sum(isinstance(outcome, LockAlreadyHeldError) for outcome in outcomes) == 7
            assert list(server_state.holds(lock.name).values()) == ["1"]
            await lock.unlock()
        assert server_state.redis.keys() == []

    async def test_a_waiter_that_is_refused_leaves_the_hold_alone(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        holder, lock = client.get_lock("orders", owner=1), client.get_non_reentrant_lock("orders", owner=7)
        await holder.lock()
        outcomes: list[str] = []

        async def ask() -> None:
            try:
                await lock.lock()
                outcomes.append("taken")
            except LockAlreadyHeldError:
                outcomes.append("refused")

        others = [backend.spawn(ask) for _ in range(3)]
        await backend.until(lambda: waiters(client, "orders") == 3)
        await holder.unlock()
        await backend.until(lambda: "taken" in outcomes)
        # The others are woken one by one, by messages that mean nothing.
        for _ in range(2):
            server_state.redis.publish("redisson_lock__channel:{orders}", "0")
        for other in others:
            await other.result()
        assert sorted(outcomes) == ["refused", "refused", "taken"]
        assert await lock.get_hold_count() == 1
        assert list(server_state.holds("orders").values()) == ["1"]
        await lock.unlock()

    async def test_one_that_comes_too_late_is_refused(self, threads: Backend, proxy: Proxy) -> None:
        """Its owner asks for it already, and holds it when the answer comes."""
        lock = threads.connect(proxy.url).get_non_reentrant_lock("orders", owner=7)
        slow = proxy.hold_reply(b"orders")
        first = threads.spawn(lock.try_lock)
        assert slow.held.wait(TIME_LIMIT)
        late = threads.spawn(lock.try_lock)
        slow.deliver()
        assert await first.result() is True
        with pytest.raises(LockAlreadyHeldError):
            await late.result()
        assert await lock.get_hold_count() == 1
        await lock.unlock()

    @pytest.mark.parametrize("kind", ["get_lock", "get_non_reentrant_lock"])
    async def test_permits_that_are_being_released_cannot_be_released_again(
        self, threads: Backend, proxy: Proxy, server_state: ServerState, kind: str
    ) -> None:
        lock = getattr(threads.connect(proxy.url), kind)("orders", owner=7)
        await lock.lock()
        slow = proxy.hold_reply(b"orders")
        other = threads.spawn(lock.unlock)
        assert slow.held.wait(TIME_LIMIT)
        await threads.until(lambda: not server_state.redis.exists("orders"))
        again = threads.spawn(lock.try_lock)
        slow.deliver()
        await other.result()
        assert await again.result() is True
        assert await lock.is_held()
        await lock.unlock()
        with pytest.raises(LockNotHeldError):
            await lock.unlock()


@pytest.mark.parametrize("kind", ["get_lock", "get_non_reentrant_lock"])
async def test_a_cancelled_waiter_leaves_the_hold_of_its_owner_alone(
    tasks: Backend, server_state: ServerState, kind: str
) -> None:
    client = tasks.connect()
    holder, lock = client.get_lock("orders", owner=1), getattr(client, kind)("orders", owner=7)
    await holder.lock()
    waiting = [asyncio.ensure_future(lock.lock()) for _ in range(2)]
    await tasks.until(lambda: waiters(client, "orders") == 2)
    await holder.unlock()
    async with asyncio.timeout(TIME_LIMIT):
        done, late = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    for each in late:
        each.cancel()
    await asyncio.wait(late)
    assert await lock.is_held()
    assert list(server_state.holds("orders").values()) == ["1"]
    await lock.unlock()
    assert server_state.redis.keys() == []


async def test_its_kind_is_exported(threads: Backend, tasks: Backend) -> None:
    assert repr(threads.connect().get_non_reentrant_lock("orders")) == "<pyredisson.NonReentrantLock 'orders'>"
    lock = tasks.connect().get_non_reentrant_lock("orders")
    assert repr(lock) == "<pyredisson.asyncio.NonReentrantLock 'orders'>"
    assert isinstance(lock, NonReentrantLock)
    assert not hasattr(lock, "__dict__")
