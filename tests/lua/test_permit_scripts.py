"""Each script of expirable permits on real servers, old and new: every branch, sent twice, late, as Java reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripted import Scripted, heard

FREE, USED = "pool", "{pool}:timeout"
CLAIM, TURN = "pyredisson_semaphore_claim:{pool}", "pyredisson_semaphore_turn:{pool}"
MARK, LANE = "pyredisson_permit_withdrawn:{pool}:", "pyredisson_once:{pool}:me:0"
FOREVER = 922337203685477
A, B, C, D, E = (bytes(range(start, start + 16)) for start in (0, 16, 128, 200, 240))


class PermitScripts(Scripted):
    channel = "redisson_sc:{pool}"

    def acquire(self, lease: int, *ids: bytes, claimant: str = "", redis: Any = None) -> Any:
        keys = [FREE, USED, MARK + ids[0].hex(), CLAIM, TURN]
        return self.run("permit_acquire", keys, self.channel, lease, claimant, *ids, redis=redis)

    def release(self, *ids: bytes, redis: Any = None) -> Any:
        return self.run("permit_release", [FREE, USED], self.channel, 1, *ids, redis=redis)

    def withdraw(self, *ids: bytes, redis: Any = None) -> Any:
        marks = [MARK + permit.hex() for permit in ids]
        return self.run("permit_release", [FREE, USED, *marks], self.channel, 0, *ids, redis=redis)

    def renew(self, lease: int, *permits: tuple[str, bytes], redis: Any = None) -> Any:
        return self.run("permit_renew", [key for key, _ in permits], lease, *[each for _, each in permits], redis=redis)

    def lease(self, permit: bytes, *lease: int, redis: Any = None) -> Any:
        return self.run("permit_lease", [USED], permit, *lease, redis=redis)

    def count(self, redis: Any = None) -> Any:
        return self.run("permit_count", [FREE, USED], self.channel, redis=redis)

    def set(self, number: int, permits: int, redis: Any = None) -> Any:
        return self.run("permit_set", [FREE, USED, LANE], number, permits, self.channel, redis=redis)

    def now(self) -> int:
        seconds, micros = self.redis.time()
        return int(seconds * 1000 + micros // 1000)

    def use(self, permit: bytes, left: int | None, key: str = USED) -> None:
        """A permit in use as Redisson's scripts leave it."""
        self.redis.zadd(key, {permit: FOREVER if left is None else self.now() + left})

    def free(self) -> str | None:
        """The free permits, as Redisson reads them."""
        return self.text(FREE)

    def valid_until(self) -> dict[bytes, int]:
        """When which permit ends, as Redisson reads it: whole milliseconds, of which it takes the digits."""
        raw = self.redis.execute_command("EVAL", "return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')", 1, USED)
        return {permit: int(score.decode()) for permit, score in zip(raw[::2], raw[1::2], strict=True)}

    def left(self, permit: bytes) -> int:
        return self.valid_until()[permit] - self.now()


@pytest.fixture
def at(server: Server, admin: Redis) -> PermitScripts:
    return PermitScripts(server, admin)


