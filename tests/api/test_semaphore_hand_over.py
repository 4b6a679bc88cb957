"""Permits that are handed on inside one client: how many calls that takes, in which order, and in batches."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from redis.exceptions import ResponseError

from pyredisson._protocol.scripts import script
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, WORK_LIMIT, Backend, OtherOwner
from tests.support.faults import FLAGS, LOSSES, Lose
from tests.support.server_state import ServerState
from tests.support.waiting import cancel_after, permit_waiters

from .permits import Permits, Stock

pytestmark = pytest.mark.asyncio
ROUNDS = 8
TRIES = 5
LONG = 60.0
"""A hand-over time that doesn't end in a test: then the number of calls doesn't depend on the machine."""
HAND_OVER = script("semaphore_hand_over", with_shebang=FLAGS).sha


@pytest.fixture
def stock(backend: Backend, server_state: ServerState) -> Stock:
    return Stock(backend, server_state, "semaphore")


async def rounds(semaphore: Any, count: int) -> None:
    for _ in range(count):
        await semaphore.acquire()
        await semaphore.release()


async def contended(stock: Stock, waiting: int = 1, seconds: float = LONG) -> tuple[Permits, list[OtherOwner[Any]]]:
    """Its only permit is acquired, and so many callers of the same client wait for it."""
    semaphore = await stock.made(1, local_hand_over_time=seconds)
    await semaphore.acquire()
    return semaphore, [await stock.waiter(semaphore) for _ in range(waiting)]


class TestCalls:
    @pytest.mark.parametrize(("callers", "permits"), [(64, 1), (64, 8)])
    async def test_one_for_each_acquisition_in_one_client(self, stock: Stock, callers: int, permits: int) -> None:
        """Without hand-overs there are always two and more.

        On a busy machine many releases find nobody asleep. So the best of some tries counts.
        """
        semaphore = await stock.made(permits, local_hand_over_time=LONG)
        calls: list[int] = []
        while len(calls) < TRIES and min(calls, default=math.inf) > 1.8 * callers * 2 * ROUNDS:
            before = stock.scripts()
            for other in [stock.backend.spawn(lambda: rounds(semaphore, 2 * ROUNDS)) for _ in range(callers)]:
                await other.result(WORK_LIMIT)
            calls.append(stock.scripts() - before)
            assert stock.free() == permits
        assert min(calls) <= 1.8 * callers * 2 * ROUNDS, calls

    async def test_of_two_clients(self, stock: Stock) -> None:
        one, two = await stock.made(4), stock.open()
        before = stock.scripts()
        others = [stock.backend.spawn(lambda: rounds(one, ROUNDS)) for _ in range(16)]
        others += [stock.backend.spawn(lambda: rounds(two, ROUNDS)) for _ in range(16)]
        for other in others:
            await other.result()
        assert stock.scripts() - before <= 3.5 * 32 * ROUNDS
        assert stock.free() == 4


class TestOthers:
    @pytest.mark.parametrize(("seconds", "messages"), [(LONG, 1), (0, 5)])
    async def test_messages(self, stock: Stock, seconds: float, messages: int) -> None:
        """Permits that are handed on publish nothing; the last release does."""
        semaphore, others = await contended(stock, 4, seconds)

        async def work() -> None:
            for other in others:
                await semaphore.release()
                await other.result()
            await semaphore.release()

        assert await stock.heard(work) == [1] * messages

    async def test_a_series_ends(self, stock: Stock) -> None:
        """After the time for hand-overs a release wakes the first client in the list."""
        semaphore, other = await stock.made(1, local_hand_over_time=0.3), stock.open()
        await semaphore.acquire()
        theirs = await stock.waiter(other)
        mine = [await stock.waiter(semaphore) for _ in range(2)]
        await semaphore.release()
        await mine[0].result()
        await stock.backend.sleep(0.4)
        await semaphore.release()
        await theirs.result()
        await other.release()
        await mine[1].result()
        assert stock.free() == 0

    async def test_a_semaphore_that_was_changed(self, stock: Stock) -> None:
        semaphore, others = await contended(stock, 3)
        stock.redis.expire("stock", 60)
        await semaphore.release()
        await others[0].result()
        assert 50_000 < stock.redis.pttl("stock") <= 60_000
        # What another client takes away isn't handed on.
        await stock.open().reduce_permits(1)
        await semaphore.release()
        await stock.backend.sleep(0.05)
        assert not others[1].done()
        assert stock.free() == 0
        stock.java_adds(1)
        await others[1].result()
        # A release makes a semaphore that was deleted, and the waiter takes the permit.
        stock.redis.delete("stock")
        assert not await semaphore.release_if_exists()
        await stock.backend.sleep(0.05)
        assert not others[2].done()
        await semaphore.release()
        await others[2].result()
        assert stock.redis.get("stock") == b"0"

    async def test_the_server_refuses(self, stock: Stock) -> None:
        """The release fails as without a waiter, and so does the waiter."""
        semaphore, [other] = await contended(stock)
        stock.redis.set("stock", "text")
        for call in (semaphore.release, other.result):
            with pytest.raises(ResponseError):
                await call()


class TestOrder:
    async def test_of_arrival(self, stock: Stock) -> None:
        semaphore, others = await contended(stock, 6)
        for number, other in enumerate(others):
            await semaphore.release()
            await other.result()
            assert not any(later.done() for later in others[number + 1 :])

    async def test_several_permits(self, stock: Stock) -> None:
        """Of a release of several permits the first waiter gets what it wants, and the rest is published."""
        semaphore = await stock.made(5, local_hand_over_time=LONG)
        await semaphore.acquire(5)
        large, middle, small = [await stock.waiter(semaphore, permits) for permits in (6, 3, 2)]
        await semaphore.release(5)
        await middle.result()
        await small.result()
        assert not large.done()
        assert stock.free() == 0
        await semaphore.release(6)
        await large.result()


class Batch:
    """All permits are taken, as many callers of an event loop wait for one each, and all are released at once.

    Hand-overs that come while another one is on its way share a command.
    """

    COUNT = 4

    def __init__(self, tasks: Backend, server_state: ServerState, url: str | None = None) -> None:
        self._stock = Stock(tasks, server_state, "semaphore")
        self.semaphore = self._stock.open(url, local_hand_over_time=LONG, timeout=0.3)
        self.waiters: list[asyncio.Task[Any]] = []
        self.releases: list[asyncio.Task[None]] = []

    async def contend(self) -> None:
        await self.semaphore.try_set_permits(self.COUNT)
        assert await self.semaphore.available_permits() == self.COUNT
        await self.semaphore.acquire(self.COUNT)
        self.waiters = [asyncio.ensure_future(self.semaphore.acquire()) for _ in range(self.COUNT)]
        await self._stock.backend.until(lambda: permit_waiters(self.semaphore.client, "stock") == self.COUNT)

    def release(self) -> None:
        self.releases = [asyncio.ensure_future(self.semaphore.release(1)) for _ in range(self.COUNT)]

    async def end(self) -> None:
        """Returns when all of them have got what they asked for."""
        async with asyncio.timeout(TIME_LIMIT):
            await asyncio.gather(*self.releases, *self.waiters)
        await self.whole(self.COUNT)

    async def whole(self, taken: int) -> None:
        await self._stock.backend.until(lambda: self._stock.free() == self.COUNT - taken)
        await self.semaphore.release(taken)
        await self._stock.backend.until(lambda: self._stock.free() == self.COUNT)


class TestBatches:
    @pytest.fixture
    def batch(self, tasks: Backend, server_state: ServerState) -> Batch:
        return Batch(tasks, server_state)

    async def test_two_calls_for_many(self, batch: Batch, server_state: ServerState) -> None:
        await batch.contend()
        before = server_state.scripts()
        batch.release()
        await asyncio.gather(*batch.releases, *batch.waiters)
        assert server_state.scripts() - before == 2

    @pytest.mark.parametrize("who", ["releases", "waiters"])
    async def test_one_is_cancelled_at_any_turn(self, batch: Batch, who: str) -> None:
        """A release that was cancelled is done all the same, and so is whatever else was asked for."""
        struck = 0
        for turns in range(12):
            await batch.contend()
            batch.release()
            task = getattr(batch, who)[turns % batch.COUNT]
            cancelled = await cancel_after(turns, task)
            struck += cancelled and turns > 0
            if who == "releases" and not turns:
                # A task that was cancelled before it began has released nothing.
                await batch.semaphore.release()
            async with asyncio.timeout(TIME_LIMIT):
                await asyncio.gather(*{*batch.releases, *batch.waiters} - {task})
            await batch.whole(batch.COUNT - (cancelled and who == "waiters"))
        assert struck

    @LOSSES
    async def test_lost_replies(self, tasks: Backend, proxy: Proxy, server_state: ServerState, lose: Lose) -> None:
        batch = Batch(tasks, server_state, proxy.url)
        await batch.contend()
        lose(proxy, HAND_OVER)
        batch.release()
        await batch.end()

    async def test_the_server_refuses(self, batch: Batch, server_state: ServerState) -> None:
        await batch.contend()
        server_state.redis.set("stock", "text")
        batch.release()
        outcomes = await asyncio.gather(*batch.releases, *batch.waiters, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ResponseError] * 2 * batch.COUNT

    async def test_the_task_that_sends_it_is_cancelled(self, batch: Batch) -> None:
        """By somebody who cancels all tasks of the event loop that he doesn't know."""
        await batch.contend()
        known = asyncio.all_tasks()
        batch.release()
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - known - set(batch.releases):
            task.cancel()
        await batch.end()
