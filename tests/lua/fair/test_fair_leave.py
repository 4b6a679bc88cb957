"""The scripts by which waiters leave the queue, and by which the whole queue is deleted."""

from __future__ import annotations

from itertools import permutations

import pytest
from redis.client import PubSub

from .scripts import JAVA, LOCK, SCORES, WAITERS, YOU, A, B, C, D, Fair, Java, published


class TestLeave:
    def test_the_last(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        assert [scripts.leave(C), scripts.leave(C)] == [1, 0]
        assert scripts.queue() == [B]
        assert scripts.redis.hkeys(WAITERS) == [B.encode()]
        assert published(subscription) == []

    def test_the_only_one(self, scripts: Fair) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.heartbeat(YOU)
        for _ in range(2):
            scripts.leave(B)
            assert scripts.keys() == {LOCK}

    def test_the_first_while_the_lock_is_held(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        for _ in range(2):
            scripts.leave(B)
            assert scripts.queue() == [C]
        assert published(subscription) == []

    def test_the_next_waiter_is_notified_when_the_first_leaves(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        scripts.release(A)
        for _ in range(2):
            scripts.leave(B)
            assert scripts.queue() == [C]
        assert published(subscription) == [B, C]
        assert scripts.acquire(C) is None

    def test_from_the_middle(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        for owner in (B, C, D):
            scripts.acquire(owner)
        for left in (1, 0):
            assert scripts.leave(C) == left
            assert scripts.queue() == [B, D]
        assert scripts.release(A) == 1
        assert scripts.acquire(B) is None
        assert scripts.release(B) == 1
        assert published(subscription) == [B, D]
        assert scripts.queue() == [D]
        assert scripts.acquire(D) is None
        assert scripts.keys() == {LOCK}

    def test_waiters_that_left_are_dropped_with_the_last(self, scripts: Fair) -> None:
        scripts.acquire(A)
        for owner in (B, C, D):
            scripts.acquire(owner)
        scripts.leave(B)
        scripts.leave(C)
        scripts.leave(D)
        assert scripts.keys() == {LOCK}

    def test_behind_waiters_that_left(self, scripts: Fair) -> None:
        """The score of a new waiter isn't computed from their scores."""
        scripts.acquire(A)
        java = Java(scripts, JAVA)
        for owner in (B, C):
            scripts.acquire(owner)
        java.acquire()
        scripts.redis.hset(WAITERS, C, 0)
        scripts.redis.zadd(SCORES, {C: scripts.now()})
        java.give_up()
        assert scripts.queue() == [B, C]
        scripts.acquire(D)
        assert scripts.queue() == [B, D]
        assert 7 < scripts.score(D) <= 8

    def test_many_at_once(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(D)
        for owner in (A, B, C):
            scripts.acquire(owner)
        scripts.release(D)
        for _ in range(2):
            scripts.leave(A, C, doubt=True)
        assert scripts.queue() == [B]
        assert published(subscription) == [A, B]

    @pytest.mark.parametrize("doubt", [False, True])
    @pytest.mark.parametrize("order", list(permutations((B, C, D))))
    def test_in_any_order(self, scripts: Fair, order: tuple[str, ...], doubt: bool) -> None:
        """An owner that is named before the owners ahead of it is not left in the queue as its head."""
        scripts.acquire(A)
        for owner in (B, C, D, JAVA):
            scripts.acquire(owner)
        assert [scripts.leave(*order, doubt=doubt), scripts.leave(*order, doubt=doubt)] == [3, 0]
        assert scripts.queue() == [JAVA]

    @pytest.mark.parametrize("order", list(permutations((B, C, D))))
    def test_the_next_waiter_is_notified_in_any_order(
        self, scripts: Fair, subscription: PubSub, order: tuple[str, ...]
    ) -> None:
        scripts.acquire(A)
        for owner in (B, C, D, JAVA):
            scripts.acquire(owner)
        scripts.release(A)
        scripts.leave(*order)
        assert scripts.queue() == [JAVA]
        assert published(subscription) == [B, JAVA]

    def test_a_late_copy_finds_that_its_owner_has_left(self, scripts: Fair) -> None:
        """Otherwise the owner would be in the queue, or hold the lock, with no caller that waits."""
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        scripts.acquire(D)
        scripts.leave(C, doubt=True)
        assert scripts.acquire(C) > 29_000
        assert int(scripts.redis.hget(WAITERS, C)) < 0
        assert scripts.queue() == [B, D]

    def test_in_doubt_and_not_in_the_queue(self, scripts: Fair, subscription: PubSub) -> None:
        for _ in range(2):
            assert scripts.leave(A, doubt=True) == 0
        assert scripts.acquire(A) == 2_000
        assert scripts.acquire(A, queue=False) == 2_000
        assert scripts.acquire(B) is None
        assert scripts.acquire(A) > 29_000
        assert scripts.keys() == {LOCK, WAITERS}
        assert 0 < scripts.redis.pttl(WAITERS) <= 60_000
        assert published(subscription) == []

    def test_in_doubt_and_acquired(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        assert scripts.leave(A, doubt=True) == 1
        assert scripts.holds() == {}
        assert published(subscription) == [B]
        assert scripts.acquire(B) is None
        assert scripts.leave(A, doubt=True) == 0
        assert scripts.holds() == {B: "1"}

    def test_in_doubt_and_in_the_queue(self, scripts: Fair) -> None:
        scripts.acquire(A)
        for owner in (B, C, D):
            scripts.acquire(owner)
        for _ in range(2):
            scripts.leave(C, D, B, doubt=True)
            assert scripts.queue() == []
            for owner in (B, C, D):
                assert scripts.acquire(owner) > 29_000
        assert scripts.queue() == []
        assert scripts.keys() == {LOCK, WAITERS}
        assert 30_000 < scripts.redis.pttl(WAITERS) <= 90_000

    def test_without_doubt_a_hold_stays(self, scripts: Fair) -> None:
        scripts.acquire(A)
        assert scripts.leave(A) == 0
        assert scripts.holds() == {A: "1"}


class TestDelete:
    def test_everything(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        for owner in (B, C):
            scripts.acquire(owner)
        Java(scripts, JAVA).acquire()
        scripts.heartbeat(YOU, B)
        assert scripts.delete() == 1
        assert scripts.keys() == set()
        assert scripts.delete() == 0
        assert published(subscription) == [B, C, JAVA]
        assert scripts.without_place(YOU, B) == [B]
        assert scripts.heartbeat(YOU, B)[1] == 0
        assert scripts.keys() == set()

    def test_the_stated_number_of_waiters_is_notified(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        for owner in (B, C, D):
            scripts.acquire(owner)
        assert scripts.delete(2) == 1
        assert published(subscription) == [B, C]

    def test_a_queue_before_a_free_lock(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.expire()
        assert scripts.delete() == 0
        assert scripts.keys() == set()
        assert published(subscription) == [B]
