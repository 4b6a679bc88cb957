"""The waits of one event loop share one timer."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest
import pytest_asyncio

from pyredisson._backends.aio.sleeps import FEW, NEVER, Sleeps
from pyredisson._backends.aio.wakeup import AioWakeup


@pytest_asyncio.fixture
async def sleeps() -> Sleeps:
    return Sleeps(asyncio.get_running_loop())


@pytest.mark.asyncio
class TestSleeps:
    async def test_waits_end_in_the_order_of_their_times_and_not_early(self, sleeps: Sleeps) -> None:
        begin = monotonic()
        ended: list[float] = []

        async def wait(seconds: float) -> None:
            assert not await AioWakeup(sleeps).wait(seconds)
            assert monotonic() - begin >= seconds
            ended.append(seconds)

        # The first one is the longest: the timer is set anew for each of the others.
        await asyncio.gather(*map(wait, (0.09, 0.03, 0.06, 0.0, 0.03)))
        assert ended == [0.0, 0.03, 0.03, 0.06, 0.09]

    async def test_a_wait_without_end_goes_on_until_it_is_woken(self, sleeps: Sleeps) -> None:
        endless, long = AioWakeup(sleeps), AioWakeup(sleeps)
        tasks = [asyncio.create_task(endless.wait(None)), asyncio.create_task(long.wait(float("inf")))]
        assert not await AioWakeup(sleeps).wait(0.01)
        assert not any(task.done() for task in tasks)
        endless.set()
        long.set()
        assert await asyncio.gather(*tasks) == [True, True]

    async def test_a_wakeup_is_used_for_many_waits(self, sleeps: Sleeps) -> None:
        wakeup = AioWakeup(sleeps)
        for _ in range(3):
            waiting = asyncio.create_task(wakeup.wait(30))
            await asyncio.sleep(0)
            wakeup.set()
            assert await waiting
            wakeup.clear()
            assert not await wakeup.wait(0.001)

    async def test_a_wait_that_was_cancelled_leaves_nothing_behind(self, sleeps: Sleeps) -> None:
        wakeup = AioWakeup(sleeps)
        waiting = asyncio.create_task(wakeup.wait(30))
        await asyncio.sleep(0)
        assert wakeup.ends_at < NEVER
        waiting.cancel()
        await asyncio.wait([waiting])
        assert wakeup.ends_at == NEVER

    async def test_waits_that_were_woken_are_forgotten(self, sleeps: Sleeps) -> None:
        long = asyncio.create_task(AioWakeup(sleeps).wait(0.05))
        for _ in range(10 * FEW):
            wakeup = AioWakeup(sleeps)
            waiting = asyncio.create_task(wakeup.wait(30))
            await asyncio.sleep(0)
            wakeup.set()
            assert await waiting
        assert len(sleeps._heap) <= 2 * FEW
        assert not await long

    async def test_a_signal_in_the_timer_loses_no_wait(self, sleeps: Sleeps) -> None:
        """The handler of a signal may raise on any line, also where the waits are ended that are over."""

        class Failing(AioWakeup):
            fails = True

            def on_end(self) -> None:
                if self.fails:
                    self.fails = False
                    raise TimeoutError
                super().on_end()

        errors: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))
        waits = [AioWakeup(sleeps), Failing(sleeps), AioWakeup(sleeps)]
        assert await asyncio.gather(*(wakeup.wait(0.01) for wakeup in waits)) == [False] * 3
        assert [type(error) for error in errors] == [TimeoutError]


def test_a_task_of_a_closed_loop_is_not_woken() -> None:
    """Also if it doesn't sleep: it may wait for a reply. A message for it would be lost for the others."""
    loop = asyncio.new_event_loop()
    wakeup = AioWakeup(Sleeps(loop))
    assert wakeup.alive
    loop.close()
    assert not wakeup.alive
