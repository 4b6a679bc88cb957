"""Closing an asyncio client: connecting calls get an error, and closing needs no help from the program."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

import pyredisson.asyncio
from pyredisson import ClosedError
from pyredisson.testing import Proxy, Server
from tests.support.faults import ACQUIRE
from tests.support.waiting import TIME_LIMIT, cancel_after, eventually

pytestmark = pytest.mark.asyncio
LONGEST = 2.5
"""About a second, and what a busy machine adds."""


@pytest.fixture(params=["plain", "eager"] if hasattr(asyncio, "eager_task_factory") else ["plain"])
def tasks(request: pytest.FixtureRequest) -> str:
    """How tasks begin: `asyncio.eager_task_factory` came with Python 3.12."""
    kind: str = request.param
    return kind


def use(tasks: str) -> None:
    if tasks == "eager":
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}"


async def test_callers_that_are_connecting_get_closed_error(silent: str, tasks: str) -> None:
    use(tasks)
    client = pyredisson.asyncio.connect(silent)
    begin = time.monotonic()
    calls = [asyncio.create_task(client.get_lock("a").lock()) for _ in range(3)]
    calls.append(asyncio.create_task(client.get_semaphore("b").acquire()))
    await asyncio.sleep(0.05)
    await client.close()
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - begin < LONGEST
    assert [type(error) for error in errors] == [ClosedError] * 4
    assert len(set(map(id, errors))) == 4


async def test_a_task_group_gets_the_error(silent: str, tasks: str) -> None:
    """It takes a cancelled task for one that was meant to end."""
    use(tasks)
    client = pyredisson.asyncio.connect(silent)
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(client.get_lock("a").lock())
            await asyncio.sleep(0.05)
            closing = asyncio.get_running_loop().create_task(client.close())
    assert [type(error) for error in caught.value.exceptions] == [ClosedError]
    await closing


async def test_a_cancellation_reaches_only_the_cancelled_caller(silent: str, tasks: str) -> None:
    use(tasks)
    client = pyredisson.asyncio.connect(silent)
    cancelled, bounded, other = [asyncio.create_task(client.get_lock("a").lock()) for _ in range(3)]
    await asyncio.sleep(0.02)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bounded, 0.02)
    assert not other.done()
    await client.close()
    with pytest.raises(ClosedError):
        await other


async def test_one_that_is_cancelled_while_the_client_is_closed(silent: str) -> None:
    client = pyredisson.asyncio.connect(silent)
    call = asyncio.create_task(client.get_lock("a").lock())
    await asyncio.sleep(0.02)
    call.cancel()
    await client.close()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_cancelled_connection_is_made_again(proxy: Proxy, tasks: str) -> None:
    """By a program that cancels every task it doesn't know."""
    use(tasks)
    ours = asyncio.all_tasks()
    client = pyredisson.asyncio.connect(proxy.url)
    hello = proxy.hold_reply(b"HELLO")
    call = asyncio.create_task(client.get_lock("a").try_lock(TIME_LIMIT))
    assert await asyncio.to_thread(hello.held.wait, TIME_LIMIT)
    for task in asyncio.all_tasks() - ours - {call}:
        task.cancel()
    assert await asyncio.wait_for(call, TIME_LIMIT) is True
    await client.close()


async def test_the_programs_own_threads_may_all_be_busy(server: Server, admin: Redis) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    client = pyredisson.asyncio.connect(server.url)
    await client.get_lock("a").lock()
    over = threading.Event()
    busy = loop.run_in_executor(None, over.wait, 3 * LONGEST)
    begin = time.monotonic()
    await client.close()
    took = time.monotonic() - begin
    over.set()
    assert await busy, "it has waited for the executor"
    assert took < LONGEST
    assert not admin.exists("a")


async def test_a_hung_server_does_not_hold_up_the_loop(server: Server, proxy: Proxy) -> None:
    client = pyredisson.asyncio.connect(proxy.url)
    await client.get_lock("a").lock()
    proxy.stall()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.02)
            turns += 1

    turning = asyncio.create_task(turn())
    begin = time.monotonic()
    await client.close()
    assert time.monotonic() - begin < LONGEST
    assert turns >= 5
    turning.cancel()


@pytest.mark.parametrize("turns", range(1, 7))
async def test_a_cancelled_close_leaves_nothing_at_whatever_moment(
    server: Server, proxy: Proxy, admin: Redis, tasks: str, turns: int
) -> None:
    use(tasks)
    client = pyredisson.asyncio.connect(proxy.url, client_name="to-be-closed", timeout=TIME_LIMIT)
    await client.get_lock("held").lock()
    waiting = asyncio.create_task(client.get_lock("held", owner=1).lock())
    late = proxy.hold_reply(ACQUIRE)
    taking = asyncio.create_task(client.get_lock("taken").lock())
    assert await asyncio.to_thread(late.held.wait, TIME_LIMIT)
    await cancel_after(turns, asyncio.create_task(client.close()))
    for task in (waiting, taking):
        with pytest.raises(ClosedError):
            await asyncio.wait_for(task, TIME_LIMIT)
    await asyncio.to_thread(eventually, lambda: not admin.exists("held", "taken"))
    await asyncio.to_thread(eventually, lambda: not any(each["name"] == "to-be-closed" for each in admin.client_list()))


async def test_where_no_thread_can_be_started(server: Server, admin: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pyredisson.asyncio.connect(server.url)
    await client.get_lock("a").lock()
    start = threading.Thread.start
    refused = []

    def start_or_not(thread: threading.Thread) -> None:
        if thread.name == "pyredisson-final-release":
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    await client.close()
    assert refused
    assert not admin.exists("a")


async def test_closing_in_another_loop_than_the_clients(server: Server, admin: Redis) -> None:
    """The other one still stands, with a call that waits in it."""

    def use() -> None:
        client = pyredisson.asyncio.connect(server.url)
        outcomes = []

        async def begin() -> None:
            await client.get_lock("a").lock()
            outcomes.append(asyncio.create_task(client.get_lock("a", owner=1).lock()))
            await asyncio.sleep(0.05)

        async def hear() -> None:
            with pytest.raises(ClosedError):
                await asyncio.wait_for(outcomes[0], TIME_LIMIT)

        with asyncio.Runner() as runner:
            runner.run(begin())
            begun = time.monotonic()
            asyncio.run(client.close())
            assert time.monotonic() - begun < LONGEST
            assert not admin.exists("a")
            runner.run(hear())

    await asyncio.to_thread(use)
