"""The queue of the fair lock: waiters that leave it or lose their place, heartbeats, and Java's waiters."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pyredisson import ClosedError, LockLostError
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.fair_ageing import AGE
from tests.support.server_state import ServerState
from tests.support.waiting import fair_waiters

from .fair_queue import CHANNEL, CLIENTS, KEYS, QUEUE, SCORES, WAITERS, Queue, held, start_waiter, start_waiters
from .kinds import JAVA, one_waits

pytestmark = pytest.mark.asyncio
HAND_OVER = b":1\r\n$6\r\n300000\r\n$38\r\n"
"""The end of the holder's name, the time of a place, and the beginning of another name: only hand-overs have them."""
SOON = 3.0
"""Seconds in which a heartbeat has shown a waiter that something has changed."""


def locks(client: Any, count: int) -> list[Any]:
    """The lock "orders" for so many owners."""
    return [client.get_fair_lock("orders", owner=owner) for owner in range(1, count + 1)]


def hold_elsewhere(queue: Queue) -> None:
    """Another client holds the lock, without an end."""
    queue.redis.hset("orders", "somebody:1", 1)


async def heartbeats(backend: Backend, queue: Queue, count: int) -> None:
    """Waits until so many more have arrived."""
    before = queue.heartbeats()
    await backend.until(lambda: queue.heartbeats() >= before + count)


class TestTurns:
    async def test_a_lease_that_ends_in_another_client(self, backend: Backend, queue: Queue) -> None:
        holder, waiter = backend.connect(), backend.connect()
        assert await holder.get_fair_lock("orders").try_lock(lease_time=0.7)
        other = await start_waiter(backend, queue, waiter.get_fair_lock("orders").lock)
        last = await start_waiter(backend, queue, holder.get_fair_lock("orders", owner=1).lock)
        await other.result()
        assert not last.done()
        assert await waiter.get_fair_lock("orders").force_unlock()
        await last.result()

    async def test_force_unlock_wakes_the_next_only(self, backend: Backend, queue: Queue) -> None:
        lock, *others = locks(backend.connect(), 3)
        await lock.lock()
        first, second = [await start_waiter(backend, queue, other.lock) for other in others]
        assert await lock.force_unlock()
        await first.result()
        assert not second.done()
        assert await lock.delete()
        await second.result()
        assert await lock.delete()
        assert not await lock.delete()
        assert queue.keys() == set()

    @pytest.mark.usefixtures("frequent_heartbeats")
    async def test_a_head_that_never_takes_the_lock(self, backend: Backend, queue: Queue) -> None:
        """Its client is alive, so that only the expired offer shows that it doesn't acquire the lock."""
        client = backend.connect()
        holder, waiter = locks(client, 2)
        await holder.lock()
        ghost = f"{client.id}:ghost"
        queue.enter(ghost)
        queue.redis.hset(WAITERS, ghost, 10**13)
        other = await start_waiter(backend, queue, waiter.lock)
        await holder.unlock()
        at, whom = queue.redis.hget(WAITERS, ":offered").decode().split()
        assert whom == ghost
        await backend.sleep(0.2)
        assert not other.done()
        # As if two seconds had passed.
        queue.redis.hset(WAITERS, ":offered", f"{int(at) - 2_000} {ghost}")
        await other.result()

    async def test_java_waits_first(self, backend: Backend, queue: Queue) -> None:
        holder, waiter = locks(backend.connect(), 2)
        await holder.lock()
        queue.enter(JAVA)
        other = await start_waiter(backend, queue, waiter.lock)
        with queue.ear_of(JAVA) as told:
            await holder.unlock()
            await backend.until(told)
        await backend.sleep(0.1)
        assert not other.done()
        # What Redisson's acquire and unlock do.
        queue.leave(JAVA)
        [owner] = queue.owners()
        queue.redis.zincrby(SCORES, -300_000, owner)
        queue.redis.hset("orders", JAVA, 1)
        queue.redis.delete("orders")
        queue.redis.publish(f"{CHANNEL}:{owner}", "0")
        await other.result()


