"""The scripts that release a fair lock, that take it from its holder, and that announce a lost lock."""

from __future__ import annotations

import pytest
from redis.client import PubSub
from redis.exceptions import ResponseError

from .scripts import LOCK, ME, A, B, C, D, Fair, published


class TestRelease:
    def test_the_last_level(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        assert scripts.release(A) == 1
        assert scripts.keys() == set()
        assert scripts.release(A) is None
        assert scripts.keys() == set()
        assert published(subscription) == []

    def test_an_inner_level(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(A, 3)
        scripts.acquire(B)
        for _ in range(2):
            assert scripts.release(A, 2) == 0
            assert scripts.holds() == {A: "2"}
        assert published(subscription) == []

    @pytest.mark.parametrize("holds", [0, 1])
    def test_another_owners_lock(self, scripts: Fair, subscription: PubSub, holds: int) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        for _ in range(2):
            assert scripts.release(B, holds) is None
        # In Redisson any caller may release a fair lock that nobody holds.
        scripts.expire()
        assert scripts.release(B, holds) is None
        assert published(subscription) == []

    def test_the_next_waiter_is_notified(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        assert scripts.release(A) == 1
        assert scripts.release(A) is None
        assert published(subscription) == [B]
        assert scripts.queue() == [B, C]
        # If it doesn't acquire the lock, Redisson drops it soon.
        assert 7 < scripts.score(B) <= 8
        assert 7 < scripts.score(C) <= 8

    def test_dead_waiters_are_not_notified(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        for owner in (B, D, C):
            scripts.acquire(owner)
        scripts.asked_long_ago(B, D, C)
        scripts.heartbeat(ME)
        assert scripts.release(A) == 1
        assert scripts.queue() == [C]
        assert published(subscription) == [C]

    def test_all_are_dead(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.asked_long_ago(B)
        assert scripts.release(A) == 1
        assert published(subscription) == []
        assert scripts.keys() == set()

    def test_another_type(self, scripts: Fair) -> None:
        scripts.redis.set(LOCK, "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scripts.release(A)
        assert scripts.redis.get(LOCK) == b"text"


class TestForceRelease:
    def test_whoever_holds_it(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        assert scripts.force() == 1
        assert scripts.force() == 0
        assert published(subscription) == [B]
        assert scripts.queue() == [B]
        assert scripts.holds() == {}

    def test_nobody_waits(self, scripts: Fair) -> None:
        scripts.acquire(A)
        assert scripts.force() == 1
        assert scripts.keys() == set()


class TestLost:
    def test_the_next_waiter_is_notified(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.redis.delete(LOCK)
        for _ in range(2):
            assert scripts.wake_waiters() == 1
        assert published(subscription) == [B, B]
        assert scripts.queue() == [B]

    def test_a_held_lock(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        for _ in range(2):
            assert scripts.wake_waiters() == 0
        assert published(subscription) == []
        assert scripts.queue() == [B]

    def test_nobody_waits(self, scripts: Fair) -> None:
        for _ in range(2):
            assert scripts.wake_waiters() == 1
        assert scripts.redis.keys() == []
