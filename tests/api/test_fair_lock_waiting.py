"""Waiters of the fair lock: heartbeats, wakeups, and waiters that lose their place in the queue."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.backends import TIME_LIMIT, WOKEN, Backend
from tests.support.fair_ageing import AGE

from .fair_queue import CHANNEL, KEYS, QUEUE, SCORES, WAITERS, Queue, start_waiter

pytestmark = pytest.mark.asyncio


class TestWaiting:
    async def test_a_lease_that_ends(self, backend: Backend, queue: Queue) -> None:
        """A holder that died publishes nothing."""
        client = backend.connect()
        began = time.monotonic()
        assert await client.get_fair_lock("orders", owner=1).try_lock(lease_time=0.7)
        first = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=2).lock)
        await first.result()
        assert 0.69 < time.monotonic() - began < 0.7 + WOKEN
        assert queue.keys() == {"orders"}

    async def test_in_another_client(self, backend: Backend, queue: Queue) -> None:
        holder, waiter = backend.connect(), backend.connect()
        assert await holder.get_fair_lock("orders").try_lock(lease_time=1.5)
        other = await start_waiter(backend, queue, waiter.get_fair_lock("orders").lock)
        last = await start_waiter(backend, queue, holder.get_fair_lock("orders", owner=1).lock)
        await other.result()
        assert not last.done()
        assert await waiter.get_fair_lock("orders").force_unlock()
        await last.result()

    async def test_force_unlock_wakes_the_next(self, backend: Backend, queue: Queue) -> None:
        client = backend.connect()
        await client.get_fair_lock("orders", owner=1).lock()
        first = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=2).lock)
        second = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=3).lock)
        assert await client.get_fair_lock("orders").force_unlock()
        await first.result()
        assert not second.done()
        assert await client.get_fair_lock("orders").delete()
        await second.result()
        assert await client.get_fair_lock("orders").delete()
        assert not await client.get_fair_lock("orders").delete()
        assert queue.keys() == set()

    async def test_a_message_without_a_receiver(self, backend: Backend, queue: Queue) -> None:
        client = backend.connect()
        await client.get_fair_lock("orders", owner=1).lock()
        other = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=2).lock)
        queue.redis.delete("orders")
        await other.result()

    @pytest.mark.usefixtures("frequent_heartbeats")
    async def test_the_server_forgets_everything(self, backend: Backend, queue: Queue) -> None:
        clients = [backend.connect(), backend.connect()]
        served: list[int] = []

        def waiter(number: int) -> Callable[[], Awaitable[None]]:
            async def work() -> None:
                async with clients[number % 2].get_fair_lock("orders"):
                    served.append(number)

            return work

        queue.redis.hset("orders", "somebody:1", 1)
        others = [await start_waiter(backend, queue, waiter(number)) for number in range(4)]
        heartbeats = queue.heartbeats()
        await backend.until(lambda: queue.heartbeats() >= heartbeats + 4)
        queue.redis.flushall()
        for other in others:
            await other.result()
        assert sorted(served) == [0, 1, 2, 3]
        assert queue.keys() == set()

    @pytest.mark.usefixtures("frequent_heartbeats")
    @pytest.mark.parametrize("key", ["redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}", WAITERS])
    async def test_a_key_is_missing(self, backend: Backend, queue: Queue, key: str) -> None:
        client = backend.connect()
        queue.redis.hset("orders", "somebody:1", 1)

        def waiter(number: int) -> Callable[[], Awaitable[None]]:
            async def work() -> None:
                async with client.get_fair_lock("orders"):
                    pass

            return work

        others = [await start_waiter(backend, queue, waiter(number)) for number in range(3)]
        heartbeats = queue.heartbeats()
        await backend.until(lambda: queue.heartbeats() >= heartbeats + 2)
        queue.redis.delete(key)
        heartbeats = queue.heartbeats()
        await backend.until(lambda: queue.heartbeats() >= heartbeats + 2)
        queue.redis.delete("orders")
        for other in others:
            await other.result()
        await backend.until(lambda: not queue.keys() - {WAITERS})

    @pytest.mark.usefixtures("frequent_heartbeats")
    async def test_a_head_that_never_takes_the_lock(self, backend: Backend, queue: Queue) -> None:
        """Its client is alive, so that only the expired offer shows that it doesn't acquire the lock."""
        client = backend.connect()
        holder = client.get_fair_lock("orders", owner=1)
        await holder.lock()
        ghost = f"{client.id}:ghost"
        queue.redis.rpush("redisson_lock_queue:{orders}", ghost)
        queue.redis.zadd("redisson_lock_timeout:{orders}", {ghost: 10**13})
        queue.redis.hset(WAITERS, ghost, 10**13)
        other = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=2).lock)
        await holder.unlock()
        at, whom = queue.redis.hget(WAITERS, ":offered").decode().split()
        assert whom == ghost
        await backend.sleep(0.2)
        assert not other.done()
        # As if two seconds had passed.
        queue.redis.hset(WAITERS, ":offered", f"{int(at) - 2_000} {ghost}")
        await other.result()

    async def test_java_waits_first(self, backend: Backend, queue: Queue) -> None:
        client = backend.connect()
        holder = client.get_fair_lock("orders", owner=1)
        java = "5c0b9a4e-95f1-4b51-8a8f-3a1d1f3c2a77:31"
        await holder.lock()
        queue.redis.rpush("redisson_lock_queue:{orders}", java)
        seconds, microseconds = queue.redis.time()
        queue.redis.zadd("redisson_lock_timeout:{orders}", {java: seconds * 1000 + microseconds // 1000 + 330_000})
        other = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=2).lock)
        with queue.redis.pubsub() as ear:
            ear.subscribe(f"{CHANNEL}:{java}")
            assert ear.get_message(timeout=TIME_LIMIT)["type"] == "subscribe"
            await holder.unlock()
            assert ear.get_message(timeout=TIME_LIMIT)["data"] == b"0"
        await backend.sleep(0.1)
        assert not other.done()
        # What Redisson's acquire and unlock do.
        queue.redis.lpop("redisson_lock_queue:{orders}")
        queue.redis.zrem("redisson_lock_timeout:{orders}", java)
        queue.redis.zincrby("redisson_lock_timeout:{orders}", -300_000, queue.owners()[0])
        queue.redis.hset("orders", java, 1)
        queue.redis.delete("orders")
        queue.redis.publish(f"{CHANNEL}:{queue.owners()[0]}", "0")
        await other.result()