class TestLosingPlaces:
    """What Java, an operator or the server's clock does to the queue of living waiters."""

    @pytest.mark.usefixtures("frequent_heartbeats")
    async def test_the_server_forgets_everything(self, backend: Backend, queue: Queue) -> None:
        hold_elsewhere(queue)
        others, served = await start_waiters(backend, queue, [backend.connect(), backend.connect()], 4)
        await heartbeats(backend, queue, 4)
        queue.redis.flushall()
        for other in others:
            await other.result()
        assert sorted(served) == [0, 1, 2, 3]
        assert queue.keys() == set()

    @pytest.mark.usefixtures("frequent_heartbeats")
    @pytest.mark.parametrize("key", [QUEUE, SCORES, WAITERS])
    async def test_a_key_is_missing(self, backend: Backend, queue: Queue, key: str) -> None:
        hold_elsewhere(queue)
        others, _ = await start_waiters(backend, queue, [backend.connect()], 3)
        await heartbeats(backend, queue, 2)
        queue.redis.delete(key)
        await heartbeats(backend, queue, 2)
        queue.redis.delete("orders")
        for other in others:
            await other.result()
        await backend.until(lambda: not queue.keys() - {WAITERS})

    async def test_an_evicted_waiter_enters_the_queue_again(self, backend: Backend, queue: Queue) -> None:
        """As by a Java client whose clock is ahead."""
        hold_elsewhere(queue)
        others, served = await start_waiters(backend, queue, [backend.connect(), backend.connect()], 6)
        owners = queue.owners()
        for owner in owners[:2]:
            queue.leave(owner)
        evicted = time.monotonic()
        await backend.until(lambda: len(queue) == 6)
        assert time.monotonic() - evicted < SOON
        assert queue.owners()[:4] == owners[2:]
        queue.redis.delete("orders")
        for other in others:
            await other.result()
        assert served[:4] == [2, 3, 4, 5]

    async def test_the_order_outlives_our_own_keys(self, backend: Backend, queue: Queue) -> None:
        hold_elsewhere(queue)
        others, served = await start_waiters(backend, queue, [backend.connect(), backend.connect()], 40)
        queue.redis.delete(WAITERS)
        await backend.until(lambda: queue.redis.hlen(WAITERS) >= 40)
        queue.redis.delete("orders")
        for other in others:
            await other.result()
        assert served == list(range(40))

    @pytest.mark.usefixtures("frequent_heartbeats")
    async def test_the_order_outlives_a_step_of_the_clock(self, backend: Backend, queue: Queue) -> None:
        hold_elsewhere(queue)
        others, served = await start_waiters(backend, queue, [backend.connect(), backend.connect()], 8)
        await backend.until(lambda: queue.redis.zcard(KEYS[4]) == 2)
        owners = queue.owners()
        queue.redis.eval(AGE, len(KEYS), *KEYS, 3_600_000)
        await heartbeats(backend, queue, 4)
        assert queue.owners() == owners
        queue.redis.delete("orders")
        for other in others:
            await other.result()
        assert served == list(range(8))

    async def test_the_lock_is_deleted(self, backend: Backend, queue: Queue) -> None:
        """The queue goes, too. Waiters enter it again; dead waiters before them are gone."""
        clients = [backend.connect(), backend.connect()]
        holder = clients[0].get_fair_lock("orders")
        await holder.lock()
        lost = holder.lost
        queue.enter(JAVA)
        others, served = await start_waiters(backend, queue, clients, 6)
        assert await clients[1].get_fair_lock("orders").delete()
        deleted = time.monotonic()
        for other in others:
            await other.result()
        assert time.monotonic() - deleted < SOON
        assert sorted(served) == list(range(6))
        await backend.until(lambda: not queue.keys() - {WAITERS})
        with pytest.raises(LockLostError):
            await holder.unlock()
        assert lost.is_set()

    async def test_the_lock_is_deleted_as_java_does(self, backend: Backend, queue: Queue) -> None:
        """No message is published: heartbeats notify the waiters."""
        hold_elsewhere(queue)
        others = [await start_waiter(backend, queue, lock.lock) for lock in locks(backend.connect(), 2)]
        queue.redis.delete(*KEYS[:3])
        deleted = time.monotonic()
        await backend.until(lambda: any(other.done() for other in others))
        assert time.monotonic() - deleted < SOON


