"""The scripts that add permits to a semaphore, set their number and delete it."""

from __future__ import annotations

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripted import published
from .semaphores import OTHER, SLOT, SemaphoreScripts


@pytest.fixture
def scripts(server: Server, admin: Redis) -> SemaphoreScripts:
    return SemaphoreScripts(server, admin)


class TestCorrect:
    @pytest.mark.parametrize(
        ("shown", "free", "messages"), [(1, 3, [b"3"]), (3, 1, []), (-2, 0, []), (0, 0, []), (2**63 - 1, 5, [])]
    )
    def test_the_shown_number(
        self, scripts: SemaphoreScripts, subscription: PubSub, shown: int, free: int, messages: list[bytes]
    ) -> None:
        scripts.redis.set("stock", shown, px=50_000)
        for _ in range(2):
            assert scripts.correct(2, shown, free) == 1
            assert scripts.free() == str(free)
        assert scripts.left() > 45_000
        assert scripts.remembered() == "2 1"
        assert published(subscription) == messages

    def test_another_number(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        assert scripts.correct(2, 1, 3) == 0
        assert scripts.free() is None
        scripts.redis.set("stock", 2)
        assert scripts.correct(4, 1, 3) == 0
        # Also when a copy comes that finds the number.
        scripts.redis.set("stock", 1)
        assert scripts.correct(4, 1, 3) == 0
        assert scripts.free() == "1"
        assert published(subscription) == []


class TestAdd:
    def test_a_release(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 1, px=50_000)
        for _ in range(2):
            assert scripts.add(2, 2) == 1
            assert scripts.free() == "3"
        assert scripts.left() > 45_000
        assert scripts.remembered() == "2 1"
        assert published(subscription) == [b"3"]

    def test_where_there_is_no_semaphore(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        for _ in range(2):
            assert scripts.add(2, 2) == 1
            assert (scripts.free(), scripts.left()) == ("2", -1)
        assert published(subscription) == [b"2"]

    def test_only_an_existing_one(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        assert scripts.add(2, 2, existing=1) == 0
        assert scripts.free() is None
        # Also when there is one by the time that a copy comes.
        scripts.redis.set("stock", 1)
        assert scripts.add(2, 2, existing=1) == 0
        assert scripts.free() == "1"
        for _ in range(2):
            assert scripts.add(4, 2, existing=1) == 1
            assert scripts.free() == "3"
        assert published(subscription) == [b"3"]

    def test_fewer(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 5)
        for _ in range(2):
            assert scripts.add(2, -2) == 1
            assert scripts.free() == "3"
        assert scripts.add(4, -7) == 1
        assert scripts.free() == "-4"
        assert published(subscription) == []

    def test_out_of_the_red(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", -4)
        scripts.add(2, 3)
        scripts.add(4, 1)
        assert published(subscription) == []
        scripts.add(6, 2)
        assert scripts.free() == "2"
        assert published(subscription) == [b"2"]

    def test_late_and_after_a_newer_call(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 5)
        scripts.add(4, 1)
        scripts.add(2, 1)
        assert scripts.free() == "6"

    def test_more_than_the_server_can_count(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 2**63 - 2)
        for _ in range(2):
            with pytest.raises(ResponseError, match="out of range"):
                scripts.add(2, 5)
            assert scripts.remembered() is None
        assert scripts.free() == str(2**63 - 2)


class TestSet:
    def test_where_there_is_none(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        for _ in range(2):
            assert scripts.make(2, 5) == 1
            assert (scripts.free(), scripts.left()) == ("5", -1)
        assert published(subscription) == [b"5"]

    def test_with_an_end(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        assert scripts.make(2, 5, ttl=40_000) == 1
        assert scripts.free() == "5"
        assert 35_000 < scripts.left() <= 40_000
        assert published(subscription) == [b"5"]

    def test_without_permits(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        assert scripts.make(2, 0) == 1
        assert scripts.free() == "0"
        assert published(subscription) == []

    @pytest.mark.parametrize("free", [3, 0, -1])
    def test_where_there_is_one(self, scripts: SemaphoreScripts, subscription: PubSub, free: int) -> None:
        scripts.redis.set("stock", free)
        assert scripts.make(2, 5) == 0
        assert scripts.free() == str(free)
        # Nor does a copy make one that comes when it is gone.
        scripts.redis.delete("stock")
        assert scripts.make(2, 5) == 0
        assert scripts.free() is None
        assert published(subscription) == []

    def test_a_copy_of_the_one_that_made_it(self, scripts: SemaphoreScripts) -> None:
        scripts.make(2, 5)
        scripts.acquire(2, 3, slot=OTHER)
        assert scripts.make(2, 5) == 1
        assert scripts.free() == "2"
        scripts.redis.delete("stock")
        assert scripts.make(2, 5) == 1
        assert scripts.free() is None


class TestDelete:
    def test_a_semaphore(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 3)
        for _ in range(2):
            assert scripts.delete(2) == 1
            assert scripts.free() is None
        assert scripts.delete(4) == 0
        assert published(subscription) == []

    def test_all_its_keys(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.mset({"stock": 3, "{stock}:timeout": 1})
        assert scripts.delete(2, "{stock}:timeout", message="1") == 1
        assert scripts.redis.keys() == [SLOT.encode()]
        scripts.redis.set("{stock}:timeout", 1)
        assert scripts.delete(4, "{stock}:timeout", message="1") == 0
        assert scripts.redis.keys() == [SLOT.encode()]
        assert published(subscription) == [b"1"]

    def test_a_copy_spares_the_next_one(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 3)
        scripts.delete(2)
        scripts.redis.set("stock", 4)
        assert scripts.delete(2) == 1
        assert scripts.free() == "4"