class TestAcquire:
    def test_enough(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, 5)
        for _ in range(2):
            assert at.acquire(30_000, A, B) is None
            assert at.free() == "3"
            assert set(at.valid_until()) == {A, B}
            assert at.valid_until()[A] == at.valid_until()[B]
            assert 25_000 < at.left(A) <= 30_000
        assert at.acquire(30_000, C, D, E) is None
        assert at.free() == "0"
        assert at.redis.ttl(FREE) == at.redis.ttl(USED) == -1
        assert heard(ear) == []

    def test_endless(self, at: PermitScripts) -> None:
        at.redis.set(FREE, 1)
        for _ in range(2):
            assert at.acquire(-1, A) is None
            assert at.valid_until() == {A: FOREVER}

    def test_a_lease_beyond_all_times_is_endless(self, at: PermitScripts) -> None:
        at.redis.set(FREE, 1)
        assert at.acquire(2**52, A) is None
        assert at.valid_until() == {A: FOREVER}

    def test_a_second_copy_begins_the_lease_anew(self, at: PermitScripts) -> None:
        """Who sent it counts from the copy that was answered."""
        at.redis.set(FREE, 1)
        at.use(A, 500)
        at.redis.decr(FREE)
        assert at.acquire(30_000, A) is None
        assert (at.free(), at.left(A) > 25_000) == ("0", True)

    def test_a_second_copy_when_the_lease_has_ended(self, at: PermitScripts) -> None:
        at.redis.set(FREE, 0)
        at.use(A, -500)
        assert at.acquire(30_000, A) is None
        assert (at.free(), at.left(A) > 25_000) == ("0", True)

    def test_a_second_copy_when_some_were_given_back(self, at: PermitScripts) -> None:
        at.redis.set(FREE, 3)
        at.acquire(30_000, A, B, C)
        for given_back in (B, A):
            assert at.release(given_back) == []
            free, held = at.free(), at.valid_until()
            assert at.acquire(30_000, A, B, C) == [-2, 0]
            assert (at.free(), at.valid_until()) == (free, held)

    def test_a_second_copy_when_one_has_ended_and_is_taken(self, at: PermitScripts) -> None:
        """Who sent it must not believe in a permit that another has by now."""
        at.redis.set(FREE, 2)
        at.acquire(30_000, A, B)
        at.redis.zadd(USED, {B: 1})
        assert at.acquire(30_000, C) is None
        held = at.valid_until()
        for _ in range(2):
            assert at.acquire(30_000, A, B) == [-2, 0]
            assert (at.free(), at.valid_until()) == ("0", held)

    def test_a_copy_that_comes_when_all_was_given_back(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, 2)
        at.acquire(30_000, A, B)
        for _ in range(2):
            assert at.withdraw(A, B) == []
            assert 650_000 < at.redis.pttl(MARK + A.hex()) <= 660_000
        assert at.acquire(30_000, A, B) == [-1, 0]
        assert (at.free(), at.valid_until()) == ("2", {})
        assert heard(ear) == [b"2"]

    def test_a_copy_that_was_given_up_before_it_came(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, 2)
        assert at.withdraw(A) == []
        assert at.acquire(-1, A) == [-1, 0]
        assert at.acquire(-1, B) is None
        assert (at.free(), set(at.valid_until())) == ("1", {B})
        assert heard(ear) == []

    @pytest.mark.parametrize("free", [None, "0", "1", "-3"])
    def test_too_few(self, at: PermitScripts, ear: PubSub, free: str | None) -> None:
        if free is not None:
            at.redis.set(FREE, free)
        for _ in range(2):
            assert at.acquire(30_000, A, B) == ([-3, 0] if free is None else [-1, int(free)])
            assert (at.free(), at.valid_until()) == (free, {})
        assert heard(ear) == []

    def test_too_few_and_when_the_next_one_ends(self, at: PermitScripts) -> None:
        at.redis.set(FREE, 0)
        at.use(C, None)
        assert at.acquire(30_000, A) == [-1, 0]
        at.use(D, 20_000)
        at.use(E, 10_000)
        for _ in range(2):
            left, free = at.acquire(30_000, A)
            assert (5_000 < left <= 10_000, free) == (True, 0)
        assert at.free() == "0"

    @pytest.mark.parametrize("score", ["inf", "930000000000000"])
    def test_scores_that_somebody_else_wrote(self, at: PermitScripts, score: str) -> None:
        at.redis.set(FREE, 0)
        at.redis.zadd(USED, {C: score})
        assert at.acquire(30_000, A) == [-1, 0]

    def test_what_has_ended_is_taken_over(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, 0)
        at.use(C, -1)
        at.use(D, -5_000)
        at.use(E, 10_000)
        for _ in range(2):
            assert at.acquire(30_000, A, B) is None
            assert (at.free(), set(at.valid_until())) == ("0", {A, B, E})
        # Nothing came free for anybody else.
        assert heard(ear) == []

    def test_no_more_than_needed_is_taken_over(self, at: PermitScripts) -> None:
        at.redis.set(FREE, 0)
        at.use(C, -1)
        at.use(D, -5_000)
        assert at.acquire(30_000, A) is None
        assert (at.free(), set(at.valid_until())) == ("0", {A, C})

    def test_what_has_ended_may_be_too_few(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, 1)
        at.use(C, -1)
        at.use(D, 10_000)
        left, free = at.acquire(30_000, A, B, E)
        assert (5_000 < left <= 10_000, free) == (True, 2)
        assert (at.free(), set(at.valid_until())) == ("2", {D})
        # It may be enough for another one.
        assert heard(ear) == [b"2"]

    def test_below_zero_enough_must_have_ended(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, -2)
        for permit in (B, C):
            at.use(permit, -1)
        assert at.acquire(30_000, A) == [-1, 0]
        assert (at.free(), at.valid_until()) == ("0", {})
        at.redis.set(FREE, -2)
        for permit in (B, C, D, E):
            at.use(permit, -1)
        assert at.acquire(30_000, A) is None
        assert (at.free(), A in at.valid_until(), len(at.valid_until())) == ("0", True, 2)
        assert heard(ear) == []

    def test_the_permits_in_use_end_with_the_semaphore(self, at: PermitScripts) -> None:
        at.redis.set(FREE, 5, px=50_000)
        assert at.acquire(-1, A) is None
        before, used, after = at.redis.pttl(FREE), at.redis.pttl(USED), at.redis.pttl(FREE)
        # Old servers look at the clock again in the middle of a script.
        assert after - 20 <= used <= before + 20

    @pytest.mark.parametrize("key", [FREE, USED])
    def test_another_type(self, at: PermitScripts, key: str) -> None:
        at.redis.set(FREE, 5)
        at.redis.delete(key)
        at.redis.hset(key, "a", 1)
        calls: list[Callable[[], Any]] = [
            lambda: at.acquire(30_000, A),
            at.count,
            lambda: at.set(2, 7),
        ]
        for call in calls:
            with pytest.raises(ResponseError, match="WRONGTYPE"):
                call()
        assert at.redis.hgetall(key) == {b"a": b"1"}
        assert at.redis.keys() == [key.encode()] or at.free() == "5"


