"""The spin lock: a lock without a channel whose waiters poll, and the pauses between two polls."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest

from pyredisson import ClosedError, ConstantBackoff, ExponentialBackoff, LockNotHeldError, LockTimeoutError
from pyredisson.asyncio import SpinLock
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, WOKEN, Backend
from tests.support.server_state import ServerState

CHANNEL = "redisson_lock__channel:{orders}"


@pytest.mark.asyncio
class TestLock:
    async def test_it_is_a_reentrant_lock(self, backend: Backend, server_state: ServerState) -> None:
        lock = backend.connect().get_spin_lock("orders", owner=7)
        async with lock, lock:
            assert list(server_state.holds("orders").values()) == ["2"]
            assert await lock.get_hold_count() == 2
            assert 29 < server_state.redis.ttl("orders") <= 30
            assert await backend.as_another_owner(backend.connect().get_spin_lock("orders").try_lock) is False
        assert server_state.redis.keys() == []
        with pytest.raises(LockNotHeldError):
            await lock.unlock()

    async def test_it_is_the_lock_of_that_name(self, backend: Backend) -> None:
        client = backend.connect()
        spin, plain = client.get_spin_lock("orders", owner=1), client.get_lock("orders", owner=2)
        await spin.lock()
        assert await plain.try_lock() is False
        await spin.unlock()
        await plain.lock()
        assert await spin.try_lock() is False

    async def test_it_is_renewed(self, backend: Backend, server_state: ServerState) -> None:
        lock = backend.connect(lock_watchdog_timeout=1.5).get_spin_lock("orders")
        await lock.lock()
        await backend.sleep(2)
        assert await lock.is_held()
        await lock.unlock()

    async def test_nothing_is_published_and_no_client_subscribes(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        holder, waiter = client.get_spin_lock("orders", owner=1), client.get_spin_lock("orders", owner=2)
        with server_state.redis.pubsub() as ear:
            ear.psubscribe("*")
            assert ear.get_message(timeout=TIME_LIMIT)["type"] == "psubscribe"
            await holder.lock()
            before = server_state.scripts()
            other = backend.spawn(waiter.lock)
            await backend.until(lambda: server_state.scripts() >= before + 4)
            assert server_state.redis.pubsub_channels() == []
            await holder.unlock()
            await other.result()
            assert await holder.force_unlock()
            assert server_state.redis.keys() == []
            server_state.redis.publish("end", "end")
            assert ear.get_message(timeout=TIME_LIMIT)["data"] == b"end"

    async def test_a_release_whose_reply_is_lost_is_a_release(
        self, backend: Backend, proxy: Proxy, server_state: ServerState
    ) -> None:
        lock = backend.connect(proxy.url, timeout=0.8).get_spin_lock("orders")
        await lock.lock()
        lost = proxy.drop_reply(b"orders")
        await lock.unlock()
        assert lost.happened.is_set()
        assert server_state.redis.keys() == []

    async def test_many_waiters_take_turns(self, backend: Backend) -> None:
        client = backend.connect()
        inside: list[int] = []
        turns: list[int] = []

        async def work(owner: int) -> None:
            lock = client.get_spin_lock("orders", ExponentialBackoff(0.001, 0.008, jitter="full"), owner=owner)
            for _ in range(5):
                async with lock:
                    inside.append(owner)
                    await backend.sleep(0)
                    turns.append(inside.pop())
                    assert inside == []

        others = [backend.spawn(lambda owner=owner: work(owner)) for owner in range(6)]  # type: ignore[misc]
        for other in others:
            await other.result()
        assert sorted(turns) == sorted([*range(6)] * 5)


@pytest.mark.asyncio
class TestWaiting:
    async def test_it_asks_at_the_pace_that_was_given(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.hset("orders", "somebody", 1)
        lock = backend.connect().get_spin_lock("orders", backoff=ConstantBackoff(timedelta(milliseconds=500)))
        await lock.try_lock()
        before = server_state.scripts()
        assert not await lock.try_lock(wait_time=1.75)
        # At 0, 0.5, 1 and 1.5 s, and at the very end.
        assert 3 <= server_state.scripts() - before <= 5

    async def test_the_usual_pauses_grow(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.hset("orders", "somebody", 1)
        lock = backend.connect().get_spin_lock("orders")
        await lock.try_lock()
        before = server_state.scripts()
        assert not await lock.try_lock(wait_time=1.5)
        # At 1 ms it would be more than a thousand. Seven until the pause is 128 ms, and then about fifteen.
        assert 6 <= server_state.scripts() - before <= 40

    @pytest.mark.parametrize("backoff", [ConstantBackoff(30), ExponentialBackoff(30, 60), ConstantBackoff(0.001)])
    async def test_a_wait_ends_when_it_should(self, backend: Backend, server_state: ServerState, backoff: Any) -> None:
        server_state.redis.hset("orders", "somebody", 1)
        lock = backend.connect().get_spin_lock("orders", backoff)
        ways: list[Callable[[], Awaitable[Any]]] = [
            lambda: lock.try_lock(wait_time=0.1),
            lambda: lock.acquire(timeout=0.1),
            lambda: lock.hold(wait_time=0.1).__aenter__(),
        ]
        for way in ways:
            begun = time.monotonic()
            try:
                assert await way() is False
            except LockTimeoutError:
                assert way is ways[2]
            assert 0.1 <= time.monotonic() - begun < WOKEN

    async def test_it_asks_once_more_at_the_end_of_the_wait(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.hset("orders", "somebody", 1)
        lock = backend.connect().get_spin_lock("orders", ConstantBackoff(30))
        before = server_state.scripts()
        other = backend.spawn(lambda: lock.try_lock(wait_time=1))
        await backend.until(lambda: server_state.scripts() == before + 1)
        server_state.redis.delete("orders")
        assert await other.result() is True

    async def test_it_asks_at_the_end_of_the_holders_lease(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.hset("orders", "dead", 1)
        before = server_state.scripts()
        begun = time.monotonic()
        server_state.redis.pexpire("orders", 200)
        await backend.connect().get_spin_lock("orders", ConstantBackoff(30)).lock()
        assert 0.15 < time.monotonic() - begun < WOKEN
        assert server_state.scripts() <= before + 3

    async def test_a_free_lock_costs_no_pause(self, backend: Backend, server_state: ServerState) -> None:
        lock = backend.connect().get_spin_lock("orders", ConstantBackoff(30))
        before = server_state.scripts()
        await lock.lock()
        assert server_state.scripts() == before + 1

    async def test_closing_the_client_ends_the_wait(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.hset("orders", "somebody", 1)
        client = backend.connect()
        lock = client.get_spin_lock("orders", ConstantBackoff(30))
        before = server_state.scripts()
        other = backend.spawn(lock.lock)
        await backend.until(lambda: server_state.scripts() == before + 1)
        await client.close()
        with pytest.raises(ClosedError):
            await other.result()


@pytest.mark.asyncio
async def test_what_is_no_backoff(backend: Backend) -> None:
    client = backend.connect()
    for wrong in (None, 0.1, "fast", ConstantBackoff):
        with pytest.raises(TypeError, match="backoff"):
            client.get_spin_lock("orders", wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        client.get_spin_lock("")


@pytest.mark.asyncio
async def test_its_kind_is_exported(threads: Backend, tasks: Backend) -> None:
    assert repr(threads.connect().get_spin_lock("orders")) == "<pyredisson.SpinLock 'orders'>"
    lock = tasks.connect().get_spin_lock("orders")
    assert repr(lock) == "<pyredisson.asyncio.SpinLock 'orders'>"
    assert isinstance(lock, SpinLock)
    assert not hasattr(lock, "__dict__")


class TestBackoff:
    def pauses(self, backoff: ExponentialBackoff | ConstantBackoff, random: float, count: int) -> list[float]:
        return list(itertools.islice(backoff.delays(lambda: random), count))

    def test_exponential(self) -> None:
        # The largest that chance allows.
        assert self.pauses(ExponentialBackoff(), 1.0, 10) == pytest.approx(
            [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.128, 0.128]
        )
        assert self.pauses(ExponentialBackoff(1, 20, 3), 1.0, 5) == [1, 3, 9, 20, 20]
        assert self.pauses(ExponentialBackoff(1, 1), 1.0, 3) == [1, 1, 1]

    def test_jitter(self) -> None:
        assert self.pauses(ExponentialBackoff(1, 4), 0.0, 3) == [0.5, 1, 2]
        assert self.pauses(ExponentialBackoff(1, 4), 0.5, 3) == [0.75, 1.5, 3]
        assert self.pauses(ExponentialBackoff(1, 4, jitter="full"), 0.0, 3) == [0, 0, 0]
        assert self.pauses(ExponentialBackoff(1, 4, jitter="full"), 0.5, 3) == [0.5, 1, 2]

    def test_it_never_overflows(self) -> None:
        assert self.pauses(ExponentialBackoff(1, 4, 1e308), 1.0, 2000)[-1] == 4

    def test_constant(self) -> None:
        assert self.pauses(ConstantBackoff(), 0.3, 3) == [0.064] * 3
        assert self.pauses(ConstantBackoff(2), 0.3, 2) == [2, 2]

    def test_a_timedelta(self) -> None:
        half = timedelta(seconds=0.5)
        assert ConstantBackoff(half) == ConstantBackoff(0.5)
        assert ExponentialBackoff(half, half) == ExponentialBackoff(0.5, 0.5)

    def test_they_do_not_change(self) -> None:
        for backoff, field in ((ConstantBackoff(), "delay"), (ExponentialBackoff(), "max_delay")):
            with pytest.raises(FrozenInstanceError):
                setattr(backoff, field, 1)
        assert len({ConstantBackoff(1), ConstantBackoff(1.0), ExponentialBackoff(), ExponentialBackoff()}) == 2

    @pytest.mark.parametrize("wrong", [0, -1, 0.00001, math.nan, math.inf])
    def test_durations_that_cannot_be(self, wrong: float) -> None:
        with pytest.raises(ValueError, match="delay"):
            ConstantBackoff(wrong)
        with pytest.raises(ValueError, match="initial_delay"):
            ExponentialBackoff(initial_delay=wrong)
        with pytest.raises(ValueError, match="max_delay"):
            ExponentialBackoff(max_delay=wrong)

    def test_other_fields_that_cannot_be(self) -> None:
        with pytest.raises(ValueError, match="max_delay"):
            ExponentialBackoff(initial_delay=1, max_delay=0.5)
        for number in (0.5, 0, -2, math.nan):
            with pytest.raises(ValueError, match="multiplier"):
                ExponentialBackoff(multiplier=number)
        for wrong in ("2", True, None):
            with pytest.raises(TypeError, match="multiplier"):
                ExponentialBackoff(multiplier=wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="jitter"):
            ExponentialBackoff(jitter="some")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="delay"):
            ConstantBackoff("1")  # type: ignore[arg-type]
