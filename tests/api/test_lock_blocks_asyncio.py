"""`async with` blocks that are entered in one task and left in another."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.server_state import ServerState
from tests.support.waiting import eventually

from .kinds import all_blocks, left, lock_of

pytestmark = pytest.mark.asyncio
entered_by = pytest.mark.parametrize(
    "enter", [lambda lock: lock, lambda lock: lock.hold(wait_time=5)], ids=["with", "hold"]
)


@all_blocks
async def test_left_in_another_task(tasks: Backend, server_state: ServerState, kind: str) -> None:
    """As the fixtures of pytest-asyncio are."""
    lock = lock_of(tasks.connect(), kind)

    async def fixture(scope: Any) -> AsyncIterator[None]:
        async with scope:
            yield

    for scope in (lock, lock.hold(wait_time=5)):
        generator = fixture(scope)
        await asyncio.create_task(step(generator))
        assert server_state.redis.exists("orders")
        with pytest.raises(StopAsyncIteration):
            await asyncio.create_task(step(generator))
        assert left(server_state.redis) == set()
        assert not lock._blocks


async def test_its_own_block_first(tasks: Backend) -> None:
    lock = tasks.connect().get_read_write_lock("orders").read_lock()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def other() -> int:
        async with lock:
            entered.set()
            await leave.wait()
            return await lock.get_hold_count()

    task = asyncio.create_task(other())
    await entered.wait()
    async with lock:
        pass
    leave.set()
    assert await task == 1
    assert not await lock.is_locked()


async def test_an_unfinished_generator(tasks: Backend, server_state: ServerState) -> None:
    """The event loop closes it in a task of its own."""
    lock = tasks.connect().get_lock("orders")

    async def numbers() -> AsyncIterator[int]:
        async with lock:
            yield 1

    async for _ in numbers():
        break
    gc.collect()
    await tasks.until(lambda: not server_state.redis.exists("orders"))


@entered_by
@pytest.mark.parametrize("returned", [False, True])
async def test_abandoned(
    tasks: Backend,
    server_state: ServerState,
    caplog: pytest.LogCaptureFixture,
    enter: Callable[[Any], Any],
    *,
    returned: bool,
) -> None:
    """By its task, or by what the task has returned it to."""
    client = tasks.connect()

    async def open_it() -> contextlib.AsyncExitStack | None:
        stack = contextlib.AsyncExitStack()
        await stack.enter_async_context(enter(client.get_lock("orders")))
        return stack if returned else None

    stack = await asyncio.create_task(open_it())
    assert not returned or server_state.redis.exists("orders")
    del stack
    await tasks.until(lambda: not server_state.redis.exists("orders"))
    assert "nobody can leave" in caplog.text


@entered_by
async def test_a_task_that_has_ended_and_may_be_left_by_another(
    tasks: Backend, server_state: ServerState, enter: Callable[[Any], Any]
) -> None:
    client = tasks.connect()
    stack = contextlib.AsyncExitStack()
    await asyncio.create_task(stack.enter_async_context(enter(client.get_lock("orders"))))
    # An explicit owner isn't tied to a task, either.
    await asyncio.create_task(client.get_lock("stock", owner=7).__aenter__())
    gc.collect()
    await asyncio.sleep(0.05)
    assert server_state.redis.exists("orders", "stock") == 2
    await stack.aclose()
    await client.get_lock("stock", owner=7).unlock()
    assert server_state.redis.keys() == []


async def test_another_handle_of_the_same_task(tasks: Backend, server_state: ServerState) -> None:
    """Handles of one name are the same lock."""
    client = tasks.connect()
    await client.get_lock("orders").__aenter__()
    gc.collect()
    assert await client.get_lock("orders").is_held()
    await client.get_lock("orders").__aexit__(None, None, None)
    assert not server_state.redis.exists("orders")


async def test_a_foreign_cancellation_stays_one(tasks: Backend) -> None:
    """Of a block that was lost after its task had ended."""
    lock = tasks.connect().get_lock("orders")
    hold = lock.hold()
    await asyncio.create_task(hold.__aenter__())
    await lock.force_unlock()

    async def leave() -> None:
        error = asyncio.CancelledError()
        try:
            raise error
        except asyncio.CancelledError:
            await hold.__aexit__(asyncio.CancelledError, error, None)
            raise

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(leave())


async def test_a_foreign_cancellation_while_a_lost_block_is_left_stays_one(tasks: Backend) -> None:
    """A red lock awaits the release of its other members then."""
    client = tasks.connect()
    members = [client.get_lock(name) for name in ("orders", "other", "third")]
    task: asyncio.Task[None]

    async def body() -> None:
        async with client.get_red_lock(*members):
            for member in members[:2]:
                await member.force_unlock()
            try:
                await asyncio.sleep(TIME_LIMIT)
            finally:
                asyncio.get_running_loop().call_soon(task.cancel)

    task = asyncio.create_task(body())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_lost_block_is_not_taken_for_a_later_one(tasks: Backend) -> None:
    lock = tasks.connect().get_lock("orders")
    await asyncio.create_task(lock.__aenter__())
    await lock.force_unlock()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def later() -> None:
        async with lock:
            entered.set()
            await leave.wait()
            assert await lock.is_held()

    task = asyncio.create_task(later())
    await entered.wait()
    with pytest.raises(pyredisson.LockLostError):
        await lock.__aexit__(None, None, None)
    leave.set()
    await task


async def step(generator: AsyncIterator[None]) -> None:
    await anext(generator)


def abandon_after_its_event_loop(url: str, server_state: ServerState) -> None:
    client = pyredisson.asyncio.connect(url)

    async def open_it() -> contextlib.AsyncExitStack:
        stack = contextlib.AsyncExitStack()
        await stack.enter_async_context(client.get_lock("orders"))
        return stack

    stack = asyncio.run(open_it())
    assert server_state.redis.exists("orders")
    del stack
    eventually(lambda: not server_state.redis.exists("orders"))
    asyncio.run(client.close())
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_abandoned_after_its_event_loop(server: Server, server_state: ServerState) -> None:
    """A loop that ends takes its connections with it: nobody can close those any more, so Python warns."""
    await asyncio.to_thread(abandon_after_its_event_loop, server.url, server_state)
