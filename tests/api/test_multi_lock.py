"""Several locks as one: all are acquired or none, in one order, with one lease; and the loss of a member."""

from typing import Any

import pytest
from redis import Redis

import pyredisson.asyncio
from pyredisson import LockAlreadyHeldError, LockNotHeldError, LockTimeoutError
from pyredisson.logic.groups import multi_lock
from pyredisson.testing import Server
from tests.faults.kinds import given_back, taken_by_another
from tests.support.backends import NOWHERE, TIME_LIMIT, WOKEN, Backend, fails, finished, in_turn, listeners, scripts_run
from tests.support.kinds import LOCKS, acquired

from .kinds import assert_lost, lock_of, sleeping, use

TAKE_IF_FREE = "return redis.call('EXISTS', KEYS[1]) == 0 and redis.call('HSET', KEYS[1], ARGV[1], 1)"


class Locks:
    """Locks of one client on one server, named by letters."""

    def __init__(self, backend: Backend, redis: Redis, **fields: Any) -> None:
        self.backend = backend
        self.redis: Any = redis
        self.client: Any = backend.connect(**fields)

    def __getitem__(self, name: str) -> Any:
        return self.client.get_lock(name)

    def group(self, names: str = "ab") -> Any:
        return self.client.get_multi_lock(*[self[name] for name in names])

    def counts(self, names: str = "ab") -> list[list[bytes]]:
        """Of each, the levels of its hold."""
        return [list(self.redis.hgetall(name).values()) for name in names]

    def keys(self) -> list[bytes]:
        return sorted(self.redis.keys())