class TestRelease:
    def test_one(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, 3)
        at.use(A, 10_000)
        assert at.release(A) == []
        assert (at.free(), at.valid_until()) == ("4", {})
        assert at.release(A) == [1, A]
        assert (at.free(), at.valid_until()) == ("4", {})
        assert heard(ear) == [b"4"]

    def test_several(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, 0)
        for permit in (A, B, C):
            at.use(permit, None)
        assert at.release(A, C) == []
        assert (at.free(), set(at.valid_until())) == ("2", {B})
        assert at.release(A, C) == [2, A, C]
        assert heard(ear) == [b"2"]

    def test_all_or_none(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, 0)
        at.use(A, 10_000)
        at.use(B, -1)
        for _ in range(2):
            assert at.release(A, B, C) == [1, B, C]
            assert at.release(A, B) == [0, B]
            assert (at.free(), set(at.valid_until())) == ("0", {A, B})
        assert heard(ear) == []

    def test_nothing_is_free_below_zero(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, -2)
        for permit in (A, B, C):
            at.use(permit, None)
        assert at.release(A, B) == []
        assert heard(ear) == []
        assert at.release(C) == []
        assert heard(ear) == [b"1"]

    def test_a_semaphore_that_is_gone(self, at: PermitScripts, ear: PubSub) -> None:
        assert at.release(A) == [1, A]
        assert at.redis.keys() == []
        assert heard(ear) == []

    def test_withdraw_what_is_there(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, 0)
        at.use(A, 10_000)
        at.use(B, -1)
        at.use(D, 10_000)
        for _ in range(2):
            assert at.withdraw(A, B, C) == []
            assert (at.free(), set(at.valid_until())) == ("2", {D})
        assert heard(ear) == [b"2"]

    def test_another_type(self, at: PermitScripts) -> None:
        at.redis.set(USED, "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.release(A)
        assert at.redis.keys() == [USED.encode()]


class TestRenew:
    def test_ours_and_others(self, at: PermitScripts) -> None:
        other = "{other}:timeout"
        at.use(A, 1_000)
        at.use(B, -1)
        at.use(C, 1_000, other)
        for _ in range(2):
            assert at.renew(30_000, (USED, A), (USED, B), (other, C), (other, A), ("no", A)) == [1, 0, 1, 0, 0]
            assert at.left(A) > 25_000
            assert at.left(B) < 0
            assert at.redis.zscore(other, C) > at.now() + 25_000
        assert sorted(at.redis.keys()) == sorted([USED.encode(), other.encode()])
        assert all(isinstance(score, int) for score in at.valid_until().values())

    @pytest.mark.parametrize("left", [60_000, None])
    def test_a_longer_lease_stays(self, at: PermitScripts, left: int | None) -> None:
        at.use(A, left)
        before = at.valid_until()
        assert at.renew(30_000, (USED, A)) == [1]
        assert at.valid_until() == before

    @pytest.mark.parametrize("kind", [("SET", "x", "text"), ("HSET", "x", "a", "1"), ("SADD", "x", "a")])
    def test_a_neighbour_of_another_type(self, at: PermitScripts, kind: tuple[str, ...]) -> None:
        at.redis.execute_command(*kind)
        at.use(A, 1_000)
        at.use(B, 1_000)
        assert at.renew(30_000, (USED, A), ("x", A), (USED, B)) == [1, 0, 1]
        assert at.left(A) > 25_000
        assert at.left(B) > 25_000

    def test_a_whole_batch(self, at: PermitScripts) -> None:
        permits = [bytes([number]) * 16 for number in range(100)]
        for permit in permits:
            at.use(permit, 1_000)
        assert at.renew(30_000, *[(USED, permit) for permit in permits]) == [1] * 100
        assert min(at.valid_until().values()) > at.now() + 25_000


class TestLease:
    def test_look(self, at: PermitScripts) -> None:
        at.use(A, 10_000)
        at.use(B, None)
        at.use(C, -1)
        before = at.valid_until()
        assert 5_000 < at.lease(A) <= 10_000
        assert (at.lease(B), at.lease(C), at.lease(D)) == (-1, None, None)
        assert at.valid_until() == before

    def test_set(self, at: PermitScripts) -> None:
        for permit, left in ((A, 10_000), (B, None), (C, -1)):
            at.use(permit, left)
        for permit in (A, B):
            for _ in range(2):
                assert at.lease(permit, 5_000) == 5_000
                assert 1_000 < at.left(permit) <= 5_000
                assert at.lease(permit, -1) == -1
                assert at.valid_until()[permit] == FOREVER
        for permit in (C, D):
            assert at.lease(permit, 5_000) is None
        assert (at.left(C) < 0, D in at.valid_until()) == (True, False)
        assert at.lease(A, 2**52) == -1
        assert at.valid_until()[A] == FOREVER

    def test_a_semaphore_that_is_gone(self, at: PermitScripts) -> None:
        assert at.lease(A, 5_000) is None
        assert at.redis.keys() == []


class TestCount:
    def test_count(self, at: PermitScripts, ear: PubSub) -> None:
        assert at.count() == [None, 0]
        at.redis.set(FREE, 3)
        at.use(A, 10_000)
        at.use(B, None)
        for _ in range(2):
            assert at.count() == [3, 2]
        assert heard(ear) == []
        at.use(C, -1)
        at.use(D, -5_000)
        for _ in range(2):
            assert at.count() == [5, 2]
            assert (at.free(), set(at.valid_until())) == ("5", {A, B})
        assert heard(ear) == [b"5"]

    def test_below_zero(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, -3)
        at.use(C, -1)
        assert at.count() == [-2, 0]
        assert heard(ear) == []


class TestSet:
    def test_a_new_semaphore(self, at: PermitScripts, ear: PubSub) -> None:
        for _ in range(2):
            assert at.set(2, 5) == 5
            assert at.free() == "5"
        assert at.redis.ttl(FREE) == -1
        assert 650_000 < at.redis.pttl(LANE) <= 660_000
        assert heard(ear) == [b"5"]

    def test_none_at_all(self, at: PermitScripts, ear: PubSub) -> None:
        assert at.set(2, 0) == 0
        assert at.free() == "0"
        assert heard(ear) == []

    def test_larger_and_smaller(self, at: PermitScripts, ear: PubSub) -> None:
        at.redis.set(FREE, 3, px=50_000)
        at.use(A, None)
        at.use(B, -1)
        assert at.set(2, 5) == 0
        assert at.free() == "3"
        assert at.set(4, 8) == 3
        assert at.free() == "6"
        assert at.set(6, 1) == -7
        assert at.free() == "-1"
        assert at.set(8, 2) == 1
        assert at.free() == "0"
        assert set(at.valid_until()) == {A, B}
        assert at.redis.pttl(FREE) > 0
        assert heard(ear) == [b"6"]

    def test_a_late_copy(self, at: PermitScripts) -> None:
        at.set(2, 5)
        at.set(4, 7)
        assert at.set(2, 5) == 2
        assert at.free() == "7"


class TestServers:
    """What servers refuse, and what must go on all the same."""

    def test_out_of_memory(self, at: PermitScripts) -> None:
        at.redis.set(FREE, 1)
        for permit in (A, B, C):
            at.use(permit, 10_000)
        with at.out_of_memory():
            if at.flags:
                # Older servers can't be told that this write takes nothing.
                assert at.renew(30_000, (USED, A)) == [1]
                assert at.left(A) > 25_000
            assert at.release(A) == []
            assert at.withdraw(B) == []
            with pytest.raises(ResponseError, match="maxmemory"):
                at.acquire(30_000, D)
        assert (at.free(), set(at.valid_until())) == ("3", {C})

    def test_without_permission_on_the_channel(self, at: PermitScripts, ear: PubSub) -> None:
        with at.user("~*", "+@all", "resetchannels") as deaf:
            assert at.set(2, 2, redis=deaf) == 2
            assert at.acquire(30_000, A, redis=deaf) is None
            assert at.release(A, redis=deaf) == []
            at.use(B, -1)
            assert at.count(redis=deaf) == [3, 0]
            at.use(B, -1)
            assert at.acquire(30_000, A, C, D, E, bytes(16), redis=deaf) == [-1, 4]
            assert at.withdraw(A, redis=deaf) == []
        assert heard(ear) == []

    def test_a_replica_says_that_it_is_one(self, at: PermitScripts) -> None:
        at.redis.set(FREE, 1)
        at.use(A, 10_000)
        with at.replica() as redis:
            calls: list[Callable[[], Any]] = [
                lambda: at.acquire(30_000, B, redis=redis),
                lambda: at.release(A, redis=redis),
                lambda: at.renew(60_000, (USED, A), redis=redis),
                lambda: at.lease(A, 60_000, redis=redis),
                lambda: at.set(2, 5, redis=redis),
            ]
            if at.flags:
                # Also where the script would only read: what a replica knows may be long over.
                calls += [
                    lambda: at.acquire(30_000, B, C, redis=redis),
                    lambda: at.lease(A, redis=redis),
                    lambda: at.count(redis=redis),
                ]
            for call in calls:
                with pytest.raises(ResponseError, match="read only"):
                    call()
        assert (at.free(), set(at.valid_until())) == ("1", {A})
