"""The scripts that acquire, count and set expiring permits: every branch, sent twice, late, and as Java reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .permits import FOREVER, FREE, MARK, SLOT, USED, A, B, C, D, E, PermitScripts
from .scripted import published


@pytest.fixture
def scripts(server: Server, admin: Redis) -> PermitScripts:
    return PermitScripts(server, admin)


class TestAcquire:
    def test_enough(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, 5)
        for _ in range(2):
            assert scripts.acquire(30_000, A, B) is None
            assert scripts.free() == "3"
            assert set(scripts.valid_until()) == {A, B}
            assert scripts.valid_until()[A] == scripts.valid_until()[B]
            assert 25_000 < scripts.left(A) <= 30_000
        assert scripts.acquire(30_000, C, D, E) is None
        assert scripts.free() == "0"
        assert scripts.redis.ttl(FREE) == scripts.redis.ttl(USED) == -1
        assert published(subscription) == []

    def test_endless(self, scripts: PermitScripts) -> None:
        scripts.redis.set(FREE, 1)
        for _ in range(2):
            assert scripts.acquire(-1, A) is None
            assert scripts.valid_until() == {A: FOREVER}

    def test_a_lease_beyond_all_times_is_endless(self, scripts: PermitScripts) -> None:
        scripts.redis.set(FREE, 1)
        assert scripts.acquire(2**52, A) is None
        assert scripts.valid_until() == {A: FOREVER}

    def test_a_second_copy_begins_the_lease_anew(self, scripts: PermitScripts) -> None:
        """The caller counts its lease from the copy that was answered."""
        scripts.redis.set(FREE, 1)
        scripts.use(A, 500)
        scripts.redis.decr(FREE)
        assert scripts.acquire(30_000, A) is None
        assert (scripts.free(), scripts.left(A) > 25_000) == ("0", True)

    def test_a_second_copy_when_the_lease_has_ended(self, scripts: PermitScripts) -> None:
        scripts.redis.set(FREE, 0)
        scripts.use(A, -500)
        assert scripts.acquire(30_000, A) is None
        assert (scripts.free(), scripts.left(A) > 25_000) == ("0", True)

    def test_a_second_copy_when_some_were_released(self, scripts: PermitScripts) -> None:
        scripts.redis.set(FREE, 3)
        scripts.acquire(30_000, A, B, C)
        for given_back in (B, A):
            assert scripts.release(given_back) == []
            free, held = scripts.free(), scripts.valid_until()
            assert scripts.acquire(30_000, A, B, C) == [-2, 0]
            assert (scripts.free(), scripts.valid_until()) == (free, held)

    def test_a_second_copy_when_one_has_ended_and_is_taken(self, scripts: PermitScripts) -> None:
        """The caller must not rely on a permit that another caller has acquired meanwhile."""
        scripts.redis.set(FREE, 2)
        scripts.acquire(30_000, A, B)
        scripts.redis.zadd(USED, {B: 1})
        assert scripts.acquire(30_000, C) is None
        held = scripts.valid_until()
        for _ in range(2):
            assert scripts.acquire(30_000, A, B) == [-2, 0]
            assert (scripts.free(), scripts.valid_until()) == ("0", held)

    def test_a_copy_that_arrives_when_all_were_released(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, 2)
        scripts.acquire(30_000, A, B)
        for _ in range(2):
            assert scripts.withdraw(A, B) == []
            assert 650_000 < scripts.redis.pttl(MARK + A.hex()) <= 660_000
        assert scripts.acquire(30_000, A, B) == [-1, 0]
        assert (scripts.free(), scripts.valid_until()) == ("2", {})
        assert published(subscription) == [b"2"]

    def test_a_copy_that_was_withdrawn_before_it_arrived(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, 2)
        assert scripts.withdraw(A) == []
        assert scripts.acquire(-1, A) == [-1, 0]
        assert scripts.acquire(-1, B) is None
        assert (scripts.free(), set(scripts.valid_until())) == ("1", {B})
        assert published(subscription) == []

    @pytest.mark.parametrize("free", [None, "0", "1", "-3"])
    def test_too_few(self, scripts: PermitScripts, subscription: PubSub, free: str | None) -> None:
        if free is not None:
            scripts.redis.set(FREE, free)
        for _ in range(2):
            assert scripts.acquire(30_000, A, B) == ([-3, 0] if free is None else [-1, int(free)])
            assert (scripts.free(), scripts.valid_until()) == (free, {})
        assert published(subscription) == []

    def test_too_few_and_when_the_next_one_ends(self, scripts: PermitScripts) -> None:
        scripts.redis.set(FREE, 0)
        scripts.use(C, None)
        assert scripts.acquire(30_000, A) == [-1, 0]
        scripts.use(D, 20_000)
        scripts.use(E, 10_000)
        for _ in range(2):
            left, free = scripts.acquire(30_000, A)
            assert (5_000 < left <= 10_000, free) == (True, 0)
        assert scripts.free() == "0"

    @pytest.mark.parametrize("score", ["inf", "930000000000000"])
    def test_scores_that_somebody_else_wrote(self, scripts: PermitScripts, score: str) -> None:
        scripts.redis.set(FREE, 0)
        scripts.redis.zadd(USED, {C: score})
        assert scripts.acquire(30_000, A) == [-1, 0]

    def test_what_has_ended_is_taken_over(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, 0)
        scripts.use(C, -1)
        scripts.use(D, -5_000)
        scripts.use(E, 10_000)
        for _ in range(2):
            assert scripts.acquire(30_000, A, B) is None
            assert (scripts.free(), set(scripts.valid_until())) == ("0", {A, B, E})
        # No permit became free for another caller.
        assert published(subscription) == []

    def test_no_more_than_needed_is_taken_over(self, scripts: PermitScripts) -> None:
        scripts.redis.set(FREE, 0)
        scripts.use(C, -1)
        scripts.use(D, -5_000)
        assert scripts.acquire(30_000, A) is None
        assert (scripts.free(), set(scripts.valid_until())) == ("0", {A, C})

    def test_what_has_ended_may_be_too_few(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, 1)
        scripts.use(C, -1)
        scripts.use(D, 10_000)
        left, free = scripts.acquire(30_000, A, B, E)
        assert (5_000 < left <= 10_000, free) == (True, 2)
        assert (scripts.free(), set(scripts.valid_until())) == ("2", {D})
        # They may be enough for another waiter.
        assert published(subscription) == [b"2"]

    def test_below_zero_enough_must_have_ended(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, -2)
        for permit in (B, C):
            scripts.use(permit, -1)
        assert scripts.acquire(30_000, A) == [-1, 0]
        assert (scripts.free(), scripts.valid_until()) == ("0", {})
        scripts.redis.set(FREE, -2)
        for permit in (B, C, D, E):
            scripts.use(permit, -1)
        assert scripts.acquire(30_000, A) is None
        assert (scripts.free(), A in scripts.valid_until(), len(scripts.valid_until())) == ("0", True, 2)
        assert published(subscription) == []

    def test_the_permits_in_use_end_with_the_semaphore(self, scripts: PermitScripts) -> None:
        scripts.redis.set(FREE, 5, px=50_000)
        assert scripts.acquire(-1, A) is None
        before, used, after = scripts.redis.pttl(FREE), scripts.redis.pttl(USED), scripts.redis.pttl(FREE)
        # Old servers look at the clock again in the middle of a script.
        assert after - 20 <= used <= before + 20

    @pytest.mark.parametrize("key", [FREE, USED])
    def test_another_type(self, scripts: PermitScripts, key: str) -> None:
        scripts.redis.set(FREE, 5)
        scripts.redis.delete(key)
        scripts.redis.hset(key, "a", 1)
        calls: list[Callable[[], Any]] = [
            lambda: scripts.acquire(30_000, A),
            scripts.count,
            lambda: scripts.set(2, 7),
        ]
        for call in calls:
            with pytest.raises(ResponseError, match="WRONGTYPE"):
                call()
        assert scripts.redis.hgetall(key) == {b"a": b"1"}
        assert scripts.redis.keys() == [key.encode()] or scripts.free() == "5"


class TestCount:
    def test_count(self, scripts: PermitScripts, subscription: PubSub) -> None:
        assert scripts.count() == [None, 0]
        scripts.redis.set(FREE, 3)
        scripts.use(A, 10_000)
        scripts.use(B, None)
        for _ in range(2):
            assert scripts.count() == [3, 2]
        assert published(subscription) == []
        scripts.use(C, -1)
        scripts.use(D, -5_000)
        for _ in range(2):
            assert scripts.count() == [5, 2]
            assert (scripts.free(), set(scripts.valid_until())) == ("5", {A, B})
        assert published(subscription) == [b"5"]

    def test_below_zero(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, -3)
        scripts.use(C, -1)
        assert scripts.count() == [-2, 0]
        assert published(subscription) == []


class TestSet:
    def test_a_new_semaphore(self, scripts: PermitScripts, subscription: PubSub) -> None:
        for _ in range(2):
            assert scripts.set(2, 5) == 5
            assert scripts.free() == "5"
        assert scripts.redis.ttl(FREE) == -1
        assert 650_000 < scripts.redis.pttl(SLOT) <= 660_000
        assert published(subscription) == [b"5"]

    def test_none_at_all(self, scripts: PermitScripts, subscription: PubSub) -> None:
        assert scripts.set(2, 0) == 0
        assert scripts.free() == "0"
        assert published(subscription) == []

    def test_larger_and_smaller(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, 3, px=50_000)
        scripts.use(A, None)
        scripts.use(B, -1)
        assert scripts.set(2, 5) == 0
        assert scripts.free() == "3"
        assert scripts.set(4, 8) == 3
        assert scripts.free() == "6"
        assert scripts.set(6, 1) == -7
        assert scripts.free() == "-1"
        assert scripts.set(8, 2) == 1
        assert scripts.free() == "0"
        assert set(scripts.valid_until()) == {A, B}
        assert scripts.redis.pttl(FREE) > 0
        assert published(subscription) == [b"6"]

    def test_a_late_copy(self, scripts: PermitScripts) -> None:
        scripts.set(2, 5)
        scripts.set(4, 7)
        assert scripts.set(2, 5) == 2
        assert scripts.free() == "7"


class TestServers:
    """What servers refuse, and what must still work."""

    def test_out_of_memory(self, scripts: PermitScripts) -> None:
        scripts.redis.set(FREE, 1)
        for permit in (A, B, C):
            scripts.use(permit, 10_000)
        with scripts.out_of_memory():
            if scripts.with_shebang:
                # Older servers don't know the flag of a script whose writes free more memory than they take.
                assert scripts.renew(30_000, (USED, A)) == [1]
                assert scripts.left(A) > 25_000
            assert scripts.release(A) == []
            assert scripts.withdraw(B) == []
            with pytest.raises(ResponseError, match="maxmemory"):
                scripts.acquire(30_000, D)
        assert (scripts.free(), set(scripts.valid_until())) == ("3", {C})

    def test_without_permission_on_the_channel(self, scripts: PermitScripts, subscription: PubSub) -> None:
        with scripts.user("~*", "+@all", "resetchannels") as deaf:
            assert scripts.set(2, 2, redis=deaf) == 2
            assert scripts.acquire(30_000, A, redis=deaf) is None
            assert scripts.release(A, redis=deaf) == []
            scripts.use(B, -1)
            assert scripts.count(redis=deaf) == [3, 0]
            scripts.use(B, -1)
            assert scripts.acquire(30_000, A, C, D, E, bytes(16), redis=deaf) == [-1, 4]
            assert scripts.withdraw(A, redis=deaf) == []
        assert published(subscription) == []

    def test_a_replica_replies_readonly(self, scripts: PermitScripts) -> None:
        scripts.redis.set(FREE, 1)
        scripts.use(A, 10_000)
        with scripts.replica() as redis:
            calls: list[Callable[[], Any]] = [
                lambda: scripts.acquire(30_000, B, redis=redis),
                lambda: scripts.release(A, redis=redis),
                lambda: scripts.renew(60_000, (USED, A), redis=redis),
                lambda: scripts.lease(A, 60_000, redis=redis),
                lambda: scripts.set(2, 5, redis=redis),
            ]
            if scripts.with_shebang:
                # Also where the script would only read: the data of a replica may be outdated.
                calls += [
                    lambda: scripts.acquire(30_000, B, C, redis=redis),
                    lambda: scripts.lease(A, redis=redis),
                    lambda: scripts.count(redis=redis),
                ]
            for call in calls:
                with pytest.raises(ResponseError, match="read only"):
                    call()
        assert (scripts.free(), set(scripts.valid_until())) == ("1", {A})
