"""The fair lock serves in the order of arrival, and needs few calls for it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pyredisson.logic.locks.fair_queue import HEARTBEAT_INTERVAL
from tests.support.backends import Backend

from .fair_queue import Queue, held, start_waiter, start_waiters
from .kinds import FAIR, one_waits

pytestmark = pytest.mark.asyncio


async def load_hand_over(backend: Backend, client: Any) -> None:
    """The server gets the text of the script: a first call of it is sent twice."""
    holder, waiter, other = await one_waits(backend, client, "fair", name="another")
    await holder.unlock()
    await other.result()
    await waiter.unlock()


class TestOrder:
    @pytest.mark.parametrize("kind", FAIR)
    @pytest.mark.parametrize("turns", [[0, 1] * 6, [0, 0, 1, 0, 1, 1, 1, 0], [1, 1, 0, 1, 0, 0, 0, 1]])
    async def test_first_come_first_served(self, backend: Backend, queue: Queue, kind: str, turns: list[int]) -> None:
        """However the waiters of two clients come one after the other."""
        clients = [backend.connect(), backend.connect()]
        async with held(clients[0].get_fair_lock("orders", owner=1)):
            others, served = await start_waiters(backend, queue, [clients[turn] for turn in turns], len(turns), kind)
        for other in others:
            await other.result()
        assert served == list(range(len(turns)))
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

    async def test_a_nested_hold_needs_no_turn(self, backend: Backend) -> None:
        lock, _, other = await one_waits(backend, backend.connect(), "fair")
        async with lock:
            assert await lock.get_hold_count() == 2
        assert not other.done()
        await lock.unlock()
        await other.result()

    async def test_one_that_is_not_reentrant_shares_the_queue(self, backend: Backend, queue: Queue) -> None:
        client = backend.connect()
        async with held(client.get_non_reentrant_fair_lock("orders", owner=1)):
            assert not await client.get_fair_lock("orders").try_lock()
            other = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=2).lock)
            last = await start_waiter(backend, queue, client.get_non_reentrant_fair_lock("orders", owner=3).lock)
        await other.result()
        assert not last.done()
        await client.get_fair_lock("orders", owner=2).unlock()
        await last.result()


class TestCalls:
    @pytest.mark.parametrize(("seconds", "calls"), [(0.01, 1), (0, 2)])
    async def test_scripts_for_a_hand_off(self, tasks: Backend, queue: Queue, seconds: float, calls: int) -> None:
        """However many wait; and one connection listens for all of them. A busy machine adds attempts, not one each."""
        client = tasks.connect(local_hand_over_time=seconds)
        await load_hand_over(tasks, client)
        began = time.monotonic()
        count = 200
        served: list[int] = []

        async def work(number: int) -> None:
            async with client.get_fair_lock("orders"):
                served.append(number)

        before = queue.scripts()
        async with held(client.get_fair_lock("orders", owner=1)):
            others = [tasks.spawn(lambda number=number: work(number)) for number in range(count)]  # type: ignore[misc]
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
        others = []
        async with held(client.get_fair_lock("orders", owner=1)):
            for count in range(1, 21):
                before = queue.scripts()
                others += (await start_waiters(threads, queue, [client], 1))[0]
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
        holder, lock = client.get_fair_lock("orders", owner=1), client.get_fair_lock("orders", owner=2)
        for attempts in (2, 1):
            await holder.lock()
            before = queue.scripts()
            other = await start_waiter(backend, queue, lock.lock)
            await backend.until(lambda: queue.scripts() >= before + attempts)  # noqa: B023
            await backend.sleep(0.05)
            assert queue.scripts() == before + attempts
            await holder.unlock()
            await other.result()
            await lock.unlock()
            assert queue.scripts() == before + attempts + 2
