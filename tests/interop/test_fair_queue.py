"""One queue of a fair lock in which threads of Java and owners in Python wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.support.backends import Backend
from tests.support.children import CHILD_LIMIT, Child
from tests.support.inspecting import state_of

from .jvm import JavaClient, Jvm, now
from .targets import WOKEN, Target, timed

pytestmark = pytest.mark.asyncio

WAITS = """
import sys, pyredisson
pyredisson.connect(sys.argv[1]).get_fair_lock("orders").lock()
"""
"""A Python process that waits for the lock."""
DEAD_HEAD = 2.0
"""Seconds after which waiters in Python remove a head of the queue that died or doesn't take the free lock."""


class Line:
    """Waiters of both sides, in the order of their arrival. Each of them releases the lock as soon as it has it."""

    def __init__(self, target: Target, backend: Backend, java: JavaClient) -> None:
        self._target = target
        self._backend = backend
        self._java = java
        self._python = backend.connect()
        self._acquired: list[Callable[[], Awaitable[float]]] = []

    async def join_java(self) -> None:
        lock, thread = self._java.get("FairLock", "orders"), self._java.jvm.thread()
        before = len(self._target.queue("orders"))
        acquired = thread.begin(lock, "lock")
        thread.begin(lock, "unlock")

        async def moment() -> float:
            await self._backend.until(acquired.done, 15)
            return acquired.answer().ended

        await self._arrived(before, moment)

    async def join_python(self) -> None:
        before = len(self._target.queue("orders"))

        async def work() -> float:
            async with self._python.get_fair_lock("orders"):
                return now()

        await self._arrived(before, self._backend.spawn(work).result)

    async def _arrived(self, before: int, moment: Callable[[], Awaitable[float]]) -> None:
        await self._backend.until(lambda: len(self._target.queue("orders")) == before + 1)
        self._acquired.append(moment)

    async def moments(self) -> list[float]:
        """Waits for all; returns when each of them had the lock, in the order of their arrival."""
        return [await moment() for moment in self._acquired]


@pytest.fixture
def line(target: Target, backend: Backend, java: JavaClient) -> Line:
    return Line(target, backend, java)


class TestOrder:
    @pytest.mark.parametrize("side", ["java", "python"])
    async def test_of_both(self, side: str, line: Line, backend: Backend, java: JavaClient, target: Target) -> None:
        """That side holds the lock first."""
        theirs, ours = java.get("FairLock", "orders"), backend.connect().get_fair_lock("orders")
        await timed(side, java.ann, theirs, ours, "lock")
        for join in (line.join_python, line.join_python, line.join_java, line.join_java, line.join_python):
            await join()
        state = await state_of(backend.connect(), "orders")
        assert (state.kind, state.certain, state.waiter_count) == ("fair", True, 5)
        assert [waiter.owner.raw for waiter in state.waiters] == target.queue("orders")
        assert [waiter.place for waiter in state.waiters if waiter.alive is None] == [3, 4]  # Java doesn't say it
        assert all(100 < (waiter.place_lasts or 0) < 1000 for waiter in state.waiters[2:4])
        began, ended = await timed(side, java.ann, theirs, ours, "unlock")
        moments = await line.moments()
        assert moments == sorted(moments)
        assert began < moments[0]
        assert moments[-1] < ended + 5 * WOKEN
        await backend.until(lambda: not target.queue("orders") and not target.holds("orders"))

    async def test_waiters_that_give_up(self, line: Line, backend: Backend, java: JavaClient, target: Target) -> None:
        """They leave from the head and from the middle of the queue."""
        lock, client = java.get("FairLock", "orders"), backend.connect()
        java.ann.call(lock, "lock")
        # Long enough for the others to join meanwhile.
        gives_up_in_java = java.bob.begin(lock, "tryLock", 3000, "MILLISECONDS")
        await backend.until(lambda: len(target.queue("orders")) == 1)
        await line.join_python()

        async def attempt() -> bool:
            return await client.get_fair_lock("orders").try_lock(wait_time=3)

        gives_up_in_python = backend.spawn(attempt)
        await backend.until(lambda: len(target.queue("orders")) == 3)
        await line.join_java()
        assert not await gives_up_in_python.result()
        await backend.until(gives_up_in_java.done)
        assert not gives_up_in_java.result()
        released = java.ann.begin(lock, "unlock").answer()
        moments = await line.moments()
        assert moments == sorted(moments)
        assert moments[-1] < released.ended + 2 * WOKEN


class TestKilledWaiters:
    async def test_of_python(
        self, line: Line, backend: Backend, java: JavaClient, target: Target, child: Callable[..., Child]
    ) -> None:
        lock = java.get("FairLock", "orders")
        java.ann.call(lock, "lock")
        killed = child(WAITS, target.url)
        await backend.until(lambda: len(target.queue("orders")) == 1, CHILD_LIMIT)
        await line.join_java()
        await line.join_python()
        killed.close()
        released = java.ann.begin(lock, "unlock").answer()
        moments = await line.moments()
        assert moments == sorted(moments)
        assert moments[-1] < released.ended + DEAD_HEAD + 2 * WOKEN

    async def test_of_java(self, line: Line, backend: Backend, java: JavaClient, own_jvm: Jvm, target: Target) -> None:
        """Java's own rule decides: the score of its entry, here what is left of the lease and its time to wait."""
        lease, wait = 2, 4
        thread, client = own_jvm.thread(), own_jvm.connect(target.yaml())
        # The watchdog keeps the lease between two thirds of this time and all of it.
        holder = backend.connect(lock_watchdog_timeout=lease).get_fair_lock("orders")
        await holder.lock()
        began = now()
        # In milliseconds: without a lease, Redisson takes any number here for that.
        thread.begin(client.get("FairLock", "orders"), "tryLock", wait * 1000, "MILLISECONDS")
        await backend.until(lambda: len(target.queue("orders")) == 1)
        queued, [dead] = now(), target.queue("orders")
        await line.join_python()
        await line.join_java()
        own_jvm.kill()
        await holder.unlock()
        await backend.until(lambda: dead not in target.queue("orders"), wait + lease + WOKEN)
        moments = await line.moments()
        assert moments == sorted(moments)
        assert began + wait < moments[0] < queued + wait + lease + WOKEN
        assert moments[1] < moments[0] + WOKEN
