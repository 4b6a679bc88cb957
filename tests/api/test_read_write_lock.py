"""The read-write lock: many readers or one writer, upgrade, downgrade, questions and force_unlock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pyredisson import LockLostError, LockNotHeldError, LockTimeoutError, LockUpgradeError
from tests.support.backends import TIME_LIMIT, WOKEN, Backend
from tests.support.server_state import ServerState

from .read_write import Orders, finished

pytestmark = pytest.mark.asyncio


@pytest.fixture
def orders(backend: Backend, server_state: ServerState) -> Orders:
    return Orders(backend, server_state)


class TestSides:
    """Who may come in beside whom."""

    async def test_the_pair(self, orders: Orders) -> None:
        pair = orders.client.get_read_write_lock("orders")
        assert (pair.name, pair.read_lock().name, pair.write_lock().name) == ("orders",) * 3
        for each, shown in ((pair, "ReadWriteLock"), (pair.read_lock(), "ReadLock"), (pair.write_lock(), "WriteLock")):
            assert f"{shown} 'orders'" in repr(each)

    @pytest.mark.parametrize(("name", "owner"), [("", None), (1, None), ("a", 1.0), ("a", -1), ("a", 2**32)])
    async def test_what_cannot_be(self, orders: Orders, name: Any, owner: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            orders.client.get_read_write_lock(name, owner=owner)

    async def test_many_readers(self, orders: Orders) -> None:
        readers = [orders.other(owner)[0] for owner in (1, 2, 3)]
        for reader in readers:
            assert await reader.try_lock()
        assert len(orders.holds()) == 4
        for reader in readers:
            await reader.unlock()
        assert orders.redis.keys() == []

    async def test_a_reader_excludes_a_writer(self, orders: Orders) -> None:
        read, write = orders.read(1), orders.write(2)
        await read.lock()
        assert not await write.try_lock()
        assert not await write.try_lock(wait_time=0.05)
        await read.unlock()
        assert await write.try_lock()

    async def test_a_writer_excludes_all_others(self, orders: Orders) -> None:
        await orders.write(1).lock()
        for side in orders.sides(2):
            assert not await side.try_lock(wait_time=0.05)
            with pytest.raises(LockTimeoutError, match="orders"):
                async with side.hold(wait_time=0.05):
                    pytest.fail("entered a lock that another one holds")
        await orders.write(1).unlock()
        assert await orders.write(2).try_lock()

    async def test_both_sides_are_reentrant(self, orders: Orders) -> None:
        me = f"{orders.client.id}:1"
        for lock, field in zip(orders.sides(1), (me, f"{me}:write"), strict=True):
            for count in (1, 2, 3):
                await lock.lock()
                assert orders.holds()[field] == str(count)
                assert await lock.get_hold_count() == count
            for count in (2, 1):
                await lock.unlock()
                assert orders.holds()[field] == str(count)
            await lock.unlock()
            assert orders.redis.keys() == []
            with pytest.raises(LockNotHeldError, match="is free"):
                await lock.unlock()

    async def test_the_writer_may_read_and_write_again(self, orders: Orders) -> None:
        read, write = orders.sides(1)
        me = f"{orders.client.id}:1"
        async with write, read, read:
            assert orders.holds() == {"mode": "write", f"{me}:write": "1", me: "2"}
            assert (await read.get_hold_count(), await write.get_hold_count()) == (2, 1)
            async with write:
                assert await write.get_hold_count() == 2
        assert orders.redis.keys() == []

    async def test_the_calling_owner(self, orders: Orders) -> None:
        read, write = orders.sides()
        async with write, read:
            assert await write.is_held()
            assert await orders.backend.as_another_owner(read.try_lock) is False
            assert await orders.backend.as_another_owner(write.try_lock) is False
        async with read:
            assert await orders.backend.as_another_owner(read.try_lock) is True

    async def test_closing_the_client_releases_both_sides(self, orders: Orders) -> None:
        for side in reversed(orders.sides(1)):
            await side.lock()
        await orders.other(2)[0].try_lock()
        await orders.client.close()
        assert orders.redis.keys() == []

    async def test_a_lock_of_another_kind_is_not_free(self, orders: Orders) -> None:
        await orders.client.get_lock("orders", owner=1).lock()
        for side in orders.sides(2):
            assert not await side.try_lock(wait_time=0.05)
            assert not await side.is_locked()
        assert orders.holds() == {f"{orders.client.id}:1": "1"}


class TestUpgrade:
    """From reading to writing there is no way but to leave first."""

    async def test_is_refused_before_anything_is_sent(self, orders: Orders) -> None:
        read, write = orders.sides(1)
        await read.lock()
        before = orders.scripts()
        ways: list[Callable[[], Any]] = [write.lock, write.try_lock, lambda: write.try_lock(1), write.acquire]
        for way in ways:
            with pytest.raises(LockUpgradeError, match=r"orders.*:1\b"):
                await way()
        with pytest.raises(LockUpgradeError):
            async with write.hold(0.1):
                pytest.fail("writes beside itself")
        await read.unlock()
        assert await write.try_lock()
        assert orders.scripts() - before == 2

    async def test_after_a_downgrade(self, orders: Orders) -> None:
        read, write = orders.sides(1)
        await write.lock()
        await read.lock()
        await write.unlock()
        with pytest.raises(LockUpgradeError):
            await write.lock()

    async def test_after_a_read_that_was_lost(self, orders: Orders) -> None:
        read, write = orders.sides(1)
        await read.lock(0.05)
        assert await read.lost.wait(TIME_LIMIT)
        assert await write.try_lock(TIME_LIMIT)


class TestDowngrade:
    async def test_lets_other_readers_in_at_once(self, orders: Orders) -> None:
        read, write = orders.sides(1)
        await write.lock()
        await read.lock()
        others = [*orders.reads(2, 3), orders.backend.spawn(orders.other(4)[0].lock)]
        await orders.listened(2)
        await orders.backend.sleep(0.05)
        started = time.monotonic()
        await write.unlock()
        await finished(others)
        assert time.monotonic() - started < WOKEN
        assert orders.holds()["mode"] == "read"
        assert len(orders.holds()) == 5
        assert await read.is_held()


class TestQuestions:
    async def asked(self, orders: Orders, *answers: bool) -> None:
        """Of each side, whether it is locked, held, and held by owner 1 and 2."""
        for side, (locked, held) in zip(orders.sides(1), (answers[:2], answers[2:]), strict=True):
            assert (await side.is_locked(), await side.locked()) == (locked, locked)
            assert (await side.is_held(), await side.is_held_by(1)) == (held, held)
            assert await side.is_held_by(2) is False

    async def test_in_each_state(self, orders: Orders) -> None:
        read, write = orders.sides(1)
        await self.asked(orders, False, False, False, False)
        for side in (read, write):
            assert await side.get_hold_count() == 0
            assert await side.remain_time_to_live() is None
        await read.lock(60)
        await self.asked(orders, True, True, False, False)
        left = await read.remain_time_to_live()
        assert left is not None
        assert 50 < left <= 60
        await read.unlock()
        await write.lock()
        await self.asked(orders, False, False, True, True)
        await read.lock()
        await self.asked(orders, True, True, True, True)

    async def test_the_error_of_another_owner_names_the_holder(self, orders: Orders) -> None:
        read, write = orders.sides(5)
        await orders.write(1).lock()
        for side, kind in ((read, "read"), (write, "write")):
            said = rf"{kind} lock 'orders' is held by .*:1:write of this client, free in .*; owner .*:5 has no hold"
            with pytest.raises(LockNotHeldError, match=said):
                await side.unlock()
        await orders.write(1).unlock()
        for owner in (1, 2, 3, 4):
            await orders.read(owner).lock()
        with pytest.raises(LockNotHeldError, match=r"held by 4 readers, one of them .*:1 of this client, free in"):
            await read.unlock()

    async def test_a_side_is_not_released_through_the_other(self, orders: Orders) -> None:
        read, write = orders.sides(1)
        for side, other in ((write, read), (read, write)):
            await side.lock()
            with pytest.raises(LockNotHeldError):
                await other.unlock()
            await side.unlock()


class TestForce:
    async def test_of_the_other_side_does_nothing(self, orders: Orders) -> None:
        read, write = orders.sides(1)
        assert await read.force_unlock() is False
        assert await write.force_unlock() is False
        await write.lock()
        assert await read.force_unlock() is False
        assert await write.is_held()
        await write.unlock()
        await read.lock()
        assert await write.delete() is False
        assert await read.is_held()

    @pytest.mark.parametrize("reads", [True, False])
    async def test_takes_all_holds(self, orders: Orders, reads: bool) -> None:
        """Of all readers; and what the writer reads."""
        sides = [orders.read(1), orders.read(2)] if reads else [orders.write(1), orders.read(1)]
        for side in sides:
            await side.lock()
        assert await sides[0].force_unlock() is True
        assert not orders.redis.exists("orders")
        for side in sides:
            assert side.lost.is_set()
            with pytest.raises(LockLostError, match="force_unlock"):
                await side.unlock()

    async def test_wakes_waiters(self, orders: Orders) -> None:
        await orders.write(1).lock()
        others = orders.reads(2, 3)
        await orders.listened()
        assert await orders.write(4).force_unlock()
        await finished(others)
        others = orders.writes(5)
        await orders.claimed()
        assert await orders.read(4).force_unlock()
        await finished(others)
