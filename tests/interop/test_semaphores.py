"""Semaphores and count-down latches that both sides use."""

from __future__ import annotations

import pytest

from tests.support.backends import Backend

from .jvm import JavaClient, Jvm, now
from .targets import WOKEN, Target, wakes

pytestmark = pytest.mark.asyncio


class TestSemaphore:
    async def test_one_number_of_permits(self, backend: Backend, java: JavaClient) -> None:
        ours, theirs = backend.connect().get_semaphore("seats"), java.get("Semaphore", "seats")
        assert java.ann.call(theirs, "trySetPermits", 5)
        assert not await ours.try_set_permits(7)
        assert await ours.try_acquire(2)
        assert java.ann.call(theirs, "availablePermits") == 3
        assert java.ann.call(theirs, "tryAcquire", 3)
        assert await ours.available_permits() == 0
        assert not await ours.try_acquire()
        assert not java.ann.call(theirs, "tryAcquire", 1)
        # Permits have no owners: what one side has acquired, the other may release.
        await ours.release(3)
        java.ann.call(theirs, "release", 2)
        assert await ours.available_permits() == java.ann.call(theirs, "availablePermits") == 5
        await ours.add_permits(2)
        java.ann.call(theirs, "addPermits", 3)
        assert await ours.available_permits() == 10
        await ours.reduce_permits(4)
        assert java.ann.call(theirs, "drainPermits") == 6
        assert await ours.drain_permits() == 0

    async def test_java_waits_for_python(self, backend: Backend, java: JavaClient, jvm: Jvm, target: Target) -> None:
        """One message frees several threads: Java wakes as many as it says there are permits."""
        ours, theirs = backend.connect().get_semaphore("seats"), java.get("Semaphore", "seats")
        await ours.try_set_permits(0)
        waiters = [jvm.thread().begin(theirs, "tryAcquire", 1, 20, "SECONDS") for _ in range(4)]
        await target.until_java_waits(backend, "Semaphore", "seats")
        began = now()
        await ours.release(4)
        for answer in [waiter.answer() for waiter in waiters]:
            assert answer.result is True
            assert began < answer.ended < began + WOKEN
        assert await ours.available_permits() == 0

    async def test_permits_that_appear(self, backend: Backend, java: JavaClient, target: Target) -> None:
        """Whoever makes the semaphore wakes those who wait for it on the other side."""
        ours, theirs = backend.connect().get_semaphore("seats"), java.get("Semaphore", "seats")
        waiter = java.ann.begin(theirs, "acquire")
        await backend.until(target.waiting("Semaphore", "seats"))
        await wakes(waiter, lambda: ours.try_set_permits(1))
        waiter = java.ann.begin(theirs, "acquire")
        await backend.sleep(0.1)
        await wakes(waiter, lambda: ours.add_permits(1))


class TestCountDownLatch:
    async def test_one_count(self, backend: Backend, java: JavaClient) -> None:
        ours, theirs = backend.connect().get_count_down_latch("done"), java.get("CountDownLatch", "done")
        assert await ours.try_set_count(4)
        assert not java.ann.call(theirs, "trySetCount", 2)
        for left in (2, 0):
            await ours.count_down()
            java.ann.call(theirs, "countDown")
            assert await ours.get_count() == java.ann.call(theirs, "getCount") == left
        assert java.ann.call(theirs, "trySetCount", 1)
        assert not await ours.try_set_count(1)
        assert await ours.delete()
        assert java.ann.call(theirs, "getCount") == 0

    @pytest.mark.parametrize("last", ["java", "python"])
    async def test_waiters_of_both(self, last: str, backend: Backend, java: JavaClient, target: Target) -> None:
        latch, theirs = backend.connect().get_count_down_latch("done"), java.get("CountDownLatch", "done")
        assert await latch.try_set_count(2)

        async def wait() -> float:
            assert await latch.wait(20)
            return now()

        in_python, in_java = backend.spawn(wait), java.bob.begin(theirs, "await", 20, "SECONDS")
        await target.until_java_waits(backend, "CountDownLatch", "done", 2)
        for side in ("python", "java") if last == "java" else ("java", "python"):
            assert not in_java.done()
            assert not in_python.done()
            began = now()
            if side == "java":
                java.ann.call(theirs, "countDown")
            else:
                await latch.count_down()
            ended = now()
        answer = in_java.answer()
        assert answer.result is True
        assert began < answer.ended < ended + WOKEN
        assert began < await in_python.result() < ended + WOKEN
        assert not target.redis.exists("done")
