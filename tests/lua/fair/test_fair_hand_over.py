"""The script that hands a fair lock on to the head of the queue: every branch, sent twice, and late."""

from __future__ import annotations

import pytest
from redis.client import PubSub
from redis.exceptions import ResponseError

from .scripts import CLIENTS, JAVA, LOCK, ME, QUEUE, SCORES, WAITERS, A, B, C, D, Fair, Java, published

E = f"{ME}:3"


@pytest.fixture
def queued(scripts: Fair) -> Fair:
    """A holds the lock; C of the same client waits first, then B and E."""
    scripts.acquire(A)
    for owner in (C, B, E):
        scripts.acquire(owner)
    return scripts


class TestTheHead:
    def test_it_is_entered(self, queued: Fair, subscription: PubSub) -> None:
        for _ in range(2):
            assert queued.hand_over(A, C, 20_000) == [0]
            assert queued.holds() == {C: "1"}
            assert queued.queue() == [B, E]
            assert 19_000 < queued.left() <= 20_000
        assert queued.redis.hkeys(WAITERS) == [B.encode(), E.encode()]
        assert published(subscription) == []

    def test_as_if_it_had_acquired_the_lock(self, queued: Fair) -> None:
        """A further level, its releases, and then the turn of the next waiter."""
        queued.hand_over(A, C)
        assert queued.acquire(C, 2) is None
        assert queued.release(C, 1) == 0
        assert queued.hand_over(C, E) == 1
        assert queued.acquire(E) > 0
        assert queued.acquire(B) is None

    def test_a_copy_does_not_shorten_the_lease(self, queued: Fair) -> None:
        queued.hand_over(A, C, 20_000)
        queued.redis.pexpire(LOCK, 60_000)
        assert queued.hand_over(A, C, 20_000) == [0]
        assert queued.left() > 50_000

    def test_a_copy_lengthens_the_lease(self, queued: Fair) -> None:
        queued.hand_over(A, C, 20_000)
        queued.redis.pexpire(LOCK, 10_000)
        assert queued.hand_over(A, C, 20_000) == [0]
        assert queued.left() > 19_000

    def test_a_copy_keeps_the_levels(self, queued: Fair) -> None:
        queued.hand_over(A, C)
        queued.acquire(C, 3)
        assert queued.hand_over(A, C) == [0]
        assert queued.holds() == {C: "3"}

    def test_all_levels_are_released(self, queued: Fair) -> None:
        queued.acquire(A, 3)
        assert queued.hand_over(A, C) == [0]
        assert queued.holds() == {C: "1"}

    def test_the_last_waiter(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(C)
        assert scripts.hand_over(A, C) == [0]
        assert scripts.keys() == {LOCK}
        assert scripts.release(C) == 1
        assert scripts.keys() == set()
        assert published(subscription) == []

    def test_the_memory_of_an_eviction_stays(self, scripts: Fair) -> None:
        scripts.acquire(A)
        scripts.acquire(C)
        scripts.redis.hset(WAITERS, ":margin", f"32000 {scripts.now()}")
        assert scripts.hand_over(A, C) == [0]
        assert scripts.redis.hkeys(WAITERS) == [b":margin"]
        assert 0 < scripts.redis.pttl(WAITERS) <= 3_600_000

    def test_dead_waiters_before_it(self, queued: Fair, subscription: PubSub) -> None:
        for owner in (D, f"{ME}:4"):
            queued.acquire(owner)
        queued.hand_over(A, C)
        queued.asked_long_ago(B)
        queued.heartbeat(ME)
        assert queued.hand_over(C, E) == [0]
        assert queued.queue() == [D, f"{ME}:4"]
        assert published(subscription) == []

    def test_our_own_keys_were_lost(self, queued: Fair) -> None:
        """As for an acquire: the place counts."""
        queued.redis.delete(WAITERS, CLIENTS)
        assert queued.hand_over(A, C) == [0]
        assert queued.queue() == [B, E]

    def test_a_hold_without_an_end(self, queued: Fair) -> None:
        queued.redis.persist(LOCK)
        assert queued.hand_over(A, C) == [0]
        assert 29_000 < queued.left() <= 30_000


class TestAnotherHead:
    def test_it_is_notified(self, queued: Fair, subscription: PubSub) -> None:
        queued.hand_over(A, C)
        assert queued.hand_over(C, E) == 1
        assert queued.holds() == {}
        assert queued.queue() == [B, E]
        assert published(subscription) == [B]
        # It is offered the lock: it counts as dead if it doesn't acquire it in time.
        assert b":offered" in queued.redis.hkeys(WAITERS)
        assert queued.hand_over(C, E) == 0
        assert queued.queue() == [B, E]
        assert published(subscription) == []

    def test_a_waiter_of_redisson(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        java = Java(scripts, JAVA)
        assert java.acquire() is not None
        scripts.acquire(C)
        assert scripts.hand_over(A, C) == 1
        assert published(subscription) == [JAVA]
        assert java.acquire() is None
        assert scripts.queue() == [C]
        assert java.release() == 1
        assert scripts.acquire(C) is None

    def test_who_has_left(self, queued: Fair, subscription: PubSub) -> None:
        """A late copy of the command."""
        queued.leave(C)
        assert queued.hand_over(A, C) == 1
        assert queued.holds() == {}
        assert published(subscription) == [B]

    def test_who_has_left_in_doubt(self, queued: Fair, subscription: PubSub) -> None:
        queued.leave(C, doubt=True)
        for reply in (1, 0):
            assert queued.hand_over(A, C) == reply
            assert queued.holds() == {}
        assert published(subscription) == [B]

    def test_who_has_left_the_middle(self, queued: Fair, subscription: PubSub) -> None:
        """Its place stays until it comes to the head."""
        queued.acquire(f"{ME}:4")
        queued.leave(E)
        queued.redis.lrem(QUEUE, 1, C)
        queued.redis.lrem(QUEUE, 1, B)
        queued.redis.zrem(SCORES, B, C)
        assert queued.hand_over(A, E) == 1
        assert queued.queue() == [f"{ME}:4"]
        assert published(subscription) == [f"{ME}:4"]

    def test_who_has_no_place(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        assert scripts.hand_over(A, C) == 1
        assert scripts.hand_over(A, C) == 0
        assert scripts.keys() == set()
        assert published(subscription) == []

    def test_an_undo_of_what_was_entered(self, queued: Fair, subscription: PubSub) -> None:
        queued.hand_over(A, C)
        assert queued.leave(C, doubt=True) == 1
        assert queued.hand_over(A, C) == 0
        assert queued.holds() == {}
        assert published(subscription) == [B]


class TestNobodyHoldsIt:
    def test_a_free_lock(self, queued: Fair, subscription: PubSub) -> None:
        """The hold was lost: nobody gets the lock by that."""
        queued.expire()
        for _ in range(2):
            assert queued.hand_over(A, C) == 0
        assert queued.keys().isdisjoint({LOCK})
        assert queued.queue() == [C, B, E]
        assert published(subscription) == []

    def test_a_lock_of_another_owner(self, queued: Fair, subscription: PubSub) -> None:
        queued.expire()
        queued.redis.hset(LOCK, D, 2)
        queued.redis.pexpire(LOCK, 20_000)
        for _ in range(2):
            assert queued.hand_over(A, C) == 0
            assert queued.holds() == {D: "2"}
        assert queued.left() <= 20_000
        assert published(subscription) == []

    def test_another_type(self, scripts: Fair) -> None:
        scripts.redis.set(LOCK, "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scripts.hand_over(A, C)
        assert scripts.redis.get(LOCK) == b"text"


def test_out_of_memory(queued: Fair) -> None:
    """Also on an older server, which doesn't know the flag."""
    queued.redis.config_set("maxmemory", 1)
    try:
        assert queued.hand_over(A, C) == [0]
        assert queued.hand_over(C, E) == 1
    finally:
        queued.redis.config_set("maxmemory", 0)
