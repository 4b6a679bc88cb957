"""Several locks as one: either all of them are acquired or none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson import LockAlreadyHeldError, LockLostError, LockNotHeldError, LockTimeoutError
from pyredisson.logic.groups import multi_lock
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, WOKEN, Backend

pytestmark = pytest.mark.asyncio
TAKE_IF_FREE = "return redis.call('EXISTS', KEYS[1]) == 0 and redis.call('HSET', KEYS[1], ARGV[1], 1)"


@pytest.fixture
def redises(servers: list[Server]) -> Iterator[list[Any]]:
    """Plain clients of the first two servers."""
    with servers[0].redis() as one, servers[1].redis() as other:
        yield [one, other]


def counts(redis: Any, name: str) -> list[bytes]:
    return list(redis.hvals(name))


class TestAllOrNothing:
    async def test_acquires_all_and_releases_all(
        self, backend: Backend, servers: list[Server], redises: list[Any]
    ) -> None:
        here, there = backend.connect(), backend.connect(servers[1].url)
        group = here.get_multi_lock(there.get_lock("b"), here.get_lock("a"), here.get_lock("c"))
        await group.lock()
        assert [counts(redises[0], "a"), counts(redises[1], "b"), counts(redises[0], "c")] == [[b"1"]] * 3
        assert await group.is_held()
        assert await group.is_held_by_current_thread()
        assert not group.lost.is_set()
        assert await there.get_lock("b").is_held()
        await group.unlock()
        assert not await group.is_held()
        assert [redis.keys() for redis in redises] == [[], []]

    async def test_nested_it_counts_in_each_member(self, backend: Backend, redises: list[Any]) -> None:
        client = backend.connect()
        group = client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))
        async with group, group:
            assert await group.try_lock()
            assert [counts(redises[0], "a"), counts(redises[0], "b")] == [[b"3"], [b"3"]]
            await group.unlock()
        assert redises[0].keys() == []

    async def test_a_member_that_is_held_besides_stays_held(self, backend: Backend, redises: list[Any]) -> None:
        client = backend.connect()
        one = client.get_lock("a")
        group = client.get_multi_lock(one, client.get_lock("b"))
        await one.lock()
        await group.lock()
        assert await one.get_hold_count() == 2
        await group.unlock()
        assert not await group.is_held()
        assert await one.get_hold_count() == 1
        await one.unlock()
        assert redises[0].keys() == []

    async def test_if_one_is_held_none_is_acquired(self, backend: Backend, redises: list[Any]) -> None:
        client = backend.connect()
        group = client.get_multi_lock(*[client.get_lock(name) for name in "abcd"])
        redises[0].hset("c", "another:1", 1)
        assert not await group.try_lock()
        assert redises[0].keys() == [b"c"]
        assert not await group.is_held()
        redises[0].delete("c")
        assert await group.try_lock()
        assert sorted(redises[0].keys()) == [b"a", b"b", b"c", b"d"]

    async def test_a_nested_try_in_vain_leaves_the_outer_holds(self, backend: Backend, redises: list[Any]) -> None:
        client = backend.connect()
        a, b, c = (client.get_lock(name) for name in "abc")
        redises[0].hset("c", "another:1", 1)
        async with client.get_multi_lock(a, b):
            assert not await client.get_multi_lock(a, b, c).try_lock()
            assert [counts(redises[0], "a"), counts(redises[0], "b")] == [[b"1"], [b"1"]]

    async def test_a_wait_is_over_in_time_and_leaves_nothing(self, backend: Backend, redises: list[Any]) -> None:
        client = backend.connect()
        group = client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))
        redises[0].hset("b", "another:1", 1)
        begun = time.monotonic()
        assert not await group.try_lock(0.2)
        assert 0.19 < time.monotonic() - begun < 0.2 + TIME_LIMIT / 2
        assert redises[0].keys() == [b"b"]
        with pytest.raises(
            LockTimeoutError, match=r"multi-lock of 'a' on .*, 'b' on .* of owner .* not acquired in 0\.05 s"
        ):
            async with group.hold(wait_time=0.05):
                pass
        assert redises[0].keys() == [b"b"]

    @pytest.mark.parametrize("busy", ["a", "b", "c"])
    async def test_a_release_wakes_it(self, backend: Backend, redises: list[Any], busy: str) -> None:
        client = backend.connect()
        group = client.get_multi_lock(*[client.get_lock(name) for name in "abc"])
        holder = backend.connect().get_lock(busy)
        await holder.lock()

        async def take() -> float:
            await group.lock()
            had = time.monotonic()
            await group.unlock()
            return had

        other = backend.spawn(take)
        await backend.until(lambda: redises[0].pubsub_numsub(f"redisson_lock__channel:{{{busy}}}")[0][1] > 0)
        released = time.monotonic()
        await holder.unlock()
        assert await other.result() - released < WOKEN
        assert redises[0].keys() == []


class TestOrder:
    async def test_however_they_are_listed(
        self, backend: Backend, servers: list[Server], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each would wait for the other, were the order theirs."""
        # Not once may one of them give up what it has: that would last longer than the results are waited for.
        monkeypatch.setattr(multi_lock, "MEMBER_WAIT", TIME_LIMIT)
        first, second = backend.connect(), backend.connect()
        there = [backend.connect(servers[1].url) for _ in range(2)]
        inside = 0

        async def turns(group: Any) -> None:
            nonlocal inside
            for _ in range(20):
                async with group:
                    inside += 1
                    assert inside == 1
                    await backend.sleep(0.0005)
                    inside -= 1

        forth = first.get_multi_lock(first.get_lock("a"), first.get_lock("b"), there[0].get_lock("a"))
        back = second.get_multi_lock(there[1].get_lock("a"), second.get_lock("b"), second.get_lock("a"))
        others = [backend.spawn(lambda: turns(forth)), backend.spawn(lambda: turns(back))]
        for other in others:
            await other.result()

    @pytest.mark.usefixtures("short_member_wait")
    async def test_it_yields_to_a_group_in_the_other_order(self, backend: Backend, redises: list[Any]) -> None:
        """As Java does: it has the last, and waits for the first."""
        [redis, _] = redises
        client = backend.connect()
        group = client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))
        redis.hset("b", "java:1", 1)

        async def take() -> bool:
            await group.lock()
            return await group.is_held()

        other = backend.spawn(take)
        await backend.until(lambda: bool(redis.exists("a")))
        await backend.until(lambda: redis.eval(TAKE_IF_FREE, 1, "a", "java:1") == 1)
        assert not other.done()
        redis.delete("a", "b")
        redis.publish("redisson_lock__channel:{a}", "0")
        redis.publish("redisson_lock__channel:{b}", "0")
        assert await other.result()


