"""The semaphore: acquiring, releasing, counting, and the arguments."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from redis.exceptions import ResponseError

import pyredisson
import pyredisson.asyncio
from pyredisson.testing import Proxy
from tests.support.backends import NOWHERE, Backend
from tests.support.server_state import ServerState

from .semaphore import free

pytestmark = pytest.mark.asyncio


class TestPermits:
    async def test_set_once(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.available_permits() == 0
        assert await semaphore.try_set_permits(5) is True
        assert await semaphore.try_set_permits(7) is False
        assert await semaphore.available_permits() == free(server_state) == 5
        assert server_state.redis.ttl("stock") == -1

    async def test_set_for_a_time(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.try_set_permits(5, ttl=timedelta(seconds=50)) is True
        assert 45_000 < server_state.redis.pttl("stock") <= 50_000
        await semaphore.acquire(2)
        await semaphore.add_permits(1)
        await semaphore.release()
        assert await semaphore.drain_permits() == 5
        assert 45_000 < server_state.redis.pttl("stock") <= 50_000

    async def test_set_for_a_short_time(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.try_set_permits(5, 0.05)
        await backend.until(lambda: not server_state.redis.exists("stock"))
        assert await semaphore.available_permits() == 0

    async def test_set_to_none(self, backend: Backend) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.try_set_permits(0)
        assert not await semaphore.try_set_permits(1)
        assert not await semaphore.try_acquire()

    async def test_acquire_and_release(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(5)
        await semaphore.acquire()
        await semaphore.acquire(3)
        assert free(server_state) == 1
        assert await semaphore.try_acquire(2) is False
        assert await semaphore.try_acquire(1) is True
        assert await semaphore.try_acquire() is False
        await semaphore.release(3)
        await semaphore.release()
        assert free(server_state) == 4

    async def test_anyone_may_release(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(2)
        await semaphore.acquire(2)
        await backend.as_another_owner(backend.connect().get_semaphore("stock").release)
        assert await semaphore.try_acquire()
        assert free(server_state) == 0

    async def test_no_permits_at_all(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        semaphore = client.get_semaphore("stock")
        before = server_state.commands()
        await semaphore.acquire(0)
        assert await semaphore.try_acquire(0) is True
        await semaphore.release(0)
        assert await semaphore.release_if_exists(0) is False
        await semaphore.add_permits(0)
        await semaphore.reduce_permits(0)
        assert server_state.commands() == before
        assert server_state.redis.keys() == []
        await client.close()
        zero: list[Callable[[int], Awaitable[object]]] = [semaphore.acquire, semaphore.release, semaphore.add_permits]
        for call in zero:
            with pytest.raises(pyredisson.ClosedError):
                await call(0)

    async def test_release_makes_a_semaphore(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.release_if_exists() is False
        assert not server_state.redis.exists("stock")
        await semaphore.release(2)
        assert await semaphore.release_if_exists(3) is True
        assert free(server_state) == 5

    async def test_drain(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.drain_permits() == 0
        assert not server_state.redis.exists("stock")
        await semaphore.try_set_permits(5)
        assert await semaphore.drain_permits() == 5
        assert await semaphore.drain_permits() == 0
        assert free(server_state) == 0

    async def test_larger_and_smaller(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(3)
        await semaphore.add_permits(2)
        assert free(server_state) == 5
        await semaphore.reduce_permits(7)
        assert await semaphore.available_permits() == -2
        assert await semaphore.drain_permits() == 0
        assert free(server_state) == -2
        assert not await semaphore.try_acquire()
        await semaphore.release(3)
        assert await semaphore.try_acquire()
        assert not await semaphore.try_acquire()

    async def test_delete(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.delete() is False
        await semaphore.try_set_permits(3)
        assert await semaphore.delete() is True
        assert not server_state.redis.exists("stock")
        assert await semaphore.try_set_permits(4)

    async def test_a_block_acquires_one_permit(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(2)
        async with semaphore as entered:
            assert entered is semaphore
            assert free(server_state) == 1
            async with semaphore:
                assert free(server_state) == 0
        assert free(server_state) == 2

    async def test_a_block_that_raises_releases(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(2)
        with pytest.raises(KeyError):
            async with semaphore:
                raise KeyError
        assert free(server_state) == 2

    async def test_the_bodys_own_exception_is_seen(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(2)
        with pytest.raises(KeyError) as raised:
            async with semaphore:
                server_state.redis.delete("stock")
                server_state.redis.hset("stock", "a", 1)
                raise KeyError
        assert "WRONGTYPE" in raised.value.__notes__[0]
        server_state.redis.delete("stock")
        await semaphore.try_set_permits(2)
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            async with semaphore:
                server_state.redis.delete("stock")
                server_state.redis.hset("stock", "a", 1)

    async def test_handles_of_one_name(self, backend: Backend) -> None:
        client = backend.connect(name_mapper=lambda name: f"app:{name}")
        one, two = client.get_semaphore("stock"), client.get_semaphore(b"stock")
        await one.try_set_permits(1)
        assert await two.available_permits() == 1
        assert (one.name, two.name) == ("stock", b"stock")
        assert "app:stock" in repr(one)
        assert await backend.connect().get_semaphore("app:stock").available_permits() == 1

    async def test_an_uncontended_pair_is_two_commands(self, backend: Backend, proxy: Proxy) -> None:
        semaphore = backend.connect(proxy.url).get_semaphore("stock")
        await semaphore.try_set_permits(1)
        async with semaphore:
            proxy.forget()
        async with semaphore:
            assert await semaphore.try_acquire() is False
        assert [words[0] for words in proxy.commands] == [b"EVALSHA"] * 4

    async def test_what_is_ours_on_the_server_ends(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        semaphore = client.get_semaphore("{t}stock")
        await semaphore.try_set_permits(1)
        for _ in range(5):
            async with semaphore:
                pass
        [ours] = [key for key in server_state.redis.keys("*") if key != b"{t}stock"]
        assert ours == f"pyredisson_once:{{t}}stock:{client.id}:0:semaphore".encode()
        assert 600 < server_state.redis.ttl(ours) <= 660


class TestArguments:
    CALLS = (
        "try_set_permits",
        "acquire",
        "try_acquire",
        "release",
        "release_if_exists",
        "add_permits",
        "reduce_permits",
    )

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("permits", [-1, 2**31, 10**30])
    async def test_numbers_that_cannot_be(self, backend: Backend, call: str, permits: int) -> None:
        with pytest.raises(ValueError, match="permits"):
            await getattr(backend.connect(NOWHERE).get_semaphore("stock"), call)(permits)

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("permits", [True, 1.0, "1", None])
    async def test_numbers_of_other_types(self, backend: Backend, call: str, permits: Any) -> None:
        with pytest.raises(TypeError, match="permits"):
            await getattr(backend.connect(NOWHERE).get_semaphore("stock"), call)(permits)

    @pytest.mark.parametrize("wait", [-1, math.nan, timedelta(-1)])
    async def test_waits_that_cannot_be(self, backend: Backend, wait: Any) -> None:
        with pytest.raises(ValueError, match="wait_time"):
            await backend.connect(NOWHERE).get_semaphore("stock").try_acquire(1, wait)

    @pytest.mark.parametrize(
        ("ttl", "error"), [(0, ValueError), (-1, ValueError), (math.inf, ValueError), ("1", TypeError)]
    )
    async def test_ends_that_cannot_be(self, backend: Backend, ttl: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="ttl"):
            await backend.connect(NOWHERE).get_semaphore("stock").try_set_permits(1, ttl)

    async def test_names_that_cannot_be(self, backend: Backend) -> None:
        with pytest.raises(ValueError, match="name"):
            backend.connect(NOWHERE).get_semaphore("")

    async def test_the_largest_number(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.try_set_permits(2**31 - 1)
        await semaphore.acquire(2**31 - 1)
        await semaphore.release(2**31 - 1)
        assert free(server_state) == 2**31 - 1
