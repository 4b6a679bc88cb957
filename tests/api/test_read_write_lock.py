"""The read-write lock: both sides of one owner, leases, leases of nested holds; waiting, and claims of writers."""

import time

import pytest

from pyredisson import ClosedError, LockNotHeldError, LockUpgradeError
from tests.lua.read_write import CLAIM, TURN, lease_key
from tests.support.backends import TIME_LIMIT, fails, finished, in_turn
from tests.support.kinds import acquired

from .kinds import JAVA, READ_WRITE_CHANNEL, WAYS, Orders, assert_lost, lock_of

WATCHDOG = 1.2


@pytest.fixture
def watched(orders: Orders) -> Orders:
    """With a short watchdog's lease."""
    orders.connect(lock_watchdog_timeout=WATCHDOG)
    return orders


class TestSides:
    async def test_the_writer_may_read_and_write_again(self, orders: Orders) -> None:
        read, write = orders.sides(1)
        me = f"{orders.client.id}:1"
        async with write, read, read:
            assert orders.holds() == {"mode": "write", f"{me}:write": "1", me: "2"}
            assert (await read.get_hold_count(), await write.get_hold_count()) == (2, 1)
            async with write:
                assert await write.get_hold_count() == 2
            for side in orders.sides(2):
                assert not await side.try_lock()
        assert orders.redis.keys() == []
        async with read, orders.read(2):
            assert not await orders.write(3).try_lock()
        await in_turn((write.lock, read.lock))
        await orders.client.close()
        assert orders.redis.keys() == []

    async def test_each_is_asked_and_released_by_itself(self, orders: Orders) -> None:
        pair = orders.client.get_read_write_lock("orders", owner=1)
        read, write = pair.read_lock(), pair.write_lock()
        for shown, kind in ((pair, "ReadWriteLock"), (read, "ReadLock"), (write, "WriteLock")):
            assert (shown.name, f"{kind} 'orders'" in repr(shown)) == ("orders", True)
        for side, other in ((read, write), (write, read)):
            await side.lock()
            for each, held in ((side, True), (other, False)):
                answers = [await each.is_locked(), await each.locked(), await each.is_held(), await each.is_held_by(1)]
                assert answers == [held] * 4
            await fails(LockNotHeldError, other.unlock)
            assert [await other.force_unlock(), await other.delete(), await side.is_held()] == [False, False, True]
            await side.unlock()
        async with write, read:
            assert [await side.is_locked() for side in (read, write)] == [True, True]

    @pytest.mark.parametrize("reads", [True, False])
    async def test_force_unlock_takes_all_holds(self, orders: Orders, reads: bool) -> None:
        """Of all readers; and what the writer reads."""
        sides = [orders.read(1), orders.read(2)] if reads else [orders.write(1), orders.read(1)]
        await in_turn(side.lock for side in sides)
        waiting = await orders.waits("write", 5)
        assert await sides[0].force_unlock() is True
        await finished(waiting)
        assert len(orders.holds()) == 2
        for side in sides:
            assert side.lost.is_set()
            await assert_lost(side, "force_unlock")


async def test_an_upgrade_is_refused_before_anything_is_sent(orders: Orders) -> None:
    """From reading to writing there is no way but to leave first."""
    read, write = orders.sides(1)
    await read.lock()
    before = orders.scripts()
    for way in WAYS:
        await fails(LockUpgradeError, way, write, match=r"orders.*:1\b")
    await read.unlock()
    assert (await write.try_lock(), orders.scripts() - before) == (True, 2)
    # So it is after a downgrade.
    await read.lock()
    await write.unlock()
    await fails(LockUpgradeError, write.lock)


