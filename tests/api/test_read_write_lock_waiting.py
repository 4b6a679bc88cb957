"""Waiting for the read-write lock: wakeups, claims of waiting writers, and Java clients."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest

from pyredisson import ClosedError
from tests.support.backends import TIME_LIMIT, WOKEN, Backend
from tests.support.server_state import ServerState
from tests.support.waiting import waiters

from .read_write import CHANNEL, CLAIM, JAVA, java_reads, lease_key, listeners, sides

pytestmark = pytest.mark.asyncio
TURN = "pyredisson_rwlock_turn:{orders}"


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
        assert time.monotonic() - started < WOKEN
        assert not server_state.redis.exists(CLAIM)

    @pytest.mark.parametrize("payload", ["0", "1"])
    async def test_one_message_wakes_all_readers(
        self, backend: Backend, server_state: ServerState, payload: str
    ) -> None:
        server_state.redis.hset("orders", mapping={"mode": "write", JAVA + ":write": 1})
        server_state.redis.pexpire("orders", 60_000)
        client = backend.connect()
        others = [backend.spawn(sides(client, owner)[0].lock) for owner in range(1, 6)]
        await backend.until(lambda: waiters(client, "orders", "read") == 5)
        server_state.redis.delete("orders")
        server_state.redis.publish(CHANNEL, payload)
        for other in others:
            await other.result()
        assert len(server_state.holds("orders")) == 6

    async def test_one_message_makes_one_writer_try(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.hset("orders", mapping={"mode": "write", JAVA + ":write": 1})
        server_state.redis.pexpire("orders", 60_000)
        client = backend.connect()
        others = [backend.spawn(sides(client, owner)[1].lock) for owner in range(1, 6)]
        await backend.until(lambda: waiters(client, "orders", "write") == 5)
        await backend.sleep(0.1)
        before = server_state.scripts()
        server_state.redis.publish(CHANNEL, "1")
        await backend.until(lambda: server_state.scripts() > before)
        await backend.sleep(0.1)
        assert server_state.scripts() == before + 1
        await client.close()
        for other in others:
            with pytest.raises(ClosedError):
                await other.result()

    async def test_other_messages_wake_no_waiter(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        await sides(client, 1)[1].lock()
        other = backend.spawn(sides(client, 2)[0].lock)
        await backend.until(lambda: waiters(client, "orders", "read") == 1)
        before = server_state.scripts()
        for payload in ("2", "-1", "", "abc", " 0", "00"):
            server_state.redis.publish(CHANNEL, payload)
        await backend.sleep(0.1)
        assert server_state.scripts() == before
        assert not other.done()
        await sides(client, 1)[1].unlock()
        await other.result()

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
            assert time.monotonic() - started < WOKEN
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
        await backend.until(lambda: all(reader.done() for reader in readers), 12.0)
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
        server_state.redis.pexpire(TURN, 3_000)
        server_state.redis.delete(CLAIM)
        read, _ = sides(client, 2)
        assert await read.try_lock(wait_time=2.5)
        await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
        assert not await sides(client, 3)[0].try_lock()
        await read.unlock()
        server_state.redis.delete("orders", lease_key(JAVA))
        server_state.redis.publish(CHANNEL, "0")
        await writer.result()

    async def test_a_reader_may_acquire_another_hold(self, backend: Backend, server_state: ServerState) -> None:
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
        writer = backend.spawn(lambda: sides(client, 2)[1].try_lock(wait_time=1))
        await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
        reader = backend.spawn(sides(backend.connect(), 3)[0].lock)
        await backend.sleep(0.1)
        assert not reader.done()
        assert await writer.result() is False
        started = time.monotonic()
        await reader.result()
        assert time.monotonic() - started < WOKEN
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
        assert time.monotonic() - started < WOKEN
        assert not server_state.redis.exists(CLAIM)

    async def test_a_dead_writers_claim_ends(self, backend: Backend, server_state: ServerState) -> None:
        started = time.monotonic()
        server_state.redis.set(CLAIM, "dead:1:write", px=300)
        await sides(backend.connect())[0].lock()
        assert 0.2 < time.monotonic() - started < WOKEN

    async def test_no_claim_while_a_writer_holds_the_lock(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        await sides(client, 1)[1].lock()
        assert not await sides(client, 2)[1].try_lock(0.1)
        writer = backend.spawn(lambda: sides(client, 3)[1].try_lock(0.2))
        await backend.until(lambda: listeners(server_state) == 1)
        assert server_state.redis.keys() == [b"orders"]
        assert await writer.result() is False


class TestBesideJava:
    """Java's part is played with the plain commands that its scripts come down to."""

    async def test_a_writer_of_java_excludes_readers(self, backend: Backend, server_state: ServerState) -> None:
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
