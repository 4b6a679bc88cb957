"""`pyredisson inspect`: all of one object, whatever kind it is."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

import pyredisson
from pyredisson.testing import Server
from tests.support.commands import pyredisson as run
from tests.support.inspecting import announce

from .objects import JAVA, Run, add_foreign_keys, announced, moment_of_announced


def sections(text: str) -> tuple[list[str], dict[str, list[list[str]]]]:
    """The first lines, and the tables by their first heading: the cells of their lines."""
    head, *tables = text.rstrip("\n").split("\n\n")
    cells = [[[cell.strip() for cell in line.split("  ") if cell] for line in each.splitlines()] for each in tables]
    return head.splitlines(), {lines[0][0]: lines[1:] for lines in cells}


def test_a_lock(cli: Run, server: Server, redis: Any) -> None:
    with announced(server.url, redis, "cron:nightly") as lock:
        lock.lock()
        ended = cli("inspect", "cron:nightly")
        state = json.loads(cli("inspect", "cron:nightly", "--json").out)
        owner = redis.hkeys("cron:nightly")[0].decode()
    assert (ended.status, ended.err) == (0, "")
    head, tables = sections(ended.out)
    assert head[:2] == [
        "cron:nightly: lock (its holder has announced the kind)",
        f"server: {server.host}:{server.port}",
    ]
    [[who, levels, side, since, ttl, raw]] = tables["HOLDER"]
    assert (who, levels, side, since, raw) == ("web-3 (pid 812)", "2", "-", moment_of_announced(), owner)
    assert ttl.endswith(" s")
    assert (state["name"], state["owners"][0]["holder"]["pid"]) == ("cron:nightly", 812)


def test_a_queue_in_order(cli: Run, redis: Any) -> None:
    """Of this library's waiters and of Java's."""
    ours, java = f"{uuid.UUID(int=6)}:{2**32}", f"{JAVA}:31"
    redis.hset("orders", f"{JAVA}:30", 1)
    redis.rpush("redisson_lock_queue:{orders}", java, ours)
    redis.zadd("redisson_lock_timeout:{orders}", {java: 9 * 10**12})
    redis.hset("pyredisson_fair_waiters:{orders}", ours, 9 * 10**12)
    redis.zadd("pyredisson_fair_clients:{orders}", {ours.partition(":")[0]: 9 * 10**12})
    _, tables = sections(cli("inspect", "orders").out)
    first, second = tables["WAITER"]
    assert first[:3] == ["Redisson 00000000:31", "1", "of Redisson"]
    assert (second[1:3], second[4]) == (["2", "alive"], ours)
    assert [line[3] for line in tables["KEY"]][:2] == ["queue", "scores of the queue"]


def test_other_kinds(cli: Run, server: Server, redis: Any) -> None:
    redis.hset("report", mapping={"mode": "read", f"{JAVA}:1": 1, f"{JAVA}:2": 3})
    redis.pexpire("report", 7_300_000)
    redis.set(f"{{report}}:{JAVA}:2:rwlock_timeout:1", 1, px=7_300_000)
    first, second = sections(cli("inspect", "report").out)[1]["HOLDER"]
    assert first[:5] == ["Redisson 00000000:1", "1", "read", "-", "0.0 s"]
    assert second[:5] == ["Redisson 00000000:2", "3", "read", "-", "2.0 h"]
    with pyredisson.connect(server.url, announce=False) as client:
        db = client.get_permit_expirable_semaphore("db")
        db.try_set_permits(3)
        permit, other = sorted([db.acquire(), db.acquire()])
        announce(redis, client.id, {f"{permit} db": "permit"})
        head, tables = sections(cli("inspect", "db").out)
        assert {"permits: 3", "free: 1", "time to live: no end"} <= set(head)
        assert sorted(tables["PERMIT"]) == [
            [permit, "web-3 (pid 812)", moment_of_announced(), "no end"],
            [other, "-", "-", "no end"],
        ]
        client.get_count_down_latch("done").try_set_count(5)
        client.get_semaphore("stock").try_set_permits(5)
    for name, kind, field in (("done", "latch", "count"), ("stock", "semaphore", "free")):
        head, _ = sections(cli("inspect", name).out)
        assert head[0].startswith(f"{name}: {kind} (")
        assert f"{field}: 5" in head
    redis.set("number", 5)
    ended = cli("inspect", "number")
    assert ended == (0, "number: a number: a semaphore or a latch, if it is one of ours\n", "")
    head, _ = sections(cli("inspect", "number", "--as", "semaphore").out)
    assert (head[0], "free: 5" in head) == ("number: semaphore (the user says so)", True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("absent", "absent: there is no such key"),
        ("jobs", "jobs: a key of type list: neither a lock nor another object"),
        ("limits", "limits: a rate limiter of Redisson: not a lock"),
    ],
)
def test_other_keys(cli: Run, redis: Any, name: str, text: str) -> None:
    add_foreign_keys(redis)
    assert cli("inspect", name) == (0, f"{text}\n", "")


def test_a_name_that_is_no_text_and_a_lock_that_is_only_kept(cli: Run, redis: Any) -> None:
    redis.hset(b"\xff\x1b", f"{JAVA}:1:kept", 1)
    head, tables = sections(cli("inspect", "\udcff\x1b").out)
    assert head[0].startswith("\\xff\\x1b: lock (")
    [row] = tables["HOLDER"]
    assert (row[0], row[-1]) == ("Redisson 00000000:1", f"{JAVA}:1:kept (work done, only kept)")


def test_names_are_completed(server: Server, redis: Any) -> None:
    """As a shell asks: by variables, in a process of its own."""
    for name in ("cron:a", "cron:b", "web", "cron:with a space"):
        redis.hset(name, f"{JAVA}:1", 1)
    asked = {"_PYREDISSON_COMPLETE": "bash_complete", "COMP_WORDS": "pyredisson inspect cron", "COMP_CWORD": "2"}
    assert run(env={**asked, "PYREDISSON_URL": server.url}) == (0, "plain,cron:a\nplain,cron:b\n", "")
    assert run(env={**asked, "PYREDISSON_URL": "redis://127.0.0.1:1"}) == (0, "\n", "")
