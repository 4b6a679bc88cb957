"""Callbacks that are called when a lock is lost."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from pyredisson import LockLostError
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio


class TestCallback:
    """`on_lost` and `remove_on_lost`."""

    async def test_once_per_loss_with_the_lock(self, backend: Backend, server_state: ServerState) -> None:
        lock = backend.connect(lock_watchdog_timeout=0.9).get_lock("orders")
        calls: list[tuple[str, int]] = []
        notified = backend.flag()

        def callback(lost: Any) -> None:
            calls.append((lost.name, threading.get_ident()))
            notified.set()

        assert lock.on_lost(callback) is callback
        await lock.lock()
        await lock.lock()
        server_state.redis.delete("orders")
        await notified.wait()
        for _ in range(2):
            with pytest.raises(LockLostError):
                await lock.unlock()
        # Two rounds of the watchdog.
        await backend.sleep(0.7)
        assert [name for name, _ in calls] == ["orders"]
        assert calls[0][1] != threading.get_ident()

    async def test_again_for_the_next_hold(self, backend: Backend) -> None:
        lock = backend.connect().get_lock("orders")
        calls: list[Any] = []
        lock.on_lost(calls.append)
        for count in (1, 2):
            await lock.lock(0.03)
            assert await lock.lost.wait(TIME_LIMIT)
            await backend.until(lambda count=count: len(calls) == count)  # type: ignore[misc]
            with pytest.raises(LockLostError):
                await lock.unlock()

    async def test_not_for_a_released_lock(self, backend: Backend) -> None:
        client = backend.connect()
        lock, other = client.get_lock("orders"), client.get_lock("stock")
        calls: list[Any] = []
        notified = backend.flag()
        lock.on_lost(calls.append)
        other.on_lost(lambda _: notified.set())
        await lock.lock(0.5)
        await lock.unlock()
        await other.lock(0.6)
        await notified.wait()
        assert calls == []

    async def test_for_every_handle_and_owner(self, backend: Backend) -> None:
        client = backend.connect()
        notified = backend.flag()
        client.get_lock("orders").on_lost(lambda _: notified.set())
        await client.get_lock("orders", owner=1).lock(0.05)
        await notified.wait()

    async def test_a_failing_callback_is_logged_and_stops_no_other(
        self, backend: Backend, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = backend.connect()
        lock = client.get_lock("orders")
        notified = backend.flag()

        def fails(_: Any) -> None:
            raise KeyError("in the callback")

        lock.on_lost(fails)
        lock.on_lost(lambda _: notified.set())
        with caplog.at_level(logging.ERROR, "pyredisson"):
            await lock.lock(0.03)
            await notified.wait()
            await backend.until(lambda: "in the callback" in caplog.text)
            # The next loss is reported as well.
            again = backend.flag()
            stock = client.get_lock("stock")
            stock.on_lost(lambda _: again.set())
            await stock.lock(0.03)
            await again.wait()

    async def test_it_may_use_the_lock(self, backend: Backend) -> None:
        """What it does holds up neither the caller nor the watchdog."""
        lock = backend.connect().get_lock("orders")
        entered, leave = threading.Event(), threading.Event()

        def callback(_: Any) -> None:
            entered.set()
            leave.wait(TIME_LIMIT)

        lock.on_lost(callback)
        await lock.lock(0.03)
        assert await lock.lost.wait(TIME_LIMIT)
        await backend.until(entered.is_set)
        await lock.lock(60)
        assert await lock.is_held()
        leave.set()
        await lock.unlock()

    async def test_one_that_is_at_work_does_not_hold_up_closing(self, backend: Backend) -> None:
        client = backend.connect()
        lock = client.get_lock("orders")
        entered, leave = threading.Event(), threading.Event()

        def callback(_: Any) -> None:
            entered.set()
            leave.wait(TIME_LIMIT)

        lock.on_lost(callback)
        await lock.lock(0.03)
        await backend.until(entered.is_set)
        started = time.monotonic()
        await client.close()
        assert time.monotonic() - started < TIME_LIMIT / 2
        leave.set()

    async def test_a_slow_one_delays_no_other(self, backend: Backend) -> None:
        client = backend.connect()
        leave = threading.Event()
        calls: list[str] = []

        def slow(lost: Any) -> None:
            leave.wait(TIME_LIMIT)
            calls.append("slow")

        for name in ("orders", "stock"):
            lock = client.get_lock(name)
            lock.on_lost(slow)
            lock.on_lost(lambda lost: calls.append(lost.name))
            await lock.lock(0.03)
        await backend.until(lambda: sorted(calls) == ["orders", "stock"])
        leave.set()
        await backend.until(lambda: len(calls) == 4)

    async def test_calls_of_one_callback_come_one_after_the_other(self, backend: Backend) -> None:
        client = backend.connect()
        lock = client.get_lock("orders")
        at_work: list[int] = []
        most: list[int] = []
        lost = 4

        def callback(_: Any) -> None:
            at_work.append(1)
            most.append(len(at_work))
            time.sleep(0.02)
            at_work.pop()

        lock.on_lost(callback)
        for owner in range(lost):
            await client.get_lock("orders", owner=owner).lock(60)
            await lock.force_unlock()
        await backend.until(lambda: len(most) == lost)
        assert most == [1] * lost

    async def test_the_number_of_threads_is_bounded(self, backend: Backend) -> None:
        client = backend.connect()
        leave = threading.Event()
        calls: list[str] = []

        def slow(number: int) -> Any:
            def callback(lost: Any) -> None:
                leave.wait(TIME_LIMIT)
                calls.append(lost.name)

            return callback

        lock = client.get_lock("orders")
        for number in range(40):
            lock.on_lost(slow(number))
        # Threads of the test before may end only now.
        before = set(threading.enumerate())

        def started() -> int:
            new = set(threading.enumerate()) - before
            return sum(thread.name == "pyredisson-on-lost" for thread in new)

        await lock.lock(0.03)
        assert await lock.lost.wait(TIME_LIMIT)
        await backend.until(lambda: started() >= 16)
        assert started() <= 16
        leave.set()
        await backend.until(lambda: len(calls) == 40)

    async def test_removing_it(self, backend: Backend) -> None:
        client = backend.connect()
        lock = client.get_lock("orders")
        calls: list[str] = []

        def callback(_: Any) -> None:
            calls.append("removed")

        lock.on_lost(callback)
        # Through another handle of the same name.
        assert client.get_lock("orders").remove_on_lost(callback) is True
        assert lock.remove_on_lost(callback) is False
        assert client.get_lock("stock").remove_on_lost(callback) is False
        lock.on_lost(lambda _: calls.append("kept"))
        await lock.lock(0.03)
        await backend.until(lambda: "kept" in calls)
        assert calls == ["kept"]

    async def test_removing_one_of_two_registrations(self, backend: Backend) -> None:
        lock = backend.connect().get_lock("orders")
        calls: list[Any] = []
        # A bound method is another object each time.
        lock.on_lost(calls.append)
        lock.on_lost(calls.append)
        assert lock.remove_on_lost(calls.append)
        notified = backend.flag()
        lock.on_lost(lambda _: notified.set())
        await lock.lock(0.03)
        await notified.wait()
        await backend.until(lambda: len(calls) == 1)
        assert lock.remove_on_lost(calls.append)
        assert not lock.remove_on_lost(calls.append)

    async def test_a_group_has_them_too(self, backend: Backend) -> None:
        client = backend.connect()
        group = client.get_multi_lock(client.get_lock("orders"), client.get_lock("stock"))
        calls: list[str] = []

        def removed(_: Any) -> None:
            calls.append("removed")

        group.on_lost(removed)
        group.on_lost(lambda _: calls.append("kept"))
        assert group.remove_on_lost(removed) is True
        assert group.remove_on_lost(removed) is False
        await group.lock(0.03)
        await backend.until(lambda: "kept" in calls)
        assert calls == ["kept"]

    async def test_nothing_is_stored_for_a_name_without_callbacks(self, backend: Backend) -> None:
        client = backend.connect()

        def callback(_: Any) -> None: ...

        for number in range(100):
            lock = client.get_lock(f"orders:{number}")
            lock.on_lost(callback)
            lock.remove_on_lost(callback)
        assert len(client._session.lost_callbacks._registered) == 0
