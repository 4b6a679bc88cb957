"""`pyredisson inspect`: all of one object, whatever kind it is."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any

import pytest

import pyredisson
from pyredisson.errors import ClosedError
from pyredisson.testing import Server
from tests.support.commands import Commands
from tests.support.commands import pyredisson as run
from tests.support.inspecting import announce
from tests.support.waiting import eventually

from .objects import JAVA, add_foreign_keys, announced, moment_of_announced


def sections(text: str) -> tuple[list[str], dict[str, list[list[str]]]]:
    """The first lines, and the tables by their first heading: the cells of their lines."""
    head, *tables = text.rstrip("\n").split("\n\n")
    cells = [[[cell.strip() for cell in line.split("  ") if cell] for line in each.splitlines()] for each in tables]
    return head.splitlines(), {lines[0][0]: lines[1:] for lines in cells}


def test_a_lock(command: Commands, server: Server, redis: Any) -> None:
    with announced(server.url, redis, "cron:nightly") as lock:
        lock.lock()
        ended = command("inspect", "cron:nightly", "--url", server.url)
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


def test_a_queue_in_order(command: Commands, server: Server, redis: Any) -> None:
    """Of this library's waiters and of Java's."""
    redis.rpush("redisson_lock_queue:{orders}", f"{JAVA}:31")
    redis.zadd("redisson_lock_timeout:{orders}", {f"{JAVA}:31": 9 * 10**12})
    redis.hset("orders", f"{JAVA}:30", 1)
    with pyredisson.connect(server.url) as client:

        def wait() -> None:
            with contextlib.suppress(ClosedError):
                client.get_fair_lock("orders").try_lock(30)

        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        eventually(lambda: redis.llen("redisson_lock_queue:{orders}") == 2)

        def shown() -> dict[str, list[list[str]]]:
            return sections(command("inspect", "orders", "--url", server.url).out)[1]

        # On a busy machine a waiter shows no sign of life now and then.
        eventually(lambda: shown()["WAITER"][1][2] == "alive")
        tables = shown()
        java, ours = tables["WAITER"]
        assert java[:3] == ["Redisson 00000000:31", "1", "of Redisson"]
        assert ours[1] == "2"
        assert ours[4].startswith(client.id)
        assert [line[3] for line in tables["KEY"]][:2] == ["queue", "scores of the queue"]
    waiter.join(10)
    assert not waiter.is_alive()


def test_readers_with_a_lease_each(command: Commands, server: Server, redis: Any) -> None:
    redis.hset("report", mapping={"mode": "read", f"{JAVA}:1": 1, f"{JAVA}:2": 3})
    redis.pexpire("report", 7_300_000)
    redis.set(f"{{report}}:{JAVA}:2:rwlock_timeout:1", 1, px=7_300_000)
    _, tables = sections(command("inspect", "report", "--url", server.url).out)
    first, second = tables["HOLDER"]
    assert first[:5] == ["Redisson 00000000:1", "1", "read", "-", "0.0 s"]
    assert second[:5] == ["Redisson 00000000:2", "3", "read", "-", "2.0 h"]


def test_permits_and_whose_they_are(command: Commands, server: Server, redis: Any) -> None:
    with pyredisson.connect(server.url, announce=False) as client:
        db = client.get_permit_expirable_semaphore("db")
        db.try_set_permits(3)
        permit, other = sorted([db.acquire(), db.acquire()])
        announce(redis, client.id, {f"{permit} db": "permit"})
        head, tables = sections(command("inspect", "db", "--url", server.url).out)
        assert {"permits: 3", "free: 1", "time to live: no end"} <= set(head)
        assert sorted(tables["PERMIT"]) == [
            [permit, "web-3 (pid 812)", moment_of_announced(), "no end"],
            [other, "-", "-", "no end"],
        ]


@pytest.mark.parametrize("kind", ["semaphore", "latch"])
def test_a_number_that_calls_were_made_for(command: Commands, server: Server, kind: str) -> None:
    with pyredisson.connect(server.url) as client:
        if kind == "latch":
            client.get_count_down_latch("stock").try_set_count(5)
        else:
            client.get_semaphore("stock").try_set_permits(5)
        head, _ = sections(command("inspect", "stock", "--url", server.url).out)
    assert head[0].startswith(f"stock: {kind} (")
    assert f"{'count' if kind == 'latch' else 'free'}: 5" in head


def test_a_number_of_which_nothing_is_known(command: Commands, server: Server, redis: Any) -> None:
    redis.set("stock", 5)
    ended = command("inspect", "stock", "--url", server.url)
    assert ended == (0, "stock: a number: a semaphore or a latch, if it is one of ours\n", "")
    head, _ = sections(command("inspect", "stock", "--as", "semaphore", "--url", server.url).out)
    assert (head[0], "free: 5" in head) == ("stock: semaphore (the user says so)", True)


def test_json(command: Commands, server: Server, redis: Any) -> None:
    with announced(server.url, redis, "cron:nightly"):
        ended = command("inspect", "cron:nightly", "--json", "--url", server.url)
    state = json.loads(ended.out)
    assert (state["name"], state["owners"][0]["holder"]["pid"]) == ("cron:nightly", 812)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("absent", "absent: there is no such key"),
        ("jobs", "jobs: a key of type list: neither a lock nor another object"),
        ("limits", "limits: a rate limiter of Redisson: not a lock"),
    ],
)
def test_other_keys(command: Commands, server: Server, redis: Any, name: str, text: str) -> None:
    add_foreign_keys(redis)
    assert command("inspect", name, "--url", server.url) == (0, f"{text}\n", "")


def test_a_name_that_is_no_text(command: Commands, server: Server, redis: Any) -> None:
    redis.hset(b"\xff\x1b", f"{JAVA}:1", 1)
    ended = command("inspect", "\udcff\x1b", "--url", server.url)
    assert ended.out.startswith("\\xff\\x1b: lock (")
    assert [line[0] for line in sections(ended.out)[1]["HOLDER"]] == ["Redisson 00000000:1"]


def test_a_lock_that_is_only_kept(command: Commands, server: Server, redis: Any) -> None:
    redis.hset("nightly", f"{JAVA}:1:kept", 1)
    _, tables = sections(command("inspect", "nightly", "--url", server.url).out)
    assert tables["HOLDER"][0][-1] == f"{JAVA}:1:kept (work done, only kept)"


def test_names_are_completed(server: Server, redis: Any) -> None:
    """As a shell asks: by variables, in a process of its own."""
    for name in ("cron:a", "cron:b", "web", "cron:with a space"):
        redis.hset(name, f"{JAVA}:1", 1)
    asked = {"_PYREDISSON_COMPLETE": "bash_complete", "COMP_WORDS": "pyredisson inspect cron", "COMP_CWORD": "2"}
    assert run(env={**asked, "PYREDISSON_URL": server.url}) == (0, "plain,cron:a\nplain,cron:b\n", "")
    assert run(env={**asked, "PYREDISSON_URL": "redis://127.0.0.1:1"}) == (0, "\n", "")
