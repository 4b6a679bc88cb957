"""`@client.locked(...)`: each call of a function runs while it holds a lock."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson._api.locked_kinds import LockKind
from tests.support.waiting import TIME_LIMIT, eventually

KINDS: tuple[LockKind, ...] = ("lock", "fair", "fenced", "spin", "read", "write")


class TestThreads:
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_lock_is_held_for_the_call(self, client: pyredisson.Client, admin: Redis, kind: LockKind) -> None:
        @client.locked("order:{order_id}", kind=kind)
        def change(order_id: int) -> int:
            assert admin.hlen(f"order:{order_id}")
            return order_id + 1

        assert change(4) == 5
        assert not admin.exists("order:4")

    def test_the_function_keeps_its_signature(self, client: pyredisson.Client) -> None:
        @client.locked("order:{order_id}")
        def change(order_id: int, *, place: str = "here") -> str:
            """Changes an order."""
            return f"{order_id} {place}"

        assert str(inspect.signature(change)) == "(order_id: 'int', *, place: 'str' = 'here') -> 'str'"
        assert (change.__name__, change.__doc__) == ("change", "Changes an order.")
        assert change(3, place="there") == "3 there"

    def test_a_method_and_a_nested_call(self, client: pyredisson.Client, admin: Redis) -> None:
        class Orders:
            tenant = "t"

            @client.locked("{self.tenant}:{order_id}")
            def count(self, order_id: int, depth: int) -> int:
                levels = [int(each) for each in admin.hvals(f"t:{order_id}")]
                return max(*levels, self.count(order_id, depth - 1)) if depth else levels[0]

        assert Orders().count(1, 2) == 3
        assert not admin.exists("t:1")

    def test_it_waits_as_long_as_it_may(self, client: pyredisson.Client) -> None:
        @client.locked("orders", wait_time=0.01)
        def change() -> None:
            raise AssertionError("not reached")

        held = client.get_lock("orders", owner=7)
        with held, pytest.raises(pyredisson.LockTimeoutError, match="orders"):
            change()

    def test_two_calls_exclude_each_other(self, client: pyredisson.Client, admin: Redis) -> None:
        inside: list[None] = []
        most: list[int] = []

        @client.locked("orders")
        def change() -> None:
            inside.append(None)
            admin.ping()
            most.append(len(inside))
            inside.pop()

        def work() -> None:
            for _ in range(20):
                change()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIME_LIMIT)
        assert most == [1] * 80

    def test_an_error_of_the_function_releases(self, client: pyredisson.Client, admin: Redis) -> None:
        @client.locked("orders")
        def change() -> None:
            raise KeyError("missing")

        with pytest.raises(KeyError):
            change()
        assert not admin.exists("orders")

    def test_a_lost_lock_is_reported_at_the_end(self, client: pyredisson.Client, admin: Redis) -> None:
        @client.locked("orders")
        def change() -> None:
            admin.delete("orders")

        with pytest.raises(pyredisson.LockLostError):
            change()


@pytest.mark.asyncio
class TestAsyncio:
    @pytest.mark.parametrize("kind", KINDS)
    async def test_the_lock_is_held_for_the_call(
        self, aclient: pyredisson.asyncio.Client, admin: Redis, kind: LockKind
    ) -> None:
        @aclient.locked("order:{order_id}", kind=kind, lease_time=20)
        async def change(order_id: int) -> int:
            assert 15_000 < int(str(admin.pttl(f"order:{order_id}"))) <= 20_000
            return order_id + 1

        assert inspect.iscoroutinefunction(change)
        assert await change(4) == 5
        assert not admin.exists("order:4")

    async def test_two_calls_exclude_each_other(self, aclient: pyredisson.asyncio.Client) -> None:
        inside, most = 0, 0

        @aclient.locked("orders")
        async def change() -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

        async with asyncio.timeout(TIME_LIMIT):
            await asyncio.gather(*[change() for _ in range(20)])
        assert most == 1

    async def test_a_lost_lock_ends_the_call(self, server_url: str, admin: Redis) -> None:
        async with pyredisson.asyncio.connect(server_url, lock_watchdog_timeout=0.6) as client:

            @client.locked("orders")
            async def change() -> None:
                admin.delete("orders")
                await asyncio.sleep(TIME_LIMIT)

            with pytest.raises(pyredisson.LockLostError):
                await change()

    async def test_a_cancelled_call_releases(self, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
        begun = asyncio.Event()

        @aclient.locked("orders")
        async def change() -> None:
            begun.set()
            await asyncio.sleep(TIME_LIMIT)

        task = asyncio.create_task(change())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        eventually(lambda: not admin.exists("orders"))
