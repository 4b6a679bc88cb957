"""The fair lock on both backends: first come, first served; nothing is left of those who gave up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson import ClosedError, LockAlreadyHeldError, LockLostError, LockNotHeldError, LockTimeoutError
from pyredisson.logic.locks import fair_lock
from tests.support.backends import TIME_LIMIT, Backend, OtherOwner
from tests.support.fair_ageing import AGE
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio

CHANNEL = "redisson_lock__channel:{orders}"
WAITERS = "pyredisson_fair_waiters:{orders}"
LINE, SCORES = "redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}"
KEYS = ("orders", LINE, SCORES, WAITERS, "pyredisson_fair_clients:{orders}")
JAVA = "5c0b9a4e-95f1-4b51-8a8f-3a1d1f3c2a77:31"


class Queue:
    """The queue as Redisson reads it."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis

    def __len__(self) -> int:
        return int(self.redis.llen("redisson_lock_queue:{orders}"))

    def owners(self) -> list[str]:
        owners = [owner.decode() for owner in self.redis.lrange("redisson_lock_queue:{orders}", 0, -1)]
        scored = self.redis.zrange("redisson_lock_timeout:{orders}", 0, -1)
        assert sorted(owners) == sorted(owner.decode() for owner in scored)
        return owners

    def ticks(self) -> int:
        """How often a client has told that its waiters are alive: nothing else uses this command."""
        return int(self.redis.info("commandstats").get("cmdstat_zremrangebyscore", {"calls": 0})["calls"])

    def scripts(self) -> int:
        """How many scripts have run, ticks aside: those go by time, and not by what happens."""
        while True:
            ticks = self.ticks()
            scripts = ServerState(self.redis).scripts()
            if self.ticks() == ticks:
                return scripts - ticks

    def listening(self, count: int) -> bool:
        """Whether so many waiters have a channel on which somebody listens."""
        channels = self.redis.pubsub_channels(f"{CHANNEL}:*")
        return len(channels) == count

    def keys(self) -> set[str]:
        return {key.decode() for key in self.redis.scan_iter()}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients tick so often that a test needn't wait for it."""
    monkeypatch.setattr(fair_lock, "TICK", 0.05)


@pytest.fixture
def queue(admin: Redis) -> Queue:
    return Queue(admin)


async def in_line(backend: Backend, queue: Queue, work: Callable[[], Awaitable[Any]]) -> OtherOwner[Any]:
    """Another owner at work that waits for the lock as the last in line."""
    before = len(queue)
    other = backend.spawn(work)
    await backend.until(lambda: len(queue) == before + 1)
    return other


