"""`pyredisson rm`: what a lock has left goes, and nothing that somebody uses."""

from __future__ import annotations

from typing import Any

import pytest

import pyredisson
from pyredisson.testing import Server
from tests.support.commands import Commands

from .objects import JAVA

SILENT = "11111111-1111-4111-8111-111111111111"


def dead_queue(redis: Any, name: str = "orders") -> None:
    """A queue of a waiter whose client was killed, and of one of Redisson whose place has ended."""
    for waiter in (f"{SILENT}:4294967296", f"{JAVA}:31"):
        redis.rpush(f"redisson_lock_queue:{{{name}}}", waiter)
        redis.zadd(f"redisson_lock_timeout:{{{name}}}", {waiter: 1})
    redis.hset(f"pyredisson_fair_waiters:{{{name}}}", f"{SILENT}:4294967296", 1)
    redis.zadd(f"pyredisson_fair_clients:{{{name}}}", {SILENT: 1})


def test_a_counter_of_tokens(command: Commands, server: Server, redis: Any) -> None:
    with pyredisson.connect(server.url) as client:
        lock = client.get_fenced_lock("orders")
        with lock:
            before = lock.token
        ended = command("rm", "orders", "--url", server.url)
        assert ended == (0, "lock 'orders': removed counter of fencing tokens.\n", "")
        # It lasts for a day, in case that the server's clock is set back.
        assert redis.keys() == [b"pyredisson_fenced_newest:{orders}"]
        assert redis.pttl("pyredisson_fenced_newest:{orders}") > 0
        ended = command("rm", "orders", "--url", server.url)
        assert ended == (1, "", "pyredisson: nothing is left of lock 'orders'\n")
        with lock:
            assert lock.token > before


def test_a_queue_whose_waiters_are_dead(command: Commands, server: Server, redis: Any) -> None:
    """It isn't shown as in use, and can be removed."""
    dead_queue(redis)
    assert "nothing is held" in command("ls", "--url", server.url).err
    [_, row] = command("ls", "--all", "--url", server.url).out.splitlines()
    assert row.split() == ["orders", "fair", "-", "-", "-", "2", "silent"]
    ended = command("rm", "orders", "--url", server.url)
    assert (ended.status, ended.err) == (0, "")
    assert "queue" in ended.out
    assert redis.keys("redisson*") == []
    assert not redis.exists("orders")


def test_silent_waiters_of_a_lock_that_is_held(command: Commands, server: Server, redis: Any) -> None:
    dead_queue(redis)
    redis.hset("orders", f"{JAVA}:5", 1)
    [_, row] = command("ls", "--url", server.url).out.splitlines()
    assert row.split()[-2:] == ["2", "silent"]


@pytest.mark.parametrize("used", ["held", "waited for"])
def test_what_somebody_uses_stays(command: Commands, server: Server, redis: Any, used: str) -> None:
    redis.set("redisson_lock_token:{orders}", 5)
    if used == "held":
        redis.hset("orders", f"{JAVA}:5", 1)
    else:
        redis.rpush("redisson_lock_queue:{orders}", f"{JAVA}:31")
        redis.zadd("redisson_lock_timeout:{orders}", {f"{JAVA}:31": 9 * 10**12})
    before = sorted(redis.keys())
    ended = command("rm", "orders", "--url", server.url)
    assert (ended.status, ended.out) == (1, "")
    assert f"lock 'orders' is {used}" in ended.err
    assert sorted(redis.keys()) == before


def test_several_names(command: Commands, server: Server, redis: Any) -> None:
    """Those of which nothing is left are named, and the others are removed."""
    redis.set("redisson_lock_token:{a}", 5)
    redis.set("stock", 5)
    ended = command("rm", "none", "a", "stock", "--url", server.url)
    assert (ended.status, ended.out) == (1, "lock 'a': removed counter of fencing tokens.\n")
    assert ended.err.splitlines()[0] == "pyredisson: nothing is left of lock 'none'"
    assert redis.get("stock") == b"5"