class TestLeases:
    async def test_a_read_that_was_lost_keeps_nobody_from_writing(self, orders: Orders) -> None:
        """The watchdog visits fixed leases too, but not before a third of its own."""
        read, write = orders.sides(1)
        await read.lock(0.05)
        assert [await read.lost.wait(TIME_LIMIT), await write.try_lock(TIME_LIMIT)] == [True, True]

    @pytest.mark.parametrize(("side", "lease"), [(0, None), (1, 60)])
    async def test_the_watchdog_of_both_sides(self, watched: Orders, side: int, lease: float | None) -> None:
        """That of a side survives the end of the other. A lock that is deleted is reported."""
        read, write = sides = watched.sides(1)
        await in_turn((write.lock, read.lock))
        await sides[1 - side].unlock()
        await watched.backend.sleep(WATCHDOG * 1.5)
        assert await sides[side].is_held()
        await sides[side].unlock()
        await write.lock()
        await read.lock(lease)
        watched.redis.delete(*(["orders"] if lease is None else watched.redis.keys()))
        for each in sides:
            assert await each.lost.wait(TIME_LIMIT)
            await assert_lost(each)

    async def test_the_watchdog_keeps_a_fixed_one_that_java_shortened(self, watched: Orders) -> None:
        read = await acquired(watched.read(1), 60)
        watched.java_reads(60_000)
        for _ in range(2):
            # Java's renewal of its own reader.
            watched.redis.pexpire("orders", 2_000)
            await watched.backend.until(lambda: int(watched.redis.pttl("orders")) > 50_000)
        assert await read.is_held()
        await read.unlock()

    @pytest.mark.parametrize("reads_on", [True, False])
    async def test_the_write_is_lost_when_its_own_lease_ends(self, orders: Orders, reads_on: bool) -> None:
        """A writer with a fixed lease reads with another one."""
        read, write = orders.sides(1)
        await write.lock(0.8)
        await read.lock(30)
        assert await write.lost.wait(TIME_LIMIT)
        assert (await write.is_held(), await read.is_held(), read.lost.is_set()) == (False, True, False)
        # On the server the lock lasts as long as the longer lease, and nobody comes in before that.
        assert orders.redis.pttl("orders") > 25_000
        for side in orders.sides(2):
            assert not await side.try_lock()
        if not reads_on:
            await read.unlock()
        # Until the writer gives it back. A known loss is said at once, and the release goes to the background.
        await assert_lost(write)
        if reads_on:
            assert await orders.read(2).try_lock(wait_time=TIME_LIMIT)
            await orders.read(2).unlock()
            await read.unlock()
        await orders.backend.until(lambda: orders.redis.keys() == [])


@pytest.mark.parametrize("kind", ["lock", "read"])
class TestNested:
    @pytest.mark.parametrize(("outer", "inner"), [(60, 0.05), (60, None), (1, 60)])
    async def test_the_longest_lease(self, watched: Orders, kind: str, outer: float, inner: float | None) -> None:
        """Also after the inner hold, and not only for us: a reader in Java that leaves asks the timeout keys."""
        keys = ["orders"] if kind == "lock" else ["orders", lease_key(f"{watched.client.id}:1", 1)]
        lock = await acquired(lock_of(watched.client, kind, owner=1), outer)
        await lock.lock(inner)
        assert watched.redis.pttl("orders") > 50_000
        # The watchdog looks at it, if it was asked to.
        await watched.backend.sleep(WATCHDOG / 2)
        assert watched.redis.pttl("orders") > 50_000
        await lock.unlock()
        await watched.backend.sleep(WATCHDOG / 2)
        assert min(watched.redis.pttl(key) for key in keys) > 50_000
        assert (await lock.is_held(), lock.lost.is_set()) == (True, False)
        await lock.unlock()

    async def test_a_renewed_inner_hold_ends_its_renewal_with_itself(self, orders: Orders, kind: str) -> None:
        orders.connect(lock_watchdog_timeout=1.5)
        lock = await acquired(lock_of(orders.client, kind), 1)
        await lock.lock()
        await orders.backend.sleep(2)
        assert await lock.get_hold_count() == 2
        await lock.unlock()
        assert await lock.is_held()
        await orders.backend.until(lambda: not orders.redis.exists("orders"))


@pytest.mark.parametrize("payload", ["0", "1"])
async def test_one_message_wakes_all_readers_or_one_writer(orders: Orders, payload: str) -> None:
    orders.java_writes(60_000)
    others = await orders.waits("write", *range(6, 11))
    await orders.backend.sleep(0.1)
    before = orders.scripts()
    orders.redis.publish(READ_WRITE_CHANNEL, payload)
    await orders.backend.until(lambda: orders.scripts() > before)
    await orders.backend.sleep(0.1)
    assert orders.scripts() == before + 1
    await orders.client.close()
    for other in others:
        await fails(ClosedError, other.result)
    orders.connect()
    readers = await orders.waits("read", *range(1, 6))
    orders.redis.delete("orders")
    orders.redis.publish(READ_WRITE_CHANNEL, payload)
    await finished(readers)
    assert len(orders.holds()) == 6


async def test_claims_of_a_writer_that_waits(orders: Orders) -> None:
    """It isn't starved by readers that overlap, nor do they wait longer than need be."""
    orders.java_reads(60_000)
    writers = await orders.waits("write", 1)
    await orders.claimed()
    # A claim is renewed while its writer waits.
    started = time.monotonic()
    while time.monotonic() - started < 2.3:
        assert orders.redis.exists(CLAIM)
        await orders.backend.sleep(0.02)
    # After the readers' turn the writer claims again.
    orders.redis.pexpire(TURN, 3_000)
    orders.redis.delete(CLAIM)
    read = orders.read(2)
    assert await read.try_lock(wait_time=2.5)
    await orders.claimed()
    assert not await orders.read(3).try_lock()
    await read.unlock()
    orders.redis.delete("orders", lease_key(JAVA, 1))
    orders.redis.publish(READ_WRITE_CHANNEL, "0")
    await finished(writers)
