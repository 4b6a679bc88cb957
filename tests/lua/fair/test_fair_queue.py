"""Waiters of pyredisson and of Redisson in one queue: living, dead, removed by Redisson. The bounds of the scripts."""

import random

import pytest

from tests.lua.locks import CHANNEL, WAIT

from .scripts import CLIENTS, COFFEE, JAVA, LOCK, ME, NEVER, PLACES, QUEUE, SCORES, WAITERS, YOU, A, B, C, D, Fair, Java

SCRIPTS = Fair


class TestBesideJava:
    def test_a_score_far_ahead_is_cut(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA)
        scripts.line(A, B)
        scripts.redis.zadd(SCORES, {B: NEVER})
        java.acquire()
        scripts.release(A)
        scripts.acquire(B)
        scripts.release(B)
        assert 299 < scripts.score(JAVA) <= 300
        scripts.redis.zadd(SCORES, {JAVA: scripts.now() + 10_000})
        scripts.heartbeat(ME)
        assert 9 < scripts.score(JAVA) <= 10

    def test_java_behind_pyredisson(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA)
        scripts.line(A, B, C, D)
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

    def test_java_drops_a_waiter_that_has_an_offer(self, scripts: Fair) -> None:
        """The waiter enters the queue again, and must get the full time of a new offer."""
        java = Java(scripts, JAVA)
        scripts.line(A, B, java)
        scripts.release(A)
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 5_000} {B}")
        scripts.redis.zincrby(SCORES, -8_000, B)
        assert java.acquire() is None
        scripts.acquire(B)
        java.release()
        assert scripts.acquire(C) == 2_000
        assert scripts.queue() == [B, C]


class TestDeathBesideJava:
    """Java drops a dead waiter of pyredisson by its own rules, also when no client of pyredisson is alive."""

    def test_a_waiter_that_died_far_from_the_head(self, scripts: Fair) -> None:
        """It entered a long queue, and died before it was among the first places."""
        owners = [f"{ME}:{100 + number}" for number in range(20)]
        scripts.line(A, *owners)
        first, last = Java(scripts, JAVA), Java(scripts, COFFEE)
        scripts.line(first, B, last)
        for held, owner in zip([A, *owners], owners, strict=False):
            assert scripts.release(held) == 1
            assert scripts.acquire(owner) is None
        assert scripts.release(owners[-1]) == 1
        scripts.serve(first)
        assert scripts.queue() == [B, COFFEE]
        assert scripts.score(B) <= 8

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

    def test_an_eviction_raises_the_margin(self, scripts: Fair) -> None:
        java = Java(scripts, JAVA, ahead=25_000)
        scripts.line(A, B, java)
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
        scripts.line(A, B, C, D, java)
        assert scripts.queue() == [JAVA]
        scripts.line(B, C, D)
        java.give_up()
        scripts.heartbeat(YOU, B, D)
        assert 31 < scripts.score(B) <= 32


class TestMemory:
    """No living waiter loses its place when the server loses keys, or when its clock steps."""

    def test_the_key_of_waiters_was_lost(self, scripts: Fair) -> None:
        scripts.line(A, B, C, D)
        scripts.heartbeat(ME, C)
        scripts.heartbeat(YOU, B, D)
        scripts.redis.delete(WAITERS)
        # The reply -1 makes all of the client's waiters ask again, since the command doesn't name all of them.
        assert scripts.heartbeat(YOU, B, D)[1] == -1
        assert scripts.heartbeat(ME, C)[1] == -1
        for _ in range(25):
            scripts.advance_time(400)
            assert scripts.heartbeat(YOU, B, D)[1] == 1
            assert scripts.heartbeat(ME, C)[1] == 1
        assert scripts.release(A) == 1
        assert scripts.queue() == [B, C, D]
        assert scripts.redis.pttl(WAITERS) > 0

    @pytest.mark.parametrize("first", ["heartbeat", "acquire", "leave"])
    def test_the_clock_steps_forward(self, scripts: Fair, first: str) -> None:
        scripts.line(A, B, C, D)
        scripts.heartbeat(ME, C)
        scripts.heartbeat(YOU, B, D)
        scripts.advance_time(3_600_000)
        newcomer = f"{YOU}:99"
        if first == "heartbeat":
            scripts.heartbeat(YOU, B, D)
        elif first == "acquire":
            assert scripts.acquire(newcomer) == 2_000
        else:
            scripts.leave(newcomer)
        scripts.heartbeat(YOU, B, D)
        scripts.heartbeat(ME, C)
        assert scripts.queue()[:3] == [B, C, D]
        scripts.serve(B, C, D)
        assert scripts.queue() == [newcomer][: first == "acquire"]

    def test_silent_waiters_count_as_dead_after_the_grace_period(self, scripts: Fair) -> None:
        scripts.line(A, B, C)
        scripts.heartbeat(YOU, B)
        scripts.expire()
        scripts.advance_time(10_000)
        assert scripts.acquire(D, queue=False) == 2_000
        scripts.advance_time(1_000)
        assert scripts.acquire(D, queue=False) == 2_000
        scripts.advance_time(501)
        assert scripts.acquire(D, queue=False) is None


