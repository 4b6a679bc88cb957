"""Calls that act for one owner at the same time: `gather` in a task, or an explicit id in several."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis import Redis

import pyredisson.asyncio
from pyredisson import LockLostError, LockNotHeldError
from pyredisson.testing import Proxy, Server

from .support import eventually

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
async def test_one_gives_back_what_the_other_takes(server: Server, kind: str) -> None:
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
async def test_a_lost_hold_is_given_back_while_the_lock_is_taken_anew(server: Server, kind: str) -> None:
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
async def test_two_give_back_at_once(server: Server, admin: Redis, kind: str) -> None:
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


async def test_a_cancelled_nested_call_takes_no_level_from_another(server: Server, proxy: Proxy) -> None:
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
    """Some are cancelled; whoever was told that it has the lock gives it back, and nothing is left."""
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
