"""Waiting for the read-write lock: wakeups, claims of waiting writers, and Java clients."""

from __future__ import annotations

import time
from functools import partial

import pytest

from pyredisson import ClosedError
from pyredisson.logic.locks.side_wait import WRITER
from tests.support.backends import TIME_LIMIT, WOKEN, Backend, OtherOwner
from tests.support.server_state import ServerState
from tests.support.waiting import first_waiter, waiters

from .read_write import CHANNEL, CLAIM, TURN, Orders, finished, sides

pytestmark = pytest.mark.asyncio


class TestWaiting:
    async def test_the_last_reader_wakes_a_writer(self, orders: Orders) -> None:
        readers = [orders.read(1), orders.read(2)]
        for reader in readers:
            await reader.lock()
        other = orders.backend.spawn(orders.other()[1].lock)
        await orders.claimed()
        await readers[0].unlock()
        await orders.backend.sleep(0.05)
        assert not other.done()
        await readers[1].unlock()
        await other.result()
        assert not orders.redis.exists(CLAIM)

    @pytest.mark.parametrize("payload", ["0", "1"])
    async def test_one_message_wakes_all_readers(self, orders: Orders, payload: str) -> None:
        orders.java_writes(60_000)
        others = orders.reads(*range(1, 6))
        await orders.asleep(readers=5)
        orders.redis.delete("orders")
        orders.redis.publish(CHANNEL, payload)
        await finished(others)
        assert len(orders.holds()) == 6

    async def test_one_message_makes_one_writer_try(self, orders: Orders) -> None:
        orders.java_writes(60_000)
        others = orders.writes(*range(1, 6))
        await orders.asleep(writers=5)
        await orders.backend.sleep(0.1)
        before = orders.scripts()
        orders.redis.publish(CHANNEL, "1")
        await orders.backend.until(lambda: orders.scripts() > before)
        await orders.backend.sleep(0.1)
        assert orders.scripts() == before + 1
        await orders.client.close()
        for other in others:
            with pytest.raises(ClosedError):
                await other.result()

    async def test_other_messages_wake_no_waiter(self, orders: Orders) -> None:
        await orders.write(1).lock()
        [other] = orders.reads(2)
        await orders.asleep(readers=1)
        before = orders.scripts()
        for payload in ("2", "-1", "", "abc", " 0", "00"):
            orders.redis.publish(CHANNEL, payload)
        await orders.backend.sleep(0.1)
        assert orders.scripts() == before
        assert not other.done()
        await orders.write(1).unlock()
        await other.result()

    async def test_a_writer_that_leaves_passes_its_wake_up_on(self, orders: Orders) -> None:
        """Whoever was woken and gave up must not take the message to the grave."""
        orders.java_writes(60_000)
        [other] = orders.writes(1)
        await orders.asleep(writers=1)
        woken, leave = first_waiter(orders.client, CHANNEL, WRITER)
        orders.redis.delete("orders")
        orders.redis.publish(CHANNEL, "1")
        await orders.backend.until(woken.is_set)
        assert not other.done()
        leave()
        await other.result()