@pytest.fixture
def short_member_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A multi-lock waits only briefly for a member before it releases the members that it has acquired."""
    monkeypatch.setattr(multi_lock, "MEMBER_WAIT", 0.02)


@pytest.fixture
def locks(backend: Backend, admin: Redis) -> Locks:
    return Locks(backend, admin)


class TestAllOrNothing:
    async def test_acquires_all_and_releases_all(self, locks: Locks, servers: list[Server], redises: Any) -> None:
        there = locks.backend.connect(servers[1].url)
        group = locks.client.get_multi_lock(there.get_lock("b"), locks["a"], locks["c"])
        await group.lock()
        assert [*locks.counts("ac"), list(redises[1].hvals("b"))] == [[b"1"]] * 3
        questions = (group.is_held, group.is_held_by_current_thread, there.get_lock("b").is_held)
        assert [await question() for question in questions] + [group.lost.is_set()] == [True, True, True, False]
        await group.unlock()
        assert (await group.is_held(), locks.keys(), redises[1].keys()) == (False, [], [])

    async def test_if_one_is_held_none_is_acquired(self, locks: Locks) -> None:
        """Outer holds stay."""
        group = locks.group("abcd")
        taken_by_another(locks.redis, "c")
        assert not await group.try_lock()
        said = r"multi-lock of 'a' on .*, 'b' on .* of owner .* not acquired"
        await fails(LockTimeoutError, group.hold(wait_time=0).__aenter__, match=said)
        assert (locks.keys(), await group.is_held()) == ([b"c"], False)
        # Who holds it is asked until that is known, and not of all at the same time.
        before = scripts_run(locks.redis)
        await fails(LockTimeoutError, locks.group("cdefghijkl").hold(wait_time=0).__aenter__, match="'c' .* is held by")
        assert scripts_run(locks.redis) - before <= 5
        async with locks.group("ab"):
            assert (await group.try_lock(), locks.counts()) == (False, [[b"1"], [b"1"]])
        locks.redis.delete("c")
        assert (await group.try_lock(), locks.keys()) == (True, [b"a", b"b", b"c", b"d"])
        await group.unlock()
        # It counts in each member. A member that is held besides stays held.
        one, group = await acquired(locks["a"]), locks.group()
        async with group, group:
            assert (await group.try_lock(), locks.counts()) == (True, [[b"4"], [b"3"]])
            await group.unlock()
        assert (await group.is_held(), await one.get_hold_count()) == (False, 1)
        await one.unlock()
        assert locks.keys() == []

    @pytest.mark.parametrize("busy", ["a", "b", "c"])
    async def test_a_release_wakes_it(self, locks: Locks, busy: str) -> None:
        group, holder = locks.group("abc"), await acquired(locks.backend.connect().get_lock(busy))
        other = await locks.backend.begin(lambda: use(group), lambda: listeners(locks.redis, busy))
        await holder.unlock()
        await other.result(WOKEN)
        assert locks.keys() == []


class TestOrder:
    async def test_however_they_are_listed(self, backend: Backend, servers: list[Server], monkeypatch: Any) -> None:
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
        await finished([backend.spawn(lambda: turns(forth)), backend.spawn(lambda: turns(back))])

    @pytest.mark.usefixtures("short_member_wait")
    async def test_it_yields_to_a_group_in_the_other_order(self, locks: Locks) -> None:
        """As Java does: it has the last, and waits for the first."""
        group = locks.group()
        locks.redis.hset("b", "java:1", 1)
        other = await locks.backend.begin(group.lock, lambda: locks.redis.exists("a"))
        await locks.backend.until(lambda: locks.redis.eval(TAKE_IF_FREE, 1, "a", "java:1") == 1)
        assert not other.done()
        given_back(locks.redis, "a", "b")
        await other.result()
        assert locks.counts() == [[b"1"], [b"1"]]


class TestMembers:
    @pytest.mark.parametrize("first", ["read", "write"])
    async def test_of_other_kinds(self, locks: Locks, first: str) -> None:
        """Both sides of a read-write lock, and one that is not re-entrant."""
        sides = [lock_of(locks.client, kind, "rw") for kind in ("read", "write")]
        async with locks.client.get_multi_lock(*(sides if first == "read" else reversed(sides))):
            assert (locks.redis.hget("rw", "mode"), locks.redis.hlen("rw")) == (b"write", 3)
        assert locks.keys() == []
        group = locks.client.get_multi_lock(locks["a"], locks.client.get_non_reentrant_lock("b"))
        async with group:
            await fails(LockAlreadyHeldError, group.try_lock)
            # Given back in the background.
            await locks.backend.until(lambda: locks.counts() == [[b"1"], [b"1"]])

    async def test_that_make_no_group(self, backend: Backend) -> None:
        client = backend.connect(NOWHERE)
        lock, other = client.get_lock("a"), client.get_lock("b")
        foreign = (pyredisson.connect if backend.name == "asyncio" else pyredisson.asyncio.connect)(NOWHERE)
        another: Any = backend.connect(NOWHERE).get_lock("a", owner=1)
        makes: list[Any] = [client.get_multi_lock, client.get_red_lock]
        for make in makes:
            with pytest.raises(ValueError, match="at least one"):
                make()
            for again in (lock, client.get_lock("a"), client.get_fair_lock("a"), another):
                with pytest.raises(ValueError, match="twice"):
                    make(lock, other, again)
            for wrong in ("a", None, make(lock), client.get_read_write_lock("b"), foreign.get_lock("b")):
                with pytest.raises(TypeError, match="must be a lock of pyredisson"):
                    make(lock, wrong)

    async def test_how_it_shows_and_what_has_no_meaning(self, locks: Locks) -> None:
        shown = repr(locks.group("ba")).replace(".asyncio", "")
        assert shown == "<pyredisson.MultiLock of <pyredisson.Lock 'a'>, <pyredisson.Lock 'b'>>"
        queries = ("is_locked", "locked", "get_hold_count", "remain_time_to_live", "holder", "force_unlock", "delete")
        for group in (locks.group(), locks.client.get_red_lock(locks["a"])):
            with pytest.raises(NotImplementedError, match="has no name"):
                _ = group.name
            for method, arguments in [(group.is_held_by, [1]), *((getattr(group, name), []) for name in queries)]:
                await fails(NotImplementedError, method, *arguments, match="member")


class TestLease:
    async def test_it_begins_when_all_are_there(self, locks: Locks, servers: list[Server], redises: Any) -> None:
        """For each kind of lock, in its own way; and nobody else's keys get a lease."""
        backend, client, redis = locks.backend, locks.client, locks.redis
        members = [lock_of(client, kind, kind) for kind in LOCKS if kind != "write"]
        group: Any = client.get_multi_lock(*members, backend.connect(servers[1].url).get_lock("last"))
        # The member that is taken last is somebody else's for a while.
        slowest = group._target._locks[-1] if backend.name == "threads" else group._locks[-1]
        holder = await acquired(backend.connect(servers[slowest.name == "last"].url).get_lock(slowest.name))

        def leases() -> list[int]:
            keys = [(each, key) for each in redises[:2] for key in each.scan_iter()]
            return [each.pttl(key) for each, key in keys if not key.startswith((b"redisson_lock_", b"pyredisson_"))]

        other = backend.spawn(lambda: group.lock(8))
        # All but the last are had.
        await backend.until(lambda: len(leases()) == 8)
        # Java waits for one of them.
        redis.rpush("redisson_lock_queue:{fair}", "java:1")
        redis.zadd("redisson_lock_timeout:{fair}", {"java:1": 2**42})
        await backend.sleep(1.2)
        await holder.unlock()
        await other.result()
        found = leases()
        assert len(found) == 8
        assert 7000 < min(found) <= max(found) <= 8000, found
        assert (redis.pttl("redisson_lock_queue:{fair}"), redis.pttl("redisson_lock_timeout:{fair}")) == (-1, -1)

    @pytest.mark.usefixtures("short_member_wait")
    async def test_it_doesn_t_grow_with_the_rounds(self, locks: Locks) -> None:
        """In each round the other member is somebody else's. The group sleeps until it is free, and holds nothing."""
        group, redis = locks.group(), locks.redis
        taken_by_another(locks.redis, "b")
        other = locks.backend.spawn(lambda: group.lock(lease_time=2))
        for held, free in ("ba", "ab", "ba"):
            await locks.backend.until(lambda: sleeping(locks.client, "lock", held) and not redis.exists(free))  # noqa: B023
            assert not other.done()
            taken_by_another(locks.redis, free)
            given_back(locks.redis, held)
        given_back(locks.redis, "a")
        await other.result()
        assert [1500 < redis.pttl(name) <= 2000 for name in "ab"] == [True, True]

    async def test_a_member_that_is_lost_meanwhile_is_acquired_again(self, locks: Locks) -> None:
        group, holder = locks.group(), await acquired(locks.backend.connect().get_lock("b"))
        other = await locks.backend.begin(lambda: group.lock(2), lambda: listeners(locks.redis, "b"))
        await locks.backend.until(lambda: locks.redis.exists("a"))
        locks.redis.delete("a")
        taken_by_another(locks.redis, "a")
        # The loss is found by the extension, which is made when some of the lease is over.
        await locks.backend.sleep(0.3)
        await holder.unlock()
        await locks.backend.until(lambda: not locks.redis.exists("b"))
        assert not other.done()
        given_back(locks.redis, "a")
        await other.result()
        assert (locks.counts(), locks.redis.hexists("a", "another:1")) == ([[b"1"], [b"1"]], False)


