"""Fencing tokens: every acquire has a token of its own, above all earlier ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from pyredisson import LockNotHeldError, LockTimeoutError
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, Backend, finished
from tests.support.faults import LOSSES, Lose
from tests.support.server_state import ServerState

from .kinds import COUNTER, assert_lost, one_waits

pytestmark = pytest.mark.asyncio
DELETED = "pyredisson_fenced_newest:{orders}"


async def test_every_way_to_take_it_gives_a_token(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect().get_fenced_lock("orders")
    assert await lock.get_token() == 0
    newest = await lock.lock_and_get_token()
    assert type(newest) is int
    ways: list[Callable[[], Awaitable[Any]]] = [
        lock.lock_and_get_token,
        lock.try_lock_and_get_token,
        lock.lock,
        lambda: lock.lock(50),
        lock.try_lock,
        lambda: lock.try_lock(wait_time=1, lease_time=timedelta(seconds=5)),
        lock.acquire,
        lock.__aenter__,
        lock.hold(wait_time=1).__aenter__,
    ]
    for number, way in enumerate(ways):
        given = await way()
        assert lock.token == await lock.get_token() > newest
        newest = lock.token
        assert number > 1 or given == newest
    for take, lease in ((lock.lock_and_get_token, 60), (lock.try_lock_and_get_token, 100)):
        newest = await take(lease_time=timedelta(seconds=lease)) or 0
        assert lease - 10 < (await lock.remain_time_to_live() or 0) <= lease
    for _ in range(len(ways) + 3):
        await lock.unlock()
    assert server_state.redis.keys() == [COUNTER.encode()]
    assert server_state.redis.ttl(COUNTER) == -1
    assert await lock.get_token() == newest


async def test_no_token_without_the_lock(backend: Backend) -> None:
    client = backend.connect()
    lock, other = client.get_fenced_lock("orders"), client.get_fenced_lock("orders", owner=2)
    token = await lock.lock_and_get_token()
    assert await other.try_lock_and_get_token() is None
    assert await other.try_lock_and_get_token(wait_time=0.05) is None
    with pytest.raises(LockTimeoutError):
        await other.hold(wait_time=0).__aenter__()
    assert await lock.get_token() == token


async def test_a_waiter_gets_a_token_above_the_holders(backend: Backend, server_state: ServerState) -> None:
    holder, waiter = backend.connect().get_fenced_lock("orders"), backend.connect().get_fenced_lock("orders")
    token = await holder.lock_and_get_token()

    async def take(wait: Callable[[], Awaitable[int | None]]) -> tuple[int | None, int]:
        mine, known = await wait(), waiter.token
        await waiter.unlock()
        return mine, known

    for wait in (waiter.lock_and_get_token, partial(waiter.try_lock_and_get_token, wait_time=TIME_LIMIT)):
        other = backend.spawn(partial(take, wait))
        await backend.until(lambda: server_state.listeners("orders") == 1)
        await holder.unlock()
        mine, known = await other.result()
        assert mine is not None
        assert mine == known > token
        token = await holder.lock_and_get_token()
        assert token > mine


async def test_it_wakes_and_is_woken_by_a_plain_lock_of_the_name(backend: Backend) -> None:
    client, another = backend.connect(), backend.connect()
    fenced, _, waiting = await one_waits(backend, client, "fenced", another)
    other = backend.spawn(another.get_lock("orders", owner=3).lock)
    await fenced.unlock()
    await waiting.result()
    await another.get_fenced_lock("orders", owner=2).unlock()
    await other.result()
    other = backend.spawn(fenced.lock)
    await another.get_lock("orders", owner=3).unlock()
    await other.result()


async def test_one_owner_in_many_calls_each_gets_its_own_token(backend: Backend) -> None:
    lock = backend.connect().get_fenced_lock("orders", owner=7)

    async def ask() -> list[int]:
        return [await lock.lock_and_get_token() for _ in range(20)]

    given = await finished([backend.spawn(ask) for _ in range(5)])
    tokens = [token for some in given for token in some]
    assert len(set(tokens)) == 100
    assert all(some == sorted(some) for some in given)
    assert await lock.get_token() == lock.token == max(tokens)
    assert await lock.get_hold_count() == 100


async def test_the_token_of_a_hold(backend: Backend) -> None:
    client = backend.connect()
    lock, plain = client.get_fenced_lock("orders"), client.get_lock("orders")
    for _ in range(2):
        with pytest.raises(LockNotHeldError, match="'orders'"):
            _ = lock.token
        async with lock:
            # A plain lock of the name doesn't take it away.
            token = lock.token
            await plain.lock()
            assert lock.token == token
            await plain.unlock()
    async with plain:
        with pytest.raises(LockNotHeldError, match="fenced"):
            _ = lock.token
    # It is not another owner's.
    await client.get_fenced_lock("orders", owner=1).lock()
    with pytest.raises(LockNotHeldError):
        _ = lock.token


async def test_tokens_grow_after_delete(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect().get_fenced_lock("orders")
    assert await lock.delete() is False
    token = await lock.lock_and_get_token()
    assert await lock.delete() is True
    assert server_state.redis.keys() == [DELETED.encode()]
    assert lock.lost.is_set()
    assert await lock.get_token() == 0
    await assert_lost(lock, r"delete\(\)")
    assert await lock.lock_and_get_token() > token
    await lock.unlock()
    assert await lock.delete() is True
    assert await lock.delete() is False
    assert server_state.redis.keys() == [DELETED.encode()]


@LOSSES
async def test_a_lost_reply(backend: Backend, proxy: Proxy, server_state: ServerState, lose: Lose) -> None:
    lock = backend.connect(proxy.url, timeout=0.8).get_fenced_lock("orders")
    newest = await lock.lock_and_get_token()
    for take in (lock.lock_and_get_token, lock.try_lock_and_get_token):
        fault = lose(proxy, b"redisson_lock_token")
        token = await take()
        assert fault.happened.is_set()
        assert token is not None
        assert token > newest
        newest = token
        assert lock.token == token == await lock.get_token()
    assert list(server_state.holds("orders").values()) == ["3"]