class TestBounds:
    def test_waiters_that_left_do_not_accumulate(self, scripts: Fair) -> None:
        scripts.line(A, B)
        most = 0
        for number in range(300):
            scripts.acquire(f"{ME}:{100 + number}")
            if number >= 20:
                scripts.leave(f"{ME}:{80 + number}", doubt=number % 2 == 0)
            most = max(most, scripts.redis.llen(QUEUE))
        assert scripts.queue()[0] == B
        assert most < 100
        # The values that late copies must find are stored for a minute.
        scripts.advance_time(61_000)
        for _ in range(100):
            scripts.heartbeat(ME)
            if scripts.redis.hlen(WAITERS) < 100:
                break
        assert scripts.redis.hlen(WAITERS) < 100

    def test_in_any_order(self, scripts: Fair) -> None:
        owners = [f"{ME}:{100 + number}" for number in range(250)]
        scripts.line(A, B, *owners, D)
        random.Random(1).shuffle(owners)
        for owner in owners:
            scripts.leave(owner)
        for _ in range(50):
            scripts.heartbeat(YOU, B, D)
        assert scripts.queue() == [B, D]
        assert set(scripts.redis.hkeys(WAITERS)) == {B.encode(), D.encode()}

    def test_a_waiter_that_was_evicted_and_died_is_forgotten(self, scripts: Fair) -> None:
        scripts.line(A, B, D)
        scripts.redis.lrem(QUEUE, 0, D)
        scripts.redis.zrem(SCORES, D)
        scripts.redis.pexpire(LOCK, 7_200_000)
        scripts.advance_time(601_000)
        scripts.acquire(B)
        scripts.heartbeat(YOU, B)
        assert not scripts.redis.hexists(WAITERS, D)
        assert scripts.queue() == [B]

    def dead(self, scripts: Fair, count: int) -> None:
        owners = [f"{YOU}:{100 + number}" for number in range(count)]
        scripts.line(A, *owners)
        scripts.asked_long_ago(*owners)

    def test_an_acquire_behind_many_dead_waiters(self, scripts: Fair) -> None:
        self.dead(scripts, 600)
        scripts.expire()
        assert [scripts.counted(scripts.try_once, B) for _ in range(3)] == [-3, -3, None]
        assert scripts.keys() == {LOCK}

    def test_a_release_before_many_dead_waiters(self, scripts: Fair) -> None:
        self.dead(scripts, 500)
        java = Java(scripts, JAVA)
        java.acquire()
        assert [scripts.counted(scripts.release, A), scripts.release(A)] == [2, None]
        assert scripts.notified() == []
        heartbeats = [scripts.fair("fair_heartbeat", CHANNEL, "", WAIT) for _ in range(2)]
        assert [(notified.decode(), more) for _, _, notified, more, _ in heartbeats] == [("", 1), (JAVA, 0)]
        assert scripts.notified() == [JAVA]
        assert scripts.redis.exists(CLIENTS) == 0
        assert java.acquire() is None

    def test_a_hand_over_before_many_dead_waiters(self, scripts: Fair) -> None:
        self.dead(scripts, 300)
        scripts.acquire(B)
        assert [scripts.counted(scripts.hand_over, A, B), scripts.hand_over(A, B)] == [2, 0]
        assert (scripts.holds(), scripts.notified()) == ({}, [])
        assert scripts.fair("fair_heartbeat", CHANNEL, "", WAIT)[2:4] == [B.encode(), 0]
        assert scripts.notified() == [B]

    def test_a_heartbeat_before_many_dead_waiters(self, scripts: Fair) -> None:
        self.dead(scripts, 500)
        scripts.acquire(B)
        assert [scripts.fair("fair_heartbeat", CHANNEL, ME, WAIT, B)[3] for _ in range(3)] == [1, 1, 0]
        assert scripts.queue() == [B]


class TestCost:
    def test_the_cost_does_not_grow_with_the_queue(self, scripts: Fair) -> None:
        """The scripts run the same commands however many wait, and none that examines the whole queue."""

        def commands(wait: int) -> dict[str, int]:
            scripts.redis.flushall()
            # However long the test takes to fill the queue.
            scripts.redis.zadd(CLIENTS, {ME: NEVER})
            owners = [f"{ME}:{number}" for number in range(100, 100 + wait)]
            scripts.line(A, *owners)
            scripts.asked_long_ago(*owners)
            scripts.heartbeat(ME)
            scripts.redis.config_resetstat()
            scripts.acquire(D)
            scripts.heartbeat(ME, *owners[:PLACES])
            scripts.release(A)
            scripts.acquire(owners[0])
            scripts.hand_over(owners[0], owners[1])
            scripts.hand_over(owners[1], D)
            scripts.leave(D)
            return {name: entry["calls"] for name, entry in scripts.redis.info("commandstats").items()}

        few, many = commands(200), commands(600)
        # Except the commands that depend on the time since a waiter asked, and on the position of a sweep.
        assert few.keys() == many.keys()
        assert all(abs(few[name] - many[name]) <= 3 for name in few)
        assert not {f"cmdstat_{name}" for name in ("lrem", "hgetall", "lpos")} & few.keys()
