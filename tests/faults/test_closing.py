"""Closing with calls in flight, interrupted or cancelled: nothing stays locked, and it takes about a second."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson import ClosedError
from pyredisson._backends.aio.listener import AioListener
from pyredisson._backends.threads.listener import ThreadListener
from pyredisson._backends.threads.runtime import ThreadRuntime
from pyredisson._client.lifecycle import ClientLifecycle
from pyredisson.testing import Proxy, Server
from tests.support.faults import ACQUIRE, RELEASE, InterruptAt, pool_of
from tests.support.raw_backends import RawBackend
from tests.support.waiting import TIME_LIMIT, cancel_after, eventually

from .kinds import NoThread, start

CALLS = 60
NAME = "to-be-closed"
FINAL_RELEASE = "pyredisson-final-release"
LONGEST = 2.5
"""Seconds: about one, and what a busy machine adds."""


@pytest.fixture
def started_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of threads that were started."""
    started: list[str] = []
    begin = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        started.append(thread.name)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    return started


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}"


def take_in_threads(client: pyredisson.Client, count: int) -> list[threading.Thread]:
    def take(number: int) -> None:
        lock = client.get_lock(f"a{number}")
        try:
            while True:
                lock.lock()
                lock.unlock()
        except ClosedError:
            return

    threads = [threading.Thread(target=take, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def end(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def is_connected(admin: Redis) -> bool:
    return any(entry["name"] == NAME for entry in admin.client_list())


class TestInFlight:
    @pytest.mark.asyncio
    async def test_a_release_is_completed(self, backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
        client = backend.connect(proxy.url, timeout=0.8)
        lock = client.get_lock("a", owner=1)
        late = proxy.hold_request(RELEASE)
        await backend.do(lock.lock())
        releasing = start(backend, lock.unlock)
        await backend.until(late.held.is_set)
        await backend.do(client.close())
        with pytest.raises(ClosedError):
            await releasing.result()
        await backend.until(lambda: not admin.exists("a"))

    @pytest.mark.asyncio
    async def test_closing_twice_at_the_same_time(self, backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
        client = backend.connect(proxy.url)
        await backend.do(client.get_lock("a").lock())
        proxy.latency(0.02)
        for each in [start(backend, client.close) for _ in range(3)]:
            await each.result()
        assert not admin.exists("a")

    @pytest.mark.parametrize("latency", [0.0, 0.05, 0.1])
    def test_calls_of_many_threads_leave_nothing(
        self, proxy: Proxy, admin: Redis, started_threads: list[str], latency: float
    ) -> None:
        """One final release covers all that they acquired."""
        client = pyredisson.connect(proxy.url, timeout=5)
        threads = take_in_threads(client, CALLS)
        proxy.wait_for(lambda: proxy.seen(ACQUIRE) > CALLS)
        proxy.latency(latency)
        time.sleep(latency + 0.05)
        before = proxy.connections
        began = time.monotonic()
        client.close()
        assert time.monotonic() - began < LONGEST
        assert admin.keys() == []
        end(threads)
        assert admin.keys() == []
        assert proxy.connections <= before + 1
        assert started_threads.count(FINAL_RELEASE) <= 1

    @pytest.mark.asyncio
    @pytest.mark.parametrize("latency", [0.0, 0.1])
    async def test_calls_of_many_tasks_leave_nothing(
        self, proxy: Proxy, admin: Redis, started_threads: list[str], latency: float
    ) -> None:
        client = pyredisson.asyncio.connect(proxy.url, timeout=5)
        await client.get_lock("first").is_locked()
        proxy.latency(latency)

        async def take(number: int) -> None:
            with pytest.raises(ClosedError):
                await client.get_lock(f"a{number}").lock()
                await asyncio.sleep(60)

        tasks = [asyncio.create_task(take(number)) for number in range(1000)]
        await asyncio.to_thread(proxy.wait_for, ACQUIRE)
        await client.close()
        # Those that got it before have no call that could raise.
        left = admin.keys()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert left == admin.keys() == []
        assert started_threads.count(FINAL_RELEASE) <= 2

    @pytest.mark.parametrize("lose", ["hold_reply", "hold_request", "drop_reply"])
    def test_a_call_whose_reply_does_not_come_is_ended(self, proxy: Proxy, admin: Redis, lose: str) -> None:
        client = pyredisson.connect(proxy.url, timeout=30)
        fault = getattr(proxy, lose)(ACQUIRE)
        threads = take_in_threads(client, 1)
        assert fault.happened.wait(5)
        began = time.monotonic()
        client.close()
        end(threads)
        assert time.monotonic() - began < LONGEST
        assert admin.keys() == []

    def test_a_command_that_is_added_during_a_final_release_is_sent_too(self, proxy: Proxy, admin: Redis) -> None:
        """A call that ends while the client sends its last commands adds one of its own."""
        client = pyredisson.connect(proxy.url, timeout=5)
        backend = RawBackend("threads")
        client.get_lock("held").lock()
        late = proxy.hold_reply(ACQUIRE)
        taking = start(backend, client.get_lock("late").lock)
        assert late.held.wait(5)
        final_release = proxy.hold_request(RELEASE)
        closing = start(backend, client.close)
        assert final_release.held.wait(5)
        late.deliver()
        eventually(lambda: taking.done)
        final_release.deliver()
        eventually(lambda: closing.done)
        eventually(lambda: not admin.keys())

    def test_a_command_after_the_final_release_starts_one_more(
        self, proxy: Proxy, admin: Redis, started_threads: list[str]
    ) -> None:
        client = pyredisson.connect(proxy.url)
        payloads = [client.get_lock(f"a{number}")._logic.commands.undo_acquire(b"me:1") for number in range(200)]
        for number in range(200):
            admin.hset(f"a{number}", "me:1", 1)
        client.close()
        before = len(proxy.commands)
        proxy.latency(0.02)
        for payload in payloads:
            client._session.repair(payload)
        eventually(lambda: admin.keys() == [])
        eventually(lambda: not any(thread.name == FINAL_RELEASE for thread in threading.enumerate()))
        # The first one may be gone by the time that the last one comes.
        assert 1 <= started_threads.count(FINAL_RELEASE) <= 2
        assert len(proxy.commands) < before + 200 + 20


def test_a_server_that_is_away_costs_about_a_second(own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    client = pyredisson.connect(own_server.url, timeout=30)
    for number in range(3):
        client.get_lock(f"held{number}").lock()
    threads = take_in_threads(client, 20)
    eventually(lambda: len(pool_of(client)._all) > 5)
    own_server.pause()
    try:
        began = time.monotonic()
        with caplog.at_level(logging.WARNING, "pyredisson"):
            client.close()
        assert time.monotonic() - began < LONGEST
        end(threads)
        eventually(lambda: not any(thread.name == FINAL_RELEASE for thread in threading.enumerate()))
    finally:
        own_server.resume()
    assert "locks were not released" in caplog.text


class TestInterrupted:
    @pytest.mark.parametrize(
        "step", [ClientLifecycle.end, ThreadListener.close, ThreadRuntime.close], ids=lambda step: step.__qualname__
    )
    def test_locks_are_released_and_connections_closed(
        self, server: Server, admin: Redis, step: Callable[..., object]
    ) -> None:
        client = pyredisson.connect(server.url, client_name=NAME)
        assert not client.get_lock("a").is_locked()
        if step is not ClientLifecycle.end:
            # It is the first step: what is held before it stays so.
            client.get_lock("a").lock()
        with pytest.raises(KeyboardInterrupt), InterruptAt(step) as interrupt:
            client.close()
        assert interrupt.happened
        assert not admin.exists("a")
        eventually(lambda: not is_connected(admin))
        # What the interrupt left undone, the next call does.
        client.close()
        assert client.closed

    @pytest.mark.asyncio
    async def test_in_asyncio(self, server: Server, admin: Redis) -> None:
        client = pyredisson.asyncio.connect(server.url, client_name=NAME)
        assert not await client.get_lock("a").is_locked()
        with pytest.raises(KeyboardInterrupt), InterruptAt(AioListener.stop) as interrupt:
            await client.close()
        assert interrupt.happened
        await asyncio.to_thread(eventually, lambda: not is_connected(admin))
        await client.close()


def test_a_closed_client_that_held_a_lock_is_freed(server: Server) -> None:
    def use() -> weakref.ref[object]:
        with pyredisson.connect(server.url) as client:
            client.get_lock("a").lock()
            client.get_lock("b").lock(60)
            return weakref.ref(client._lifecycle)

    lifecycle_reference = use()
    # Its threads have to end first.
    eventually(lambda: gc.collect() >= 0 and lifecycle_reference() is None)


@pytest.mark.asyncio
class TestTasks:
    """Closing an asyncio client needs no help from the program, and ends the calls that connect."""

    @pytest.fixture(params=["plain", "eager"] if hasattr(asyncio, "eager_task_factory") else ["plain"])
    def use_tasks(self, request: pytest.FixtureRequest) -> Callable[[], None]:
        """Sets how tasks begin: `asyncio.eager_task_factory` came with Python 3.12."""

        def use() -> None:
            if request.param == "eager":
                asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]

        return use

    async def test_callers_that_are_connecting_get_closed_error(
        self, silent: str, use_tasks: Callable[[], None]
    ) -> None:
        """Each an error of its own. A cancellation reaches only the caller that is cancelled."""
        use_tasks()
        client = pyredisson.asyncio.connect(silent)
        calls: list[asyncio.Task[Any]] = [asyncio.create_task(client.get_lock("a").lock()) for _ in range(3)]
        calls.append(asyncio.create_task(client.get_semaphore("b").acquire()))
        cancelled, at_the_end = (asyncio.create_task(client.get_lock("a").lock()) for _ in range(2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.get_lock("a").lock(), 0.02)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not any(call.done() for call in calls)
        begin = time.monotonic()
        at_the_end.cancel()
        await client.close()
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - begin < LONGEST
        assert [type(error) for error in errors] == [ClosedError] * 4
        assert len(set(map(id, errors))) == 4
        with pytest.raises(asyncio.CancelledError):
            await at_the_end

    async def test_a_task_group_gets_the_error(self, silent: str, use_tasks: Callable[[], None]) -> None:
        """It takes a cancelled task for one that was meant to end."""
        use_tasks()
        client = pyredisson.asyncio.connect(silent)
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(client.get_lock("a").lock())
                await asyncio.sleep(0.05)
                closing = asyncio.get_running_loop().create_task(client.close())
        assert [type(error) for error in caught.value.exceptions] == [ClosedError]
        await closing

    async def test_a_cancelled_connection_is_made_again(
        self, tasks: RawBackend, proxy: Proxy, use_tasks: Callable[[], None]
    ) -> None:
        """By a program that cancels every task it doesn't know."""
        use_tasks()
        ours = asyncio.all_tasks()
        client = tasks.connect(proxy.url)
        hello = proxy.hold_reply(b"HELLO")
        call = asyncio.create_task(client.get_lock("a").try_lock(TIME_LIMIT))
        await tasks.until(hello.held.is_set)
        for task in asyncio.all_tasks() - ours - {call}:
            task.cancel()
        assert await asyncio.wait_for(call, TIME_LIMIT) is True

    async def test_the_programs_own_threads_may_all_be_busy(self, server: Server, admin: Redis) -> None:
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

    async def test_a_hung_server_does_not_hold_up_the_loop(self, tasks: RawBackend, proxy: Proxy) -> None:
        client = tasks.connect(proxy.url)
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

    async def test_a_close_that_is_cancelled_at_whatever_moment_leaves_nothing(
        self, tasks: RawBackend, proxy: Proxy, admin: Redis, use_tasks: Callable[[], None]
    ) -> None:
        use_tasks()
        for turns in range(1, 7):
            client = tasks.connect(proxy.url, client_name=NAME, timeout=TIME_LIMIT)
            await client.get_lock("held").lock()
            waiting = asyncio.create_task(client.get_lock("held", owner=1).lock())
            late = proxy.hold_reply(ACQUIRE)
            taking = asyncio.create_task(client.get_lock("taken").lock())
            await tasks.until(late.held.is_set)
            await cancel_after(turns, asyncio.create_task(client.close()))
            for task in (waiting, taking):
                with pytest.raises(ClosedError):
                    await asyncio.wait_for(task, TIME_LIMIT)
            await tasks.until(lambda: not admin.exists("held", "taken"))
            await tasks.until(lambda: not is_connected(admin))

    async def test_where_no_thread_can_be_started(self, server: Server, admin: Redis, no_thread: NoThread) -> None:
        client = pyredisson.asyncio.connect(server.url)
        await client.get_lock("a").lock()
        refused = no_thread(FINAL_RELEASE, once=False)
        await client.close()
        assert refused.is_set()
        assert not admin.exists("a")

    async def test_closing_in_another_loop_than_the_clients(self, server: Server, admin: Redis) -> None:
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
