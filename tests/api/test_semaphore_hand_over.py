"""Handing permits on inside one client: how many calls that takes, in which order, and what others may rely on."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from redis.exceptions import ResponseError

from pyredisson._protocol.scripts import script
from pyredisson.asyncio import Semaphore
from pyredisson.errors import ClosedError
from pyredisson.logic.permits import claims, permit_queue
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, WORK_LIMIT, Backend, OtherOwner
from tests.support.faults import FLAGS
from tests.support.server_state import ServerState
from tests.support.waiting import cancel_after, permit_waiters

from .semaphore import CHANNEL, free, java_release

pytestmark = pytest.mark.asyncio
ROUNDS = 8
TRIES = 5
LONG = 60.0
"""A hand-over time that doesn't end in a test: then the number of calls doesn't depend on the machine."""
HAND_OVER, FINISH, ADD = (
    script(f"semaphore_{name}", with_shebang=FLAGS).sha for name in ("hand_over", "finish", "add")
)


async def rounds(semaphore: Semaphore, count: int) -> None:
    for _ in range(count):
        await semaphore.acquire()
        await semaphore.release()


async def waiting(backend: Backend, client: Any, count: int = 1, permits: int = 1) -> list[OtherOwner[None]]:
    """So many callers that wait for permits, in the order in which they came."""
    semaphore = client.get_semaphore("stock")
    before = permit_waiters(client, "stock")
    others = []
    for number in range(1, count + 1):
        others.append(backend.spawn(lambda: semaphore.acquire(permits)))
        await backend.until(lambda: permit_waiters(client, "stock") == before + number)  # noqa: B023
    return others


class TestCalls:
    @pytest.mark.parametrize(("callers", "permits"), [(64, 1), (64, 8)])
    async def test_one_for_each_acquisition_in_one_client(
        self, backend: Backend, server_state: ServerState, callers: int, permits: int
    ) -> None:
        """Without hand-overs there are always two and more.

        On a busy machine many releases find nobody asleep. So the best of some tries counts.
        """
        client = backend.connect(local_hand_over_time=LONG)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(permits)
        calls: list[int] = []
        while len(calls) < TRIES and min(calls, default=math.inf) > 1.8 * callers * 2 * ROUNDS:
            before = server_state.scripts()
            others = [backend.spawn(lambda: rounds(semaphore, 2 * ROUNDS)) for _ in range(callers)]
            for other in others:
                await other.result(WORK_LIMIT)
            calls.append(server_state.scripts() - before)
            assert free(server_state) == permits
        assert min(calls) <= 1.8 * callers * 2 * ROUNDS, calls

    async def test_of_500_tasks(self, tasks: Backend, server_state: ServerState) -> None:
        """With the first attempts, which all of them make before the first one is refused."""
        semaphore = tasks.connect(local_hand_over_time=LONG).get_semaphore("stock")
        await semaphore.try_set_permits(50)
        before = server_state.scripts()
        await asyncio.gather(*(rounds(semaphore, ROUNDS) for _ in range(500)))
        assert server_state.scripts() - before <= 1.5 * 500 * ROUNDS
        assert free(server_state) == 50

    async def test_of_two_clients(self, backend: Backend, server_state: ServerState) -> None:
        semaphores = [backend.connect().get_semaphore("stock") for _ in range(2)]
        await semaphores[0].try_set_permits(4)
        before = server_state.scripts()
        others = [backend.spawn(lambda one=one: rounds(one, ROUNDS)) for one in semaphores for _ in range(16)]  # type: ignore[misc]
        for other in others:
            await other.result()
        assert server_state.scripts() - before <= 3.5 * 32 * ROUNDS
        assert free(server_state) == 4

    async def test_messages_in_a_row_wake_as_many_as_there_are_permits(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        """The messages say how many permits are free: 1, 2, 3. Three waiters make an attempt, not six."""
        client = backend.connect()
        others = await waiting(backend, client, 6)
        before = server_state.scripts()
        with server_state.redis.pipeline(transaction=True) as together:
            for number in range(1, 4):
                together.incrby("stock", 1)
                together.publish(CHANNEL, number)
            together.execute()
        await backend.until(lambda: sum(other.done() for other in others) == 3)
        await backend.sleep(0.1)
        assert server_state.scripts() - before <= 4
        java_release(server_state, 3)
        for other in others:
            await other.result()


class TestOthers:
    @pytest.mark.parametrize(("seconds", "messages"), [(LONG, 1), (0, 5)])
    async def test_messages(self, backend: Backend, server_state: ServerState, seconds: float, messages: int) -> None:
        """Permits that are handed on publish nothing; the last release does."""
        client = backend.connect(local_hand_over_time=seconds)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(1)
        await semaphore.acquire()
        others = await waiting(backend, client, 4)
        heard = []
        with server_state.redis.pubsub(ignore_subscribe_messages=True) as listening:
            listening.subscribe(CHANNEL)
            for other in others:
                await semaphore.release()
                await other.result()
            await semaphore.release()
            server_state.redis.publish(CHANNEL, "end")
            while (message := listening.get_message(timeout=TIME_LIMIT)) is None or message["data"] != b"end":
                heard += [] if message is None else [message["data"]]
        assert heard == [b"1"] * messages

    async def test_another_client_gets_its_turn(self, backend: Backend) -> None:
        """However long the callers of one client hand permits on, another client gets one."""
        busy, other = backend.connect(), backend.connect()
        assert await other.get_semaphore("stock").try_set_permits(2)
        ended = False

        async def cycle() -> None:
            semaphore = busy.get_semaphore("stock")
            while not ended:
                await rounds(semaphore, 1)

        others = [backend.spawn(cycle) for _ in range(8)]
        semaphore = other.get_semaphore("stock")
        for _ in range(3):
            assert await semaphore.try_acquire(1, TIME_LIMIT)
            await semaphore.release()
        ended = True
        for each in others:
            await each.result()

    async def test_a_series_ends(
        self, backend: Backend, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After the time for hand-overs the next release is published. Then others come first for as long."""
        # Long enough also for a busy machine.
        monkeypatch.setattr(permit_queue, "OTHERS_FIRST", 0.5)
        client, other = backend.connect(local_hand_over_time=0.3), backend.connect()
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(1)
        await semaphore.acquire()
        mine = await waiting(backend, client, 3)
        [theirs] = await waiting(backend, other)
        await semaphore.release()
        await mine[0].result()
        await backend.sleep(0.4)
        # This one is published, and the other client is first.
        await semaphore.release()
        await theirs.result()
        assert not mine[1].done()
        await semaphore.release()
        await mine[1].result()
        await semaphore.release()
        await mine[2].result()
        assert free(server_state) == 0

    async def test_a_smaller_semaphore(self, backend: Backend, server_state: ServerState) -> None:
        """What another client takes away isn't handed on."""
        client = backend.connect(local_hand_over_time=LONG)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(1)
        await semaphore.acquire()
        [other] = await waiting(backend, client)
        await backend.connect().get_semaphore("stock").reduce_permits(1)
        await semaphore.release()
        await backend.sleep(0.05)
        assert not other.done()
        assert free(server_state) == 0
        java_release(server_state, 1)
        await other.result()

    async def test_a_deleted_semaphore(self, backend: Backend, server_state: ServerState) -> None:
        """As after a release and an acquire: the release makes a semaphore, and the waiter takes the permit."""
        client = backend.connect(local_hand_over_time=LONG)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(1)
        await semaphore.acquire()
        [other] = await waiting(backend, client)
        server_state.redis.delete("stock")
        assert not await semaphore.release_if_exists()
        await backend.sleep(0.05)
        assert not other.done()
        await semaphore.release()
        await other.result()
        assert server_state.redis.get("stock") == b"0"

    async def test_the_end_of_the_semaphore_stays(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect(local_hand_over_time=LONG)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(1, ttl=60)
        await semaphore.acquire()
        [other] = await waiting(backend, client)
        await semaphore.release()
        await other.result()
        assert 50_000 < server_state.redis.pttl("stock") <= 60_000

    async def test_a_claim_of_another_client_is_respected(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect(local_hand_over_time=LONG)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(1)
        await semaphore.acquire()
        [other] = await waiting(backend, client)
        server_state.redis.set("pyredisson_semaphore_claim:{stock}", "2 another:1", px=60_000)
        await semaphore.release()
        assert free(server_state) == 1
        assert not other.done()
        server_state.redis.delete("pyredisson_semaphore_claim:{stock}")
        java_release(server_state, 0)
        server_state.redis.publish(CHANNEL, "1")
        await other.result()


class TestOrder:
    async def test_of_arrival(self, backend: Backend) -> None:
        client = backend.connect(local_hand_over_time=LONG)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(1)
        await semaphore.acquire()
        others = await waiting(backend, client, 6)
        for number, other in enumerate(others):
            await semaphore.release()
            await other.result()
            assert not any(later.done() for later in others[number + 1 :])

    async def test_several_permits(self, backend: Backend, server_state: ServerState) -> None:
        """Of a release of several permits the first waiter gets what it wants, and the rest is published."""
        client = backend.connect(local_hand_over_time=LONG)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(5)
        await semaphore.acquire(5)
        [large] = await waiting(backend, client, 1, 6)
        [middle] = await waiting(backend, client, 1, 3)
        [small] = await waiting(backend, client, 1, 2)
        await semaphore.release(5)
        await middle.result()
        await small.result()
        assert not large.done()
        assert free(server_state) == 0
        await semaphore.release(6)
        await large.result()

    async def test_a_waiter_for_many_is_not_starved(
        self, backend: Backend, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It claims its permits. Then nothing is handed on, here and by other clients."""
        monkeypatch.setattr(claims, "CLAIM_DELAY", 0.2)
        client = backend.connect(local_hand_over_time=LONG)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(4)
        ended = False

        async def cycle() -> None:
            while not ended:
                await rounds(semaphore, 1)

        others = [backend.spawn(cycle) for _ in range(12)]
        await backend.until(lambda: permit_waiters(client, "stock") > 0)
        assert await semaphore.try_acquire(4, TIME_LIMIT)
        ended = True
        await semaphore.release(4)
        for other in others:
            await other.result()
        await backend.until(lambda: free(server_state) == 4)


class TestFailures:
    @pytest.mark.parametrize("fault", ["drop_reply", "cut_reply", "cut_request"])
    async def test_a_lost_reply(self, backend: Backend, proxy: Proxy, server_state: ServerState, fault: str) -> None:
        client = backend.connect(proxy.url, local_hand_over_time=LONG, timeout=0.3)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(1)
        await semaphore.acquire()
        [other] = await waiting(backend, client)
        getattr(proxy, fault)(HAND_OVER)
        await semaphore.release()
        await other.result()
        assert free(server_state) == 0
        await semaphore.release()
        assert free(server_state) == 1

    async def test_the_server_refuses(self, backend: Backend, server_state: ServerState) -> None:
        """The release fails as without a waiter, and so does the waiter."""
        client = backend.connect(local_hand_over_time=LONG)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(1)
        await semaphore.acquire()
        [other] = await waiting(backend, client)
        server_state.redis.set("stock", "text")
        with pytest.raises(ResponseError):
            await semaphore.release()
        with pytest.raises(ResponseError):
            await other.result()

    async def test_a_waiter_whose_time_is_over(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect(local_hand_over_time=LONG)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(1)
        await semaphore.acquire()
        assert not await backend.as_another_owner(lambda: semaphore.try_acquire(1, 0.05))
        await semaphore.release()
        assert free(server_state) == 1
        assert permit_waiters(client, "stock") == 0
        assert getattr(client, "_target", client)._session.permits.queues == {}

    async def test_a_waiter_that_is_cancelled_while_it_gets_its_permit(
        self, tasks: Backend, proxy: Proxy, server_state: ServerState
    ) -> None:
        client, late = await self._in_flight(tasks, proxy)
        late.waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late.waiter
        late.reply.deliver()
        await late.release
        await tasks.until(lambda: free(server_state) == 1)
        assert await client.get_semaphore("stock").try_acquire()

    async def test_another_waiter_gets_the_permit_of_one_that_is_cancelled(
        self, tasks: Backend, proxy: Proxy, server_state: ServerState
    ) -> None:
        client, late = await self._in_flight(tasks, proxy)
        [next_one] = await waiting(tasks, client)
        late.waiter.cancel()
        late.reply.deliver()
        await late.release
        await next_one.result()
        assert free(server_state) == 0

    async def test_a_release_that_is_cancelled(self, tasks: Backend, proxy: Proxy, server_state: ServerState) -> None:
        client, late = await self._in_flight(tasks, proxy)
        late.release.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late.release
        late.reply.deliver()
        async with asyncio.timeout(TIME_LIMIT):
            await late.waiter
        assert free(server_state) == 0
        await client.get_semaphore("stock").release()
        assert free(server_state) == 1

    async def test_the_client_is_closed(self, tasks: Backend, proxy: Proxy, server_state: ServerState) -> None:
        client, late = await self._in_flight(tasks, proxy)
        await client.close()
        with pytest.raises(ClosedError):
            await late.waiter
        await asyncio.wait([late.release])
        await tasks.until(lambda: free(server_state) == 1)

    async def _in_flight(self, tasks: Backend, proxy: Proxy) -> tuple[Any, InFlight]:
        """A hand-over whose reply is held up."""
        client = tasks.connect(proxy.url, local_hand_over_time=LONG)
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(1)
        await semaphore.acquire()
        waiter = asyncio.ensure_future(semaphore.acquire())
        await tasks.until(lambda: permit_waiters(client, "stock") == 1)
        reply = proxy.hold_reply(HAND_OVER)
        release = asyncio.ensure_future(semaphore.release())
        assert await asyncio.to_thread(reply.held.wait, TIME_LIMIT)
        return client, InFlight(waiter, release, reply)


class TestBatches:
    """In an event loop, hand-overs that come while another one is on its way share a command."""

    COUNT = 4

    async def _contend(self, tasks: Backend, client: Any) -> tuple[Semaphore, list[asyncio.Task[None]]]:
        """All permits are taken, and as many callers wait for one each."""
        semaphore: Semaphore = client.get_semaphore("stock")
        if not await semaphore.try_set_permits(self.COUNT):
            assert await semaphore.available_permits() == self.COUNT
        await semaphore.acquire(self.COUNT)
        waiters = [asyncio.ensure_future(semaphore.acquire()) for _ in range(self.COUNT)]
        await tasks.until(lambda: permit_waiters(client, "stock") == self.COUNT)
        return semaphore, waiters

    def _release(self, semaphore: Semaphore) -> list[asyncio.Task[None]]:
        return [asyncio.ensure_future(semaphore.release()) for _ in range(self.COUNT)]

    async def _whole(self, tasks: Backend, server_state: ServerState, semaphore: Semaphore, taken: int) -> None:
        await tasks.until(lambda: free(server_state) == self.COUNT - taken)
        await semaphore.release(taken)
        await tasks.until(lambda: free(server_state) == self.COUNT)

    async def test_two_calls_for_many(self, tasks: Backend, server_state: ServerState) -> None:
        semaphore, waiters = await self._contend(tasks, tasks.connect(local_hand_over_time=LONG))
        before = server_state.scripts()
        await asyncio.gather(*self._release(semaphore), *waiters)
        assert server_state.scripts() - before == 2
        assert free(server_state) == 0

    async def test_a_release_is_cancelled_at_any_turn(self, tasks: Backend, server_state: ServerState) -> None:
        """It is done all the same, and so are the others."""
        client = tasks.connect(local_hand_over_time=LONG)
        struck = 0
        for turns in range(12):
            semaphore, waiters = await self._contend(tasks, client)
            releases = self._release(semaphore)
            struck += await cancel_after(turns, releases[turns % self.COUNT]) and turns > 0
            _, pending = await asyncio.wait(releases, timeout=TIME_LIMIT)
            assert not pending
            # A task that was cancelled before it began has released nothing.
            if not turns:
                await semaphore.release()
            async with asyncio.timeout(TIME_LIMIT):
                await asyncio.gather(*waiters)
            await self._whole(tasks, server_state, semaphore, self.COUNT)
        assert struck

    async def test_a_waiter_is_cancelled_at_any_turn(self, tasks: Backend, server_state: ServerState) -> None:
        client = tasks.connect(local_hand_over_time=LONG)
        struck = 0
        for turns in range(12):
            semaphore, waiters = await self._contend(tasks, client)
            releases = self._release(semaphore)
            cancelled = await cancel_after(turns, waiters[turns % self.COUNT])
            struck += cancelled
            async with asyncio.timeout(TIME_LIMIT):
                await asyncio.gather(*releases)
                await asyncio.gather(*waiters, return_exceptions=True)
            await self._whole(tasks, server_state, semaphore, self.COUNT - cancelled)
        assert struck

    @pytest.mark.parametrize("fault", ["drop_reply", "cut_reply", "cut_request"])
    async def test_lost_replies(self, tasks: Backend, proxy: Proxy, server_state: ServerState, fault: str) -> None:
        client = tasks.connect(proxy.url, local_hand_over_time=LONG, timeout=0.3)
        semaphore, waiters = await self._contend(tasks, client)
        getattr(proxy, fault)(HAND_OVER)
        async with asyncio.timeout(TIME_LIMIT):
            await asyncio.gather(*self._release(semaphore), *waiters)
        await self._whole(tasks, server_state, semaphore, self.COUNT)

    async def test_the_server_refuses(self, tasks: Backend, server_state: ServerState) -> None:
        semaphore, waiters = await self._contend(tasks, tasks.connect(local_hand_over_time=LONG))
        server_state.redis.set("stock", "text")
        outcomes = await asyncio.gather(*self._release(semaphore), *waiters, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ResponseError] * 2 * self.COUNT

    async def test_the_client_is_closed(self, tasks: Backend, proxy: Proxy, server_state: ServerState) -> None:
        client = tasks.connect(proxy.url, local_hand_over_time=LONG)
        semaphore, waiters = await self._contend(tasks, client)
        reply = proxy.hold_reply(HAND_OVER)
        releases = self._release(semaphore)
        assert await asyncio.to_thread(reply.held.wait, TIME_LIMIT)
        await client.close()
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ClosedError] * self.COUNT
        await asyncio.wait(releases)
        await tasks.until(lambda: free(server_state) == self.COUNT)

    async def test_the_task_that_sends_it_is_cancelled(self, tasks: Backend, server_state: ServerState) -> None:
        """By somebody who cancels all tasks of the event loop that he doesn't know."""
        client = tasks.connect(local_hand_over_time=LONG)
        semaphore, waiters = await self._contend(tasks, client)
        known = asyncio.all_tasks()
        releases = self._release(semaphore)
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - known - set(releases):
            task.cancel()
        async with asyncio.timeout(TIME_LIMIT):
            await asyncio.gather(*releases, *waiters)
        await self._whole(tasks, server_state, semaphore, self.COUNT)


class InFlight:
    """A hand-over that the server has executed."""

    def __init__(self, waiter: asyncio.Future[None], release: asyncio.Future[None], reply: Any) -> None:
        self.waiter, self.release, self.reply = waiter, release, reply
