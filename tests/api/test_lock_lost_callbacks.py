"""Callbacks that are called when a lock is lost."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyredisson import LockLostError
from pyredisson.asyncio import Client, Lock
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio


class Slow:
    """A callback that doesn't return until `leave` is set."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.calls: list[str | bytes] = []

    def __call__(self, lost: Any) -> None:
        self.entered.set()
        self.leave.wait(TIME_LIMIT)
        self.calls.append(lost.name)


class TestCallback:
    """`on_lost` and `remove_on_lost`."""

    @pytest.fixture
    def client(self, backend: Backend) -> Client:
        return backend.connect(lock_watchdog_timeout=0.9)

    @pytest.fixture
    def lock(self, client: Client) -> Lock:
        return client.get_lock("orders")

    async def test_once_per_loss_with_the_lock(self, backend: Backend, server_state: ServerState, lock: Lock) -> None:
        calls: list[tuple[Any, int]] = []

        def callback(lost: Any) -> None:
            calls.append((lost.name, threading.get_ident()))

        assert lock.on_lost(callback) is callback
        await lock.lock()
        await lock.lock()
        server_state.redis.delete("orders")
        await backend.until(lambda: bool(calls))
        for _ in range(2):
            with pytest.raises(LockLostError):
                await lock.unlock()
        # Two rounds of the watchdog.
        await backend.sleep(0.7)
        [(name, thread)] = calls
        assert name == "orders"
        assert thread != threading.get_ident()
        # Again for the next hold.
        await lock.lock(0.03)
        await backend.until(lambda: len(calls) == 2)

    async def test_not_for_a_released_lock(self, backend: Backend, client: Client, lock: Lock) -> None:
        calls: list[str] = []
        other = client.get_lock("stock")
        lock.on_lost(lambda _: calls.append("released"))
        other.on_lost(lambda _: calls.append("lost"))
        await lock.lock(0.5)
        await lock.unlock()
        await other.lock(0.6)
        await backend.until(lambda: "lost" in calls)
        assert calls == ["lost"]

    async def test_for_every_handle_and_owner(self, backend: Backend, client: Client, lock: Lock) -> None:
        calls: list[Any] = []
        lock.on_lost(calls.append)
        await client.get_lock("orders", owner=1).lock(0.05)
        await backend.until(lambda: len(calls) == 1)

    async def test_a_failing_callback_is_logged_and_stops_no_other(
        self, backend: Backend, client: Client, lock: Lock, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls: list[str] = []

        def fails(_: Any) -> None:
            raise KeyError("in the callback")

        lock.on_lost(fails)
        with caplog.at_level(logging.ERROR, "pyredisson"):
            # The next loss is reported as well.
            for each in (lock, client.get_lock("stock")):
                each.on_lost(lambda lost: calls.append(lost.name))
                await each.lock(0.03)
                await backend.until(lambda each=each: each.name in calls)  # type: ignore[misc]
            await backend.until(lambda: "in the callback" in caplog.text)

    async def test_it_may_use_the_lock(self, backend: Backend, client: Client, lock: Lock) -> None:
        """What it does holds up neither the caller nor the watchdog, nor closing the client."""
        callback = Slow()
        lock.on_lost(callback)
        await lock.lock(0.03)
        assert await lock.lost.wait(TIME_LIMIT)
        await backend.until(callback.entered.is_set)
        await lock.lock(60)
        assert await lock.is_held()
        started = time.monotonic()
        await client.close()
        assert time.monotonic() - started < TIME_LIMIT / 2
        callback.leave.set()

    async def test_a_slow_one_delays_no_other(self, backend: Backend, client: Client) -> None:
        calls: list[Any] = []
        slow = Slow()
        for name in ("orders", "stock"):
            lock = client.get_lock(name)
            lock.on_lost(slow)
            lock.on_lost(lambda lost: calls.append(lost.name))
            await lock.lock(0.03)
        await backend.until(lambda: sorted(calls) == ["orders", "stock"])
        assert slow.calls == []
        slow.leave.set()
        await backend.until(lambda: len(slow.calls) == 2)

    async def test_calls_of_one_callback_come_one_after_the_other(
        self, backend: Backend, client: Client, lock: Lock
    ) -> None:
        at_work: list[int] = []
        most: list[int] = []

        def callback(_: Any) -> None:
            at_work.append(1)
            most.append(len(at_work))
            time.sleep(0.02)
            at_work.pop()

        lock.on_lost(callback)
        for owner in range(4):
            await client.get_lock("orders", owner=owner).lock(60)
            await lock.force_unlock()
        await backend.until(lambda: len(most) == 4)
        assert most == [1] * 4

    async def test_the_number_of_threads_is_bounded(self, backend: Backend, lock: Lock) -> None:
        slow = [Slow() for _ in range(40)]
        for each in slow:
            lock.on_lost(each)
        # Threads of the test before may end only now.
        before = set(threading.enumerate())

        def started() -> int:
            new = set(threading.enumerate()) - before
            return sum(thread.name == "pyredisson-on-lost" for thread in new)

        await lock.lock(0.03)
        await backend.until(lambda: started() >= 16)
        assert started() <= 16
        for each in slow:
            each.leave.set()
        await backend.until(lambda: all(each.calls for each in slow))

    @pytest.mark.parametrize("group", [False, True])
    async def test_removing_it(self, backend: Backend, client: Any, lock: Any, *, group: bool) -> None:
        calls: list[str] = []
        if group:
            lock = client.get_multi_lock(lock, client.get_lock("other"))
        again = lock if group else client.get_lock("orders")

        def callback(_: Any) -> None:
            calls.append("removed")

        lock.on_lost(callback)
        assert client.get_lock("stock").remove_on_lost(callback) is False
        # Any handle of the name will do.
        assert again.remove_on_lost(callback) is True
        assert lock.remove_on_lost(callback) is False
        lock.on_lost(lambda _: calls.append("kept"))
        await lock.lock(0.03)
        await backend.until(lambda: "kept" in calls)
        assert calls == ["kept"]

    async def test_removing_one_of_two_registrations(self, backend: Backend, lock: Lock) -> None:
        calls: list[Any] = []
        told: list[Any] = []
        # A bound method is another object each time.
        lock.on_lost(calls.append)
        lock.on_lost(calls.append)
        assert lock.remove_on_lost(calls.append)
        lock.on_lost(told.append)
        await lock.lock(0.03)
        await backend.until(lambda: bool(told and calls))
        assert len(calls) == 1
        assert lock.remove_on_lost(calls.append)
        assert not lock.remove_on_lost(calls.append)

    async def test_nothing_is_stored_for_a_name_without_callbacks(self, client: Client) -> None:
        callback: Callable[[Any], None] = print
        for number in range(100):
            lock = client.get_lock(f"orders:{number}")
            lock.on_lost(callback)
            lock.remove_on_lost(callback)
        assert len(client._session.lost_callbacks._registered) == 0

    async def test_a_coroutine_function(self, tasks: Backend) -> None:
        lock = tasks.connect().get_lock("orders")
        ran: asyncio.Future[tuple[str | bytes, int]] = asyncio.get_running_loop().create_future()

        @lock.on_lost
        async def callback(lost: Lock) -> None:
            await asyncio.sleep(0)
            ran.set_result((lost.name, threading.get_ident()))

        await lock.lock(0.03)
        async with asyncio.timeout(TIME_LIMIT):
            assert await ran == ("orders", threading.get_ident())
