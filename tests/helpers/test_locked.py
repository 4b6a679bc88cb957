"""`@client.locked(...)`: each call of a function runs while it holds a lock."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson._api.locked_kinds import LockKind
from tests.support.backends import WORK_LIMIT, Backend
from tests.support.waiting import TIME_LIMIT

from .conftest import decorated

KINDS: tuple[LockKind, ...] = ("lock", "fair", "fenced", "spin", "read", "write")


@pytest.mark.asyncio
class TestBothBackends:
    @pytest.mark.parametrize("kind", KINDS)
    async def test_the_lock_is_held_for_the_call(self, backend: Backend, admin: Redis, kind: LockKind) -> None:
        async def change(order_id: int) -> int:
            assert 15_000 < int(str(admin.pttl(f"order:{order_id}"))) <= 20_000
            return order_id + 1

        locked = backend.connect().locked("order:{order_id}", kind=kind, lease_time=20)
        assert await decorated(backend, locked, change)(4) == 5
        assert not admin.exists("order:4")

    async def test_calls_exclude_each_other(self, backend: Backend) -> None:
        inside: list[None] = []
        most: list[int] = []

        async def change() -> None:
            inside.append(None)
            await backend.sleep(0)
            most.append(len(inside))
            inside.pop()

        call = decorated(backend, backend.connect().locked("orders"), change)
        calls = [backend.spawn(call) for _ in range(20)]
        for each in calls:
            await each.result(WORK_LIMIT)
        assert most == [1] * 20

    async def test_it_waits_as_long_as_it_may(self, backend: Backend) -> None:
        async def change() -> None:
            raise AssertionError("not reached")

        client = backend.connect()
        async with client.get_lock("orders", owner=7):
            with pytest.raises(pyredisson.LockTimeoutError, match="orders"):
                await decorated(backend, client.locked("orders", wait_time=0.01), change)()

    async def test_an_error_of_the_function_releases(self, backend: Backend, admin: Redis) -> None:
        async def change() -> None:
            raise KeyError("missing")

        with pytest.raises(KeyError):
            await decorated(backend, backend.connect().locked("orders"), change)()
        assert not admin.exists("orders")

    async def test_a_lost_lock(self, backend: Backend, admin: Redis) -> None:
        """It is reported at the end of the call, which it ends in asyncio."""

        async def change() -> None:
            admin.delete("orders")
            if backend.name == "asyncio":
                await asyncio.sleep(TIME_LIMIT)

        client = backend.connect(lock_watchdog_timeout=0.6)
        with pytest.raises(pyredisson.LockLostError):
            await decorated(backend, client.locked("orders"), change)()


def test_the_function_keeps_its_signature(client: pyredisson.Client, aclient: pyredisson.asyncio.Client) -> None:
    @client.locked("order:{order_id}")
    def change(order_id: int, *, place: str = "here") -> str:
        """Changes an order."""
        return f"{order_id} {place}"

    @aclient.locked("orders")
    async def coroutine() -> None: ...

    assert str(inspect.signature(change)) == "(order_id: 'int', *, place: 'str' = 'here') -> 'str'"
    assert (change.__name__, change.__doc__) == ("change", "Changes an order.")
    assert change(3, place="there") == "3 there"
    assert inspect.iscoroutinefunction(coroutine)


def test_a_method_and_a_nested_call(client: pyredisson.Client, admin: Redis) -> None:
    class Orders:
        tenant = "t"

        @client.locked("{self.tenant}:{order_id}")
        def count(self, order_id: int, depth: int) -> int:
            levels = [int(each) for each in admin.hvals(f"t:{order_id}")]
            return max(*levels, self.count(order_id, depth - 1)) if depth else levels[0]

    assert Orders().count(1, 2) == 3
    assert not admin.exists("t:1")