class TestUnlock:
    async def test_each_member_is_tried(self, backend: Backend, redises: list[Any]) -> None:
        client = backend.connect()
        locks = [client.get_lock(name) for name in "abc"]
        group = client.get_multi_lock(*locks)
        await group.lock()
        await locks[1].unlock()
        # Only the member that is not held any more is named.
        message = r"is not held any more: 'b' on [^']*: it was released separately$"
        with pytest.raises(LockLostError, match=message):
            await group.unlock()
        # In the background: the group is known not to be held any more.
        await backend.until(lambda: not redises[0].keys())

    async def test_by_another_owner(self, backend: Backend, redises: list[Any]) -> None:
        client = backend.connect()
        group = client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))
        async with group:
            holder = next(iter(redises[0].hgetall("a"))).decode()

            async def release() -> None:
                assert not await group.is_held()
                await group.unlock()

            with pytest.raises(LockNotHeldError, match=holder) as raised:
                await backend.as_another_owner(release)
            assert len(raised.value.__notes__) == 1
            assert await group.is_held()

    async def test_from_one_owner_to_another(self, backend: Backend, redises: list[Any]) -> None:
        client = backend.connect()
        group = client.get_multi_lock(client.get_lock("a", owner=1), client.get_lock("b", owner=2))
        await group.lock()
        await backend.as_another_owner(group.unlock)
        assert redises[0].keys() == []

    async def test_the_body_s_own_error_is_what_is_seen(self, backend: Backend) -> None:
        client = backend.connect()
        a = client.get_lock("a")
        with pytest.raises(LookupError) as raised:
            async with client.get_multi_lock(a, client.get_lock("b")):
                await a.force_unlock()
                raise LookupError
        assert "LockLostError" in raised.value.__notes__[0]