class TestLosingPlaces:
    """What Java, an operator or the server's clock does to the queue of living waiters."""

    def waiter(self, client: Any, served: list[int], number: int) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            async with client.get_fair_lock("orders"):
                served.append(number)

        return work

    async def test_an_evicted_waiter_enters_the_queue_again(self, backend: Backend, queue: Queue) -> None:
        """As by a Java client whose clock is ahead."""
        clients, served = [backend.connect(), backend.connect()], list[int]()
        queue.redis.hset("orders", "somebody:1", 1)
        others = [await start_waiter(backend, queue, self.waiter(clients[n % 2], served, n)) for n in range(6)]
        owners = queue.owners()
        for owner in owners[:2]:
            queue.redis.lpop(QUEUE)
            queue.redis.zrem(SCORES, owner)
        evicted = time.monotonic()
        await backend.until(lambda: len(queue) == 6)
        assert time.monotonic() - evicted < 3
        assert queue.owners()[:4] == owners[2:]
        queue.redis.delete("orders")
        for other in others:
            await other.result()
        assert served[:4] == [2, 3, 4, 5]

    async def test_the_order_outlives_our_own_keys(self, backend: Backend, queue: Queue) -> None:
        clients, served = [backend.connect(), backend.connect()], list[int]()
        queue.redis.hset("orders", "somebody:1", 1)
        others = [await start_waiter(backend, queue, self.waiter(clients[n % 2], served, n)) for n in range(40)]
        queue.redis.delete(WAITERS)
        await backend.until(lambda: queue.redis.hlen(WAITERS) >= 40)
        queue.redis.delete("orders")
        for other in others:
            await other.result()
        assert served == list(range(40))

    @pytest.mark.usefixtures("frequent_heartbeats")
    async def test_the_order_outlives_a_step_of_the_clock(self, backend: Backend, queue: Queue) -> None:
        clients, served = [backend.connect(), backend.connect()], list[int]()
        queue.redis.hset("orders", "somebody:1", 1)
        others = [await start_waiter(backend, queue, self.waiter(clients[n % 2], served, n)) for n in range(8)]
        await backend.until(lambda: queue.redis.zcard(KEYS[4]) == 2)
        owners = queue.owners()
        queue.redis.eval(AGE, len(KEYS), *KEYS, 3_600_000)
        heartbeats = queue.heartbeats()
        await backend.until(lambda: queue.heartbeats() >= heartbeats + 4)
        assert queue.owners() == owners
        queue.redis.delete("orders")
        for other in others:
            await other.result()
        assert served == list(range(8))
