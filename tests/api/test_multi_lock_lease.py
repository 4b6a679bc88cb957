"""Leases of several locks as one, and the loss of a member."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pyredisson import LockLostError
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, Backend

pytestmark = pytest.mark.asyncio


@pytest.fixture
def redises(servers: list[Server]) -> Iterator[list[Any]]:
    """Plain clients of the first two servers."""
    with servers[0].redis() as one, servers[1].redis() as other:
        yield [one, other]


def counts(redis: Any, name: str) -> list[bytes]:
    return list(redis.hvals(name))


class TestLease:
    async def test_without_one_the_members_are_renewed(self, backend: Backend, redises: list[Any]) -> None:
        client = backend.connect(lock_watchdog_timeout=1.5)
        group = client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))
        async with group:
            await backend.sleep(2)
            assert not group.lost.is_set()
            assert await group.is_held()

    async def test_a_fixed_lease_counts_from_when_all_are_acquired(
        self, backend: Backend, servers: list[Server], redises: list[Any]
    ) -> None:
        """For each kind of lock, in its own way; and nobody else's keys get a lease."""
        [redis, _] = redises
        client, last = backend.connect(), backend.connect(servers[1].url)
        read_write = client.get_read_write_lock("rw")
        group: Any = client.get_multi_lock(
            client.get_lock("a"),
            read_write.read_lock(),
            client.get_fair_lock("fair"),
            client.get_fenced_lock("fenced"),
            client.get_spin_lock("spin"),
            client.get_non_reentrant_lock("once"),
            last.get_lock("last"),
        )
        # The member that is taken last is somebody else's for a while.
        slowest = group._target._locks[-1] if backend.name == "threads" else group._locks[-1]
        behind = servers[1] if slowest.name == "last" else servers[0]
        holder = backend.connect(behind.url).get_lock(slowest.name)
        await holder.lock()

        async def take() -> list[int]:
            await group.lock(lease_time=8)
            return [*_leases(redises)]

        other = backend.spawn(take)
        # All but the last are had.
        await backend.until(lambda: len(list(_leases(redises))) == 8)
        # Java waits for one of them.
        redis.rpush("redisson_lock_queue:{fair}", "java:1")
        redis.zadd("redisson_lock_timeout:{fair}", {"java:1": 2**42})
        await backend.sleep(1.2)
        await holder.unlock()
        leases = await other.result()
        assert len(leases) == 8
        assert min(leases) > 7000, leases
        assert max(leases) <= 8000, leases
        assert redis.pttl("redisson_lock_queue:{fair}") == -1
        assert redis.pttl("redisson_lock_timeout:{fair}") == -1

    @pytest.mark.usefixtures("short_member_wait")
    async def test_it_doesn_t_grow_with_the_rounds(self, backend: Backend, redises: list[Any]) -> None:
        [redis, _] = redises
        client = backend.connect()
        group = client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))
        redis.hset("b", "another:1", 1)
        starts = []

        async def take() -> None:
            await group.lock(lease_time=2)

        other = backend.spawn(take)
        for _ in range(3):
            await backend.until(lambda: bool(redis.exists("a")))
            starts.append(redis.pttl("a"))
            await backend.until(lambda: not redis.exists("a"))
        redis.delete("b")
        redis.publish("redisson_lock__channel:{b}", "0")
        await other.result()
        starts += [redis.pttl("a"), redis.pttl("b")]
        assert max(starts) <= 2000
        assert min(starts[-2:]) > 1500

    async def test_a_member_that_is_lost_meanwhile_is_acquired_again(
        self, backend: Backend, redises: list[Any]
    ) -> None:
        [redis, _] = redises
        client = backend.connect()
        group = client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))
        holder = backend.connect().get_lock("b")
        await holder.lock()

        async def take() -> list[dict[bytes, bytes]]:
            await group.lock(lease_time=2)
            return [redis.hgetall("a"), redis.hgetall("b")]

        other = backend.spawn(take)
        await backend.until(lambda: bool(redis.exists("a")))
        await backend.until(lambda: redis.pubsub_numsub("redisson_lock__channel:{b}")[0][1] > 0)
        redis.delete("a")
        redis.hset("a", "another:1", 1)
        # The loss is found by the extension, which is made when some of the lease is over.
        await backend.sleep(0.3)
        await holder.unlock()
        await backend.until(lambda: not redis.exists("b"))
        assert not other.done()
        redis.delete("a")
        redis.publish("redisson_lock__channel:{a}", "0")
        held = await other.result()
        assert [len(each) for each in held] == [1, 1]
        assert b"another:1" not in held[0]


def _leases(redises: list[Any]) -> Iterator[int]:
    for redis in redises:
        for key in redis.scan_iter():
            if not key.startswith((b"redisson_lock_", b"pyredisson_")):
                yield int(redis.pttl(key))


class TestLost:
    async def test_when_any_is(self, backend: Backend, redises: list[Any]) -> None:
        client = backend.connect()
        a, b = client.get_lock("a"), client.get_lock("b")
        group = client.get_multi_lock(a, b)
        notified: list[Any] = []
        heard = threading.Event()

        @group.on_lost
        def tell(lost: Any) -> None:
            notified.append(lost)
            heard.set()

        await group.lock()
        await group.lock()
        lost = group.lost
        assert not lost.is_set()
        assert await backend.as_another_owner(b.force_unlock)
        assert lost.is_set()
        assert await lost.wait(TIME_LIMIT)
        assert await asyncio.to_thread(heard.wait, TIME_LIMIT)
        assert not await group.is_held()
        with pytest.raises(LockLostError, match=r"'b'.*force_unlock"):
            await group.unlock()
        # In the background, as the loss was known before.
        await backend.until(lambda: counts(redises[0], "a") == [b"1"])
        with pytest.raises(LockLostError):
            await group.unlock()
        await backend.until(lambda: redises[0].keys() == [])
        assert len(notified) == 1
        # The next hold is another one.
        async with group:
            assert not group.lost.is_set()
        assert len(notified) == 1

    async def test_at_the_end_of_the_shortest_lease(self, backend: Backend) -> None:
        client = backend.connect()
        group = client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))
        begun = time.monotonic()
        with pytest.raises(LockLostError):
            async with group.hold(lease_time=0.2):
                assert await group.lost.wait(TIME_LIMIT)
                assert 0.15 < time.monotonic() - begun < 0.2 + TIME_LIMIT / 2
                await backend.sleep(0)

    async def test_waiting_ends_when_it_is_released(self, backend: Backend) -> None:
        client = backend.connect()
        group = client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))
        await group.lock()
        lost = group.lost
        waiting = backend.spawn(lambda: lost.wait(60))
        await backend.sleep(0.05)
        assert not waiting.done()
        await group.unlock()
        assert await waiting.result() is False
        assert await group.lost.wait(60) is False

    async def test_a_body_is_cancelled_at_that_moment(self, tasks: Backend, redises: list[Any]) -> None:
        client = tasks.connect()
        a, b = client.get_lock("a"), client.get_lock("b")
        stopped = False
        with pytest.raises(LockLostError, match="'a'"):
            async with client.get_multi_lock(a, b):
                asyncio.get_running_loop().call_later(0.05, lambda: asyncio.ensure_future(a.force_unlock()))
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    stopped = True
                    raise
        assert stopped
        assert redises[0].keys() == []
        assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]
        async with client.get_multi_lock(a, b).hold(lease_time=0.1, cancel_on_lost=False) as group:
            with pytest.raises(LockLostError):
                await asyncio.sleep(0.2)
                await group.unlock()
            await group.lock()
