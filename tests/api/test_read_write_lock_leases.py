"""Leases of readers and writers, and their renewal by the watchdog."""

from __future__ import annotations

import threading
import time

import pytest

from pyredisson import LockLostError
from tests.support.backends import TIME_LIMIT, WOKEN, Backend
from tests.support.server_state import ServerState

from .read_write import JAVA, java_reads, lease_key, sides

pytestmark = pytest.mark.asyncio
WATCHDOG = 1.2


class TestLeases:
    async def test_each_hold_of_a_reader_has_its_own(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        read, _ = sides(client, 1)
        owner = f"{client.id}:1"
        await read.lock(60)
        await read.lock(20)
        assert server_state.redis.pttl(lease_key(owner)) > 50_000
        assert 18_000 < server_state.redis.pttl(lease_key(owner, 2)) <= 20_000
        assert server_state.redis.pttl("orders") > 50_000
        await read.unlock()
        assert server_state.redis.pttl(lease_key(owner)) > 50_000
        assert not server_state.redis.exists(lease_key(owner, 2))
        await read.unlock()
        assert server_state.redis.keys() == []

    async def test_a_longer_inner_lease_counts(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        read, _ = sides(client, 1)
        await read.lock(2)
        await read.lock(60)
        await read.unlock()
        await backend.sleep(2.05)
        assert await read.is_held()
        # Not only for us: a reader in Java that leaves asks the timeout keys.
        assert server_state.redis.pttl(lease_key(f"{client.id}:1")) > 50_000

    async def test_of_a_nested_write_are_not_added(self, backend: Backend, server_state: ServerState) -> None:
        _, write = sides(backend.connect(), 1)
        await write.lock(20)
        await write.lock(20)
        assert server_state.redis.pttl("orders") <= 20_000
        await write.lock(1)
        assert server_state.redis.pttl("orders") > 15_000

    async def test_the_end_of_the_readers_leases_lets_a_writer_in(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        started = time.monotonic()
        java_reads(server_state, 300)
        await sides(backend.connect())[1].lock()
        assert 0.2 < time.monotonic() - started < WOKEN

    async def test_the_end_of_the_writers_lease_lets_readers_in(self, backend: Backend) -> None:
        client = backend.connect()
        started = time.monotonic()
        await sides(client, 1)[1].lock(0.3)
        await sides(client, 2)[0].lock()
        assert 0.2 < time.monotonic() - started < WOKEN

    async def test_a_reader_that_leaves_leaves_others_their_time(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        reader, other = sides(client, 1)[0], sides(client, 2)[0]
        await other.lock(20)
        await reader.lock(60)
        await reader.unlock()
        assert 18_000 < server_state.redis.pttl("orders") <= 20_000
        assert await other.is_held()


class TestWatchdog:
    async def test_keeps_readers(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect(lock_watchdog_timeout=WATCHDOG)
        readers = [sides(client, owner)[0] for owner in (1, 2)]
        for reader in readers:
            await reader.lock()
        await readers[0].lock()
        until = time.monotonic() + WATCHDOG * 2
        while time.monotonic() < until:
            assert 0 < server_state.redis.pttl("orders") <= WATCHDOG * 1000
            await backend.sleep(0.05)
        for key in (lease_key(f"{client.id}:1"), lease_key(f"{client.id}:1", 2), lease_key(f"{client.id}:2")):
            assert server_state.redis.pttl(key) > 0
        for reader in (*readers, readers[0]):
            await reader.unlock()
        assert server_state.redis.keys() == []

    async def test_of_the_write_survives_the_end_of_the_read(self, backend: Backend) -> None:
        read, write = sides(backend.connect(lock_watchdog_timeout=WATCHDOG), 1)
        await write.lock()
        await read.lock()
        await read.unlock()
        await backend.sleep(WATCHDOG * 1.5)
        assert await write.is_held()
        await write.unlock()

    async def test_of_the_read_survives_the_end_of_the_write(self, backend: Backend) -> None:
        read, write = sides(backend.connect(lock_watchdog_timeout=WATCHDOG), 1)
        await write.lock()
        await read.lock()
        await write.unlock()
        await backend.sleep(WATCHDOG * 1.5)
        assert await read.is_held()
        await read.unlock()

    async def test_keeps_no_dead_reader(self, backend: Backend, server_state: ServerState) -> None:
        java_reads(server_state, 300)
        read, _ = sides(backend.connect(lock_watchdog_timeout=WATCHDOG), 1)
        await read.lock()
        await backend.until(lambda: not server_state.redis.exists(lease_key(JAVA)))
        await read.unlock()
        assert server_state.redis.keys() == []

    async def test_keeps_the_lock_of_a_fixed_lease_that_java_shortened(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect(lock_watchdog_timeout=WATCHDOG)
        read, _ = sides(client, 1)
        await read.lock(60)
        java_reads(server_state, 60_000)
        for _ in range(2):
            # Java's renewal of its own reader.
            server_state.redis.pexpire("orders", 2_000)
            await backend.until(lambda: int(server_state.redis.pttl("orders")) > 50_000)
        assert await read.is_held()
        await read.unlock()

    async def test_does_not_extend_a_fixed_lease(self, backend: Backend, server_state: ServerState) -> None:
        read, _ = sides(backend.connect(lock_watchdog_timeout=0.3), 1)
        await read.lock(0.6)
        await backend.until(lambda: not server_state.redis.exists("orders"))
        assert read.lost.is_set()

    async def test_the_end_of_a_short_lease_is_reported_at_once(self, backend: Backend) -> None:
        """The watchdog visits fixed leases too, but not before a third of its own."""
        read, _ = sides(backend.connect(), 1)
        notified = threading.Event()
        read.on_lost(lambda _: notified.set())
        await read.lock(0.1)
        assert await read.lost.wait(TIME_LIMIT)
        assert notified.wait(TIME_LIMIT)

    @pytest.mark.parametrize("lease", [None, 60])
    async def test_a_deleted_lock_is_reported(
        self, backend: Backend, server_state: ServerState, lease: float | None
    ) -> None:
        read, write = sides(backend.connect(lock_watchdog_timeout=WATCHDOG), 1)
        await write.lock()
        await read.lock(lease)
        server_state.redis.delete("orders")
        if lease is not None:
            server_state.redis.delete(*server_state.redis.keys())
        assert await read.lost.wait(TIME_LIMIT)
        assert await write.lost.wait(TIME_LIMIT)
        for side in (read, write):
            with pytest.raises(LockLostError):
                await side.unlock()


class TestLeasesOfBothSides:
    """A writer with a fixed lease reads with a longer one."""

    async def test_the_write_is_lost_when_its_own_lease_ends(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        read, write = sides(client, 1)
        await write.lock(0.8)
        await read.lock(30)
        assert await write.lost.wait(TIME_LIMIT)
        assert not await write.is_held()
        assert await read.is_held()
        assert not read.lost.is_set()
        # On the server the lock lasts as long as the longer lease, and nobody comes in before that.
        assert server_state.redis.pttl("orders") > 25_000
        for side in sides(client, 2):
            assert not await side.try_lock()
        # Until the writer gives it back: then it only reads.
        with pytest.raises(LockLostError):
            await write.unlock()
        other, _ = sides(client, 2)
        # A known loss is said at once, and the release goes to the background.
        assert await other.try_lock(wait_time=TIME_LIMIT)
        await other.unlock()
        await read.unlock()
        assert server_state.redis.keys() == []

    async def test_the_release_of_a_lost_write_frees_the_lock(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        read, write = sides(client, 1)
        await write.lock(0.8)
        await read.lock(30)
        await read.unlock()
        assert await write.lost.wait(TIME_LIMIT)
        with pytest.raises(LockLostError):
            await write.unlock()
        await backend.until(lambda: server_state.redis.keys() == [])

    async def test_a_shorter_read_leaves_the_writes_lease(self, backend: Backend, server_state: ServerState) -> None:
        read, write = sides(backend.connect(), 1)
        await write.lock(30)
        await read.lock(0.3)
        assert await read.lost.wait(TIME_LIMIT)
        assert await write.is_held()
        assert server_state.redis.pttl("orders") > 25_000
        with pytest.raises(LockLostError):
            await read.unlock()
        await backend.until(lambda: len(server_state.holds("orders")) == 2)
        assert server_state.redis.pttl("orders") > 25_000
        await write.unlock()
        assert server_state.redis.keys() == []
