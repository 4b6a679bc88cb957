"""The fair lock on both backends: without contention, in order of arrival, and not reentrant."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson import LockAlreadyHeldError, LockLostError, LockNotHeldError
from pyredisson.logic.locks.fair_queue import HEARTBEAT_INTERVAL
from tests.support.backends import Backend
from tests.support.server_state import ServerState
from tests.support.waiting import fair_waiters

from .fair_queue import Queue, held, start_waiter

pytestmark = pytest.mark.asyncio


async def load_hand_over(backend: Backend, client: Any) -> None:
    """The server gets the text of the script: a first call of it is sent twice."""
    holder, waiter = (client.get_fair_lock("another", owner=owner) for owner in (1, 2))
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: fair_waiters(client, "another") == 1)
    await holder.unlock()
    await other.result()
    await waiter.unlock()


class TestUncontended:
    async def test_lock_and_unlock(self, backend: Backend, server_state: ServerState, queue: Queue) -> None:
        client = backend.connect()
        lock = client.get_fair_lock("orders")
        before = server_state.scripts()
        await lock.lock()
        [(owner, holds)] = server_state.holds("orders").items()
        assert owner.startswith(f"{client.id}:")
        assert holds == "1"
        left = await lock.remain_time_to_live()
        assert left is not None
        assert 29 < left <= 30
        assert await lock.is_held()
        assert await lock.is_locked()
        await lock.lock()
        assert await lock.get_hold_count() == 2
        await lock.unlock()
        await lock.unlock()
        assert server_state.scripts() == before + 4
        assert queue.keys() == set()

    async def test_a_block(self, backend: Backend, queue: Queue) -> None:
        lock = backend.connect().get_fair_lock("orders")
        async with lock as entered:
            assert entered is lock
            async with lock.hold(wait_time=0):
                assert await lock.get_hold_count() == 2
        assert queue.keys() == set()

    async def test_it_is_a_lock_of_that_name(self, backend: Backend) -> None:
        lock = backend.connect().get_fair_lock("orders")
        assert lock.name == "orders"
        assert "FairLock 'orders'" in repr(lock)
        assert backend.connect().get_fair_lock(b"\xff").name == b"\xff"

    async def test_a_lease(self, backend: Backend, queue: Queue) -> None:
        lock = backend.connect().get_fair_lock("orders")
        assert await lock.try_lock(lease_time=0.5)
        await backend.until(lambda: not queue.keys())
        with pytest.raises(LockLostError):
            await lock.unlock()

    async def test_the_watchdog_renews(self, backend: Backend, admin: Redis) -> None:
        lock = backend.connect(lock_watchdog_timeout=1.5).get_fair_lock("orders")
        await lock.lock()
        await backend.sleep(2)
        assert await lock.is_held()
        assert admin.exists("orders")
        await lock.unlock()

    async def test_only_the_holder_gives_it_back(self, backend: Backend) -> None:
        client = backend.connect()
        lock = client.get_fair_lock("orders")
        with pytest.raises(LockNotHeldError, match="is free"):
            await lock.unlock()
        async with held(client.get_fair_lock("orders", owner=1)):
            with pytest.raises(LockNotHeldError, match="held by"):
                await lock.unlock()

    async def test_a_nested_hold_of_a_lock_that_was_deleted(
        self, backend: Backend, server_state: ServerState, queue: Queue
    ) -> None:
        client = backend.connect()
        lock = client.get_fair_lock("orders")
        await lock.lock()
        assert await backend.connect().get_fair_lock("orders").force_unlock()
        await lock.lock()
        assert list(server_state.holds("orders").values()) == ["1"]
        await lock.unlock()
        with pytest.raises(LockLostError):
            await lock.unlock()
        assert queue.keys() == set()

    @pytest.mark.parametrize("name", ["", 1, None])
    async def test_names(self, backend: Backend, name: Any) -> None:
        client = backend.connect()
        for make in (client.get_fair_lock, client.get_non_reentrant_fair_lock):
            with pytest.raises((TypeError, ValueError)):
                make(name)


class TestOrder:
    @pytest.mark.parametrize("kind", ["get_fair_lock", "get_non_reentrant_fair_lock"])
    async def test_first_come_first_served(self, backend: Backend, queue: Queue, kind: str) -> None:
        clients = [backend.connect(), backend.connect()]
        served: list[int] = []

        def waiter(number: int) -> Callable[[], Awaitable[None]]:
            async def work() -> None:
                async with getattr(clients[number % 2], kind)("orders"):
                    served.append(number)

            return work

        async with held(clients[0].get_fair_lock("orders", owner=1)):
            others = [await start_waiter(backend, queue, waiter(number)) for number in range(12)]
        for other in others:
            await other.result()
        assert served == list(range(12))
        assert queue.keys() == set()

    async def test_no_waiter_overtakes_another(self, backend: Backend, queue: Queue) -> None:
        """Who comes again, or only tries, finds those who wait before him."""
        client = backend.connect()
        lock = client.get_fair_lock("orders")
        served: list[str] = []

        async def work() -> None:
            async with client.get_fair_lock("orders"):
                served.append("other")
                assert not await backend.as_another_owner(lambda: client.get_fair_lock("orders").try_lock())

        await lock.lock()
        other = await start_waiter(backend, queue, work)
        await lock.unlock()
        await lock.lock()
        served.append("again")
        await lock.unlock()
        await other.result()
        assert served == ["other", "again"]

    async def test_a_nested_hold_needs_no_turn(self, backend: Backend, queue: Queue) -> None:
        client = backend.connect()
        lock = client.get_fair_lock("orders")
        async with lock:
            other = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=2).lock)
            async with lock:
                assert await lock.get_hold_count() == 2
            assert not other.done()
        await other.result()

    @pytest.mark.parametrize(("seconds", "calls"), [(0.01, 1), (0, 2)])
    async def test_scripts_for_a_hand_off(self, tasks: Backend, queue: Queue, seconds: float, calls: int) -> None:
        """However many wait; and one connection listens for all of them. A busy machine adds attempts, not one each."""
        client = tasks.connect(local_hand_over_time=seconds)
        await load_hand_over(tasks, client)
        began = time.monotonic()
        count = 200
        served: list[int] = []

        def waiter(number: int) -> Callable[[], Awaitable[None]]:
            async def work() -> None:
                async with client.get_fair_lock("orders"):
                    served.append(number)

            return work

        before = queue.scripts()
        async with held(client.get_fair_lock("orders", owner=1)):
            others = [tasks.spawn(waiter(number)) for number in range(count)]
            # Each sends an acquire, and another one after its subscription is confirmed.
            await tasks.until(lambda: len(queue) == count and queue.listening(count))
            await tasks.until(lambda: queue.scripts() >= before + 1 + 2 * count)
            listeners = [entry for entry in queue.redis.client_list() if int(entry["sub"]) > 0]
            assert len(listeners) == 1
        for other in others:
            await other.result()
        assert served == list(range(count))
        # At last a release that hands nothing on.
        by_time = 1 + (time.monotonic() - began) / HEARTBEAT_INTERVAL
        assert 0 <= queue.scripts() - (before + 1 + 2 * count + calls * count + 1) <= by_time
        assert queue.keys() == set()

    @pytest.mark.parametrize(("seconds", "calls"), [(0.01, 1), (0, 2)])
    async def test_scripts_for_a_hand_off_between_threads(
        self, threads: Backend, queue: Queue, seconds: float, calls: int
    ) -> None:
        client = threads.connect(local_hand_over_time=seconds)
        await load_hand_over(threads, client)
        async with held(client.get_fair_lock("orders", owner=1)):
            others = []
            for number in range(20):
                before = queue.scripts()
                lock = client.get_fair_lock("orders")

                async def work(lock: Any = lock) -> None:
                    async with lock:
                        pass

                others.append(await start_waiter(threads, queue, work))
                count = number + 1
                await threads.until(lambda count=count: queue.listening(count))  # type: ignore[misc]
                await threads.until(lambda before=before: queue.scripts() == before + 2)  # type: ignore[misc]
            before = queue.scripts()
        for other in others:
            await other.result()
        assert queue.scripts() == before + calls * 20 + 1

    async def test_a_second_wait_needs_no_new_subscription(self, backend: Backend, queue: Queue) -> None:
        """The second time its channel is subscribed to: it need not look again."""
        client = backend.connect()
        await load_hand_over(backend, client)
        holder = client.get_fair_lock("orders", owner=1)
        turns = [backend.flag(), backend.flag()]

        async def work() -> None:
            lock = client.get_fair_lock("orders")
            await lock.lock()
            await lock.unlock()
            turns[0].set()
            await turns[1].wait()
            await lock.lock()
            await lock.unlock()

        await holder.lock()
        before = queue.scripts()
        other = await start_waiter(backend, queue, work)
        await backend.until(lambda: queue.scripts() == before + 2)
        await holder.unlock()
        await turns[0].wait()
        await holder.lock()
        before = queue.scripts()
        turns[1].set()
        await backend.until(lambda: len(queue) == 1)
        await backend.sleep(0.05)
        assert queue.scripts() == before + 1
        await holder.unlock()
        await other.result()
        assert queue.scripts() == before + 3


class TestNonReentrant:
    async def test_the_holder_is_refused(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        lock = client.get_non_reentrant_fair_lock("orders")
        async with lock:
            before = server_state.commands()
            for again in (lock.lock, lock.try_lock, lock.acquire):
                with pytest.raises(LockAlreadyHeldError, match="orders"):
                    await again()
            with pytest.raises(LockAlreadyHeldError):
                async with lock.hold(wait_time=1):
                    pass
            assert server_state.commands() == before
        assert not await lock.is_locked()

    async def test_it_shares_the_queue(self, backend: Backend, queue: Queue) -> None:
        client = backend.connect()
        async with held(client.get_non_reentrant_fair_lock("orders", owner=1)):
            assert not await client.get_fair_lock("orders").try_lock()
            other = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=2).lock)
            last = await start_waiter(backend, queue, client.get_non_reentrant_fair_lock("orders", owner=3).lock)
        await other.result()
        assert not last.done()
        await client.get_fair_lock("orders", owner=2).unlock()
        await last.result()
        assert isinstance(pyredisson.NonReentrantFairLock, type)

    async def test_a_time_limit(self, backend: Backend, queue: Queue) -> None:
        client = backend.connect()
        async with held(client.get_non_reentrant_fair_lock("orders", owner=1)):
            assert not await client.get_non_reentrant_fair_lock("orders").try_lock(0.05)
            await backend.until(lambda: queue.keys() == {"orders"})
