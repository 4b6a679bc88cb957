"""The scripts that release expiring permits, renew them and change their lease."""

from __future__ import annotations

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .permits import FOREVER, FREE, USED, A, B, C, D, PermitScripts
from .scripted import published


@pytest.fixture
def scripts(server: Server, admin: Redis) -> PermitScripts:
    return PermitScripts(server, admin)


class TestRelease:
    def test_one(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, 3)
        scripts.use(A, 10_000)
        assert scripts.release(A) == []
        assert (scripts.free(), scripts.valid_until()) == ("4", {})
        assert scripts.release(A) == [1, A]
        assert (scripts.free(), scripts.valid_until()) == ("4", {})
        assert published(subscription) == [b"4"]

    def test_several(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, 0)
        for permit in (A, B, C):
            scripts.use(permit, None)
        assert scripts.release(A, C) == []
        assert (scripts.free(), set(scripts.valid_until())) == ("2", {B})
        assert scripts.release(A, C) == [2, A, C]
        assert published(subscription) == [b"2"]

    def test_all_or_none(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, 0)
        scripts.use(A, 10_000)
        scripts.use(B, -1)
        for _ in range(2):
            assert scripts.release(A, B, C) == [1, B, C]
            assert scripts.release(A, B) == [0, B]
            assert (scripts.free(), set(scripts.valid_until())) == ("0", {A, B})
        assert published(subscription) == []

    def test_nothing_is_free_below_zero(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, -2)
        for permit in (A, B, C):
            scripts.use(permit, None)
        assert scripts.release(A, B) == []
        assert published(subscription) == []
        assert scripts.release(C) == []
        assert published(subscription) == [b"1"]

    def test_a_semaphore_that_is_gone(self, scripts: PermitScripts, subscription: PubSub) -> None:
        assert scripts.release(A) == [1, A]
        assert scripts.redis.keys() == []
        assert published(subscription) == []

    def test_withdraw_what_is_there(self, scripts: PermitScripts, subscription: PubSub) -> None:
        scripts.redis.set(FREE, 0)
        scripts.use(A, 10_000)
        scripts.use(B, -1)
        scripts.use(D, 10_000)
        for _ in range(2):
            assert scripts.withdraw(A, B, C) == []
            assert (scripts.free(), set(scripts.valid_until())) == ("2", {D})
        assert published(subscription) == [b"2"]

    def test_another_type(self, scripts: PermitScripts) -> None:
        scripts.redis.set(USED, "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scripts.release(A)
        assert scripts.redis.keys() == [USED.encode()]


class TestRenew:
    def test_ours_and_others(self, scripts: PermitScripts) -> None:
        other = "{other}:timeout"
        scripts.use(A, 1_000)
        scripts.use(B, -1)
        scripts.use(C, 1_000, other)
        for _ in range(2):
            assert scripts.renew(30_000, (USED, A), (USED, B), (other, C), (other, A), ("no", A)) == [1, 0, 1, 0, 0]
            assert scripts.left(A) > 25_000
            assert scripts.left(B) < 0
            assert scripts.redis.zscore(other, C) > scripts.now() + 25_000
        assert sorted(scripts.redis.keys()) == sorted([USED.encode(), other.encode()])
        assert all(isinstance(score, int) for score in scripts.valid_until().values())

    @pytest.mark.parametrize("left", [60_000, None])
    def test_a_longer_lease_stays(self, scripts: PermitScripts, left: int | None) -> None:
        scripts.use(A, left)
        before = scripts.valid_until()
        assert scripts.renew(30_000, (USED, A)) == [1]
        assert scripts.valid_until() == before

    def test_a_lease_of_0_only_asks(self, scripts: PermitScripts) -> None:
        scripts.use(A, 20_000)
        scripts.use(B, -1)
        before = scripts.valid_until()
        for _ in range(2):
            assert scripts.renew(0, (USED, A), (USED, B), (USED, C)) == [1, 0, 0]
            assert scripts.valid_until() == before

    @pytest.mark.parametrize("kind", [("SET", "x", "text"), ("HSET", "x", "a", "1"), ("SADD", "x", "a")])
    def test_a_neighbour_of_another_type(self, scripts: PermitScripts, kind: tuple[str, ...]) -> None:
        scripts.redis.execute_command(*kind)
        scripts.use(A, 1_000)
        scripts.use(B, 1_000)
        assert scripts.renew(30_000, (USED, A), ("x", A), (USED, B)) == [1, 0, 1]
        assert scripts.left(A) > 25_000
        assert scripts.left(B) > 25_000

    def test_a_whole_batch(self, scripts: PermitScripts) -> None:
        permits = [bytes([number]) * 16 for number in range(100)]
        for permit in permits:
            scripts.use(permit, 1_000)
        assert scripts.renew(30_000, *[(USED, permit) for permit in permits]) == [1] * 100
        assert min(scripts.valid_until().values()) > scripts.now() + 25_000


class TestLease:
    def test_look(self, scripts: PermitScripts) -> None:
        scripts.use(A, 10_000)
        scripts.use(B, None)
        scripts.use(C, -1)
        before = scripts.valid_until()
        assert 5_000 < scripts.lease(A) <= 10_000
        assert (scripts.lease(B), scripts.lease(C), scripts.lease(D)) == (-1, None, None)
        assert scripts.valid_until() == before

    def test_set(self, scripts: PermitScripts) -> None:
        for permit, left in ((A, 10_000), (B, None), (C, -1)):
            scripts.use(permit, left)
        for permit in (A, B):
            for _ in range(2):
                assert scripts.lease(permit, 5_000) == 5_000
                assert 1_000 < scripts.left(permit) <= 5_000
                assert scripts.lease(permit, -1) == -1
                assert scripts.valid_until()[permit] == FOREVER
        for permit in (C, D):
            assert scripts.lease(permit, 5_000) is None
        assert (scripts.left(C) < 0, D in scripts.valid_until()) == (True, False)
        assert scripts.lease(A, 2**52) == -1
        assert scripts.valid_until()[A] == FOREVER

    def test_a_semaphore_that_is_gone(self, scripts: PermitScripts) -> None:
        assert scripts.lease(A, 5_000) is None
        assert scripts.redis.keys() == []
