"""The script that acquires a fair lock or enters its queue: every branch, also when it is sent twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripts import JAVA, LOCK, PLACES, QUEUE, SCORES, WAITERS, YOU, A, B, C, D, Fair, published


class TestAcquire:
    @pytest.mark.parametrize("queue", [True, False])
    def test_a_free_lock(self, scripts: Fair, queue: bool) -> None:
        for _ in range(2):
            assert scripts.acquire(A, queue=queue) is None
            assert scripts.holds() == {A: "1"}
            assert 29_000 < scripts.left() <= 30_000
            assert scripts.keys() == {LOCK}

    def test_another_level(self, scripts: Fair) -> None:
        scripts.acquire(A, lease=1_000)
        for _ in range(2):
            assert scripts.acquire(A, 2) is None
            assert scripts.holds() == {A: "2"}
            assert scripts.left() > 29_000
        assert scripts.acquire(A, 3, lease=100) is None
        assert scripts.left() > 29_000
        assert scripts.keys() == {LOCK}

    def test_another_level_while_others_wait(self, scripts: Fair) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        assert scripts.acquire(A, 2) is None
        assert scripts.queue() == [B]

    def test_an_endless_hold_gets_a_lease(self, scripts: Fair) -> None:
        scripts.redis.hset(LOCK, A, 1)
        assert scripts.acquire(A, 2) is None
        assert scripts.left() > 29_000

    def test_another_level_of_a_lost_hold(self, scripts: Fair) -> None:
        for _ in range(2):
            assert scripts.acquire(A, 2) == -2
        scripts.acquire(B)
        for _ in range(2):
            assert scripts.acquire(A, 2) == -2
        assert scripts.keys() == {LOCK}

    def test_trying_once_does_not_queue(self, scripts: Fair) -> None:
        scripts.acquire(A)
        for _ in range(2):
            assert 29_000 < scripts.acquire(B, queue=False) <= 30_000
        assert scripts.keys() == {LOCK}

    def test_trying_once_does_not_overtake(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.expire()
        for _ in range(2):
            assert scripts.acquire(C, queue=False) == 2_000
        assert scripts.queue() == [B]
        assert published(subscription) == []

    def test_the_queue(self, scripts: Fair) -> None:
        scripts.acquire(A)
        for _ in range(2):
            for owner in (B, C, D):
                assert 29_000 < scripts.acquire(owner) <= 30_000
        assert scripts.queue() == [B, C, D]
        assert scripts.holds() == {A: "1"}
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

    def test_in_order(self, scripts: Fair) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        scripts.acquire(C)
        scripts.expire()
        assert scripts.acquire(D) == 2_000
        assert scripts.acquire(C) == 2_000
        assert scripts.queue() == [B, C, D]
        for owner in (B, C, D):
            for _ in range(2):
                assert scripts.acquire(owner) is None
                assert scripts.holds() == {owner: "1"}
                assert scripts.left() > 29_000
            assert scripts.release(owner) == 1
        assert scripts.keys() == set()

    def test_waiting_raises_a_score(self, scripts: Fair) -> None:
        """Behind the first places, each acquire restores the remaining time that the score had at the last one."""
        scripts.acquire(A)
        for number in range(PLACES):
            scripts.acquire(f"{YOU}:{100 + number}")
        scripts.acquire(B)
        before = scripts.score(B)
        assert 629 < before <= 630
        scripts.redis.hincrby(WAITERS, B, -60_000)
        for _ in range(2):
            scripts.acquire(B)
            assert before + 59 < scripts.score(B) < before + 61

    def test_a_clock_set_back_lowers_no_score(self, scripts: Fair) -> None:
        scripts.acquire(A)
        for number in range(PLACES):
            scripts.acquire(f"{YOU}:{100 + number}")
        scripts.acquire(B)
        before = scripts.score(B)
        scripts.redis.hincrby(WAITERS, B, 3_600_000)
        scripts.acquire(B)
        assert before - 1 < scripts.score(B) <= before
        assert int(scripts.redis.hget(WAITERS, B)) <= scripts.now()

    @pytest.mark.parametrize("key", [LOCK, QUEUE, WAITERS])
    def test_another_type(self, scripts: Fair, key: str) -> None:
        if key != LOCK:
            scripts.redis.hset(LOCK, JAVA, 1)
        scripts.redis.set(key, "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scripts.acquire(A)
        assert scripts.redis.get(key) == b"text"
        assert scripts.keys() == {LOCK, key}


class TestServers:
    """What servers refuse, and what must still work."""

    @contextmanager
    def out_of_memory(self, scripts: Fair) -> Iterator[None]:
        scripts.redis.config_set("maxmemory", 1)
        try:
            yield
        finally:
            scripts.redis.config_set("maxmemory", 0)

    def test_out_of_memory(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(A, 2)
        for owner in (B, C, D):
            scripts.acquire(owner)
        with self.out_of_memory(scripts):
            assert scripts.heartbeat(YOU)[0] > 0
            if scripts.with_shebang:
                # Older servers don't know the flag of a script whose writes free more memory than they take.
                assert scripts.leave(C) == 1
                assert scripts.release(A, 1) == 0
            assert scripts.release(A) == 1
            with pytest.raises(ResponseError, match="maxmemory"):
                scripts.acquire(B)
        assert published(subscription) == [B]

    def test_out_of_memory_and_by_force(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.acquire(A)
        scripts.acquire(B)
        with self.out_of_memory(scripts):
            assert scripts.force() == 1
        assert published(subscription) == [B]

    def test_without_permission_on_the_channel(self, scripts: Fair, subscription: PubSub) -> None:
        scripts.redis.execute_command("ACL", "SETUSER", "deaf", "on", ">x", "~*orders*", "+@all", "resetchannels")
        with scripts.server.redis(username="deaf", password="x") as deaf:
            assert scripts.acquire(A, redis=deaf) is None
            assert scripts.acquire(B, redis=deaf) > 0
            assert scripts.release(A, redis=deaf) == 1
            assert scripts.heartbeat(YOU, redis=deaf)[2] == B
            assert scripts.acquire(B, redis=deaf) is None
            assert scripts.acquire(C, redis=deaf) > 0
            assert scripts.force(redis=deaf) == 1
            assert scripts.leave(C, redis=deaf) == 1
        assert scripts.keys() == set()
        assert published(subscription) == []

    def test_a_replica_replies_readonly(self, scripts: Fair) -> None:
        scripts.redis.config_set("repl-diskless-sync-delay", 0)
        scripts.acquire(A)
        scripts.acquire(B)
        config = {"replicaof": f"{scripts.server.host} {scripts.server.port}"}
        with Server(executable=scripts.server.executable, config=config) as replica, replica.redis() as redis:
            deadline = time.monotonic() + 10
            while redis.info("replication")["master_link_status"] != "up":
                assert time.monotonic() < deadline
                time.sleep(0.01)
            calls: list[Callable[[], Any]] = [
                lambda: scripts.acquire(A, 2, redis=redis),
                lambda: scripts.release(A, redis=redis),
                lambda: scripts.force(redis=redis),
                lambda: scripts.leave(B, redis=redis),
                lambda: scripts.heartbeat(YOU, redis=redis),
            ]
            for call in calls:
                with pytest.raises(ResponseError, match="read only"):
                    call()
        assert scripts.holds() == {A: "1"}
        assert scripts.queue() == [B]
