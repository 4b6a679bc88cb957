"""The read-write lock: many readers or one writer, upgrade, downgrade, questions and force_unlock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pyredisson import LockLostError, LockNotHeldError, LockTimeoutError, LockUpgradeError
from tests.support.backends import TIME_LIMIT, WOKEN, Backend
from tests.support.server_state import ServerState

from .read_write import CLAIM, listeners, sides

pytestmark = pytest.mark.asyncio


class TestSides:
    """Who may come in beside whom."""

    async def test_the_pair(self, backend: Backend) -> None:
        pair = backend.connect().get_read_write_lock("orders")
        assert (pair.name, pair.read_lock().name, pair.write_lock().name) == ("orders",) * 3
        assert "ReadWriteLock 'orders'" in repr(pair)
        assert "ReadLock 'orders'" in repr(pair.read_lock())
        assert "WriteLock 'orders'" in repr(pair.write_lock())

    @pytest.mark.parametrize(("name", "owner"), [("", None), (1, None), ("a", 1.0), ("a", -1), ("a", 2**32)])
    async def test_what_cannot_be(self, backend: Backend, name: Any, owner: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            backend.connect().get_read_write_lock(name, owner=owner)

    async def test_many_readers(self, backend: Backend, server_state: ServerState) -> None:
        readers = [sides(backend.connect(), owner)[0] for owner in (1, 2, 3)]
        for reader in readers:
            assert await reader.try_lock()
        assert len(server_state.holds("orders")) == 4
        for reader in readers:
            await reader.unlock()
        assert server_state.redis.keys() == []

    async def test_a_reader_excludes_a_writer(self, backend: Backend) -> None:
        client = backend.connect()
        read, _ = sides(client, 1)
        _, write = sides(client, 2)
        await read.lock()
        assert not await write.try_lock()
        assert not await write.try_lock(wait_time=0.05)
        await read.unlock()
        assert await write.try_lock()

    async def test_a_writer_excludes_all_others(self, backend: Backend) -> None:
        client = backend.connect()
        _, write = sides(client, 1)
        read2, write2 = sides(client, 2)
        await write.lock()
        assert not await read2.try_lock(wait_time=0.05)
        assert not await write2.try_lock(wait_time=0.05)
        await write.unlock()
        assert await write2.try_lock()

    async def test_both_sides_are_reentrant(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        for lock, field in zip(sides(client, 1), (f"{client.id}:1", f"{client.id}:1:write"), strict=True):
            for count in (1, 2, 3):
                await lock.lock()
                assert server_state.holds("orders")[field] == str(count)
                assert await lock.get_hold_count() == count
            for count in (2, 1):
                await lock.unlock()
                assert server_state.holds("orders")[field] == str(count)
            await lock.unlock()
            assert server_state.redis.keys() == []
            with pytest.raises(LockNotHeldError, match="is free"):
                await lock.unlock()

    async def test_the_writer_may_read(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        read, write = sides(client, 1)
        async with write, read, read:
            assert server_state.holds("orders") == {"mode": "write", f"{client.id}:1:write": "1", f"{client.id}:1": "2"}
            assert (await read.get_hold_count(), await write.get_hold_count()) == (2, 1)
            async with write:
                assert await write.get_hold_count() == 2
        assert server_state.redis.keys() == []

    async def test_the_calling_owner(self, backend: Backend) -> None:
        read, write = sides(backend.connect())
        async with write, read:
            assert await write.is_held()
            assert await backend.as_another_owner(read.try_lock) is False
            assert await backend.as_another_owner(write.try_lock) is False
        async with read:
            assert await backend.as_another_owner(read.try_lock) is True

    async def test_a_block_in_vain(self, backend: Backend) -> None:
        client = backend.connect()
        await sides(client, 1)[1].lock()
        for side in sides(client, 2):
            with pytest.raises(LockTimeoutError, match="orders"):
                async with side.hold(wait_time=0.05):
                    pytest.fail("entered a lock that another one holds")

    async def test_closing_the_client_releases_both_sides(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        read, write = sides(client, 1)
        await write.lock()
        await read.lock()
        await sides(backend.connect(), 2)[0].try_lock()
        await client.close()
        assert server_state.redis.keys() == []

    async def test_a_lock_of_another_kind_is_not_free(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        await client.get_lock("orders", owner=1).lock()
        for side in sides(client, 2):
            assert not await side.try_lock(wait_time=0.05)
            assert not await side.is_locked()
        assert server_state.holds("orders") == {f"{client.id}:1": "1"}


class TestUpgrade:
    """From reading to writing there is no way but to leave first."""

    async def test_is_refused_before_anything_is_sent(self, backend: Backend, server_state: ServerState) -> None:
        read, write = sides(backend.connect(), 1)
        await read.lock()
        before = server_state.scripts()
        ways: list[Callable[[], Any]] = [write.lock, write.try_lock, lambda: write.try_lock(1), write.acquire]
        for way in ways:
            with pytest.raises(LockUpgradeError, match=r"orders.*:1\b"):
                await way()
        with pytest.raises(LockUpgradeError):
            async with write.hold(0.1):
                pytest.fail("writes beside itself")
        await read.unlock()
        assert await write.try_lock()
        assert server_state.scripts() - before == 2

    async def test_of_another_reader_is_not_this_ones(self, backend: Backend) -> None:
        client = backend.connect()
        await sides(client, 1)[0].lock()
        assert not await sides(client, 2)[1].try_lock()

    async def test_a_writer_may_acquire_another_hold(self, backend: Backend) -> None:
        read, write = sides(backend.connect(), 1)
        async with write, read, write:
            assert await write.get_hold_count() == 2

    async def test_after_a_downgrade(self, backend: Backend) -> None:
        read, write = sides(backend.connect(), 1)
        await write.lock()
        await read.lock()
        await write.unlock()
        with pytest.raises(LockUpgradeError):
            await write.lock()

    async def test_after_a_read_that_was_lost(self, backend: Backend) -> None:
        read, write = sides(backend.connect(), 1)
        await read.lock(0.05)
        assert await read.lost.wait(TIME_LIMIT)
        assert await write.try_lock(TIME_LIMIT)


class TestDowngrade:
    async def test_lets_other_readers_in_at_once(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        read, write = sides(client, 1)
        await write.lock()
        await read.lock()
        others = [backend.spawn(sides(client, owner)[0].lock) for owner in (2, 3)]
        others.append(backend.spawn(sides(backend.connect(), 4)[0].lock))
        await backend.until(lambda: listeners(server_state) == 2)
        await backend.sleep(0.05)
        started = time.monotonic()
        await write.unlock()
        for other in others:
            await other.result()
        assert time.monotonic() - started < WOKEN
        assert server_state.holds("orders")["mode"] == "read"
        assert len(server_state.holds("orders")) == 5
        assert await read.is_held()

    async def test_the_lock_lasts_as_long_as_the_read(self, backend: Backend, server_state: ServerState) -> None:
        read, write = sides(backend.connect(), 1)
        await write.lock(60)
        await read.lock(20)
        assert server_state.redis.pttl("orders") > 50_000
        await write.unlock()
        assert 18_000 < server_state.redis.pttl("orders") <= 20_000
        await read.unlock()
        assert server_state.redis.keys() == []


class TestQuestions:
    async def test_of_a_free_lock(self, backend: Backend) -> None:
        for side in sides(backend.connect()):
            assert await side.is_locked() is False
            assert await side.locked() is False
            assert await side.is_held() is False
            assert await side.get_hold_count() == 0
            assert await side.remain_time_to_live() is None

    async def test_while_another_owner_reads(self, backend: Backend) -> None:
        client = backend.connect()
        read, write = sides(client, 1)
        await read.lock(60)
        assert (await read.is_locked(), await write.is_locked()) == (True, False)
        assert (await read.is_held(), await write.is_held()) == (True, False)
        assert (await read.is_held_by(1), await read.is_held_by(2), await write.is_held_by(1)) == (True, False, False)
        left = await read.remain_time_to_live()
        assert left is not None
        assert 50 < left <= 60

    async def test_while_another_owner_writes(self, backend: Backend) -> None:
        client = backend.connect()
        read, write = sides(client, 1)
        await write.lock()
        assert (await read.is_locked(), await write.is_locked()) == (False, True)
        assert (await read.is_held(), await write.is_held()) == (False, True)
        await read.lock()
        assert (await read.is_locked(), await write.is_locked()) == (True, True)
        assert (await read.is_held(), await write.is_held()) == (True, True)

    async def test_the_error_of_another_owner_names_the_holder(self, backend: Backend) -> None:
        client = backend.connect()
        read, write = sides(client, 5)
        await sides(client, 1)[1].lock()
        for side, kind in ((read, "read"), (write, "write")):
            said = rf"{kind} lock 'orders' is held by .*:1:write of this client, free in .*; owner .*:5 has no hold"
            with pytest.raises(LockNotHeldError, match=said):
                await side.unlock()
        await sides(client, 1)[1].unlock()
        for owner in (1, 2, 3, 4):
            await sides(client, owner)[0].lock()
        with pytest.raises(LockNotHeldError, match=r"held by 4 readers, one of them .*:1 of this client, free in"):
            await read.unlock()

    async def test_a_side_is_not_released_through_the_other(self, backend: Backend) -> None:
        client = backend.connect()
        read, write = sides(client, 1)
        await write.lock()
        with pytest.raises(LockNotHeldError):
            await read.unlock()
        await write.unlock()
        await read.lock()
        with pytest.raises(LockNotHeldError):
            await write.unlock()


class TestForce:
    async def test_of_the_other_side_does_nothing(self, backend: Backend) -> None:
        read, write = sides(backend.connect(), 1)
        assert await read.force_unlock() is False
        assert await write.force_unlock() is False
        await write.lock()
        assert await read.force_unlock() is False
        assert await write.is_held()
        await write.unlock()
        await read.lock()
        assert await write.delete() is False
        assert await read.is_held()

    async def test_takes_all_readers_holds(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        readers = [sides(client, owner)[0] for owner in (1, 2)]
        for reader in readers:
            await reader.lock()
        assert await readers[0].force_unlock() is True
        assert not server_state.redis.exists("orders")
        for reader in readers:
            assert reader.lost.is_set()
            with pytest.raises(LockLostError, match="force_unlock"):
                await reader.unlock()

    async def test_takes_what_the_writer_reads(self, backend: Backend) -> None:
        read, write = sides(backend.connect(), 1)
        await write.lock()
        await read.lock()
        assert await write.force_unlock() is True
        for side in (read, write):
            assert side.lost.is_set()
            with pytest.raises(LockLostError, match="force_unlock"):
                await side.unlock()

    async def test_wakes_waiters(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        await sides(client, 1)[1].lock()
        others = [backend.spawn(sides(client, owner)[0].lock) for owner in (2, 3)]
        await backend.until(lambda: listeners(server_state) == 1)
        assert await sides(client, 4)[1].force_unlock()
        for other in others:
            await other.result()
        writer = backend.spawn(sides(client, 5)[1].lock)
        await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
        assert await sides(client, 4)[0].force_unlock()
        await writer.result()
