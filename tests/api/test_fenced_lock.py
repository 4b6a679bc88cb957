"""Fencing tokens: every acquire has a token of its own, above all earlier ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from redis.exceptions import ResponseError

from pyredisson import LockLostError, LockNotHeldError, LockTimeoutError
from pyredisson.asyncio import FencedLock
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio

COUNTER = "redisson_lock_token:{orders}"
DELETED = "pyredisson_fenced_newest:{orders}"


async def test_a_token_with_every_acquire(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect().get_fenced_lock("orders")
    assert await lock.get_token() == 0
    first = await lock.lock_and_get_token()
    assert type(first) is int
    assert await lock.get_token() == lock.token == first
    second = await lock.try_lock_and_get_token()
    assert second is not None
    assert second > first
    assert await lock.get_token() == lock.token == second
    assert list(server_state.holds("orders").values()) == ["2"]
    await lock.unlock()
    await lock.unlock()
    assert server_state.redis.keys() == [COUNTER.encode()]
    assert server_state.redis.ttl(COUNTER) == -1
    assert await lock.get_token() == second


async def in_a_block(lock: Any) -> None:
    await lock.__aenter__()


async def in_a_scope(lock: Any) -> None:
    await lock.hold(wait_time=1).__aenter__()


@pytest.mark.parametrize(
    "take",
    [
        lambda lock: lock.lock(),
        lambda lock: lock.lock(5),
        lambda lock: lock.try_lock(),
        lambda lock: lock.try_lock(wait_time=1, lease_time=timedelta(seconds=5)),
        lambda lock: lock.acquire(),
        in_a_block,
        in_a_scope,
    ],
    ids=["lock", "lease", "try_lock", "try_lock in a time", "acquire", "with", "hold"],
)
async def test_every_way_to_take_it_gives_a_token(backend: Backend, take: Callable[[Any], Awaitable[Any]]) -> None:
    lock = backend.connect().get_fenced_lock("orders")
    before = await lock.lock_and_get_token()
    await take(lock)
    assert lock.token > before
    assert lock.token == await lock.get_token()


async def test_a_lease(backend: Backend) -> None:
    lock = backend.connect().get_fenced_lock("orders")
    await lock.lock_and_get_token(lease_time=60)
    left = await lock.remain_time_to_live()
    assert left is not None
    assert 50 < left <= 60
    await lock.try_lock_and_get_token(lease_time=timedelta(seconds=100))
    left = await lock.remain_time_to_live()
    assert left is not None
    assert 90 < left <= 100


async def test_no_token_without_the_lock(backend: Backend) -> None:
    lock = backend.connect().get_fenced_lock("orders")
    token = await lock.lock_and_get_token()
    assert await backend.as_another_owner(lock.try_lock_and_get_token) is None
    assert await backend.as_another_owner(lambda: lock.try_lock_and_get_token(wait_time=0.05)) is None
    with pytest.raises(LockTimeoutError):
        await backend.as_another_owner(lock.hold(wait_time=0).__aenter__)
    assert await lock.get_token() == token


async def test_a_hold_without_a_ttl_is_not_taken_for_free(backend: Backend, server_state: ServerState) -> None:
    server_state.redis.hset("orders", "somebody", 1)
    assert await backend.connect().get_fenced_lock("orders").try_lock_and_get_token() is None
    assert server_state.holds("orders") == {"somebody": "1"}


async def test_a_waiter_gets_a_token_above_the_holders(backend: Backend, server_state: ServerState) -> None:
    holder, waiter = backend.connect().get_fenced_lock("orders"), backend.connect().get_fenced_lock("orders")
    token = await holder.lock_and_get_token()
    for wait in (waiter.lock_and_get_token, lambda: waiter.try_lock_and_get_token(wait_time=TIME_LIMIT)):

        async def take(wait: Callable[[], Awaitable[int | None]] = wait) -> tuple[int | None, int]:
            mine, known = await wait(), waiter.token
            await waiter.unlock()
            return mine, known

        other = backend.spawn(take)
        await backend.until(lambda: server_state.listeners("orders") == 1)
        await holder.unlock()
        mine, known = await other.result()
        assert mine is not None
        assert mine == known > token
        token = await holder.lock_and_get_token()
        assert token > mine


async def test_it_wakes_and_excludes_a_plain_lock_of_the_name(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    fenced, plain = client.get_fenced_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await fenced.lock()
    other = backend.spawn(plain.lock)
    await backend.until(lambda: server_state.listeners("orders") == 1)
    await fenced.unlock()
    await other.result()
    other = backend.spawn(fenced.lock)
    await plain.unlock()
    await other.result()
    await fenced.unlock()


async def test_one_owner_in_many_calls_each_gets_its_own_token(backend: Backend) -> None:
    client = backend.connect()
    lock = client.get_fenced_lock("orders", owner=7)

    async def ask() -> list[int]:
        return [await lock.lock_and_get_token() for _ in range(20)]

    others = [backend.spawn(ask) for _ in range(5)]
    given = [await other.result() for other in others]
    tokens = [token for some in given for token in some]
    assert len(set(tokens)) == 100
    assert all(some == sorted(some) for some in given)
    assert await lock.get_token() == max(tokens)
    for _ in range(100):
        await lock.unlock()


@pytest.mark.parametrize("take", ["lock_and_get_token", "try_lock_and_get_token"])
async def test_two_calls_of_one_owner_have_a_token_each(threads: Backend, proxy: Proxy, take: str) -> None:
    lock = threads.connect(proxy.url).get_fenced_lock("orders", owner=7)
    slow = proxy.hold_reply(b"redisson_lock_token")
    first = threads.spawn(getattr(lock, take))
    assert slow.held.wait(TIME_LIMIT)
    second = threads.spawn(getattr(lock, take))
    slow.deliver()
    tokens = [await first.result(), await second.result()]
    assert tokens == sorted(set(tokens))
    assert lock.token == tokens[1]
    assert await lock.get_hold_count() == 2


async def test_tasks_of_one_owner_at_the_same_moment(tasks: Backend) -> None:
    lock = tasks.connect().get_fenced_lock("orders")
    tokens = await asyncio.gather(*(lock.lock_and_get_token() for _ in range(20)))
    assert len(set(tokens)) == 20


class TestTheTokenOfAHold:
    async def test_there_is_none_without_a_hold(self, backend: Backend) -> None:
        lock = backend.connect().get_fenced_lock("orders")
        for _ in range(2):
            with pytest.raises(LockNotHeldError, match="'orders'"):
                _ = lock.token
            await lock.lock()
            await lock.unlock()

    async def test_it_is_not_another_owners(self, backend: Backend) -> None:
        client = backend.connect()
        await client.get_fenced_lock("orders", owner=1).lock()
        with pytest.raises(LockNotHeldError):
            _ = client.get_fenced_lock("orders").token

    async def test_a_lost_hold_keeps_it(self, backend: Backend) -> None:
        """Or a late writer would write with the token of the one that came after it."""
        late, next_one = backend.connect().get_fenced_lock("orders"), backend.connect().get_fenced_lock("orders")
        token = await late.lock_and_get_token(0.05)
        newer = await next_one.try_lock_and_get_token(wait_time=TIME_LIMIT)
        assert newer is not None
        assert late.lost.is_set()
        assert late.token == token < newer == await late.get_token()
        with pytest.raises(LockLostError):
            await late.unlock()

    async def test_a_plain_lock_of_the_name_does_not_take_it_away(self, backend: Backend) -> None:
        client = backend.connect()
        fenced, plain = client.get_fenced_lock("orders"), client.get_lock("orders")
        token = await fenced.lock_and_get_token()
        await plain.lock()
        assert fenced.token == token
        await plain.unlock()
        await fenced.unlock()
        await plain.lock()
        with pytest.raises(LockNotHeldError, match="fenced"):
            _ = fenced.token


class TestTheyOnlyGrow:
    async def test_after_delete(self, backend: Backend, server_state: ServerState) -> None:
        lock = backend.connect().get_fenced_lock("orders")
        assert await lock.delete() is False
        token = await lock.lock_and_get_token()
        assert await lock.delete() is True
        assert server_state.redis.keys() == [DELETED.encode()]
        assert lock.lost.is_set()
        assert await lock.get_token() == 0
        with pytest.raises(LockLostError, match=r"delete\(\)"):
            await lock.unlock()
        assert await lock.lock_and_get_token() > token
        await lock.unlock()
        assert await lock.delete() is True
        assert await lock.delete() is False
        assert server_state.redis.keys() == [DELETED.encode()]

    async def test_after_delete_and_a_clock_that_was_set_back(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        # As it is where the newest token was given before the clock was set back by an hour.
        seconds, _ = server_state.redis.time()
        newest = (seconds + 3600) * 1_000_000
        server_state.redis.set(COUNTER, newest)
        lock = backend.connect().get_fenced_lock("orders")
        token = await lock.lock_and_get_token()
        assert token == newest + 1
        assert await lock.delete()
        assert await lock.get_token() == 0
        assert await lock.lock_and_get_token() > token
        await lock.unlock()

    async def test_delete_wakes_a_waiter(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        await client.get_fenced_lock("orders", owner=1).lock()
        other = backend.spawn(client.get_fenced_lock("orders", owner=2).lock_and_get_token)
        await backend.until(lambda: server_state.listeners("orders") == 1)
        assert await client.get_fenced_lock("orders").delete()
        assert await other.result()

    async def test_force_unlock_leaves_the_counter(self, backend: Backend, server_state: ServerState) -> None:
        lock = backend.connect().get_fenced_lock("orders")
        token = await lock.lock_and_get_token()
        assert await lock.force_unlock() is True
        assert server_state.redis.keys() == [COUNTER.encode()]
        assert await lock.get_token() == token

    async def test_after_flushall(self, backend: Backend, server_state: ServerState) -> None:
        lock = backend.connect().get_fenced_lock("orders")
        token = await lock.lock_and_get_token()
        server_state.redis.flushall()
        assert await lock.lock_and_get_token() > token
        assert await lock.get_hold_count() == 1

    async def test_beside_a_counting_java(self, backend: Backend, server_state: ServerState) -> None:
        lock = backend.connect().get_fenced_lock("orders")
        token = await lock.lock_and_get_token()
        await lock.unlock()
        assert server_state.redis.incr(COUNTER) == token + 1
        assert await lock.lock_and_get_token() > token + 1

    async def test_a_counter_that_is_none(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.set(COUNTER, "text")
        lock = backend.connect().get_fenced_lock("orders")
        with pytest.raises(ResponseError):
            await lock.lock_and_get_token()
        assert not await lock.is_locked()
        assert server_state.redis.get(COUNTER) == b"text"


class TestInDoubt:
    @pytest.mark.parametrize("lose", [Proxy.drop_reply, Proxy.cut_reply, Proxy.cut_request])
    async def test_an_acquire_whose_reply_is_lost(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, lose: Callable[..., Any]
    ) -> None:
        lock = backend.connect(proxy.url, timeout=0.8).get_fenced_lock("orders")
        tokens = [await lock.lock_and_get_token()]
        for take in (lock.lock_and_get_token, lock.try_lock_and_get_token):
            fault = lose(proxy, b"redisson_lock_token")
            token = await take()
            assert fault.happened.is_set()
            assert token is not None
            assert token > tokens[-1]
            tokens.append(token)
            assert lock.token == token == await lock.get_token()
        assert list(server_state.holds("orders").values()) == ["3"]
        for _ in tokens:
            await lock.unlock()
        assert server_state.redis.keys() == [COUNTER.encode()]

    async def test_a_cancelled_acquire_leaves_no_hold_and_no_token(
        self, tasks: Backend, proxy: Proxy, server_state: ServerState
    ) -> None:
        lock = tasks.connect(proxy.url).get_fenced_lock("orders", owner=7)
        held = proxy.hold_reply(b"redisson_lock_token")
        asking = asyncio.ensure_future(lock.lock_and_get_token())
        await asyncio.to_thread(held.held.wait, TIME_LIMIT)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        with pytest.raises(LockNotHeldError):
            _ = lock.token
        held.deliver()
        await tasks.until(lambda: not server_state.redis.exists("orders"))
        given = await lock.get_token()
        assert await lock.lock_and_get_token() > given > 0


async def test_a_name_with_a_hash_tag(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect().get_fenced_lock("{shop}orders")
    await lock.lock()
    assert sorted(server_state.redis.keys()) == [b"redisson_lock_token:{shop}orders", b"{shop}orders"]


@pytest.mark.parametrize("wrong", [-1, 0, 0.0001, float("nan"), float("inf")])
async def test_leases_that_cannot_be(backend: Backend, server_state: ServerState, wrong: float) -> None:
    lock = backend.connect().get_fenced_lock("orders")
    before = server_state.commands()
    with pytest.raises(ValueError):
        await lock.lock_and_get_token(wrong)
    with pytest.raises(ValueError):
        await lock.try_lock_and_get_token(0, wrong)
    if wrong < 0 or wrong != wrong:
        with pytest.raises(ValueError):
            await lock.try_lock_and_get_token(wrong)
    with pytest.raises(TypeError):
        await lock.lock_and_get_token("1")  # type: ignore[arg-type]
    assert server_state.commands() == before


async def test_its_kind_is_exported(threads: Backend, tasks: Backend) -> None:
    assert repr(threads.connect().get_fenced_lock("orders")) == "<pyredisson.FencedLock 'orders'>"
    lock = tasks.connect().get_fenced_lock("orders")
    assert repr(lock) == "<pyredisson.asyncio.FencedLock 'orders'>"
    assert isinstance(lock, FencedLock)
    assert not hasattr(lock, "__dict__")
