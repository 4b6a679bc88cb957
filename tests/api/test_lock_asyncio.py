"""Asyncio only: owners, cancellation, calls that are awaited in tasks of other libraries, and the timer of a loop."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from pyredisson import LockLostError, LockNotHeldError
from pyredisson._backends.aio.wakeup import FEW, NEVER, AioWakeup, Sleeps
from pyredisson.asyncio import Lock
from tests.support.backends import TIME_LIMIT, WOKEN, Backend, cancel_after, fails
from tests.support.faults import AtSteps
from tests.support.kinds import acquired

from .kinds import lock_of


class TestOwner:
    async def test_calls_in_tasks_that_are_made_for_them(self, tasks: Backend) -> None:
        client = tasks.connect()
        orders, stock, semaphore = client.get_lock("orders"), client.get_lock("stock"), client.get_semaphore("permits")
        await asyncio.gather(orders.lock(), stock.lock())
        taken, held, count = await asyncio.gather(orders.try_lock(), orders.is_held(), orders.get_hold_count())
        assert (taken, held, count) == (True, True, 2)
        await asyncio.gather(orders.unlock(), stock.unlock())
        assert (await asyncio.wait_for(orders.is_held(), TIME_LIMIT), await stock.is_held()) == (True, False)
        await asyncio.wait_for(orders.unlock(), TIME_LIMIT)
        assert not await orders.is_locked()
        call = orders.lock()
        assert asyncio.iscoroutine(call)
        await asyncio.create_task(call)
        assert (await orders.is_held(), await semaphore.try_set_permits(1)) == (True, True)
        async with asyncio.TaskGroup() as group:
            group.create_task(orders.lock(), name="locks for the task that made it")
            group.create_task(semaphore.acquire())
        assert await orders.get_hold_count() == 2
        assert await semaphore.release() is None  # type: ignore[func-returns-value]
        assert await semaphore.acquire() is None  # type: ignore[func-returns-value]

    async def test_without_a_task(self, tasks: Backend) -> None:
        client, loop = tasks.connect(), asyncio.get_running_loop()

        async def called_back(owner: int | None) -> Any:
            outcome: asyncio.Future[Any] = loop.create_future()

            def callback() -> None:
                try:
                    outcome.set_result(client.get_lock("orders", owner=owner).lock())
                except RuntimeError as error:
                    outcome.set_exception(error)

            loop.call_soon(callback)
            return await outcome

        await fails(RuntimeError, called_back, None, match="task")
        await (await called_back(1))
        assert await client.get_lock("orders", owner=1).is_held()


async def until_lost(redis: Any = None) -> None:
    """A body that would never end. Whoever gives the server's state loses the lock."""
    if redis is not None:
        redis.delete("orders")
    await asyncio.sleep(TIME_LIMIT)
    pytest.fail("the body was not cancelled")


class TestLostBody:
    """`async with` ends its body when the hold is lost."""

    @pytest.fixture
    def lock(self, tasks: Backend) -> Lock:
        return tasks.connect(lock_watchdog_timeout=0.9).get_lock("orders")

    async def test_it_is_cancelled(self, tasks: Backend, lock: Lock, redis: Any) -> None:
        task: Any = asyncio.current_task()
        client = tasks.connect()
        stock, group = client.get_lock("stock"), client.get_multi_lock(lock, client.get_lock("in a group"))
        nested = [lock, lock, lock.hold()]
        scopes: list[list[Any]] = [[lock], [lock.hold()], [lock.hold(wait_time=1)], nested, [lock, stock], [group]]
        for entered in [*scopes, [lock, asyncio.timeout(TIME_LIMIT)]]:
            with pytest.raises(LockLostError, match="orders"):
                async with contextlib.AsyncExitStack() as stack:
                    for scope in entered:
                        await stack.enter_async_context(scope)
                    await until_lost(redis)
            assert task.cancelling() == 0
            await asyncio.sleep(0)
            assert (await lock.get_hold_count(), await stock.is_locked()) == (0, False)
            await tasks.until(lambda: not redis.keys())
            await fails(LockNotHeldError, lock.unlock, match="is free")
        # The body's own exception wins.
        with pytest.raises(KeyError) as caught:
            async with lock:
                try:
                    await until_lost(redis)
                except asyncio.CancelledError:
                    raise KeyError("mine") from None
        assert any("LockLostError" in note for note in caught.value.__notes__)
        # The outer block is cancelled, whatever became of the inner one and of other tasks that use the same object.
        hold, inside = lock.hold(), list[int]()

        async def job() -> None:
            async with hold:
                inside.append(1)
                await asyncio.sleep(0.01)
                assert len(inside) == 1
                inside.pop()

        await asyncio.gather(job(), job(), job())
        with pytest.raises(LockLostError):
            async with hold:
                async with hold:
                    pass
                await until_lost(redis)
        async with lock:
            assert await lock.is_held()

    @pytest.mark.parametrize("kind", ["lock", "multi"])
    async def test_a_fixed_lease(self, tasks: Backend, kind: str) -> None:
        """By default its body is cancelled when it ends."""
        lock = lock_of(tasks.connect(), kind)
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(LockLostError):
            async with lock.hold(lease_time=0.1):
                await until_lost()
        assert 0.09 < loop.time() - started < WOKEN
        finished = False
        with pytest.raises(LockLostError):
            async with lock.hold(lease_time=0.05, cancel_on_lost=False):
                assert await lock.lost.wait(TIME_LIMIT)
                await asyncio.sleep(0.02)
                finished = True
        assert finished

    async def test_a_cancellation_that_comes_when_the_body_has_ended(self, lock: Lock) -> None:
        """It must cancel nothing else. The body didn't yield, or ends as the lock is lost."""
        task: Any = asyncio.current_task()
        with pytest.raises(LockLostError):
            async with lock.hold(lease_time=0.05):
                time.sleep(0.1)
        assert task.cancelling() == 0
        await asyncio.sleep(0.02)
        for step in range(15):
            with contextlib.suppress(LockLostError):
                async with lock.hold(lease_time=0.02):
                    await asyncio.sleep(0.013 + step * 0.001)
            assert task.cancelling() == 0
            await asyncio.sleep(0)
            await asyncio.wait_for(lock.force_unlock(), TIME_LIMIT)

    async def test_a_cancellation_from_outside_stays_one(self, lock: Lock) -> None:
        """Who was cancelled from outside must end, also if the lock is lost."""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), lock:
                await until_lost()
        assert not await lock.is_locked()
        entered = asyncio.Event()

        async def work() -> None:
            async with lock:
                entered.set()
                await until_lost()

        task = asyncio.create_task(work())
        await entered.wait()
        await lock.force_unlock()
        assert await cancel_after(0, task)
        assert not await lock.is_locked()