@asynccontextmanager
async def held(lock: Any) -> AsyncIterator[None]:
    """The lock, in the hands of somebody else than the test's owner."""
    await lock.lock()
    try:
        yield
    finally:
        await lock.unlock()


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
        assert await lock.try_lock(lease_time=0.05)
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
        with pytest.raises(LockNotHeldError, match="nobody holds it"):
            await lock.unlock()
        async with held(client.get_fair_lock("orders", owner=1)):
            with pytest.raises(LockNotHeldError, match="held by"):
                await lock.unlock()

    async def test_a_further_hold_of_what_was_taken_away(
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
            others = [await in_line(backend, queue, waiter(number)) for number in range(12)]
        for other in others:
            await other.result()
        assert served == list(range(12))
        assert queue.keys() == set()

    async def test_nobody_overtakes(self, backend: Backend, queue: Queue) -> None:
        """Who comes again, or only tries, finds those who wait before him."""
        client = backend.connect()
        lock = client.get_fair_lock("orders")
        served: list[str] = []

        async def work() -> None:
            async with client.get_fair_lock("orders"):
                served.append("other")
                assert not await backend.as_another_owner(lambda: client.get_fair_lock("orders").try_lock())

        await lock.lock()
        other = await in_line(backend, queue, work)
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
            other = await in_line(backend, queue, client.get_fair_lock("orders", owner=2).lock)
            async with lock:
                assert await lock.get_hold_count() == 2
            assert not other.done()
        await other.result()

    async def test_a_hand_off_is_two_scripts(self, tasks: Backend, queue: Queue) -> None:
        """However many wait; and one connection listens for all of them."""
        client = tasks.connect()
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
            # Each asks, and looks once more when it is sure to hear.
            await tasks.until(lambda: len(queue) == count and queue.listening(count))
            await tasks.until(lambda: queue.scripts() == before + 1 + 2 * count)
            listeners = [entry for entry in queue.redis.client_list() if int(entry["sub"]) > 0]
            assert len(listeners) == 1
        for other in others:
            await other.result()
        assert served == list(range(count))
        # One release more than acquires.
        assert queue.scripts() == before + 1 + 2 * count + 1 + 2 * count
        assert queue.keys() == set()

    async def test_a_hand_off_between_threads_is_two_scripts(self, threads: Backend, queue: Queue) -> None:
        client = threads.connect()
        async with held(client.get_fair_lock("orders", owner=1)):
            others = []
            for number in range(20):
                before = queue.scripts()
                lock = client.get_fair_lock("orders")

                async def work(lock: Any = lock) -> None:
                    async with lock:
                        pass

                others.append(await in_line(threads, queue, work))
                count = number + 1
                await threads.until(lambda count=count: queue.listening(count))  # type: ignore[misc]
                await threads.until(lambda before=before: queue.scripts() == before + 2)  # type: ignore[misc]
            before = queue.scripts()
        for other in others:
            await other.result()
        assert queue.scripts() == before + 2 * 20 + 1

    async def test_who_waits_again_hears_already(self, backend: Backend, queue: Queue) -> None:
        """The second time its channel is subscribed to: it need not look again."""
        client = backend.connect()
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
        other = await in_line(backend, queue, work)
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
        assert queue.scripts() == before + 4


class TestWaiting:
    async def test_a_lease_that_ends(self, backend: Backend, queue: Queue) -> None:
        """A holder that died publishes nothing."""
        client = backend.connect()
        began = time.monotonic()
        assert await client.get_fair_lock("orders", owner=1).try_lock(lease_time=0.7)
        first = await in_line(backend, queue, client.get_fair_lock("orders", owner=2).lock)
        await first.result()
        assert 0.69 < time.monotonic() - began < 0.7 + 1
        assert queue.keys() == {"orders"}

    async def test_in_another_client(self, backend: Backend, queue: Queue) -> None:
        holder, waiter = backend.connect(), backend.connect()
        assert await holder.get_fair_lock("orders").try_lock(lease_time=0.5)
        other = await in_line(backend, queue, waiter.get_fair_lock("orders").lock)
        last = await in_line(backend, queue, holder.get_fair_lock("orders", owner=1).lock)
        await other.result()
        assert not last.done()
        assert await waiter.get_fair_lock("orders").force_unlock()
        await last.result()

    async def test_force_unlock_wakes_the_next(self, backend: Backend, queue: Queue) -> None:
        client = backend.connect()
        await client.get_fair_lock("orders", owner=1).lock()
        first = await in_line(backend, queue, client.get_fair_lock("orders", owner=2).lock)
        second = await in_line(backend, queue, client.get_fair_lock("orders", owner=3).lock)
        assert await client.get_fair_lock("orders").force_unlock()
        await first.result()
        assert not second.done()
        assert await client.get_fair_lock("orders").delete()
        await second.result()
        assert await client.get_fair_lock("orders").delete()
        assert not await client.get_fair_lock("orders").delete()
        assert queue.keys() == set()

    async def test_a_message_that_went_to_nobody(self, backend: Backend, queue: Queue) -> None:
        client = backend.connect()
        await client.get_fair_lock("orders", owner=1).lock()
        other = await in_line(backend, queue, client.get_fair_lock("orders", owner=2).lock)
        queue.redis.delete("orders")
        await other.result()

    @pytest.mark.usefixtures("hasty")
    async def test_the_server_forgets_everything(self, backend: Backend, queue: Queue) -> None:
        clients = [backend.connect(), backend.connect()]
        served: list[int] = []

        def waiter(number: int) -> Callable[[], Awaitable[None]]:
            async def work() -> None:
                async with clients[number % 2].get_fair_lock("orders"):
                    served.append(number)

            return work

        queue.redis.hset("orders", "somebody:1", 1)
        others = [await in_line(backend, queue, waiter(number)) for number in range(4)]
        ticks = queue.ticks()
        await backend.until(lambda: queue.ticks() >= ticks + 4)
        queue.redis.flushall()
        for other in others:
            await other.result()
        assert sorted(served) == [0, 1, 2, 3]
        assert queue.keys() == set()

    @pytest.mark.usefixtures("hasty")
    @pytest.mark.parametrize("key", ["redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}", WAITERS])
    async def test_a_key_is_missing(self, backend: Backend, queue: Queue, key: str) -> None:
        client = backend.connect()
        queue.redis.hset("orders", "somebody:1", 1)

        def waiter(number: int) -> Callable[[], Awaitable[None]]:
            async def work() -> None:
                async with client.get_fair_lock("orders"):
                    pass

            return work

        others = [await in_line(backend, queue, waiter(number)) for number in range(3)]
        ticks = queue.ticks()
        await backend.until(lambda: queue.ticks() >= ticks + 2)
        queue.redis.delete(key)
        ticks = queue.ticks()
        await backend.until(lambda: queue.ticks() >= ticks + 2)
        queue.redis.delete("orders")
        for other in others:
            await other.result()
        await backend.until(lambda: not queue.keys() - {WAITERS})

    @pytest.mark.usefixtures("hasty")
    async def test_a_head_that_never_takes_the_lock(self, backend: Backend, queue: Queue) -> None:
        """It is known to be alive, so that only the offer tells."""
        client = backend.connect()
        holder = client.get_fair_lock("orders", owner=1)
        await holder.lock()
        ghost = f"{client.id}:ghost"
        queue.redis.rpush("redisson_lock_queue:{orders}", ghost)
        queue.redis.zadd("redisson_lock_timeout:{orders}", {ghost: 10**13})
        queue.redis.hset(WAITERS, ghost, 10**13)
        other = await in_line(backend, queue, client.get_fair_lock("orders", owner=2).lock)
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
        other = await in_line(backend, queue, client.get_fair_lock("orders", owner=2).lock)
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

    async def test_who_was_evicted_stands_in_line_again(self, backend: Backend, queue: Queue) -> None:
        """As by a Java client whose clock is ahead."""
        clients, served = [backend.connect(), backend.connect()], list[int]()
        queue.redis.hset("orders", "somebody:1", 1)
        others = [await in_line(backend, queue, self.waiter(clients[n % 2], served, n)) for n in range(6)]
        owners = queue.owners()
        for owner in owners[:2]:
            queue.redis.lpop(LINE)
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
        others = [await in_line(backend, queue, self.waiter(clients[n % 2], served, n)) for n in range(40)]
        queue.redis.delete(WAITERS)
        await backend.until(lambda: queue.redis.hlen(WAITERS) >= 40)
        queue.redis.delete("orders")
        for other in others:
            await other.result()
        assert served == list(range(40))

    @pytest.mark.usefixtures("hasty")
    async def test_the_order_outlives_a_step_of_the_clock(self, backend: Backend, queue: Queue) -> None:
        clients, served = [backend.connect(), backend.connect()], list[int]()
        queue.redis.hset("orders", "somebody:1", 1)
        others = [await in_line(backend, queue, self.waiter(clients[n % 2], served, n)) for n in range(8)]
        await backend.until(lambda: queue.redis.zcard(KEYS[4]) == 2)
        owners = queue.owners()
        queue.redis.eval(AGE, len(KEYS), *KEYS, 3_600_000)
        ticks = queue.ticks()
        await backend.until(lambda: queue.ticks() >= ticks + 4)
        assert queue.owners() == owners
        queue.redis.delete("orders")
        for other in others:
            await other.result()
        assert served == list(range(8))


class TestManyDead:
    """So many that no call drops them all."""

    def die(self, queue: Queue, count: int) -> None:
        owners = [f"0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55:{number}" for number in range(count)]
        queue.redis.rpush(LINE, *owners)
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
    async def test_whoever_waits_behind_them_is_told(self, backend: Backend, queue: Queue, way: str) -> None:
        """Though nobody else of ours is there."""
        lock = backend.connect().get_fair_lock("orders")
        await lock.lock()
        self.die(queue, 900)
        queue.redis.rpush(LINE, JAVA)
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
        """Waiters stand in line again; whoever was before them and doesn't live is gone."""
        clients = [backend.connect(), backend.connect()]
        holder = clients[0].get_fair_lock("orders")
        await holder.lock()
        lost = holder.lost
        queue.redis.rpush(LINE, JAVA)
        queue.redis.zadd(SCORES, {JAVA: 10**13})
        served: list[int] = []

        def waiter(number: int) -> Callable[[], Awaitable[None]]:
            async def work() -> None:
                async with clients[number % 2].get_fair_lock("orders"):
                    served.append(number)

            return work

        others = [await in_line(backend, queue, waiter(number)) for number in range(6)]
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
        """It publishes nothing: ticks tell."""
        client = backend.connect()
        holder = client.get_fair_lock("orders", owner=1)
        await holder.lock()
        others = [await in_line(backend, queue, client.get_fair_lock("orders", owner=2 + n).lock) for n in range(2)]
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
            assert wait <= time.monotonic() - began < wait + 1
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
        first = await in_line(backend, queue, client.get_fair_lock("orders", owner=2).lock)
        middle = client.get_fair_lock("orders", owner=3)
        second = await in_line(backend, queue, lambda: middle.try_lock(0.5))
        third = await in_line(backend, queue, client.get_fair_lock("orders", owner=4).lock)
        assert not await second.result()
        await backend.until(lambda: len(queue) == 2)
        # It comes again, and has to stand at the end.
        again = await in_line(backend, queue, middle.lock)
        await holder.unlock()
        await first.result()
        await client.get_fair_lock("orders", owner=2).unlock()
        await third.result()
        assert not again.done()
        await client.get_fair_lock("orders", owner=4).unlock()
        await again.result()
        await middle.unlock()
        assert queue.keys() == set()

    @pytest.mark.usefixtures("hasty")
    async def test_the_lead_is_passed_on(self, backend: Backend, queue: Queue) -> None:
        """Whoever ticked for the others leaves, and they stay alive."""
        client = backend.connect()
        queue.redis.hset("orders", "somebody:1", 1)
        first = await in_line(backend, queue, client.get_fair_lock("orders", owner=2).lock)
        for number in range(3):
            lock = client.get_fair_lock("orders", owner=10 + number)
            leader = await in_line(backend, queue, lambda lock=lock: lock.try_lock(0.1))  # type: ignore[misc]
            assert not await leader.result()
            await backend.until(lambda: len(queue) == 1)
        ticks = queue.ticks()
        await backend.until(lambda: queue.ticks() >= ticks + 3)
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
        """It was told that the lock is its, and was cancelled before it could take it."""
        client, other = tasks.connect(), tasks.connect()
        holder = client.get_fair_lock("orders", owner=1)
        await holder.lock()
        first = asyncio.ensure_future(client.get_fair_lock("orders", owner=2).lock())
        await tasks.until(lambda: len(queue) == 1)
        second = asyncio.ensure_future(other.get_fair_lock("orders", owner=3).lock())
        await tasks.until(lambda: len(queue) == 2)
        release = asyncio.ensure_future(holder.unlock())
        await asyncio.sleep(0)
        # The release is on its way, and so comes before the one who leaves.
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
        first = await in_line(tasks, queue, client.get_fair_lock("orders", owner=2).lock)
        locks = [client.get_fair_lock("orders", owner=10 + number) for number in range(500)]
        waiting = [asyncio.ensure_future(lock.lock()) for lock in locks]
        await tasks.until(lambda: len(queue) == 501)
        last = await in_line(tasks, queue, client.get_fair_lock("orders", owner=3).lock)
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
    async def test_waiters_hear_of_it(self, backend: Backend, queue: Queue) -> None:
        client, other = backend.connect(), backend.connect()
        holder = other.get_fair_lock("orders")
        before = queue.scripts()
        await holder.lock()
        waiting = [await in_line(backend, queue, client.get_fair_lock("orders", owner=n).lock) for n in (1, 2, 3)]
        last = await in_line(backend, queue, other.get_fair_lock("orders", owner=4).lock)
        # All have asked, and looked once more when they were sure to hear.
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
        waiting = await in_line(backend, queue, other.get_fair_lock("orders").lock)
        await client.close()
        await waiting.result()


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
            other = await in_line(backend, queue, client.get_fair_lock("orders", owner=2).lock)
            last = await in_line(backend, queue, client.get_non_reentrant_fair_lock("orders", owner=3).lock)
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
