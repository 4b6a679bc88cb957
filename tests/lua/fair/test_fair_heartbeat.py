"""The heartbeat of the waiters, and the removal of dead waiters."""

from __future__ import annotations

import pytest
from redis.client import PubSub

from .scripts import CLIENTS, JAVA, LOCK, ME, QUEUE, SCORES, WAITERS, YOU, A, B, C, D, Fair, Java, published


class TestHeartbeat:
    def test_a_sign_of_life(self, scripts: Fair) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
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
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(D)
        scripts.redis.delete(*lost)
        assert scripts.without_place(YOU, B, D) == [B, D]
        assert [key for key in (LOCK, WAITERS, CLIENTS) if scripts.redis.pttl(key) == -1] == []

    def test_dead_clients_are_forgotten(self, scripts: Fair) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.redis.zadd(CLIENTS, {"dead": scripts.now() - 1, "living": scripts.now() + 1_000})
        scripts.heartbeat(YOU)
        assert scripts.redis.zrange(CLIENTS, 0, -1) == [b"living", YOU.encode()]

    def test_dead_waiters_are_dropped_while_the_lock_is_held(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        scripts.asked_long_ago(B, C)
        for _ in range(2):
            scripts.heartbeat(ME)
            assert scripts.queue() == [C]
        assert published(subscription) == []

    def test_a_paused_client_keeps_its_place_if_no_other_call_dropped_it(self, scripts: Fair) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.heartbeat(YOU)
        scripts.redis.zadd(CLIENTS, {YOU: scripts.now() - 1})
        scripts.asked_long_ago(B)
        assert scripts.heartbeat(YOU)[1] == 0
        assert scripts.queue() == [B]

    def test_the_head_is_notified_again(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        scripts.expire()
        for _ in range(2):
            assert scripts.heartbeat(ME)[::2] == (-2, B)
        assert published(subscription) == [B, B]

    def test_a_head_that_does_not_acquire_the_offered_lock_is_dropped(
        self, scripts: Fair, subscription: PubSub
    ) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        scripts.heartbeat(YOU)
        scripts.release(A)
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 1_000} {B}")
        assert scripts.heartbeat(ME)[2] == B
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 2_000} {B}")
        assert scripts.heartbeat(ME)[2] == C
        assert scripts.queue() == [C]
        assert published(subscription) == [B, B, C]

    def test_an_outdated_offer(self, scripts: Fair) -> None:
        """An offer from before the clock was set back, or before another owner acquired the lock, doesn't count."""
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 60_000} {B}")
        scripts.heartbeat(YOU)
        scripts.expire()
        assert scripts.heartbeat(YOU)[2] == B
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() + 60_000} {B}")
        assert scripts.heartbeat(YOU)[2] == B
        assert int(scripts.redis.hget(WAITERS, ":offered").split()[0]) <= scripts.now()
        assert scripts.queue() == [B]

    def test_a_head_may_acquire_after_its_offer_has_ended(self, scripts: Fair) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        scripts.release(A)
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 60_000} {B}")
        scripts.asked_long_ago(B)
        assert scripts.acquire(B) is None
        assert scripts.queue() == [C]

    def test_the_score_of_a_head_of_pyredisson_is_kept_ahead(self, scripts: Fair) -> None:
        """Redisson drops it by its score: not while it lives, but soon after it has died."""
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        for score in (-60_000, 86_400_000):
            scripts.redis.zadd(SCORES, {B: scripts.now() + score})
            scripts.heartbeat(ME)
            assert 7 < scripts.score(B) <= 8
        assert 7 < scripts.score(C) <= 8


class TestDeadHeads:
    """An acquire finds a free lock and a queue of dead waiters."""

    def test_they_are_dropped(self, scripts: Fair) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(D)
        scripts.asked_long_ago(B, D)
        scripts.expire()
        for _ in range(2):
            assert scripts.acquire(C, queue=False) is None
            assert scripts.keys() == {LOCK}

    def test_the_waiter_behind_them_is_notified(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        scripts.asked_long_ago(B)
        scripts.expire()
        assert scripts.acquire(D) == 2_000
        assert scripts.queue() == [C, D]
        assert published(subscription) == [C]

    def test_a_heartbeat_keeps_all_of_a_client(self, scripts: Fair) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(D)
        scripts.heartbeat(YOU)
        scripts.asked_long_ago(B, D)
        scripts.expire()
        assert scripts.acquire(C) == 2_000
        assert scripts.queue() == [B, D, C]

    def test_a_caller_is_alive(self, scripts: Fair) -> None:
        scripts.acquire(A)
        for owner in (B, C, D):
            scripts.acquire(owner)
        scripts.asked_long_ago(B, C)
        scripts.expire()
        assert scripts.acquire(C) is None
        assert scripts.queue() == [D]

    @pytest.mark.parametrize("ours", [True, False])
    def test_a_head_without_a_score(self, scripts: Fair, subscription: PubSub, ours: bool) -> None:
        head = B if ours else JAVA
        scripts.acquire(A)
        scripts.acquire(B) if ours else Java(scripts, JAVA).acquire()
        scripts.acquire(C)
        scripts.redis.zrem(SCORES, head)
        scripts.release(A)
        assert scripts.queue() == [C]
        # A waiter of pyredisson may be alive: it enters the queue again.
        assert published(subscription) == [head, C][not ours :]

    def test_scores_without_a_queue(self, scripts: Fair) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        scripts.heartbeat(ME)
        scripts.redis.delete(QUEUE)
        assert scripts.heartbeat(ME)[1] == 1
        assert scripts.heartbeat(ME)[1] == 0
        scripts.acquire(C)
        scripts.acquire(B)
        assert scripts.queue() == [C, B]

    def test_a_waiter_enters_where_there_are_scores_without_a_queue(self, scripts: Fair) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.heartbeat(YOU)
        scripts.redis.delete(QUEUE)
        scripts.acquire(C)
        assert scripts.queue() == [C]
        assert scripts.heartbeat(YOU)[1] == 0
        scripts.acquire(B)
        assert scripts.queue() == [C, B]

    def test_scores_without_any_other_key(self, scripts: Fair) -> None:
        """The score of a waiter that is in no queue is removed, though nobody waits any more."""
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.redis.delete(WAITERS, QUEUE)
        scripts.expire()
        assert scripts.acquire(B) is None
        assert scripts.redis.pttl(WAITERS) > 0

    def test_without_the_keys_of_pyredisson(self, scripts: Fair) -> None:
        """A server that is short of memory may drop keys with a TTL: then all waiters are treated as Redisson's."""
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        scripts.redis.delete(WAITERS, CLIENTS)
        assert scripts.heartbeat(YOU)[1] == 0
        scripts.acquire(B)
        assert scripts.queue() == [B, C]
        assert scripts.redis.hkeys(WAITERS) == [B.encode()]
        scripts.expire()
        assert scripts.acquire(B) is None
