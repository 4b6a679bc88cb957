"""The semaphore: the table in the contract, waiting, Java's part, and failures, on both backends."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

import pyredisson
import pyredisson.asyncio
from pyredisson._protocol.scripts import script
from pyredisson.logic.permits import semaphore as logic
from pyredisson.testing import Proxy, Server
from tests.support.backends import NOWHERE, Backend
from tests.support.faults import LOSSES, Lose
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio

CHANNEL = "redisson_sc:{stock}"


def listeners(server_state: ServerState) -> int:
    [(_, count)] = server_state.redis.pubsub_numsub(CHANNEL)
    return int(count)


def free(server_state: ServerState) -> int:
    """As Redisson reads it."""
    return int(server_state.redis.get("stock") or 0)


def java_release(server_state: ServerState, permits: int) -> None:
    """What Redisson does."""
    server_state.redis.publish(CHANNEL, server_state.redis.incrby("stock", permits))


@pytest.fixture
def sha(server: Server) -> Callable[[str], bytes]:
    """What to look for in a request."""
    return lambda name: script(f"semaphore_{name}", flags=server.version >= (7,)).sha


class TestPermits:
    async def test_set_once(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.available_permits() == 0
        assert await semaphore.try_set_permits(5) is True
        assert await semaphore.try_set_permits(7) is False
        assert await semaphore.available_permits() == free(server_state) == 5
        assert server_state.redis.ttl("stock") == -1

    async def test_set_for_a_time(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.try_set_permits(5, ttl=timedelta(seconds=50)) is True
        assert 45_000 < server_state.redis.pttl("stock") <= 50_000
        await semaphore.acquire(2)
        await semaphore.add_permits(1)
        await semaphore.release()
        assert await semaphore.drain_permits() == 5
        assert 45_000 < server_state.redis.pttl("stock") <= 50_000

    async def test_set_for_a_short_time(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.try_set_permits(5, 0.05)
        await backend.until(lambda: not server_state.redis.exists("stock"))
        assert await semaphore.available_permits() == 0

    async def test_set_to_none(self, backend: Backend) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.try_set_permits(0)
        assert not await semaphore.try_set_permits(1)
        assert not await semaphore.try_acquire()

    async def test_take_and_give_back(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(5)
        await semaphore.acquire()
        await semaphore.acquire(3)
        assert free(server_state) == 1
        assert await semaphore.try_acquire(2) is False
        assert await semaphore.try_acquire(1) is True
        assert await semaphore.try_acquire() is False
        await semaphore.release(3)
        await semaphore.release()
        assert free(server_state) == 4

    async def test_anyone_may_give_back(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(2)
        await semaphore.acquire(2)
        await backend.as_another_owner(backend.connect().get_semaphore("stock").release)
        assert await semaphore.try_acquire()
        assert free(server_state) == 0

    async def test_no_permits_at_all(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        semaphore = client.get_semaphore("stock")
        before = server_state.commands()
        await semaphore.acquire(0)
        assert await semaphore.try_acquire(0) is True
        await semaphore.release(0)
        assert await semaphore.release_if_exists(0) is False
        await semaphore.add_permits(0)
        await semaphore.reduce_permits(0)
        assert server_state.commands() == before
        assert server_state.redis.keys() == []
        await client.close()
        zero: list[Callable[[int], Awaitable[object]]] = [semaphore.acquire, semaphore.release, semaphore.add_permits]
        for call in zero:
            with pytest.raises(pyredisson.ClosedError):
                await call(0)

    async def test_release_makes_a_semaphore(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.release_if_exists() is False
        assert not server_state.redis.exists("stock")
        await semaphore.release(2)
        assert await semaphore.release_if_exists(3) is True
        assert free(server_state) == 5

    async def test_drain(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.drain_permits() == 0
        assert not server_state.redis.exists("stock")
        await semaphore.try_set_permits(5)
        assert await semaphore.drain_permits() == 5
        assert await semaphore.drain_permits() == 0
        assert free(server_state) == 0

    async def test_larger_and_smaller(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(3)
        await semaphore.add_permits(2)
        assert free(server_state) == 5
        await semaphore.reduce_permits(7)
        assert await semaphore.available_permits() == -2
        assert await semaphore.drain_permits() == 0
        assert free(server_state) == -2
        assert not await semaphore.try_acquire()
        await semaphore.release(3)
        assert await semaphore.try_acquire()
        assert not await semaphore.try_acquire()

    async def test_delete(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.delete() is False
        await semaphore.try_set_permits(3)
        assert await semaphore.delete() is True
        assert not server_state.redis.exists("stock")
        assert await semaphore.try_set_permits(4)

    async def test_a_block_takes_one(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(2)
        async with semaphore as entered:
            assert entered is semaphore
            assert free(server_state) == 1
            async with semaphore:
                assert free(server_state) == 0
        assert free(server_state) == 2

    async def test_a_block_that_raises_gives_back(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(2)
        with pytest.raises(KeyError):
            async with semaphore:
                raise KeyError
        assert free(server_state) == 2

    async def test_the_bodys_own_exception_is_seen(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(2)
        with pytest.raises(KeyError) as raised:
            async with semaphore:
                server_state.redis.delete("stock")
                server_state.redis.hset("stock", "a", 1)
                raise KeyError
        assert "WRONGTYPE" in raised.value.__notes__[0]
        server_state.redis.delete("stock")
        await semaphore.try_set_permits(2)
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            async with semaphore:
                server_state.redis.delete("stock")
                server_state.redis.hset("stock", "a", 1)

    async def test_handles_of_one_name(self, backend: Backend) -> None:
        client = backend.connect(name_mapper=lambda name: f"app:{name}")
        one, two = client.get_semaphore("stock"), client.get_semaphore(b"stock")
        await one.try_set_permits(1)
        assert await two.available_permits() == 1
        assert (one.name, two.name) == ("stock", b"stock")
        assert "app:stock" in repr(one)
        assert await backend.connect().get_semaphore("app:stock").available_permits() == 1

    async def test_an_uncontended_pair_is_two_commands(self, backend: Backend, proxy: Proxy) -> None:
        semaphore = backend.connect(proxy.url).get_semaphore("stock")
        await semaphore.try_set_permits(1)
        async with semaphore:
            proxy.forget()
        async with semaphore:
            assert await semaphore.try_acquire() is False
        assert [words[0] for words in proxy.commands] == [b"EVALSHA"] * 4

    async def test_what_is_ours_on_the_server_ends(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        semaphore = client.get_semaphore("{t}stock")
        await semaphore.try_set_permits(1)
        for _ in range(5):
            async with semaphore:
                pass
        [ours] = [key for key in server_state.redis.keys("*") if key != b"{t}stock"]
        assert ours == f"pyredisson_once:{{t}}stock:{client.id}:0".encode()
        assert 600 < server_state.redis.ttl(ours) <= 660


class TestArguments:
    CALLS = (
        "try_set_permits",
        "acquire",
        "try_acquire",
        "release",
        "release_if_exists",
        "add_permits",
        "reduce_permits",
    )

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("permits", [-1, 2**31, 10**30])
    async def test_numbers_that_cannot_be(self, backend: Backend, call: str, permits: int) -> None:
        with pytest.raises(ValueError, match="permits"):
            await getattr(backend.connect(NOWHERE).get_semaphore("stock"), call)(permits)

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("permits", [True, 1.0, "1", None])
    async def test_numbers_of_other_types(self, backend: Backend, call: str, permits: Any) -> None:
        with pytest.raises(TypeError, match="permits"):
            await getattr(backend.connect(NOWHERE).get_semaphore("stock"), call)(permits)

    @pytest.mark.parametrize("wait", [-1, math.nan, timedelta(-1)])
    async def test_waits_that_cannot_be(self, backend: Backend, wait: Any) -> None:
        with pytest.raises(ValueError, match="wait_time"):
            await backend.connect(NOWHERE).get_semaphore("stock").try_acquire(1, wait)

    @pytest.mark.parametrize(
        ("ttl", "error"), [(0, ValueError), (-1, ValueError), (math.inf, ValueError), ("1", TypeError)]
    )
    async def test_ends_that_cannot_be(self, backend: Backend, ttl: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="ttl"):
            await backend.connect(NOWHERE).get_semaphore("stock").try_set_permits(1, ttl)

    async def test_names_that_cannot_be(self, backend: Backend) -> None:
        with pytest.raises(ValueError, match="name"):
            backend.connect(NOWHERE).get_semaphore("")

    async def test_the_largest_number(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        assert await semaphore.try_set_permits(2**31 - 1)
        await semaphore.acquire(2**31 - 1)
        await semaphore.release(2**31 - 1)
        assert free(server_state) == 2**31 - 1


class TestWaiting:
    async def test_a_release_of_another_client_wakes(self, backend: Backend, server_state: ServerState) -> None:
        holder, waiter = backend.connect().get_semaphore("stock"), backend.connect().get_semaphore("stock")
        await holder.try_set_permits(1)
        await holder.acquire()
        other = backend.spawn(waiter.acquire)
        await backend.until(lambda: listeners(server_state) == 1)
        released = time.monotonic()
        await holder.release()
        await other.result()
        assert time.monotonic() - released < 1
        assert free(server_state) == 0

    @pytest.mark.parametrize("free_them", ["try_set_permits", "add_permits", "release"])
    async def test_whoever_brings_permits_wakes(
        self, backend: Backend, server_state: ServerState, free_them: str
    ) -> None:
        """Also those who wait for a semaphore that isn't there."""
        other = backend.spawn(lambda: backend.connect().get_semaphore("stock").acquire(2))
        await backend.until(lambda: listeners(server_state) == 1)
        await getattr(backend.connect().get_semaphore("stock"), free_them)(3)
        await other.result()
        assert free(server_state) == 1

    async def test_java_wakes_and_is_waited_for(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.set("stock", 5)
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.acquire(2)
        server_state.redis.decrby("stock", 3)
        other = backend.spawn(lambda: semaphore.acquire(2))
        await backend.until(lambda: listeners(server_state) == 1)
        java_release(server_state, 3)
        await other.result()
        assert free(server_state) == 1

    async def test_java_hears_of_every_permit(self, backend: Backend, server_state: ServerState) -> None:
        """It wakes as many as the message says, and doesn't look again."""
        semaphore = backend.connect().get_semaphore("stock")
        with server_state.redis.pubsub() as ear:
            ear.subscribe(CHANNEL)
            assert ear.get_message(timeout=5)["type"] == "subscribe"
            await semaphore.try_set_permits(2)
            await semaphore.acquire(2)
            await semaphore.release(2)
            await semaphore.release(3)
            await semaphore.reduce_permits(7)
            await semaphore.add_permits(2)
            await semaphore.drain_permits()
            await semaphore.add_permits(4)
            await semaphore.delete()
            assert [ear.get_message(timeout=5)["data"] for _ in range(4)] == [b"2", b"2", b"5", b"4"]
            assert ear.get_message(timeout=0.05) is None

    async def test_not_had_in_time(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(2)
        started = time.monotonic()
        assert await semaphore.try_acquire(3, wait_time=0.2) is False
        assert 0.2 <= time.monotonic() - started < 1
        assert free(server_state) == 2

    async def test_had_in_time(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        other = backend.spawn(lambda: semaphore.try_acquire(2, timedelta(seconds=30)))
        await backend.until(lambda: listeners(server_state) == 1)
        java_release(server_state, 2)
        assert await other.result() is True

    async def test_no_script_runs_while_waiting(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        before = server_state.scripts()
        other = backend.spawn(semaphore.acquire)
        await backend.until(lambda: server_state.scripts() == before + 2)
        for payload in ("0", "-3", "", "abc", "+1", " 1", "1.0", "9" * 5000):
            server_state.redis.publish(CHANNEL, payload)
        await backend.sleep(0.3)
        assert server_state.scripts() == before + 2
        java_release(server_state, 1)
        await other.result()
        assert server_state.scripts() == before + 3

    async def test_a_message_wakes_as_many_as_it_has_permits_for(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        before = server_state.scripts()
        others = [backend.spawn(client.get_semaphore("stock").acquire) for _ in range(6)]
        await backend.until(lambda: server_state.scripts() >= before + 12)
        waiting = server_state.scripts()
        java_release(server_state, 4)
        await backend.until(lambda: sum(other.done() for other in others) == 4)
        assert server_state.scripts() == waiting + 4
        java_release(server_state, 2)
        for other in others:
            await other.result()
        assert free(server_state) == 0

    async def test_a_small_need_does_not_wait_behind_a_large_one(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        before = server_state.scripts()
        large = backend.spawn(lambda: client.get_semaphore("stock").acquire(3))
        await backend.until(lambda: server_state.scripts() >= before + 2)
        small = backend.spawn(lambda: client.get_semaphore("stock").acquire(1))
        await backend.until(lambda: server_state.scripts() >= before + 4)
        java_release(server_state, 1)
        await small.result()
        assert not large.done()
        java_release(server_state, 3)
        await large.result()

    async def test_who_is_woken_and_finds_too_few_wakes_those_who_need_less(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        """Somebody else was quicker and took some of what the message told of."""
        client = backend.connect()
        before = server_state.scripts()
        large = backend.spawn(lambda: client.get_semaphore("stock").acquire(3))
        await backend.until(lambda: server_state.scripts() >= before + 2)
        small = backend.spawn(lambda: client.get_semaphore("stock").acquire(1))
        await backend.until(lambda: server_state.scripts() >= before + 4)
        server_state.redis.set("stock", 1)
        server_state.redis.publish(CHANNEL, "3")
        await small.result()
        assert not large.done()
        java_release(server_state, 3)
        await large.result()

    async def test_who_leaves_with_a_wake_up_hands_it_on(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        before = server_state.scripts()
        other = backend.spawn(client.get_semaphore("stock").acquire)
        await backend.until(lambda: server_state.scripts() >= before + 2)
        channel = client_channel(client)
        leaving = client_shared(client).runtime.wakeup()
        with client_shared(client).channels.mutex:
            # As one who came before and was woken, and whose time is over before it looks.
            channel.waiters = {leaving: 2, **channel.waiters}
            client_shared(client).channels.waiting.add(leaving)
        server_state.redis.set("stock", 2)
        server_state.redis.publish(CHANNEL, "2")
        await backend.until(leaving.is_set)
        assert not other.done()
        client_shared(client).channels.leave(CHANNEL.encode(), leaving)
        await other.result()

    @pytest.mark.parametrize("wait", [None, 30])
    async def test_a_message_that_was_lost(
        self, backend: Backend, server_state: ServerState, monkeypatch: pytest.MonkeyPatch, wait: float | None
    ) -> None:
        monkeypatch.setattr(logic, "LOOK_AGAIN", 0.1)
        semaphore = backend.connect().get_semaphore("stock")
        other = backend.spawn(semaphore.acquire if wait is None else lambda: semaphore.try_acquire(1, wait))
        await backend.until(lambda: listeners(server_state) == 1)
        server_state.redis.incrby("stock", 1)
        await other.result()
        assert free(server_state) == 0

    async def test_permits_without_a_message_are_seen_at_the_end_of_the_time(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        other = backend.spawn(lambda: semaphore.try_acquire(1, 0.4))
        await backend.until(lambda: listeners(server_state) == 1)
        server_state.redis.incrby("stock", 1)
        assert await other.result() is True

    async def test_a_deleted_one_is_waited_for(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(0)
        other = backend.spawn(semaphore.acquire)
        await backend.until(lambda: listeners(server_state) == 1)
        await semaphore.delete()
        await backend.sleep(0.05)
        assert not other.done()
        await semaphore.try_set_permits(1)
        await other.result()

    async def test_closed_while_waiting(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        other = backend.spawn(client.get_semaphore("stock").acquire)
        await backend.until(lambda: listeners(server_state) == 1)
        await client.close()
        with pytest.raises(pyredisson.ClosedError):
            await other.result()

    async def test_never_more_than_there_are(self, backend: Backend, server_state: ServerState) -> None:
        clients = [backend.connect() for _ in range(3)]
        await clients[0].get_semaphore("stock").try_set_permits(5)
        inside: list[int] = []
        most: list[int] = []

        async def work(number: int) -> None:
            semaphore = clients[number % 3].get_semaphore("stock")
            for _ in range(4):
                async with semaphore:
                    inside.append(number)
                    most.append(len(inside))
                    await backend.sleep(0.001)
                    inside.remove(number)

        others = [backend.spawn(lambda number=number: work(number)) for number in range(50)]  # type: ignore[misc]
        for other in others:
            await other.result()
        assert len(most) == 200
        assert max(most) == 5
        assert free(server_state) == 5


def client_shared(client: Any) -> Any:
    """The inside of a client of either backend."""
    return getattr(client, "_target", client)._session


def client_channel(client: Any) -> Any:
    return client_shared(client).channels._channels[CHANNEL.encode()]


class TestDoubt:
    """A reply is lost, a request comes late, the caller is gone: permits are neither lost nor made."""

    async def made(self, backend: Backend, address: str, permits: int = 5, **fields: Any) -> Any:
        semaphore = backend.connect(address, timeout=0.8, **fields).get_semaphore("stock")
        await semaphore.try_set_permits(permits)
        return semaphore

    @LOSSES
    async def test_acquire_and_release(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes], lose: Lose
    ) -> None:
        semaphore = await self.made(backend, proxy.url)
        for left in (3, 1):
            fault = lose(proxy, sha("acquire"))
            assert await semaphore.try_acquire(2) is True
            assert fault.happened.is_set()
            assert free(server_state) == left
        for left in (3, 5):
            fault = lose(proxy, sha("add"))
            await semaphore.release(2)
            assert fault.happened.is_set()
            assert free(server_state) == left

    @LOSSES
    async def test_all_else(
        self,
        backend: Backend,
        proxy: Proxy,
        server_state: ServerState,
        sha: Callable[[str], bytes],
        server: Server,
        lose: Lose,
    ) -> None:
        semaphore = await self.made(backend, proxy.url, 0)
        faults = []

        def struck(name: str) -> None:
            faults.append(lose(proxy, name.encode() if name.startswith("$") else sha(name)))

        struck("add")
        assert await semaphore.release_if_exists(2) is True
        struck("add")
        await semaphore.add_permits(3)
        struck("add")
        await semaphore.reduce_permits(1)
        assert free(server_state) == 4
        struck("acquire")
        assert await semaphore.drain_permits() == 4
        assert free(server_state) == 0
        faults.append(lose(proxy, script("once_delete", flags=server.version >= (7,)).sha))
        assert await semaphore.delete() is True
        struck("set")
        assert await semaphore.try_set_permits(6) is True
        struck("set")
        assert await semaphore.try_set_permits(7) is False
        assert free(server_state) == 6
        assert all(fault.happened.is_set() for fault in faults)

    async def test_the_answer_is_no_and_a_late_copy_takes_nothing(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes]
    ) -> None:
        semaphore = await self.made(backend, proxy.url, 1)
        late = proxy.hold_request(sha("acquire"))
        assert await semaphore.try_acquire(2) is False
        assert late.held.is_set()
        proxy.wait_for(sha("undo"))
        java_release(server_state, 1)
        # The server was told to drop that connection before it was asked again.
        with pytest.raises(OSError, match="closed the connection"):
            await asyncio.to_thread(late.deliver)
        assert await semaphore.try_acquire(2) is True

    @pytest.mark.parametrize("call", ["acquire", "release"])
    async def test_a_late_copy_that_the_server_could_not_be_told_to_drop(
        self, backend: Backend, server_state: ServerState, sha: Callable[[str], bytes], call: str
    ) -> None:
        """The user has no right to do so: the copy arrives, and is not executed."""
        with (
            Server(users=["app on >x ~* &* +@all -client"]) as server,
            server.redis() as redis,
            Proxy(server.host, server.port) as proxy,
        ):
            url = f"redis://app:x@{proxy.host}:{proxy.port}/0"
            semaphore = await self.made(backend, url)
            name = "acquire" if call == "acquire" else "add"
            text = script(f"semaphore_{name}", flags=server.version >= (7,))
            redis.script_load(text.text)
            late = proxy.hold_request(text.sha)
            await getattr(semaphore, call)(2)
            assert late.held.is_set()
            expected = b"3" if call == "acquire" else b"7"
            assert redis.get("stock") == expected
            # Another call over the same lane, and then the late one.
            await semaphore.try_acquire()
            await semaphore.release()
            await asyncio.to_thread(late.deliver)
            assert redis.get("stock") == expected

    async def test_an_acquire_that_gave_up_takes_nothing_when_its_request_comes_late(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes]
    ) -> None:
        semaphore = await self.made(backend, proxy.url, connect_timeout=0.8, lock_watchdog_timeout=3)
        late = proxy.hold_request(sha("acquire"))
        proxy.refuse(True)
        with pytest.raises((ConnectionError, TimeoutError)):
            await semaphore.try_acquire(2, 0.1)
        await asyncio.to_thread(late.deliver)
        assert free(server_state) == 3
        proxy.refuse(False)
        await backend.until(lambda: free(server_state) == 5)

    @pytest.mark.parametrize("ran", [True, False])
    async def test_a_release_that_failed_is_done_in_the_background(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes], ran: bool
    ) -> None:
        semaphore = await self.made(backend, proxy.url, retry_attempts=0, lock_watchdog_timeout=3)
        await semaphore.acquire(2)
        fault = proxy.drop_reply(sha("add"), 2) if ran else proxy.cut_request(sha("add"), 2)
        with pytest.raises((ConnectionError, TimeoutError)):
            await semaphore.release(2)
        assert fault.happened.is_set()
        await backend.until(lambda: proxy.seen(sha("add")) >= 3)
        await backend.until(lambda: free(server_state) == 5)
        await semaphore.acquire(2)
        await semaphore.release(2)
        assert free(server_state) == 5

    async def test_the_server_is_a_new_one(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes]
    ) -> None:
        """What it never took it isn't given back."""
        semaphore = await self.made(backend, proxy.url, retry_attempts=0, lock_watchdog_timeout=3)
        late = proxy.hold_reply(sha("acquire"))
        other = backend.spawn(lambda: semaphore.try_acquire(2))
        await backend.until(late.held.is_set)
        server_state.redis.flushall()
        server_state.redis.set("stock", 5)
        proxy.cut_request(sha("acquire"))
        with pytest.raises((ConnectionError, TimeoutError)):
            await other.result()
        await backend.until(lambda: proxy.seen(sha("undo")) > 0)
        await backend.until(
            lambda: any(b" 0" in server_state.redis.get(key) for key in server_state.redis.keys("pyredisson_once*"))
        )
        assert free(server_state) == 5

    async def test_a_release_of_a_client_that_was_closed(self, backend: Backend, server_state: ServerState) -> None:
        """The permit would be nobody's, for ever."""
        client = backend.connect()
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(2)
        with pytest.raises(pyredisson.ClosedError):
            async with semaphore:
                await client.close()
        await backend.until(lambda: free(server_state) == 2)
        calls: list[Callable[[], Awaitable[object]]] = [
            semaphore.acquire,
            lambda: semaphore.try_set_permits(1),
            lambda: semaphore.add_permits(1),
            semaphore.available_permits,
            semaphore.drain_permits,
            semaphore.delete,
        ]
        for call in calls:
            with pytest.raises(pyredisson.ClosedError):
                await call()
        assert free(server_state) == 2

    async def test_a_long_pause_while_the_outcome_was_in_doubt(
        self,
        backend: Backend,
        proxy: Proxy,
        server_state: ServerState,
        sha: Callable[[str], bytes],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The server may have forgotten what it did: asked again, it would do it again."""
        monkeypatch.setattr("pyredisson.logic.exactly_once.REMEMBERED", 0.0)
        semaphore = await self.made(backend, proxy.url)
        proxy.cut_reply(sha("acquire"))
        await semaphore.acquire(2)
        # It undid the one in doubt, and asked with a new number.
        proxy.wait_for(sha("undo"))
        await backend.until(lambda: free(server_state) == 3)
        assert proxy.seen(sha("acquire")) == 2
