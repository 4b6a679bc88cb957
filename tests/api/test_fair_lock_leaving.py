"""Waiters that leave the fair lock's queue: dead, timed out, cancelled, or at the end of the lock or the client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pyredisson import ClosedError, LockLostError, LockTimeoutError
from tests.support.backends import TIME_LIMIT, WOKEN, Backend
from tests.support.server_state import ServerState

from .fair_queue import CHANNEL, KEYS, QUEUE, SCORES, WAITERS, Queue, held, start_waiter

pytestmark = pytest.mark.asyncio
JAVA = "5c0b9a4e-95f1-4b51-8a8f-3a1d1f3c2a77:31"


class TestManyDead:
    """So many that no call drops them all."""

    def die(self, queue: Queue, count: int) -> None:
        owners = [f"0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55:{number}" for number in range(count)]
        queue.redis.rpush(QUEUE, *owners)
        queue.redis.zadd(SCORES, dict.fromkeys(owners, 10**13))
        queue.redis.hset(WAITERS, mapping=dict.fromkeys(owners, 1))

    async def test_a_try_gets_the_lock_behind_them(self, backend: Backend, queue: Queue) -> None:
        self.die(queue, 900)
        before = queue.scripts()
        lock = backend.connect().get_fair_lock("orders")
        assert await lock.try_lock()
        assert queue.scripts() >= before + 4
        await lock.unlock()
        assert queue.keys() == set()

    @pytest.mark.parametrize("way", ["unlock", "force_unlock"])
    async def test_a_waiter_behind_dead_waiters_is_notified(self, backend: Backend, queue: Queue, way: str) -> None:
        """Though nobody else of ours is there."""
        lock = backend.connect().get_fair_lock("orders")
        await lock.lock()
        self.die(queue, 900)
        queue.redis.rpush(QUEUE, JAVA)
        queue.redis.zadd(SCORES, {JAVA: 10**13})
        with queue.redis.pubsub() as ear:
            ear.subscribe(f"{CHANNEL}:{JAVA}")
            assert ear.get_message(timeout=TIME_LIMIT)["type"] == "subscribe"
            await getattr(lock, way)()
            message: list[Any] = []

            def heard() -> bool:
                message.append(ear.get_message())
                return message[-1] is not None

            await backend.until(heard)
        assert message[-1]["data"] == b"0"
        assert queue.owners() == [JAVA]


class TestDeleting:
    async def test_the_queue_goes_too(self, backend: Backend, queue: Queue) -> None:
        """Waiters enter the queue again; dead waiters before them are gone."""
        clients = [backend.connect(), backend.connect()]
        holder = clients[0].get_fair_lock("orders")
        await holder.lock()
        lost = holder.lost
        queue.redis.rpush(QUEUE, JAVA)
        queue.redis.zadd(SCORES, {JAVA: 10**13})
        served: list[int] = []

        def waiter(number: int) -> Callable[[], Awaitable[None]]:
            async def work() -> None:
                async with clients[number % 2].get_fair_lock("orders"):
                    served.append(number)

            return work

        others = [await start_waiter(backend, queue, waiter(number)) for number in range(6)]
        assert await clients[1].get_fair_lock("orders").delete()
        deleted = time.monotonic()
        for other in others:
            await other.result()
        assert time.monotonic() - deleted < 3
        assert sorted(served) == list(range(6))
        await backend.until(lambda: not queue.keys() - {WAITERS})
        with pytest.raises(LockLostError):
            await holder.unlock()
        assert lost.is_set()

    async def test_as_java_deletes(self, backend: Backend, queue: Queue) -> None:
        """No message is published: heartbeats notify the waiters."""
        client = backend.connect()
        holder = client.get_fair_lock("orders", owner=1)
        await holder.lock()
        others = [
            await start_waiter(backend, queue, client.get_fair_lock("orders", owner=2 + n).lock) for n in range(2)
        ]
        queue.redis.delete(*KEYS[:3])
        deleted = time.monotonic()
        await backend.until(lambda: any(other.done() for other in others))
        assert time.monotonic() - deleted < 3


class TestGivingUp:
    @pytest.mark.parametrize("wait", [0, 0.05])
    async def test_in_time(self, backend: Backend, queue: Queue, wait: float) -> None:
        client = backend.connect()
        lock = client.get_fair_lock("orders")
        async with held(client.get_fair_lock("orders", owner=1)):
            began = time.monotonic()
            assert not await lock.try_lock(wait)
            assert wait <= time.monotonic() - began < wait + WOKEN
            await backend.until(lambda: queue.keys() == {"orders"})
            with pytest.raises(LockTimeoutError):
                async with lock.hold(wait_time=wait):
                    pass
            await backend.until(lambda: queue.keys() == {"orders"})
        assert await lock.try_lock()

    async def test_from_the_middle(self, backend: Backend, queue: Queue) -> None:
        client = backend.connect()
        holder = client.get_fair_lock("orders", owner=1)
        await holder.lock()
        first = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=2).lock)
        middle = client.get_fair_lock("orders", owner=3)
        second = await start_waiter(backend, queue, lambda: middle.try_lock(1.5))
        third = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=4).lock)
        assert not await second.result()
        await backend.until(lambda: len(queue) == 2)
        # It comes again, and has to stand at the end.
        again = await start_waiter(backend, queue, middle.lock)
        await holder.unlock()
        await first.result()
        await client.get_fair_lock("orders", owner=2).unlock()
        await third.result()
        assert not again.done()
        await client.get_fair_lock("orders", owner=4).unlock()
        await again.result()
        await middle.unlock()
        assert queue.keys() == set()

    @pytest.mark.usefixtures("frequent_heartbeats")
    async def test_the_lead_is_passed_on(self, backend: Backend, queue: Queue) -> None:
        """Whoever ticked for the others leaves, and they stay alive."""
        client = backend.connect()
        queue.redis.hset("orders", "somebody:1", 1)
        first = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=2).lock)
        for number in range(3):
            lock = client.get_fair_lock("orders", owner=10 + number)
            leader = await start_waiter(backend, queue, lambda lock=lock: lock.try_lock(0.5))  # type: ignore[misc]
            assert not await leader.result()
            await backend.until(lambda: len(queue) == 1)
        heartbeats = queue.heartbeats()
        await backend.until(lambda: queue.heartbeats() >= heartbeats + 3)
        queue.redis.delete("orders")
        await first.result()

    async def test_a_cancelled_task_leaves(self, tasks: Backend, queue: Queue) -> None:
        client = tasks.connect()
        holder = client.get_fair_lock("orders", owner=1)
        await holder.lock()
        waiting = [asyncio.ensure_future(client.get_fair_lock("orders", owner=2 + i).lock()) for i in range(3)]
        await tasks.until(lambda: len(queue) == 3)
        for number, left in ((0, 2), (2, 1)):
            waiting[number].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting[number]
            await tasks.until(lambda left=left: len(queue) == left)  # type: ignore[misc]
        await holder.unlock()
        async with asyncio.timeout(TIME_LIMIT):
            await waiting[1]

    async def test_a_cancelled_task_passes_its_turn_on(self, tasks: Backend, queue: Queue) -> None:
        """The waiter was notified that it is its turn, and was cancelled before it could acquire the lock."""
        client, other = tasks.connect(), tasks.connect()
        holder = client.get_fair_lock("orders", owner=1)
        await holder.lock()
        first = asyncio.ensure_future(client.get_fair_lock("orders", owner=2).lock())
        await tasks.until(lambda: len(queue) == 1)
        second = asyncio.ensure_future(other.get_fair_lock("orders", owner=3).lock())
        await tasks.until(lambda: len(queue) == 2)
        release = asyncio.ensure_future(holder.unlock())
        await asyncio.sleep(0)
        # The release has been sent, so it arrives before the command of the waiter that leaves.
        first.cancel()
        async with asyncio.timeout(TIME_LIMIT):
            await asyncio.wait([first])
            await release
            await second
        assert first.cancelled()

    async def test_the_cancelled_leave_nothing(self, tasks: Backend, queue: Queue) -> None:
        """However long others stand before and behind them."""
        client = tasks.connect()
        holder = client.get_fair_lock("orders", owner=1)
        await holder.lock()
        first = await start_waiter(tasks, queue, client.get_fair_lock("orders", owner=2).lock)
        locks = [client.get_fair_lock("orders", owner=10 + number) for number in range(500)]
        waiting = [asyncio.ensure_future(lock.lock()) for lock in locks]
        await tasks.until(lambda: len(queue) == 501)
        last = await start_waiter(tasks, queue, client.get_fair_lock("orders", owner=3).lock)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await tasks.until(lambda: len(queue) == 2)
        await holder.unlock()
        await first.result()
        await client.get_fair_lock("orders", owner=2).unlock()
        await last.result()

    async def test_two_calls_for_one_owner(self, tasks: Backend, queue: Queue, server_state: ServerState) -> None:
        """`gather` in a task: each has a place, and what one of them gets the others have, too."""
        client = tasks.connect()
        holder = client.get_fair_lock("orders", owner=1)
        await holder.lock()
        lock = client.get_fair_lock("orders", owner=2)
        before = queue.scripts()
        first, second, third = (asyncio.ensure_future(lock.lock()) for _ in range(3))
        await tasks.until(lambda: queue.scripts() == before + 6)
        assert len(queue) == 3
        first.cancel()
        await asyncio.wait([first])
        await tasks.until(lambda: len(queue) == 2)
        await holder.unlock()
        async with asyncio.timeout(TIME_LIMIT):
            await second
            await third
        assert await lock.get_hold_count() == 2
        assert list(server_state.holds("orders").values()) == ["2"]
        await lock.unlock()
        await lock.unlock()
        assert queue.keys() == set()


class TestClosing:
    async def test_waiters_are_notified(self, backend: Backend, queue: Queue) -> None:
        client, other = backend.connect(), backend.connect()
        holder = other.get_fair_lock("orders")
        before = queue.scripts()
        await holder.lock()
        waiting = [await start_waiter(backend, queue, client.get_fair_lock("orders", owner=n).lock) for n in (1, 2, 3)]
        last = await start_waiter(backend, queue, other.get_fair_lock("orders", owner=4).lock)
        # All have sent an acquire, and another one after their subscription was confirmed.
        await backend.until(lambda: queue.scripts() == before + 9)
        await client.close()
        for waiter in waiting:
            with pytest.raises(ClosedError):
                await waiter.result()
        # They left in one call for all of them.
        assert queue.scripts() == before + 10
        [owner] = queue.owners()
        assert owner.startswith(other.id)
        await holder.unlock()
        await last.result()
        await other.get_fair_lock("orders", owner=4).unlock()
        assert queue.keys() <= {WAITERS}

    async def test_a_holder_gives_it_back(self, backend: Backend, queue: Queue) -> None:
        client, other = backend.connect(), backend.connect()
        await client.get_fair_lock("orders").lock()
        waiting = await start_waiter(backend, queue, other.get_fair_lock("orders").lock)
        await client.close()
        await waiting.result()
