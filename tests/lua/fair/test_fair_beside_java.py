"""Waiters of pyredisson and of Redisson in one queue."""

from __future__ import annotations

from redis.client import PubSub

from .scripts import CLIENTS, COFFEE, JAVA, LOCK, ME, NEVER, QUEUE, SCORES, WAITERS, A, B, C, D, Fair, Java, published


class TestBesideJava:
    def test_the_message_goes_to_its_channel(self, scripts: Fair, subscription: PubSub) -> None:
        java = Java(scripts, JAVA)
        scripts.acquire(A)
        java.acquire()
        scripts.release(A)
        assert published(subscription) == [JAVA]
        assert java.acquire() is None
        assert scripts.holds() == {JAVA: "1"}

    def test_java_notifies_a_waiter_of_pyredisson(self, scripts: Fair, subscription: PubSub) -> None:
        java = Java(scripts, JAVA)
        assert java.acquire() is None
        scripts.acquire(A)
        java.release()
        assert published(subscription) == [A]
        assert scripts.acquire(A) is None

    def test_java_keeps_its_turn(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA)
        scripts.acquire(A)
        java.acquire()
        scripts.release(A)
        assert scripts.acquire(B) == 2_000
        scripts.heartbeat(ME)
        assert scripts.acquire(C, queue=False) == 2_000
        assert java.acquire() is None
        assert scripts.queue() == [B]

    def test_the_turn_of_java_ends_by_its_score(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        Java(scripts, JAVA).acquire()
        scripts.acquire(B)
        scripts.redis.zadd(SCORES, {JAVA: scripts.now()})
        scripts.release(A)
        assert scripts.queue() == [B]
        assert published(subscription) == [B]

    def test_a_score_far_ahead_is_cut(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA)
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.redis.zadd(SCORES, {B: NEVER})
        java.acquire()
        scripts.release(A)
        scripts.acquire(B)
        scripts.release(B)
        assert 299 < scripts.score(JAVA) <= 300
        scripts.redis.zadd(SCORES, {JAVA: scripts.now() + 10_000})
        scripts.heartbeat(ME)
        assert 9 < scripts.score(JAVA) <= 10

    def test_pyredisson_behind_java(self, scripts: Fair) -> None:
        """Redisson subtracts its waiting time from all scores whenever one of its waiters acquires the lock."""
        java, coffee = Java(scripts, JAVA), Java(scripts, COFFEE)
        scripts.acquire(A)
        java.acquire()
        coffee.acquire()
        for owner in (B, C, D):
            scripts.acquire(owner)
        assert 607 < scripts.score(B) <= 608
        assert scripts.score(B) - 0.1 < scripts.score(D) < scripts.score(B) + 0.1
        scripts.release(A)
        for waiter in (java, coffee):
            assert waiter.acquire() is None
            assert waiter.release() == 1
        assert scripts.queue() == [B, C, D]
        assert 7 < scripts.score(B) <= 8
        # However many there are: waiters of pyredisson subtract nothing from scores.
        for owner in (B, C, D):
            assert scripts.acquire(owner) is None
            assert scripts.release(owner) == 1

    def test_pyredisson_behind_java_for_a_long_time(self, scripts: Fair) -> None:
        """A waiter that asks again from time to time keeps its place, however long it waits."""
        java, coffee = Java(scripts, JAVA), Java(scripts, COFFEE)
        scripts.acquire(A)
        java.acquire()
        coffee.acquire()
        scripts.acquire(B)
        for _ in range(20):
            # A minute.
            scripts.redis.zincrby(SCORES, -60_000, B)
            scripts.redis.hincrby(WAITERS, B, -60_000)
            scripts.acquire(B)
        scripts.release(A)
        for waiter in (java, coffee):
            assert waiter.acquire() is None
            assert waiter.release() == 1
        assert scripts.queue() == [B]
        assert scripts.acquire(B) is None

    def test_java_behind_pyredisson(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA)
        scripts.acquire(A)
        for owner in (B, C, D):
            scripts.acquire(owner)
        scripts.heartbeat(ME)
        java.acquire()
        assert 307 < scripts.score(JAVA) <= 308
        for owner, after in ((A, B), (B, C), (C, D), (D, None)):
            assert scripts.release(owner) == 1
            assert after is None or scripts.acquire(after) is None
        assert scripts.score(JAVA) > 200
        assert java.acquire() is None
        # Java doesn't know this key, so it expires by itself.
        assert scripts.keys() == {LOCK, CLIENTS}
        assert 0 < scripts.redis.pttl(CLIENTS) <= 7_200_000

    def test_java_drops_a_dead_head_of_pyredisson(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA)
        scripts.acquire(A)
        scripts.acquire(B)
        java.acquire()
        scripts.release(A)
        assert java.acquire() is not None
        assert scripts.queue() == [B, JAVA]
        scripts.redis.zincrby(SCORES, -8_000, B)
        assert java.acquire() is None

    def test_java_drops_a_waiter_that_has_left(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA)
        java.acquire()
        for owner in (A, B, C):
            scripts.acquire(owner)
        scripts.leave(B)
        java.release()
        assert scripts.acquire(A) is None
        java.acquire()
        scripts.release(A)
        java._prologue(scripts.now())
        assert scripts.queue() == [C, JAVA]

    def test_java_gives_up(self, scripts: Fair) -> None:
        java, coffee = Java(scripts, JAVA), Java(scripts, COFFEE)
        scripts.acquire(A)
        java.acquire()
        coffee.acquire()
        scripts.acquire(B)
        java.give_up()
        coffee.give_up()
        assert scripts.queue() == [B]
        assert 7 < scripts.score(B) <= 8
        scripts.release(A)
        assert scripts.acquire(B) is None

    def test_java_behind_a_waiter_that_left_behind_java(self, scripts: Fair) -> None:
        """Java computes the scores of later waiters from that of the waiter that left. None of them is dropped."""
        first, second, third = Java(scripts, JAVA), Java(scripts, COFFEE), Java(scripts, f"{COFFEE}3")
        scripts.acquire(A)
        first.acquire()
        second.acquire()
        scripts.acquire(B)
        third.acquire()
        scripts.redis.hset(WAITERS, B, 0)
        scripts.acquire(C)
        assert 599 < scripts.score(B) <= 600
        scripts.redis.lrem(QUEUE, 0, C)
        scripts.redis.zrem(SCORES, C)
        scripts.redis.hdel(WAITERS, C)
        third.give_up()
        assert scripts.queue() == [JAVA, COFFEE, B]
        third.acquire()
        scripts.acquire(C)
        scripts.release(A)
        for waiter in (first, second, third):
            assert waiter.acquire() is None
            assert waiter.release() == 1
        assert scripts.queue() == [C]
        assert scripts.acquire(C) is None

    def test_java_drops_a_waiter_that_has_an_offer(self, scripts: Fair) -> None:
        """The waiter enters the queue again, and must get the full time of a new offer."""
        java = Java(scripts, JAVA)
        scripts.acquire(A)
        scripts.acquire(B)
        java.acquire()
        scripts.release(A)
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 5_000} {B}")
        scripts.redis.zincrby(SCORES, -8_000, B)
        assert java.acquire() is None
        scripts.acquire(B)
        java.release()
        assert scripts.acquire(C) == 2_000
        assert scripts.queue() == [B, C]

    def test_java_behind_a_waiter_that_left(self, scripts: Fair) -> None:
        java, coffee = Java(scripts, JAVA), Java(scripts, COFFEE)
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        java.acquire()
        scripts.leave(C)
        java.give_up()
        coffee.acquire()
        assert 307 < scripts.score(COFFEE) <= 308
        scripts.release(A)
        assert scripts.acquire(B) is None
        scripts.release(B)
        assert coffee.acquire() is None
