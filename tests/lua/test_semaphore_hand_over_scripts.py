"""The scripts that hand permits on, and finish that: every branch, sent twice, and late."""

from __future__ import annotations

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripted import published
from .semaphores import CLAIM, OTHER, SemaphoreScripts


@pytest.fixture
def scripts(server: Server, admin: Redis) -> SemaphoreScripts:
    return SemaphoreScripts(server, admin)


class TestHandOver:
    @pytest.mark.parametrize("free", [0, 3])
    def test_as_many_as_are_released(self, scripts: SemaphoreScripts, subscription: PubSub, free: int) -> None:
        scripts.redis.set("stock", free, px=50_000)
        for _ in range(2):
            assert scripts.hand_over(2, 2, 2) == 2
            assert scripts.free() == str(free)
            assert scripts.remembered() == "2 2"
        assert scripts.left() > 45_000
        assert published(subscription) == []

    def test_fewer_than_are_released(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 0)
        for _ in range(2):
            assert scripts.hand_over(2, 5, 3) == 3
        assert scripts.free() == "2"
        assert published(subscription) == [b"2"]

    def test_of_a_semaphore_that_was_made_smaller(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        """The permits are released, and nobody acquires any."""
        scripts.redis.set("stock", -1)
        for _ in range(2):
            assert scripts.hand_over(2, 1, 1) == -1
            assert scripts.free() == "0"
            assert scripts.remembered() == "2 -1"
        assert scripts.hand_over(4, 3, 2) == 2
        assert scripts.free() == "1"
        assert published(subscription) == [b"1"]

    def test_below_zero_more_than_are_released(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", -5)
        assert scripts.hand_over(2, 3, 1) == -1
        assert scripts.free() == "-2"
        assert published(subscription) == []

    def test_without_a_semaphore(self, scripts: SemaphoreScripts) -> None:
        for _ in range(2):
            assert scripts.hand_over(2, 2, 1, existing=1) == 0
            assert scripts.free() is None
        assert scripts.hand_over(4, 2, 1) == 1
        assert scripts.free() == "1"
        scripts.redis.delete("stock")
        # Also if nothing remains, as after a release and an acquire.
        assert scripts.hand_over(6, 1, 1) == 1
        assert scripts.free() == "0"

    def test_a_claim(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 1)
        scripts.redis.set(CLAIM, "3 you:1", px=2000)
        assert scripts.hand_over(2, 1, 1) == -1
        assert scripts.free() == "2"
        assert published(subscription) == [b"2"]
        assert scripts.hand_over(4, 3, 2) == 2
        assert scripts.free() == "3"

    def test_late_and_after_a_newer_call(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 5)
        scripts.acquire(4, 1)
        assert scripts.hand_over(2, 1, 1) == 1
        assert scripts.free() == "4"
        assert scripts.remembered() == "4 1"

    def test_another_type(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", "text")
        with pytest.raises(ResponseError):
            scripts.hand_over(2, 1, 1)
        assert scripts.free() == "text"
        assert scripts.remembered() is None

    def test_out_of_memory(self, scripts: SemaphoreScripts) -> None:
        """It is a release: it frees permits also then."""
        scripts.redis.set("stock", 0)
        with scripts.out_of_memory():
            if scripts.with_shebang:
                assert scripts.hand_over(2, 2, 1) == 1
                assert scripts.finish(2, 2) == 1
                assert scripts.free() == "2"


class TestFinish:
    def test_what_was_acquired_is_released(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 0, px=50_000)
        assert scripts.hand_over(2, 3, 2) == 2
        for _ in range(2):
            assert scripts.finish(2, 3) == 2
            assert scripts.free() == "3"
        assert scripts.left() > 45_000
        assert published(subscription) == [b"1", b"3"]

    def test_what_was_released_stays_released(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", -1)
        assert scripts.hand_over(2, 1, 1) == -1
        for _ in range(2):
            assert scripts.finish(2, 1) == 0
        assert scripts.free() == "0"

    def test_before_the_hand_over(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        """It is the release, and the hand-over doesn't run any more."""
        scripts.redis.set("stock", 0)
        for _ in range(2):
            assert scripts.finish(2, 3) == 3
        scripts.hand_over(2, 3, 2)
        assert scripts.free() == "3"
        assert published(subscription) == [b"3"]

    def test_before_the_hand_over_without_a_semaphore(self, scripts: SemaphoreScripts) -> None:
        assert scripts.finish(2, 3, existing=1) == 0
        assert scripts.free() is None
        assert scripts.finish(4, 3) == 3
        assert scripts.free() == "3"

    def test_of_a_semaphore_that_is_gone(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 0)
        scripts.hand_over(2, 3, 2)
        scripts.redis.delete("stock")
        assert scripts.finish(2, 3) == 0
        assert scripts.free() is None

    def test_late_and_after_a_newer_call(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 5)
        scripts.hand_over(2, 1, 1)
        scripts.finish(2, 1)
        scripts.acquire(4, 1)
        assert scripts.finish(2, 1) == 1
        assert scripts.free() == "5"
        assert scripts.remembered() == "4 1"

    def test_session_slots_are_independent(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 0)
        scripts.hand_over(2, 1, 1)
        assert scripts.finish(2, 1, slot=OTHER) == 1
        assert scripts.free() == "1"

    def test_without_permission_on_the_channel(self, scripts: SemaphoreScripts) -> None:
        with scripts.user("~*", "+@all", "resetchannels") as deaf:
            assert scripts.hand_over(2, 2, 1, redis=deaf) == 1
            assert scripts.finish(2, 2, redis=deaf) == 1
        assert scripts.free() == "2"