async def test_the_watchdog_does_not_need_the_loop(tasks: Backend) -> None:
    lock = await acquired(tasks.connect(lock_watchdog_timeout=1.5).get_lock("orders"))
    time.sleep(2)
    assert (lock.lost.is_set(), await lock.is_held()) == (False, True)


async def test_two_loops_at_a_time(tasks: Backend) -> None:
    lock = await acquired(tasks.connect().get_lock("orders", owner=1))
    await fails(RuntimeError, asyncio.to_thread, lambda: asyncio.run(lock.is_locked()), match="loop")


@pytest.fixture
async def sleeps() -> Sleeps:
    return Sleeps(asyncio.get_running_loop())


async def woken(wakeup: AioWakeup) -> bool:
    """Whether a long wait ends when it is woken."""
    waiting = asyncio.create_task(wakeup.wait(30))
    await asyncio.sleep(0)
    wakeup.set()
    return await waiting


class TestSleeps:
    """The waits of one event loop share one timer."""

    async def test_waits_end_in_the_order_of_their_times_and_not_early(self, sleeps: Sleeps) -> None:
        begin, ended = time.monotonic(), list[float]()

        async def wait(seconds: float) -> None:
            assert not await AioWakeup(sleeps).wait(seconds)
            assert time.monotonic() - begin >= seconds
            ended.append(seconds)

        # The first one is the longest: the timer is set anew for each of the others.
        await asyncio.gather(*map(wait, (0.09, 0.03, 0.06, 0.0, 0.03)))
        assert ended == [0.0, 0.03, 0.03, 0.06, 0.09]

    async def test_waits_that_have_ended_leave_nothing_behind(self, sleeps: Sleeps) -> None:
        """Those that were woken, are over, or were cancelled. A wakeup is used for many waits."""
        long = asyncio.create_task(AioWakeup(sleeps).wait(0.05))
        for _ in range(10 * FEW):
            assert await woken(AioWakeup(sleeps))
        assert len(sleeps._heap) <= 2 * FEW
        assert not await long
        wakeup = AioWakeup(sleeps)
        for _ in range(3):
            assert await woken(wakeup)
            wakeup.clear()
            assert not await wakeup.wait(0.001)
            waiting = asyncio.create_task(wakeup.wait(30))
            await asyncio.sleep(0)
            assert wakeup.ends_at < NEVER
            assert await cancel_after(0, waiting)
            assert wakeup.ends_at == NEVER

    @pytest.mark.parametrize("step", [Sleeps._ring, Sleeps._set_timer])
    async def test_a_signal_where_the_timer_rings_loses_no_wait(self, sleeps: Sleeps, step: Callable[..., Any]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        waits = [asyncio.create_task(AioWakeup(sleeps).wait(seconds)) for seconds in (0.01, 0.02)]
        await asyncio.sleep(0)
        with AtSteps((step, Mock(side_effect=TimeoutError))) as steps:
            done, _ = await asyncio.wait(waits, timeout=TIME_LIMIT)
        assert (steps.happened, len(done)) == (True, 2)

    async def test_a_signal_in_the_timer_loses_no_wait(self, sleeps: Sleeps) -> None:
        """The handler of a signal may raise on any line, also where the waits are ended that are over."""

        class Failing(AioWakeup):
            fails = True

            def on_end(self) -> None:
                if self.fails:
                    self.fails = False
                    raise TimeoutError
                super().on_end()

        errors, loop = list[object](), asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))
        waits = [AioWakeup(sleeps), Failing(sleeps), AioWakeup(sleeps)]
        assert await asyncio.gather(*(wakeup.wait(0.01) for wakeup in waits)) == [False] * 3
        assert [type(error) for error in errors] == [TimeoutError]

    async def test_an_interrupt_where_the_timer_is_set_loses_no_later_wait(self, sleeps: Sleeps) -> None:
        """As a RecursionError of a call that is deep in the stack."""
        sleeps.loop, loop = Mock(call_later=Mock(side_effect=RecursionError)), sleeps.loop
        with pytest.raises(RecursionError):
            await AioWakeup(sleeps).wait(0.01)
        sleeps.loop = loop
        assert not await asyncio.wait_for(AioWakeup(sleeps).wait(0.02), TIME_LIMIT)


async def test_a_task_of_a_closed_loop_is_not_woken() -> None:
    """Also if it doesn't sleep: it may wait for a reply. A message for it would be lost for the others."""
    loop = asyncio.new_event_loop()
    wakeup = AioWakeup(Sleeps(loop))
    assert wakeup.alive
    loop.close()
    assert not wakeup.alive
