"""Calls of one owner at the same time: `gather` in a task, or an explicit owner in several threads."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from types import CodeType, FrameType
from typing import Any

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson import LockLostError, LockNotHeldError
from pyredisson._backends.threads.runtime import ThreadRuntime
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.testing import Proxy, Server
from tests.support.faults import ACQUIRE
from tests.support.waiting import TIME_LIMIT, eventually

pytestmark = pytest.mark.asyncio
KINDS = ["get_lock", "get_fair_lock", "get_fenced_lock", "get_spin_lock", "get_non_reentrant_lock"]
REENTRANT = KINDS[:4]


async def nobody_else_gets_it(server: Server, kind: str, name: str = "a") -> None:
    """After what runs in the background has run."""
    await asyncio.sleep(0.05)
    async with pyredisson.asyncio.connect(server.url) as other:
        assert not await getattr(other, kind)(name).try_lock()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
async def test_a_cancelled_call_leaves_what_another_one_got(server: Server, kind: str, turns: int) -> None:
    async with pyredisson.asyncio.connect(server.url) as client:
        lock = getattr(client, kind)("a", owner=7)
        await lock.lock()
        await lock.unlock()
        first, second = (asyncio.create_task(lock.lock()) for _ in range(2))
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first, second])
        # The one is refused where the other has it and the lock isn't reentrant.
        had = [call for call in (first, second) if not call.cancelled() and call.exception() is None]
        assert had
        await nobody_else_gets_it(server, kind)
        assert await lock.get_hold_count() == len(had)
        for _ in had:
            await lock.unlock()


@pytest.mark.parametrize("kind", REENTRANT)
async def test_one_owner_releases_what_the_other_acquires(server: Server, kind: str) -> None:
    async with pyredisson.asyncio.connect(server.url) as client:
        lock = getattr(client, kind)("a", owner=7)

        async def take_and_give_back() -> None:
            await lock.lock()
            await lock.unlock()

        await asyncio.gather(take_and_give_back(), lock.lock())
        await nobody_else_gets_it(server, kind)
        assert await lock.get_hold_count() == 1
        await lock.unlock()


@pytest.mark.parametrize("kind", REENTRANT)
async def test_a_lost_hold_is_released_while_the_lock_is_acquired_again(server: Server, kind: str) -> None:
    async with pyredisson.asyncio.connect(server.url) as client:
        lock = getattr(client, kind)("a", owner=7)
        await lock.lock(lease_time=0.03)
        await lock.lost.wait()
        anew = asyncio.create_task(lock.lock())
        await asyncio.sleep(0)
        with pytest.raises(LockLostError):
            await lock.unlock()
        await anew
        await nobody_else_gets_it(server, kind)
        assert await lock.get_hold_count() == 1
        await lock.unlock()


@pytest.mark.parametrize("kind", REENTRANT)
async def test_two_release_at_once(server: Server, admin: Redis, kind: str) -> None:
    async with pyredisson.asyncio.connect(server.url) as client:
        lock = getattr(client, kind)("a")
        await lock.lock()
        await lock.lock()
        await asyncio.gather(lock.unlock(), lock.unlock())
        assert not admin.exists("a")
        await lock.lock()
        outcomes = await asyncio.gather(lock.unlock(), lock.unlock(), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), LockNotHeldError]
        assert not admin.exists("a")


async def test_a_cancelled_nested_call_removes_no_level_of_another(server: Server, proxy: Proxy) -> None:
    async with pyredisson.asyncio.connect(proxy.url) as client:
        lock = client.get_lock("a", owner=7)
        await lock.lock()
        proxy.latency(0.05)
        second = asyncio.create_task(lock.lock())
        third = asyncio.create_task(lock.lock())
        await second
        third.cancel()
        await asyncio.wait([third])
        proxy.latency(0)
        await lock.unlock()
        await nobody_else_gets_it(server, "get_lock")
        await lock.unlock()


async def test_a_cancelled_group_leaves_what_a_call_for_its_member_got(server: Server) -> None:
    async with pyredisson.asyncio.connect(server.url) as client, pyredisson.asyncio.connect(server.url) as other:
        one, two = client.get_lock("a", owner=7), client.get_lock("b", owner=7)
        await other.get_lock("b").lock()
        both = asyncio.create_task(client.get_multi_lock(one, two).lock())
        await asyncio.sleep(0.05)
        call = asyncio.create_task(one.lock())
        await asyncio.sleep(0)
        both.cancel()
        await asyncio.wait([both])
        await call
        await nobody_else_gets_it(server, "get_lock")
        assert await one.get_hold_count() == 1
        await one.unlock()


@pytest.mark.parametrize("kind", REENTRANT)
async def test_many_at_random(server: Server, admin: Redis, kind: str) -> None:
    """Some calls are cancelled. A call that has acquired the lock releases it, and nothing remains."""
    async with pyredisson.asyncio.connect(server.url) as client, pyredisson.asyncio.connect(server.url) as other:
        lock, theirs = getattr(client, kind)("a", owner=7), getattr(other, kind)("a")
        inside: set[str] = set()

        async def use(who: str, which: Any, pause: Callable[[], Awaitable[None]]) -> None:
            for _ in range(20):
                await which.lock()
                inside.add(who)
                assert len({each[0] for each in inside}) == 1, inside
                await pause()
                inside.discard(who)
                await which.unlock()

        async def cancelled() -> None:
            for turns in range(20):
                task = asyncio.create_task(lock.lock())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    await lock.unlock()

        async with asyncio.timeout(30):
            await asyncio.gather(
                use("x1", lock, lambda: asyncio.sleep(0)),
                use("x2", lock, lambda: asyncio.sleep(0.001)),
                use("y", theirs, lambda: asyncio.sleep(0.001)),
                cancelled(),
            )
        await asyncio.to_thread(eventually, lambda: not admin.exists("a"), 5)


class AtSteps:
    """Does something at the first step of each of these functions, on this thread."""

    def __init__(self, *steps: tuple[Callable[..., Any], Callable[[], object]]) -> None:
        self._left: dict[CodeType, Callable[[], object]] = {function.__code__: action for function, action in steps}

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        assert not self._left

    def _trace(self, frame: FrameType, event: str, _: object) -> None:
        action = self._left.pop(frame.f_code, None)
        if action is not None:
            action()


def ctrl_c() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_release_that_is_interrupted_in_its_turn_releases_its_own_level(
    server: Server, proxy: Proxy, levels: int
) -> None:
    """It waited behind a nested acquire of the same owner in another thread, which succeeded."""
    with pyredisson.connect(proxy.url) as client:
        lock = client.get_lock("a", owner=7)
        for _ in range(levels):
            lock.lock()
        late = proxy.hold_reply(ACQUIRE)
        other = threading.Thread(target=lock.lock)
        other.start()
        assert late.held.wait(TIME_LIMIT)
        waits = threading.Event()

        def deliver_then() -> None:
            assert waits.wait(TIME_LIMIT)
            late.deliver()

        deliver = threading.Thread(target=deliver_then)
        deliver.start()
        with (
            pytest.raises(KeyboardInterrupt),
            AtSteps((ThreadRuntime.wait, waits.set), (LockCommands.release, ctrl_c)),
        ):
            lock.unlock()
        deliver.join(TIME_LIMIT)
        other.join(TIME_LIMIT)
        await nobody_else_gets_it(server, "get_lock")
        assert lock.get_hold_count() == levels
        for _ in range(levels):
            lock.unlock()
        assert not lock.is_locked()


@pytest.mark.parametrize("kind", REENTRANT)
@pytest.mark.parametrize("exit_of_a_block", [False, True])
async def test_a_release_that_is_cancelled_before_its_turn_releases_its_level(
    server: Server, proxy: Proxy, admin: Redis, kind: str, exit_of_a_block: bool
) -> None:
    async with pyredisson.asyncio.connect(proxy.url) as client:
        lock = getattr(client, kind)("a", owner=7)
        await lock.is_locked()
        leaves = asyncio.Event()

        async def use() -> None:
            if exit_of_a_block:
                async with lock:
                    await leaves.wait()
            else:
                await lock.lock()
                await leaves.wait()
                await lock.unlock()

        user = asyncio.create_task(use())
        await asyncio.to_thread(eventually, lambda: admin.exists("a"))
        await lock.get_hold_count()
        late = proxy.hold_reply(b"EVALSHA")
        nested = asyncio.create_task(lock.lock())
        assert await asyncio.to_thread(late.held.wait, TIME_LIMIT)
        leaves.set()
        for _ in range(3):
            await asyncio.sleep(0)
        user.cancel()
        await asyncio.wait([user])
        assert user.cancelled()
        await asyncio.to_thread(late.deliver)
        await nested
        await nobody_else_gets_it(server, kind)
        assert await lock.get_hold_count() == 1
        await lock.unlock()
        assert not await lock.is_locked()


async def test_calls_of_one_owner_are_served_in_their_order(server: Server) -> None:
    async with pyredisson.asyncio.connect(server.url) as client:
        lock = client.get_lock("a", owner=7)
        order: list[int] = []

        async def take(number: int) -> None:
            await lock.lock()
            order.append(number)

        await asyncio.gather(*map(take, range(50)))
        assert order == list(range(50))


async def test_thousands_of_calls_of_one_owner_take_as_long_as_their_commands(server: Server, admin: Redis) -> None:
    async with pyredisson.asyncio.connect(server.url) as client:
        lock = client.get_lock("a")
        began = time.monotonic()
        async with asyncio.timeout(20):
            assert all(await asyncio.gather(*[asyncio.create_task(lock.try_lock(60)) for _ in range(3000)]))
        taken = time.monotonic() - began
        began = time.monotonic()
        for _ in range(3000):
            await lock.unlock()
        assert taken < 5 * (time.monotonic() - began) + 1
        assert not admin.exists("a")


async def test_a_thread_among_many_of_one_owner_has_its_turn(server: Server, admin: Redis) -> None:
    with pyredisson.connect(server.url) as client:
        lock = client.get_lock("a", owner=7)

        def use() -> None:
            for _ in range(20):
                with lock:
                    continue

        threads = [threading.Thread(target=use) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert not admin.exists("a")


@pytest.mark.parametrize("kind", REENTRANT)
async def test_a_block_that_is_collected_in_the_middle_of_a_call_for_its_lock(
    server: Server, admin: Redis, kind: str
) -> None:
    """On the same thread, and for the same owner: it can't wait for the end of that call."""
    with pyredisson.connect(server.url) as client:
        lock = getattr(client, kind)("a")

        def block() -> Generator[None, None, None]:
            with lock:
                yield

        open_block = block()
        next(open_block)
        with AtSteps((type(lock._logic.commands).acquire, open_block.close)):
            lock.lock()
        await nobody_else_gets_it(server, kind)
        assert lock.get_hold_count() == 1
        lock.unlock()
        assert not admin.exists("a")


async def test_a_lock_that_is_asked_for_in_the_middle_of_a_call_for_it(server: Server, admin: Redis) -> None:
    with pyredisson.connect(server.url) as client:
        lock = client.get_lock("a")
        middle = pytest.raises(RuntimeError, match="'a' was asked for in the middle of a call")
        with middle, AtSteps((LockCommands.acquire, lock.lock)):
            lock.lock()
        await asyncio.to_thread(eventually, lambda: not admin.exists("a"), 5)
        lock.lock()
        lock.unlock()