class TestMembers:
    async def test_one_that_is_not_reentrant(self, backend: Backend, redises: list[Any]) -> None:
        client = backend.connect()
        group = client.get_multi_lock(client.get_lock("a"), client.get_non_reentrant_lock("b"))
        async with group:
            with pytest.raises(LockAlreadyHeldError):
                await group.try_lock()
            # Given back in the background.
            await backend.until(lambda: counts(redises[0], "a") == [b"1"])
            assert counts(redises[0], "b") == [b"1"]

    async def test_both_sides_of_a_read_write_lock(self, backend: Backend, redises: list[Any]) -> None:
        client = backend.connect()
        read_write = client.get_read_write_lock("rw")
        async with client.get_multi_lock(read_write.write_lock(), read_write.read_lock()):
            assert redises[0].hget("rw", "mode") == b"write"
            assert redises[0].hlen("rw") == 3
        assert redises[0].keys() == []

    async def test_that_make_no_group(self, backend: Backend) -> None:
        client = backend.connect()
        lock = client.get_lock("a")
        foreign = (pyredisson.connect if backend.name == "asyncio" else pyredisson.asyncio.connect)(backend.url)
        makes: list[Any] = [client.get_multi_lock, client.get_red_lock]
        for make in makes:
            with pytest.raises(ValueError, match="at least one"):
                make()
            for twice in (
                lock,
                client.get_lock("a"),
                client.get_fair_lock("a"),
                backend.connect().get_lock("a", owner=1),
            ):
                with pytest.raises(ValueError, match="twice"):
                    make(lock, client.get_lock("b"), twice)
            for wrong in ("a", None, make(lock), client.get_read_write_lock("b"), foreign.get_lock("b")):
                with pytest.raises(TypeError, match="must be a lock of pyredisson"):
                    make(lock, wrong)
        closing = foreign.close()
        if asyncio.iscoroutine(closing):
            await closing

    async def test_what_has_no_meaning(self, backend: Backend) -> None:
        client = backend.connect()
        for group in (client.get_multi_lock(client.get_lock("a")), client.get_red_lock(client.get_lock("a"))):
            with pytest.raises(NotImplementedError, match="has no name"):
                _ = group.name
            queries = ("is_locked", "locked", "get_hold_count", "remain_time_to_live", "holder")
            for method in (*queries, "force_unlock", "delete"):
                with pytest.raises(NotImplementedError, match="member"):
                    await getattr(group, method)()
            with pytest.raises(NotImplementedError, match="member"):
                await group.is_held_by(1)

    async def test_threading_s_protocol(self, backend: Backend) -> None:
        client = backend.connect()
        group = client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))
        assert await group.acquire(timeout=1)
        assert not await backend.as_another_owner(lambda: group.acquire(blocking=False))
        await group.release()
        assert not await group.is_held()

    @pytest.mark.parametrize("lease", [0, -1, "1", True, float("nan"), float("inf")])
    async def test_a_lease_that_can_t_be(self, backend: Backend, lease: Any) -> None:
        client = backend.connect("redis://127.0.0.1:1")
        group = client.get_multi_lock(client.get_lock("a"))
        with pytest.raises((TypeError, ValueError)):
            await group.lock(lease)
        with pytest.raises((TypeError, ValueError)):
            await group.try_lock(1, lease)

    async def test_how_it_shows(self, backend: Backend) -> None:
        client = backend.connect()
        module = "pyredisson" if backend.name == "threads" else "pyredisson.asyncio"
        readable = repr(client.get_multi_lock(client.get_lock("b"), client.get_lock("a")))
        assert readable == f"<{module}.MultiLock of <{module}.Lock 'a'>, <{module}.Lock 'b'>>"


async def test_both_sides_of_one_lock_in_whatever_order(backend: Backend, server: Server) -> None:
    client = backend.connect(server.url)
    sides = client.get_read_write_lock("prices")
    for members in ((sides.read_lock(), sides.write_lock()), (sides.write_lock(), sides.read_lock())):
        group = client.get_multi_lock(*members)
        assert await group.try_lock()
        await group.unlock()
