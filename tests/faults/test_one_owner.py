"""Calls of one owner at the same time: `gather` in a task, or an explicit owner in several threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson import LockLostError, LockNotHeldError
from pyredisson._backends.threads.runtime import ThreadRuntime
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.testing import Proxy, Server
from tests.support.faults import ACQUIRE, AtSteps, ctrl_c
from tests.support.raw_backends import RawBackend
from tests.support.waiting import TIME_LIMIT, cancel_after, eventually

from .kinds import lock_of

pytestmark = pytest.mark.asyncio
KINDS = ["lock", "fair", "fenced", "spin", "non-reentrant"]
reentrant = pytest.mark.parametrize("kind", KINDS[:4])


async def nobody_else_gets_it(server: Server, kind: str, name: str = "a") -> None:
    """After what runs in the background has run."""
    await asyncio.sleep(0.05)
    async with pyredisson.asyncio.connect(server.url) as other:
        assert not await lock_of(other, kind).try_lock()


async def released(lock: Any, levels: int, server: Server, kind: str = "lock") -> None:
    """The owner has so many levels, and nobody else gets the lock before the last one is released."""
    await nobody_else_gets_it(server, kind)
    assert await lock.get_hold_count() == levels
    for _ in range(levels):
        await lock.unlock()
    assert not await lock.is_locked()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_call_leaves_what_another_one_got(tasks: RawBackend, server: Server, kind: str) -> None:
    client = tasks.connect(server.url)
    for turns in (0, 1, 2, 3, 5, 8):
        lock = lock_of(client, kind, turns)
        first, second = (asyncio.create_task(lock.lock()) for _ in range(2))
        await cancel_after(turns, first)
        await asyncio.wait([second])
        # The one is refused where the other has it and the lock isn't reentrant.
        had = [call for call in (first, second) if not call.cancelled() and call.exception() is None]
        assert had
        await released(lock, len(had), server, kind)


@reentrant
async def test_one_call_releases_what_the_other_acquires(
    tasks: RawBackend, server: Server, admin: Redis, kind: str
) -> None:
    """Each release takes one level, also of two at once, and one that finds none is told so."""
    lock = lock_of(tasks.connect(server.url), kind, 7)

    async def take_and_give_back() -> None:
        await lock.lock()
        await lock.unlock()

    await asyncio.gather(take_and_give_back(), lock.lock())
    await released(lock, 1, server, kind)
    await lock.lock()
    await lock.lock()
    await asyncio.gather(lock.unlock(), lock.unlock())
    assert not admin.exists("a")
    await lock.lock()
    outcomes = await asyncio.gather(lock.unlock(), lock.unlock(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), LockNotHeldError]
    assert not admin.exists("a")


@reentrant
async def test_a_lost_hold_is_released_while_the_lock_is_acquired_again(
    tasks: RawBackend, server: Server, kind: str
) -> None:
    lock = lock_of(tasks.connect(server.url), kind, 7)
    await lock.lock(lease_time=0.03)
    await lock.lost.wait()
    anew = asyncio.create_task(lock.lock())
    await asyncio.sleep(0)
    with pytest.raises(LockLostError):
        await lock.unlock()
    await anew
    await released(lock, 1, server, kind)


async def test_a_cancelled_group_leaves_what_a_call_for_its_member_got(tasks: RawBackend, server: Server) -> None:
    client = tasks.connect(server.url)
    one, two = client.get_lock("a", owner=7), client.get_lock("b", owner=7)
    await tasks.connect(server.url).get_lock("b").lock()
    both = asyncio.create_task(client.get_multi_lock(one, two).lock())
    await asyncio.sleep(0.05)
    call = asyncio.create_task(one.lock())
    await cancel_after(1, both)
    await call
    await released(one, 1, server)


@reentrant
async def test_many_at_random(tasks: RawBackend, server: Server, admin: Redis, kind: str) -> None:
    """Some calls are cancelled. A call that has acquired the lock releases it, and nothing remains."""
    lock, theirs = (lock_of(tasks.connect(server.url), kind, owner) for owner in (7, None))
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
            if not await cancel_after(turns, asyncio.create_task(lock.lock())):
                await lock.unlock()

    async with asyncio.timeout(30):
        await asyncio.gather(
            use("x1", lock, lambda: asyncio.sleep(0)),
            use("x2", lock, lambda: asyncio.sleep(0.001)),
            use("y", theirs, lambda: asyncio.sleep(0.001)),
            cancelled(),
        )
    await tasks.until(lambda: not admin.exists("a"), 5)


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
        backend = RawBackend("threads")
        other = backend.start(lock.lock)
        assert late.held.wait(TIME_LIMIT)
        waits = threading.Event()

        def deliver() -> None:
            assert waits.wait(TIME_LIMIT)
            late.deliver()

        delivery = backend.start(deliver)
        steps = AtSteps((ThreadRuntime.wait, waits.set), (LockCommands.release, ctrl_c))
        with pytest.raises(KeyboardInterrupt), steps:
            lock.unlock()
        assert steps.happened
        await delivery.result()
        await other.result()
        await nobody_else_gets_it(server, "lock")
        assert lock.get_hold_count() == levels
        for _ in range(levels):
            lock.unlock()
        assert not lock.is_locked()


@reentrant
@pytest.mark.parametrize("exit_of_a_block", [False, True])
async def test_a_release_that_is_cancelled_before_its_turn_releases_its_level(
    tasks: RawBackend, server: Server, proxy: Proxy, admin: Redis, kind: str, exit_of_a_block: bool
) -> None:
    lock = lock_of(tasks.connect(proxy.url), kind, 7)
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
    await tasks.until(lambda: admin.exists("a"))
    await lock.get_hold_count()
    late = proxy.hold_reply(b"EVALSHA")
    nested = asyncio.create_task(lock.lock())
    await tasks.until(late.held.is_set)
    leaves.set()
    assert await cancel_after(3, user)
    late.deliver()
    await nested
    await released(lock, 1, server, kind)


async def test_many_calls_of_one_owner_are_served_in_their_order_in_the_time_of_their_commands(
    tasks: RawBackend, server: Server, admin: Redis
) -> None:
    lock = tasks.connect(server.url).get_lock("a", owner=7)
    order: list[int] = []

    async def take(number: int) -> None:
        assert await lock.try_lock(60)
        order.append(number)

    began = time.monotonic()
    async with asyncio.timeout(20):
        await asyncio.gather(*[asyncio.create_task(take(number)) for number in range(1000)])
    taken = time.monotonic() - began
    assert order == list(range(1000))
    began = time.monotonic()
    for _ in range(1000):
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

        backend = RawBackend("threads")
        for call in [backend.start(use) for _ in range(16)]:
            await call.result(20)
        assert not admin.exists("a")


@reentrant
async def test_a_block_that_is_collected_in_the_middle_of_a_call_for_its_lock(
    server: Server, admin: Redis, kind: str
) -> None:
    """On the same thread, and for the same owner: it can't wait for the end of that call."""
    with pyredisson.connect(server.url) as client:
        lock = lock_of(client, kind)

        def block() -> Generator[None, None, None]:
            with lock:
                yield

        open_block = block()
        next(open_block)
        with AtSteps((type(lock._logic.commands).acquire, open_block.close)) as step:
            lock.lock()
        assert step.happened
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
