"""One owner that asks for a non-reentrant lock in several calls at a time gets it once, and keeps its hold."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pyredisson import LockAlreadyHeldError, LockNotHeldError
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.server_state import ServerState
from tests.support.waiting import waiters

pytestmark = pytest.mark.asyncio
also_reentrant = pytest.mark.parametrize("kind", ["get_lock", "get_non_reentrant_lock"])


async def test_one_of_many_threads_gets_it(threads: Backend, server_state: ServerState) -> None:
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


async def test_one_of_many_tasks_gets_it(tasks: Backend, server_state: ServerState) -> None:
    client = tasks.connect()
    # The second group: one task asks several times at the same moment.
    for lock in (client.get_non_reentrant_lock("orders", owner=7), client.get_non_reentrant_lock("stock")):
        outcomes = await asyncio.gather(*(lock.lock() for _ in range(8)), return_exceptions=True)
        assert sum(isinstance(outcome, LockAlreadyHeldError) for outcome in outcomes) == 7
        assert list(server_state.holds(lock.name).values()) == ["1"]
        await lock.unlock()
    assert server_state.redis.keys() == []


async def test_a_waiter_that_is_refused_leaves_the_hold_alone(backend: Backend, server_state: ServerState) -> None:
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


async def test_one_that_comes_too_late_is_refused(threads: Backend, proxy: Proxy) -> None:
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


@also_reentrant
async def test_permits_that_are_being_released_cannot_be_released_again(
    threads: Backend, proxy: Proxy, server_state: ServerState, kind: str
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


@also_reentrant
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
