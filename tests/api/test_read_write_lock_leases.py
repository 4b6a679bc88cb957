"""Leases of readers and writers, and their renewal by the watchdog."""

from __future__ import annotations

import threading
import time

import pytest

from pyredisson import LockLostError
from tests.support.backends import TIME_LIMIT, WOKEN, Backend
from tests.support.server_state import ServerState

from .read_write import JAVA, Orders, lease_key

pytestmark = pytest.mark.asyncio
WATCHDOG = 1.2


@pytest.fixture
def orders(backend: Backend, server_state: ServerState) -> Orders:
    return Orders(backend, server_state)


@pytest.fixture
def watched(orders: Orders) -> Orders:
    """With a short watchdog's lease."""
    orders.connect(lock_watchdog_timeout=WATCHDOG)
    return orders


class TestLeases:
    async def test_each_hold_of_a_reader_has_its_own(self, orders: Orders) -> None:
        read, me = orders.read(1), f"{orders.client.id}:1"
        await read.lock(60)
        await read.lock(20)
        assert orders.redis.pttl(lease_key(me)) > 50_000
        assert 18_000 < orders.redis.pttl(lease_key(me, 2)) <= 20_000
        assert orders.redis.pttl("orders") > 50_000
        await read.unlock()
        assert orders.redis.pttl(lease_key(me)) > 50_000
        assert not orders.redis.exists(lease_key(me, 2))
        await read.unlock()
        assert orders.redis.keys() == []

    async def test_a_longer_inner_lease_counts(self, orders: Orders) -> None:
        read = orders.read(1)
        await read.lock(2)
        await read.lock(60)
        await read.unlock()
        await orders.backend.sleep(2.05)
        assert await read.is_held()
        # Not only for us: a reader in Java that leaves asks the timeout keys.
        assert orders.redis.pttl(lease_key(f"{orders.client.id}:1")) > 50_000

    async def test_their_end_lets_others_in(self, orders: Orders) -> None:
        started = time.monotonic()
        orders.java_reads(300)
        await orders.write(1).lock(0.3)
        assert 0.2 < time.monotonic() - started < WOKEN
        started = time.monotonic()
        await orders.read(2).lock()
        assert 0.2 < time.monotonic() - started < WOKEN


class TestWatchdog:
    async def test_keeps_readers(self, watched: Orders) -> None:
        readers = [watched.read(1), watched.read(2), watched.read(1)]
        for reader in readers:
            await reader.lock()
        until = time.monotonic() + WATCHDOG * 2
        while time.monotonic() < until:
            assert 0 < watched.redis.pttl("orders") <= WATCHDOG * 1000
            await watched.backend.sleep(0.05)
        client = watched.client.id
        for key in (lease_key(f"{client}:1"), lease_key(f"{client}:1", 2), lease_key(f"{client}:2")):
            assert watched.redis.pttl(key) > 0
        for reader in readers:
            await reader.unlock()
        assert watched.redis.keys() == []

    @pytest.mark.parametrize("side", [0, 1], ids=["read", "write"])
    async def test_of_a_side_survives_the_end_of_the_other(self, watched: Orders, side: int) -> None:
        sides = watched.sides(1)
        await sides[1].lock()
        await sides[0].lock()
        await sides[1 - side].unlock()
        await watched.backend.sleep(WATCHDOG * 1.5)
        assert await sides[side].is_held()
        await sides[side].unlock()

    async def test_keeps_no_dead_reader(self, watched: Orders) -> None:
        watched.java_reads(300)
        read = watched.read(1)
        await read.lock()
        await watched.backend.until(lambda: not watched.redis.exists(lease_key(JAVA)))
        await read.unlock()
        assert watched.redis.keys() == []

    async def test_keeps_the_lock_of_a_fixed_lease_that_java_shortened(self, watched: Orders) -> None:
        read = watched.read(1)
        await read.lock(60)
        watched.java_reads(60_000)
        for _ in range(2):
            # Java's renewal of its own reader.
            watched.redis.pexpire("orders", 2_000)
            await watched.backend.until(lambda: int(watched.redis.pttl("orders")) > 50_000)
        assert await read.is_held()
        await read.unlock()

    async def test_does_not_extend_a_fixed_lease(self, orders: Orders) -> None:
        orders.connect(lock_watchdog_timeout=0.3)
        read = orders.read(1)
        await read.lock(0.6)
        await orders.backend.until(lambda: not orders.redis.exists("orders"))
        assert read.lost.is_set()

    async def test_the_end_of_a_short_lease_is_reported_at_once(self, orders: Orders) -> None:
        """The watchdog visits fixed leases too, but not before a third of its own."""
        read, notified = orders.read(1), threading.Event()
        read.on_lost(lambda _: notified.set())
        await read.lock(0.1)
        assert await read.lost.wait(TIME_LIMIT)
        assert notified.wait(TIME_LIMIT)

    @pytest.mark.parametrize("lease", [None, 60])
    async def test_a_deleted_lock_is_reported(self, watched: Orders, lease: float | None) -> None:
        read, write = watched.sides(1)
        await write.lock()
        await read.lock(lease)
        watched.redis.delete("orders")
        if lease is not None:
            watched.redis.delete(*watched.redis.keys())
        assert await read.lost.wait(TIME_LIMIT)
        assert await write.lost.wait(TIME_LIMIT)
        for side in (read, write):
            with pytest.raises(LockLostError):
                await side.unlock()


class TestLeasesOfBothSides:
    """A writer with a fixed lease reads with another one."""

    async def test_the_write_is_lost_when_its_own_lease_ends(self, orders: Orders) -> None:
        read, write = orders.sides(1)
        await write.lock(0.8)
        await read.lock(30)
        assert await write.lost.wait(TIME_LIMIT)
        assert not await write.is_held()
        assert await read.is_held()
        assert not read.lost.is_set()
        # On the server the lock lasts as long as the longer lease, and nobody comes in before that.
        assert orders.redis.pttl("orders") > 25_000
        for side in orders.sides(2):
            assert not await side.try_lock()
        # Until the writer gives it back: then it only reads.
        with pytest.raises(LockLostError):
            await write.unlock()
        # A known loss is said at once, and the release goes to the background.
        assert await orders.read(2).try_lock(wait_time=TIME_LIMIT)
        await orders.read(2).unlock()
        await read.unlock()
        assert orders.redis.keys() == []

    async def test_the_release_of_a_lost_write_frees_the_lock(self, orders: Orders) -> None:
        read, write = orders.sides(1)
        await write.lock(0.8)
        await read.lock(30)
        await read.unlock()
        assert await write.lost.wait(TIME_LIMIT)
        with pytest.raises(LockLostError):
            await write.unlock()
        await orders.gone()

    async def test_a_shorter_read_leaves_the_writes_lease(self, orders: Orders) -> None:
        read, write = orders.sides(1)
        await write.lock(30)
        await read.lock(0.3)
        assert await read.lost.wait(TIME_LIMIT)
        assert await write.is_held()
        assert orders.redis.pttl("orders") > 25_000
        with pytest.raises(LockLostError):
            await read.unlock()
        await orders.backend.until(lambda: len(orders.holds()) == 2)
        assert orders.redis.pttl("orders") > 25_000
        await write.unlock()
        assert orders.redis.keys() == []