class TestManyDead:
    """So many that no call drops them all."""

    def die(self, queue: Queue, count: int) -> None:
        owners = [f"0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55:{number}" for number in range(count)]
        queue.enter(*owners)
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
        queue.enter(JAVA)
        with queue.ear_of(JAVA) as told:
            await getattr(lock, way)()
            await backend.until(told)
        assert queue.owners() == [JAVA]


class TestGivingUp:
    async def test_nothing_remains(self, backend: Backend, queue: Queue) -> None:
        holder, lock = locks(backend.connect(), 2)
        async with held(holder):
            for wait in (0, 0.05):
                assert not await lock.try_lock(wait)
                await backend.until(lambda: queue.keys() == {"orders"})
        assert await lock.try_lock()

    async def test_from_the_middle(self, backend: Backend, queue: Queue) -> None:
        holder, lock, middle, last = locks(backend.connect(), 4)
        await holder.lock()
        first = await start_waiter(backend, queue, lock.lock)
        second = await start_waiter(backend, queue, lambda: middle.try_lock(1.5))
        third = await start_waiter(backend, queue, last.lock)
        assert not await second.result()
        await backend.until(lambda: len(queue) == 2)
        # It comes again, and has to stand at the end.
        again = await start_waiter(backend, queue, middle.lock)
        for before, behind in ((holder, first), (lock, third)):
            assert not behind.done()
            await before.unlock()
            await behind.result()
        assert not again.done()
        await last.unlock()
        await again.result()
        await middle.unlock()
        assert queue.keys() == set()

    @pytest.mark.usefixtures("frequent_heartbeats")
    async def test_the_lead_is_passed_on(self, backend: Backend, queue: Queue) -> None:
        """Whoever ticked for the others leaves, and they stay alive."""
        hold_elsewhere(queue)
        lock, *leaders = locks(backend.connect(), 4)
        first = await start_waiter(backend, queue, lock.lock)
        for leader in leaders:
            leaves = await start_waiter(backend, queue, lambda leader=leader: leader.try_lock(0.5))  # type: ignore[misc]
            assert not await leaves.result()
            await backend.until(lambda: len(queue) == 1)
        await heartbeats(backend, queue, 3)
        queue.redis.delete("orders")
        await first.result()


class TestCancelled:
    async def test_a_task_passes_its_turn_on(self, tasks: Backend, queue: Queue) -> None:
        """The waiter was notified that it is its turn, and was cancelled before it could acquire the lock."""
        holder, lock = locks(tasks.connect(), 2)
        await holder.lock()
        first = asyncio.ensure_future(lock.lock())
        await tasks.until(lambda: len(queue) == 1)
        second = asyncio.ensure_future(tasks.connect().get_fair_lock("orders", owner=3).lock())
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

    async def test_many_leave_nothing(self, tasks: Backend, queue: Queue) -> None:
        """However long others stand before and behind them."""
        holder, before, behind, *others = locks(tasks.connect(), 503)
        await holder.lock()
        first = await start_waiter(tasks, queue, before.lock)
        waiting = [asyncio.ensure_future(lock.lock()) for lock in others]
        await tasks.until(lambda: len(queue) == 501)
        last = await start_waiter(tasks, queue, behind.lock)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await tasks.until(lambda: len(queue) == 2)
        await holder.unlock()
        await first.result()
        await before.unlock()
        await last.result()

    async def test_one_of_several_calls_for_one_owner(
        self, tasks: Backend, queue: Queue, server_state: ServerState
    ) -> None:
        """`gather` in a task: each has a place, and what one of them gets the others have, too."""
        holder, lock = locks(tasks.connect(), 2)
        await holder.lock()
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


async def test_waiters_of_a_closed_client_leave_in_one_call(backend: Backend, queue: Queue) -> None:
    client, other = backend.connect(), backend.connect()
    holder, behind = locks(other, 2)
    before = queue.scripts()
    await holder.lock()
    waiting = [await start_waiter(backend, queue, lock.lock) for lock in locks(client, 3)]
    last = await start_waiter(backend, queue, behind.lock)
    # All have sent an acquire, and another one after their subscription was confirmed.
    await backend.until(lambda: queue.scripts() == before + 9)
    await client.close()
    for waiter in waiting:
        with pytest.raises(ClosedError):
            await waiter.result()
    assert queue.scripts() == before + 10
    [owner] = queue.owners()
    assert owner.startswith(other.id)
    await holder.unlock()
    await last.result()
    await behind.unlock()
    assert queue.keys() <= {WAITERS}


