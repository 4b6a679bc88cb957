"""Dead waiters in a queue of pyredisson and Redisson, and living waiters that Redisson removes."""

from __future__ import annotations

import pytest

from .scripts import COFFEE, JAVA, LOCK, ME, QUEUE, SCORES, YOU, A, B, C, D, Fair, Java


class TestDeathBesideJava:
    """Java drops a dead waiter of pyredisson by its own rules, also when no client of pyredisson is alive."""

    @pytest.mark.parametrize("before", [0, 1, 3])
    def test_a_dead_head_is_dropped_soon(self, scripts: Fair, before: int) -> None:
        scripts.acquire(A)
        first = [Java(scripts, f"{JAVA}{number}") for number in range(before)]
        for java in first:
            java.acquire()
        scripts.acquire(B)
        last = Java(scripts, COFFEE)
        last.acquire()
        scripts.release(A)
        for java in first:
            assert java.acquire() is None
            assert java.release() == 1
        assert last.acquire() is not None
        assert scripts.queue() == [B, COFFEE]
        assert scripts.score(B) <= 8
        scripts.advance_time(8_000)
        assert last.acquire() is None

    def test_a_waiter_that_died_far_from_the_head(self, scripts: Fair) -> None:
        """It entered a long queue, and died before it was among the first places."""
        scripts.acquire(A)
        owners = [f"{ME}:{100 + number}" for number in range(20)]
        for owner in owners:
            scripts.acquire(owner)
        first, last = Java(scripts, JAVA), Java(scripts, COFFEE)
        first.acquire()
        scripts.acquire(B)
        last.acquire()
        for held, owner in zip([A, *owners], owners, strict=False):
            assert scripts.release(held) == 1
            assert scripts.acquire(owner) is None
        assert scripts.release(owners[-1]) == 1
        assert first.acquire() is None
        assert first.release() == 1
        assert scripts.queue() == [B, COFFEE]
        assert scripts.score(B) <= 8

    def test_a_living_waiter_keeps_its_place(self, scripts: Fair) -> None:
        """However long it waits, and whichever waiters are served before it."""
        scripts.acquire(A)
        first, second = Java(scripts, JAVA), Java(scripts, COFFEE)
        first.acquire()
        second.acquire()
        scripts.acquire(B)
        for _ in range(100):
            scripts.advance_time(400)
            scripts.heartbeat(YOU, B)
            scripts.redis.pexpire(LOCK, 30_000)
        scripts.release(A)
        for java in (first, second):
            assert java.acquire() is None
            assert java.release() == 1
        Java(scripts, f"{JAVA}9").acquire()
        assert scripts.queue()[0] == B
        assert scripts.acquire(B) is None

    def test_java_with_a_very_long_waiting_time(self, scripts: Fair) -> None:
        """It subtracts more from the scores than other clients do."""
        java = Java(scripts, JAVA)
        scripts.acquire(A)
        java.acquire(wait=3_600_000)
        scripts.acquire(B)
        scripts.heartbeat(YOU, B)
        scripts.release(A)
        assert java.acquire(wait=3_600_000) is None
        java.release()
        assert scripts.queue() == [B]


class TestEvictions:
    """A Java client whose clock is ahead drops living waiters."""

    def test_six_seconds_ahead_evict_no_waiter(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA, ahead=6_000)
        scripts.acquire(A)
        scripts.acquire(B)
        for _ in range(10):
            scripts.advance_time(400)
            scripts.heartbeat(YOU, B)
            java.acquire()
            assert scripts.queue() == [B, JAVA]

    def test_a_heartbeat_reports_waiters_without_a_place(self, scripts: Fair) -> None:
        scripts.acquire(A)
        for owner in (B, D, C):
            scripts.acquire(owner)
        scripts.redis.lrem(QUEUE, 0, D)
        scripts.redis.zrem(SCORES, D)
        for _ in range(2):
            assert scripts.without_place(YOU, B, D) == [D]
        scripts.acquire(D)
        assert scripts.without_place(YOU, B, D) == []
        assert scripts.queue() == [B, C, D]

    def test_an_eviction_raises_the_margin(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA, ahead=25_000)
        scripts.acquire(A)
        scripts.acquire(B)
        java.acquire()
        assert scripts.queue() == [JAVA]
        scripts.acquire(B)
        assert scripts.queue() == [JAVA, B]
        java.give_up()
        for _ in range(10):
            scripts.advance_time(400)
            scripts.heartbeat(YOU, B)
            java.acquire()
            assert scripts.queue() == [B, JAVA]
        assert scripts.score(B) <= 32
        # Until no waiter has been evicted for an hour.
        scripts.redis.pexpire(LOCK, 7_200_000)
        scripts.advance_time(3_600_000)
        scripts.acquire(B)
        scripts.heartbeat(YOU, B)
        assert scripts.score(B) <= 8

    def test_evictions_at_one_time_raise_the_margin_once(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA, ahead=3_600_000)
        scripts.acquire(A)
        for owner in (B, C, D):
            scripts.acquire(owner)
        java.acquire()
        assert scripts.queue() == [JAVA]
        for owner in (B, C, D):
            scripts.acquire(owner)
        java.give_up()
        scripts.heartbeat(YOU, B, D)
        assert 31 < scripts.score(B) <= 32
