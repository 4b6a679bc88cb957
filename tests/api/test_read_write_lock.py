"""The read-write lock: many readers or one writer, on both backends and beside Java."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pyredisson import LockLostError, LockNotHeldError, LockTimeoutError, LockUpgradeError
from pyredisson.asyncio import ReadLock, WriteLock
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio

CHANNEL = "redisson_rwlock:{orders}"
CLAIM = "pyredisson_rwlock_writer:{orders}"
TURN = "pyredisson_rwlock_turn:{orders}"
JAVA = "b983c153-7421-469a-addb-44fb92259a1b:1"
WATCHDOG = 1.2


def lease_key(owner: str, hold: int = 1) -> str:
    return f"{{orders}}:{owner}:rwlock_timeout:{hold}"


def java_reads(server_state: ServerState, lease: int) -> None:
    """What Redisson's script leaves."""
    server_state.redis.hset("orders", mapping={"mode": "read", JAVA: 1})
    server_state.redis.set(lease_key(JAVA), "1", px=lease)
    server_state.redis.pexpire("orders", max(lease, server_state.redis.pttl("orders")))


def listeners(server_state: ServerState) -> int:
    [(_, count)] = server_state.redis.pubsub_numsub(CHANNEL)
    return int(count)


def sides(client: Any, owner: int | None = None) -> tuple[ReadLock, WriteLock]:
    pair = client.get_read_write_lock("orders", owner=owner)
    return pair.read_lock(), pair.write_lock()


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

    async def test_a_reader_keeps_a_writer_out(self, backend: Backend) -> None:
        client = backend.connect()
        read, _ = sides(client, 1)
        _, write = sides(client, 2)
        await read.lock()
        assert not await write.try_lock()
        assert not await write.try_lock(wait_time=0.05)
        await read.unlock()
        assert await write.try_lock()

    async def test_a_writer_keeps_everybody_out(self, backend: Backend) -> None:
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
            with pytest.raises(LockNotHeldError, match="nobody"):
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

    async def test_closing_the_client_gives_back_both_sides(self, backend: Backend, server_state: ServerState) -> None:
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

    async def test_who_writes_may_do_so_again(self, backend: Backend) -> None:
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
        assert time.monotonic() - started < 1
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

    async def test_while_somebody_reads(self, backend: Backend) -> None:
        client = backend.connect()
        read, write = sides(client, 1)
        await read.lock(60)
        assert (await read.is_locked(), await write.is_locked()) == (True, False)
        assert (await read.is_held(), await write.is_held()) == (True, False)
        assert (await read.is_held_by(1), await read.is_held_by(2), await write.is_held_by(1)) == (True, False, False)
        left = await read.remain_time_to_live()
        assert left is not None
        assert 50 < left <= 60

    async def test_while_somebody_writes(self, backend: Backend) -> None:
        client = backend.connect()
        read, write = sides(client, 1)
        await write.lock()
        assert (await read.is_locked(), await write.is_locked()) == (False, True)
        assert (await read.is_held(), await write.is_held()) == (False, True)
        await read.lock()
        assert (await read.is_locked(), await write.is_locked()) == (True, True)
        assert (await read.is_held(), await write.is_held()) == (True, True)

    async def test_a_stranger_is_told_who_holds_it(self, backend: Backend) -> None:
        client = backend.connect()
        read, write = sides(client, 5)
        await sides(client, 1)[1].lock()
        for side, kind in ((read, "read"), (write, "write")):
            said = rf"{kind} lock 'orders' of owner .*:5 .*held by .*:1:write, free in"
            with pytest.raises(LockNotHeldError, match=said):
                await side.unlock()
        await sides(client, 1)[1].unlock()
        for owner in (1, 2, 3, 4):
            await sides(client, owner)[0].lock()
        with pytest.raises(LockNotHeldError, match=r":1, .*:2, .*:3 and 1 more, free in"):
            await read.unlock()

    async def test_a_side_is_not_given_back_through_the_other(self, backend: Backend) -> None:
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

    async def test_wakes_who_waits(self, backend: Backend, server_state: ServerState) -> None:
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
        await read.lock(0.1)
        await read.lock(60)
        await read.unlock()
        await backend.sleep(0.15)
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
        java_reads(server_state, 300)
        started = time.monotonic()
        await sides(backend.connect())[1].lock()
        assert 0.2 < time.monotonic() - started < 2

    async def test_the_end_of_the_writers_lease_lets_readers_in(self, backend: Backend) -> None:
        client = backend.connect()
        await sides(client, 1)[1].lock(0.3)
        started = time.monotonic()
        await sides(client, 2)[0].lock()
        assert 0.2 < time.monotonic() - started < 2

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

    async def test_tells_at_once_of_a_short_lease_that_ended(self, backend: Backend) -> None:
        """The watchdog visits fixed leases too, but not before a third of its own."""
        read, _ = sides(backend.connect(), 1)
        told = threading.Event()
        read.on_lost(lambda _: told.set())
        await read.lock(0.1)
        assert await read.lost.wait(TIME_LIMIT)
        assert told.wait(TIME_LIMIT)

    @pytest.mark.parametrize("lease", [None, 60])
    async def test_tells_of_a_deleted_lock(
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


class TestWaiting:
    async def test_the_last_reader_wakes_a_writer(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        readers = [sides(client, owner)[0] for owner in (1, 2)]
        for reader in readers:
            await reader.lock()
        writer = sides(backend.connect())[1]
        other = backend.spawn(writer.lock)
        await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
        await readers[0].unlock()
        await backend.sleep(0.05)
        assert not other.done()
        started = time.monotonic()
        await readers[1].unlock()
        await other.result()
        assert time.monotonic() - started < 0.9
        assert not server_state.redis.exists(CLAIM)

    @pytest.mark.parametrize("payload", ["0", "1"])
    async def test_one_message_wakes_all_readers(
        self, backend: Backend, server_state: ServerState, payload: str
    ) -> None:
        server_state.redis.hset("orders", mapping={"mode": "write", JAVA + ":write": 1})
        server_state.redis.pexpire("orders", 60_000)
        client = backend.connect()
        before = server_state.scripts()
        others = [backend.spawn(sides(client, owner)[0].lock) for owner in range(1, 6)]
        await backend.until(lambda: server_state.scripts() >= before + 10)
        await backend.sleep(0.05)
        server_state.redis.delete("orders")
        server_state.redis.publish(CHANNEL, payload)
        for other in others:
            await other.result()
        assert len(server_state.holds("orders")) == 6

    async def test_one_message_makes_one_writer_try(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.hset("orders", mapping={"mode": "write", JAVA + ":write": 1})
        server_state.redis.pexpire("orders", 60_000)
        client = backend.connect()
        before = server_state.scripts()
        others = [backend.spawn(partial(sides(client, owner)[1].try_lock, 1)) for owner in range(1, 6)]
        await backend.until(lambda: server_state.scripts() >= before + 10)
        await backend.sleep(0.1)
        before = server_state.scripts()
        server_state.redis.publish(CHANNEL, "1")
        await backend.until(lambda: server_state.scripts() > before)
        await backend.sleep(0.1)
        assert server_state.scripts() == before + 1
        assert [await other.result() for other in others] == [False] * 5

    async def test_other_messages_wake_nobody(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        await sides(client, 1)[1].lock()
        before = server_state.scripts()
        other = backend.spawn(lambda: sides(client, 2)[0].try_lock(wait_time=0.3))
        await backend.until(lambda: server_state.scripts() == before + 2)
        for payload in ("2", "-1", "", "abc", " 0", "00"):
            server_state.redis.publish(CHANNEL, payload)
        await backend.sleep(0.1)
        assert server_state.scripts() == before + 2
        assert await other.result() is False

    async def test_a_writer_that_leaves_passes_its_wake_up_on(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        """Whoever was woken and gave up must not take the message to the grave."""
        client = backend.connect()
        _, write = sides(client, 1)
        for _ in range(5):
            await write.lock()
            first = backend.spawn(lambda: sides(client, 2)[1].try_lock(0.1))
            await backend.until(lambda: listeners(server_state) >= 1)
            second = backend.spawn(sides(client, 3)[1].lock)
            # About when the first one gives up.
            await backend.sleep(0.095)
            await write.unlock()
            if await first.result():
                await sides(client, 2)[1].unlock()
            started = time.monotonic()
            await second.result()
            assert time.monotonic() - started < 1
            await sides(client, 3)[1].unlock()

    async def test_everybody_gets_a_turn(self, backend: Backend) -> None:
        clients = [backend.connect() for _ in range(2)]
        inside: dict[str, int] = {"read": 0, "write": 0}
        wrong: list[dict[str, int]] = []
        guard = threading.Lock()

        def change(kind: str, by: int) -> None:
            with guard:
                inside[kind] += by
                if inside["write"] > 1 or (inside["write"] and inside["read"]):
                    wrong.append(dict(inside))

        async def work(number: int) -> None:
            read, write = sides(clients[number % 2], number)
            for turn in range(8):
                writes = (turn + number) % 3 == 0
                async with write if writes else read:
                    change("write" if writes else "read", 1)
                    await backend.sleep(0.001)
                    change("write" if writes else "read", -1)

        others = [backend.spawn(partial(work, number)) for number in range(8)]
        for other in others:
            await other.result()
        assert not wrong


class TestLeasesOfBothSides:
    """A writer with a fixed lease reads with a longer one."""

    async def test_the_write_is_lost_when_its_own_lease_ends(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        read, write = sides(client, 1)
        await write.lock(0.4)
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

    async def test_whoever_gives_back_a_lost_write_frees_the_lock(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        read, write = sides(client, 1)
        await write.lock(0.4)
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


class TestClaims:
    """A writer that waits isn't starved by readers that overlap, nor do they wait longer than need be."""

    async def test_a_stream_of_readers_does_not_starve_a_writer(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        clients = [backend.connect() for _ in range(3)]
        stop = False
        reads = [0, 0]

        async def stream(number: int) -> None:
            read, _ = sides(clients[number])
            while not stop:
                async with read:
                    reads[number] += 1
                    # Until the other one has come in as well: at no moment is there no reader.
                    seen = reads[1 - number]
                    until = time.monotonic() + 0.05
                    while reads[1 - number] == seen and time.monotonic() < until:
                        await backend.sleep(0.002)

        others = [backend.spawn(partial(stream, number)) for number in (0, 1)]
        await backend.until(lambda: min(reads) > 3)
        _, write = sides(clients[2])
        try:
            assert await write.try_lock(wait_time=TIME_LIMIT)
            assert len(server_state.holds("orders")) == 2
            before = list(reads)
            await write.unlock()
            await backend.until(lambda: min(reads[0] - before[0], reads[1] - before[1]) > 3)
        finally:
            stop = True
        for other in others:
            await other.result()
        assert server_state.redis.keys() == []

    async def test_all_writers_together_hold_back_readers_for_five_seconds_at_most(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        java_reads(server_state, 60_000)
        client = backend.connect()

        async def take(owner: int, side: int) -> None:
            async with sides(client, owner)[side]:
                pass

        writers = [backend.spawn(partial(take, 1, 1))]
        await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
        began = time.monotonic()
        # The second one claims after the first, again and again.
        writers.append(backend.spawn(partial(take, 2, 1)))
        readers = [backend.spawn(partial(take, owner, 0)) for owner in (3, 4)]
        await backend.until(lambda: all(reader.done() for reader in readers), 6.0)
        assert time.monotonic() - began > 4
        server_state.redis.delete("orders", lease_key(JAVA))
        server_state.redis.publish(CHANNEL, "0")
        for other in (*readers, *writers):
            await other.result()
        assert server_state.redis.keys() == []

    async def test_after_the_readers_turn_a_writer_claims_again(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        java_reads(server_state, 60_000)
        client = backend.connect()
        writer = backend.spawn(sides(client, 1)[1].lock)
        await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
        server_state.redis.pexpire(TURN, 1_000)
        server_state.redis.delete(CLAIM)
        read, _ = sides(client, 2)
        assert await read.try_lock(wait_time=0.5)
        await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
        assert not await sides(client, 3)[0].try_lock()
        await read.unlock()
        server_state.redis.delete("orders", lease_key(JAVA))
        server_state.redis.publish(CHANNEL, "0")
        await writer.result()

    async def test_who_reads_already_may_go_on(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        read, _ = sides(client, 1)
        await read.lock()
        writer = backend.spawn(sides(client, 2)[1].lock)
        await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
        assert not await sides(client, 3)[0].try_lock()
        assert await read.try_lock()
        await read.unlock()
        await read.unlock()
        await writer.result()

    async def test_a_claim_is_renewed_while_its_writer_waits(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        read, _ = sides(client, 1)
        await read.lock()
        writer = backend.spawn(sides(client, 2)[1].lock)
        await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
        started = time.monotonic()
        while time.monotonic() - started < 2.3:
            assert server_state.redis.exists(CLAIM)
            await backend.sleep(0.02)
        await read.unlock()
        await writer.result()

    async def test_a_writer_that_gives_up_lets_readers_in_at_once(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        await sides(client, 1)[0].lock()
        writer = backend.spawn(lambda: sides(client, 2)[1].try_lock(wait_time=0.3))
        await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
        reader = backend.spawn(sides(backend.connect(), 3)[0].lock)
        await backend.sleep(0.1)
        assert not reader.done()
        assert await writer.result() is False
        started = time.monotonic()
        await reader.result()
        assert time.monotonic() - started < 1
        assert not server_state.redis.exists(CLAIM)

    async def test_a_cancelled_writer_lets_readers_in_at_once(self, tasks: Backend, server_state: ServerState) -> None:
        client = tasks.connect()
        await sides(client, 1)[0].lock()
        writer: Any = tasks.spawn(sides(client, 2)[1].lock)
        await tasks.until(lambda: bool(server_state.redis.exists(CLAIM)))
        reader = tasks.spawn(sides(tasks.connect(), 3)[0].lock)
        await tasks.sleep(0.1)
        assert not reader.done()
        started = time.monotonic()
        writer._task.cancel()
        await reader.result()
        assert time.monotonic() - started < 1
        assert not server_state.redis.exists(CLAIM)

    async def test_a_dead_writers_claim_ends(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.set(CLAIM, "dead:1:write", px=300)
        started = time.monotonic()
        await sides(backend.connect())[0].lock()
        assert 0.2 < time.monotonic() - started < 2

    async def test_behind_a_writer_nobody_claims(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        await sides(client, 1)[1].lock()
        assert not await sides(client, 2)[1].try_lock(0.1)
        writer = backend.spawn(lambda: sides(client, 3)[1].try_lock(0.2))
        await backend.until(lambda: listeners(server_state) == 1)
        assert server_state.redis.keys() == [b"orders"]
        assert await writer.result() is False


class TestBesideJava:
    """Java's part is played with the plain commands that its scripts come down to."""

    async def test_its_writer_keeps_us_out(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.hset("orders", mapping={"mode": "write", JAVA + ":write": 1})
        server_state.redis.pexpire("orders", 30_000)
        for side in sides(backend.connect()):
            assert not await side.try_lock()
        assert server_state.holds("orders") == {"mode": "write", JAVA + ":write": "1"}

    async def test_its_readers_and_ours(self, backend: Backend, server_state: ServerState) -> None:
        java_reads(server_state, 20_000)
        client = backend.connect()
        read, _ = sides(client, 1)
        await read.lock(60)
        assert server_state.holds("orders") == {"mode": "read", JAVA: "1", f"{client.id}:1": "1"}
        await read.unlock()
        assert server_state.holds("orders") == {"mode": "read", JAVA: "1"}
        assert 18_000 < server_state.redis.pttl("orders") <= 20_000

    @pytest.mark.parametrize(("name", "tagged"), [("foo", "{foo}"), ("{t}foo", "{t}foo"), ("a b", "{a b}")])
    async def test_keys_and_channels(self, backend: Backend, server_state: ServerState, name: str, tagged: str) -> None:
        client = backend.connect()
        pair = client.get_read_write_lock(name, owner=1)
        with server_state.redis.pubsub() as ear:
            ear.subscribe(f"redisson_rwlock:{tagged}")
            assert ear.get_message(timeout=TIME_LIMIT)["type"] == "subscribe"
            await pair.read_lock().lock()
            assert sorted(server_state.redis.keys()) == sorted(
                [name.encode(), f"{tagged}:{client.id}:1:rwlock_timeout:1".encode()]
            )
            await pair.read_lock().unlock()
            assert ear.get_message(timeout=TIME_LIMIT)["data"] == b"0"
            await pair.write_lock().lock()
            assert server_state.redis.keys() == [name.encode()]
            await pair.write_lock().unlock()
            assert ear.get_message(timeout=TIME_LIMIT)["data"] == b"1"