class TestHandingOn:
    """Inside one client, while other waiters are in the queue."""

    async def test_a_refused_waiter_keeps_its_place_without_an_attempt(self, backend: Backend, queue: Queue) -> None:
        """Another client's waiter came first."""
        client, another = backend.connect(), backend.connect()
        holder, theirs = client.get_fair_lock("orders", owner=1), another.get_fair_lock("orders", owner=2)
        await holder.lock()
        first = await start_waiter(backend, queue, theirs.lock)
        await backend.until(lambda: fair_waiters(another, "orders") == 1)
        second = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=3).lock)
        await backend.until(lambda: fair_waiters(client, "orders") == 1)
        [_, place] = queue.owners()
        asked_at = queue.redis.hget(WAITERS, place)
        await holder.unlock()
        await first.result()
        await backend.sleep(0.1)
        assert queue.owners() == [place]
        assert queue.redis.hget(WAITERS, place) == asked_at
        await theirs.unlock()
        await second.result()

    async def test_a_dead_waiter_before_it(self, backend: Backend, queue: Queue) -> None:
        holder, waiter, other = await one_waits(backend, backend.connect(), "fair")
        queue.redis.lpush(QUEUE, "dead:1")
        queue.redis.zadd(SCORES, {"dead:1": 1})
        before = queue.scripts()
        await holder.unlock()
        await other.result()
        # A first call of the script is sent twice.
        assert queue.scripts() - before <= 2
        await waiter.unlock()
        assert queue.keys() == set()

    async def test_a_place_that_was_lost(self, backend: Backend, queue: Queue) -> None:
        """The waiter enters the queue again, and gets the lock."""
        holder, waiter, other = await one_waits(backend, backend.connect(), "fair")
        queue.redis.delete(QUEUE, SCORES)
        await holder.unlock()
        await other.result()
        await waiter.unlock()
        await backend.until(lambda: queue.keys() <= {WAITERS})

    async def test_a_command_that_takes_long_costs_no_place(
        self, threads: Backend, proxy: Proxy, queue: Queue, server_state: ServerState
    ) -> None:
        """The only waiter of its client goes on with its heartbeats. (Tasks send them behind that command.)"""
        client, another = threads.connect(proxy.url, timeout=TIME_LIMIT), threads.connect()
        holder, waiter, other = await one_waits(threads, client, "fair")
        theirs = another.get_fair_lock("orders", owner=3)
        last = await start_waiter(threads, queue, theirs.lock)
        places = queue.owners()
        slow = proxy.hold_request(HAND_OVER)
        releasing = threads.spawn(holder.unlock)
        await threads.until(slow.held.is_set)

        def alive_until() -> float:
            """On the server's clock, ms."""
            return float(queue.redis.zscore(CLIENTS, another.id) or 0)

        await threads.until(lambda: alive_until() > 0)
        begun = alive_until()
        # A client counts as alive for 1.5 s after a heartbeat.
        await threads.until(lambda: alive_until() > begun + 2500)
        assert queue.owners() == places
        slow.deliver()
        await releasing.result()
        await other.result()
        assert not last.done()
        assert list(server_state.holds("orders")) == places[:1]
        await waiter.unlock()
        await last.result()
        await theirs.unlock()

    async def test_a_script_that_the_server_refuses_fails_no_release(self, backend: Backend, queue: Queue) -> None:
        """Another tool has spoilt the queue: the lock is released as without a waiter."""
        holder, waiter, other = await one_waits(backend, backend.connect(), "fair")
        queue.redis.delete(QUEUE)
        queue.redis.set(QUEUE, "text")
        with pytest.raises(Exception, match="WRONGTYPE"):
            await holder.unlock()
        queue.redis.delete(QUEUE)
        await other.result()
        await waiter.unlock()
