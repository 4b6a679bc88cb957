"""The keys of the waiters after acquires and heartbeats: scores, offers, and the removal of dead waiters."""

from __future__ import annotations

import pytest

from .scripts import CLIENTS, JAVA, LOCK, ME, PLACES, QUEUE, SCORES, WAITERS, YOU, A, B, C, D, Fair


class TestAcquire:
    def test_the_queue(self, scripts: Fair) -> None:
        scripts.acquire(A)
        for _ in range(2):
            for owner in (B, C, D):
                assert 29_000 < scripts.acquire(owner) <= 30_000
        assert (scripts.queue(), scripts.holds()) == ([B, C, D], {A: "1"})
        # Just enough that they are soon dropped if they die. Waiters of pyredisson may all have the same score.
        assert all(7 < scripts.score(owner) <= 8 for owner in (B, C, D))
        assert set(scripts.redis.hkeys(WAITERS)) == {owner.encode() for owner in (B, C, D)}
        assert 7_200_000 < scripts.redis.pttl(WAITERS) <= 7_230_000
        assert scripts.redis.pttl(QUEUE) == scripts.redis.pttl(SCORES) == -1

    def test_a_holder_with_an_endless_lease(self, scripts: Fair) -> None:
        scripts.redis.hset(LOCK, JAVA, 1)
        assert scripts.acquire(A) == -1
        assert 7 < scripts.score(A) <= 8
        assert scripts.left() == -1
        assert 0 < scripts.redis.pttl(WAITERS) <= 7_200_000

    def test_waiting_raises_a_score(self, scripts: Fair) -> None:
        """Behind the first places, each acquire restores the remaining time that the score had at the last one."""
        scripts.line(A, *(f"{YOU}:{100 + number}" for number in range(PLACES)), B)
        before = scripts.score(B)
        assert 629 < before <= 630
        scripts.redis.hincrby(WAITERS, B, -60_000)
        for _ in range(2):
            scripts.acquire(B)
            assert before + 59 < scripts.score(B) < before + 61

    def test_a_clock_set_back_lowers_no_score(self, scripts: Fair) -> None:
        scripts.line(A, *(f"{YOU}:{100 + number}" for number in range(PLACES)), B)
        before = scripts.score(B)
        scripts.redis.hincrby(WAITERS, B, 3_600_000)
        scripts.acquire(B)
        assert before - 1 < scripts.score(B) <= before
        assert int(scripts.redis.hget(WAITERS, B)) <= scripts.now()


class TestHeartbeat:
    def test_a_sign_of_life(self, scripts: Fair) -> None:
        scripts.line(A, B)
        left, known, notified = scripts.heartbeat(YOU)
        assert (known, notified) == (0, "")
        assert 29_000 < left <= 30_000
        assert scripts.heartbeat(YOU)[1] == 1
        assert 1_000 < scripts.redis.zscore(CLIENTS, YOU) - scripts.now() <= 1_500
        assert 0 < scripts.redis.pttl(CLIENTS) <= 7_200_000
        assert 0 < scripts.redis.pttl(WAITERS) <= 7_230_000

    def test_nobody_waits(self, scripts: Fair) -> None:
        scripts.redis.zadd(CLIENTS, {ME: scripts.now() + 1_000})
        assert scripts.heartbeat(ME) == (-2, 1, "")
        assert scripts.heartbeat(ME) == (-2, 0, "")
        assert scripts.keys() == set()

    @pytest.mark.parametrize("lost", [(QUEUE,), (QUEUE, WAITERS), (QUEUE, SCORES, WAITERS, CLIENTS)])
    def test_no_place_is_left_when_the_queue_was_deleted(self, scripts: Fair, lost: tuple[str, ...]) -> None:
        """Whatever else is left of its keys: nothing of it may stay for ever."""
        scripts.line(A, B, D)
        scripts.redis.delete(*lost)
        assert scripts.without_place(YOU, B, D) == [B, D]
        assert [key for key in (LOCK, WAITERS, CLIENTS) if scripts.redis.pttl(key) == -1] == []

    def test_dead_clients_are_forgotten(self, scripts: Fair) -> None:
        scripts.line(A, B)
        scripts.redis.zadd(CLIENTS, {"dead": scripts.now() - 1, "living": scripts.now() + 1_000})
        scripts.heartbeat(YOU)
        assert scripts.redis.zrange(CLIENTS, 0, -1) == [b"living", YOU.encode()]

    def test_a_head_that_does_not_acquire_the_offered_lock_is_dropped(self, scripts: Fair) -> None:
        scripts.line(A, B, C)
        scripts.heartbeat(YOU)
        scripts.release(A)
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 1_000} {B}")
        assert scripts.heartbeat(ME)[2] == B
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 2_000} {B}")
        assert scripts.heartbeat(ME)[2] == C
        assert (scripts.queue(), scripts.notified()) == ([C], [B, B, C])

    def test_an_outdated_offer(self, scripts: Fair) -> None:
        """An offer from before the clock was set back, or before another owner acquired the lock, doesn't count."""
        scripts.line(A, B)
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 60_000} {B}")
        scripts.heartbeat(YOU)
        scripts.expire()
        assert scripts.heartbeat(YOU)[2] == B
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() + 60_000} {B}")
        assert scripts.heartbeat(YOU)[2] == B
        assert int(scripts.redis.hget(WAITERS, ":offered").split()[0]) <= scripts.now()
        assert scripts.queue() == [B]

    def test_a_head_may_acquire_after_its_offer_has_ended(self, scripts: Fair) -> None:
        scripts.line(A, B, C)
        scripts.release(A)
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 60_000} {B}")
        scripts.asked_long_ago(B)
        assert scripts.acquire(B) is None
        assert scripts.queue() == [C]

    def test_the_score_of_a_head_of_pyredisson_is_kept_ahead(self, scripts: Fair) -> None:
        """Redisson drops it by its score: not while it lives, but soon after it has died."""
        scripts.line(A, B, C)
        for score in (-60_000, 86_400_000):
            scripts.redis.zadd(SCORES, {B: scripts.now() + score})
            scripts.heartbeat(ME)
            assert 7 < scripts.score(B) <= 8
        assert 7 < scripts.score(C) <= 8

    def test_scores_without_any_other_key(self, scripts: Fair) -> None:
        """The score of a waiter that is in no queue is removed, though nobody waits any more."""
        scripts.line(A, B)
        scripts.redis.delete(WAITERS, QUEUE)
        scripts.expire()
        assert scripts.acquire(B) is None
        assert scripts.redis.pttl(WAITERS) > 0
