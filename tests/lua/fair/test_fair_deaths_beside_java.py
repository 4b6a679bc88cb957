"""Dead waiters in a queue of pyredisson and Redisson, and living waiters that Redisson removes."""

from __future__ import annotations

import pytest

from .scripts import COFFEE, JAVA, LOCK, ME, QUEUE, SCORES, YOU, A, B, C, D, Fair, Java


class TestDeathBesideJava:
    """One of ours that dies is passed over by Java's own rules, though nobody of ours is left."""

    @pytest.mark.parametrize("before", [0, 1, 3])
    def test_its_place_ends_soon(self, scripts: Fair, before: int) -> None:
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
        scripts.pass_time(8_000)
        assert last.acquire() is None

    def test_of_one_who_came_when_many_waited(self, scripts: Fair) -> None:
        """It was far from the front when it came, and died before it was near."""
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

    def test_a_living_one_keeps_its_place(self, scripts: Fair) -> None:
        """For as long as it waits, and whoever is served before it."""
        scripts.acquire(A)
        first, second = Java(scripts, JAVA), Java(scripts, COFFEE)
        first.acquire()
        second.acquire()
        scripts.acquire(B)
        for _ in range(100):
            scripts.pass_time(400)
            scripts.heartbeat(YOU, B)
            scripts.redis.pexpire(LOCK, 30_000)
        scripts.release(A)
        for java in (first, second):
            assert java.acquire() is None
            assert java.release() == 1
        Java(scripts, f"{JAVA}9").acquire()
        assert scripts.queue()[0] == B
        assert scripts.acquire(B) is None

    def test_java_that_waits_for_very_long(self, scripts: Fair) -> None:
        """It takes more off the scores than others do."""
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

    def test_six_seconds_are_nothing(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA, ahead=6_000)
        scripts.acquire(A)
        scripts.acquire(B)
        for _ in range(10):
            scripts.pass_time(400)
            scripts.heartbeat(YOU, B)
            java.acquire()
            assert scripts.queue() == [B, JAVA]

    def test_a_tick_says_who_has_no_place(self, scripts: Fair) -> None:
        scripts.acquire(A)
        for owner in (B, D, C):
            scripts.acquire(owner)
        scripts.redis.lrem(QUEUE, 0, D)
        scripts.redis.zrem(SCORES, D)
        for _ in range(2):
            assert scripts.strayed(YOU, B, D) == [D]
        scripts.acquire(D)
        assert scripts.strayed(YOU, B, D) == []
        assert scripts.queue() == [B, C, D]

    def test_a_longer_time_is_learned(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA, ahead=25_000)
        scripts.acquire(A)
        scripts.acquire(B)
        java.acquire()
        assert scripts.queue() == [JAVA]
        scripts.acquire(B)
        assert scripts.queue() == [JAVA, B]
        java.give_up()
        for _ in range(10):
            scripts.pass_time(400)
            scripts.heartbeat(YOU, B)
            java.acquire()
            assert scripts.queue() == [B, JAVA]
        assert scripts.score(B) <= 32
        # Until nothing of the kind has happened for an hour.
        scripts.redis.pexpire(LOCK, 7_200_000)
        scripts.pass_time(3_600_000)
        scripts.acquire(B)
        scripts.heartbeat(YOU, B)
        assert scripts.score(B) <= 8

    def test_many_at_once_count_once(self, scripts: Fair) -> None:
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