class TestClaims:
    """A writer that waits isn't starved by readers that overlap, nor do they wait longer than need be."""

    async def test_a_stream_of_readers_does_not_starve_a_writer(self, orders: Orders) -> None:
        readers = [orders.other()[0] for _ in range(2)]
        stop = False
        reads = [0, 0]

        async def stream(number: int) -> None:
            while not stop:
                async with readers[number]:
                    reads[number] += 1
                    # Until the other one has come in as well: at no moment is there no reader.
                    seen = reads[1 - number]
                    until = time.monotonic() + 0.05
                    while reads[1 - number] == seen and time.monotonic() < until:
                        await orders.backend.sleep(0.002)

        others = [orders.backend.spawn(partial(stream, number)) for number in (0, 1)]
        await orders.backend.until(lambda: min(reads) > 3)
        write = orders.write()
        try:
            assert await write.try_lock(wait_time=TIME_LIMIT)
            assert len(orders.holds()) == 2
            before = list(reads)
            await write.unlock()
            await orders.backend.until(lambda: min(reads[0] - before[0], reads[1] - before[1]) > 3)
        finally:
            stop = True
        await finished(others)
        assert orders.redis.keys() == []

    async def test_all_writers_together_hold_back_readers_for_five_seconds_at_most(self, orders: Orders) -> None:
        orders.java_reads(60_000)

        async def take(owner: int, side: int) -> None:
            async with orders.sides(owner)[side]:
                pass

        writers = [orders.backend.spawn(partial(take, 1, 1))]
        await orders.claimed()
        began = time.monotonic()
        # The second one claims after the first, again and again.
        writers.append(orders.backend.spawn(partial(take, 2, 1)))
        readers = [orders.backend.spawn(partial(take, owner, 0)) for owner in (3, 4)]
        await orders.backend.until(lambda: all(reader.done() for reader in readers), 12.0)
        assert time.monotonic() - began > 4
        orders.java_leaves()
        await finished([*readers, *writers])
        assert orders.redis.keys() == []

    async def test_after_the_readers_turn_a_writer_claims_again(self, orders: Orders) -> None:
        orders.java_reads(60_000)
        writers = orders.writes(1)
        await orders.claimed()
        orders.redis.pexpire(TURN, 3_000)
        orders.redis.delete(CLAIM)
        read = orders.read(2)
        assert await read.try_lock(wait_time=2.5)
        await orders.claimed()
        assert not await orders.read(3).try_lock()
        await read.unlock()
        orders.java_leaves()
        await finished(writers)

    async def held_back(self, orders: Orders) -> list[OtherOwner[None]]:
        """Readers of the writer's client and of another one, which its claim keeps out for long."""
        other = orders.backend.connect()
        readers = [*orders.reads(3), orders.backend.spawn(sides(other, 4)[0].lock)]
        await orders.asleep(readers=1)
        await orders.backend.until(lambda: waiters(other, "orders", "read") == 1)
        # By itself it would end too late.
        assert orders.redis.pexpire(CLAIM, 60_000)
        return readers

    async def test_a_writer_that_gives_up_lets_readers_in_at_once(self, orders: Orders) -> None:
        await orders.read(1).lock()
        writer = orders.backend.spawn(lambda: orders.write(2).try_lock(wait_time=3))
        await orders.claimed()
        readers = await self.held_back(orders)
        assert await writer.result() is False
        await finished(readers)
        assert not orders.redis.exists(CLAIM)
        # Its client knows it too: a reader that comes now asks at once.
        assert await orders.read(5).try_lock()

    async def test_a_cancelled_writer_lets_readers_in_at_once(self, tasks: Backend, server_state: ServerState) -> None:
        orders = Orders(tasks, server_state)
        await orders.read(1).lock()
        [writer] = orders.writes(2)
        await orders.claimed()
        readers = await self.held_back(orders)
        await writer.end()
        await finished(readers)
        assert not orders.redis.exists(CLAIM)

    async def test_a_claim_is_renewed_while_its_writer_waits(self, orders: Orders) -> None:
        await orders.read(1).lock()
        writers = orders.writes(2)
        await orders.claimed()
        started = time.monotonic()
        while time.monotonic() - started < 2.3:
            assert orders.redis.exists(CLAIM)
            await orders.backend.sleep(0.02)
        await orders.read(1).unlock()
        await finished(writers)

    async def test_a_dead_writers_claim_ends(self, orders: Orders) -> None:
        started = time.monotonic()
        orders.redis.set(CLAIM, "dead:1:write", px=300)
        await orders.read().lock()
        assert 0.2 < time.monotonic() - started < WOKEN

    async def test_no_claim_while_a_writer_holds_the_lock(self, orders: Orders) -> None:
        await orders.write(1).lock()
        assert not await orders.write(2).try_lock(0.1)
        writer = orders.backend.spawn(lambda: orders.write(3).try_lock(0.2))
        await orders.listened()
        assert orders.redis.keys() == [b"orders"]
        assert await writer.result() is False