class TestUnlock:
    async def test_by_another_owner(self, locks: Locks) -> None:
        group = locks.group()
        async with group:
            holder = next(iter(locks.redis.hgetall("a"))).decode()
            assert not await locks.backend.as_another_owner(group.is_held)
            raised = await fails(LockNotHeldError, locks.backend.as_another_owner, group.unlock, match=holder)
            assert (len(raised.__notes__), await group.is_held()) == (1, True)
        # The owners of the members count, and not the caller.
        get = locks.client.get_lock
        group = await acquired(locks.client.get_multi_lock(get("a", owner=1), get("b", owner=2)))
        await locks.backend.as_another_owner(group.unlock)
        assert locks.keys() == []

    async def test_a_member_is_lost(self, locks: Locks) -> None:
        group = await acquired(locks.group("abc"))
        await locks["b"].unlock()
        # Only the member that is not held any more is named.
        await assert_lost(group, r"is not held any more: 'b' on [^']*: it was released separately$")
        # In the background: the group is known not to be held any more.
        await locks.backend.until(lambda: not locks.keys())
        notified: list[Any] = []
        group.on_lost(notified.append)
        await in_turn([group.lock] * 2)
        lost = group.lost
        assert not lost.is_set()
        assert await locks.backend.as_another_owner(locks["b"].force_unlock)
        assert (lost.is_set(), await lost.wait(10)) == (True, True)
        await locks.backend.until(lambda: bool(notified))
        assert not await group.is_held()
        await assert_lost(group, r"'b'.*force_unlock")
        # In the background, as the loss was known before.
        await locks.backend.until(lambda: locks.counts("ac") == [[b"1"], [b"1"]])
        await assert_lost(group)
        await locks.backend.until(lambda: locks.keys() == [])
        # The next hold is another one.
        async with group:
            assert (len(notified), group.lost.is_set()) == (1, False)
        assert len(notified) == 1
