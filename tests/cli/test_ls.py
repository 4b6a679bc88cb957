"""`pyredisson ls`, `inspect` and `watch`: how they show what the inspection finds, and say what may be missing."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

import pyredisson
from pyredisson.cli import INCOMPLETE
from pyredisson.cli.ls import COLUMNS, OPTIONAL
from pyredisson.cli.tables import cut, print_table, table
from pyredisson.inspection import deadlocks
from pyredisson.inspection import discovery as walking
from pyredisson.testing import Proxy, Server
from tests.support.children import TIMEOUT, output
from tests.support.children import pyredisson as run
from tests.support.inspecting import DEADLOCK, add_foreign_keys, announce, announce_deadlock

from .conftest import JAVA, Run, announced, begin, interrupted, moment_of_announced

LONG = "billing:invoices:export:customer-4711"
LINES = [(LONG, "lock", "web-3.example.com (pid 812)", "12:34:56", "29.9 s", "-"), ("web", "fair", "-", "-", "-", "2")]


def table_of(text: str) -> list[list[str]]:
    """The cells of each line."""
    return [[cell.strip() for cell in line.strip().split("  ") if cell] for line in text.splitlines()]


def cells(text: str) -> dict[str, list[str]]:
    """The lines of a table by their names."""
    head, *lines = table_of(text)
    assert tuple(head) == COLUMNS
    assert [line[0] for line in lines] == sorted(line[0] for line in lines)
    return {line[0]: line[1:] for line in lines}


def test_the_table(cli: Run, server: Server, client: pyredisson.Client, redis: Any, user: Callable[[str], str]) -> None:
    add_foreign_keys(redis)
    for pattern, text in (([], "nothing"), (["cron"], "nothing like 'cron'")):
        assert cli("ls", *pattern) == (0, "", f"pyredisson: {text} is held at {server.host}:{server.port}/0\n")
    redis.hset("orders", f"{JAVA}:31", 1)
    # Shown as 60.0 min for the next 5 s.
    redis.pexpire("orders", 3_602_000)
    redis.rpush("redisson_lock_queue:{orders}", f"{JAVA}:32", f"{JAVA}:33")
    redis.hset("report", mapping={"mode": "read", f"{JAVA}:1": 1, f"{JAVA}:2": 1})
    # A name can't control the terminal.
    redis.hset(b"\x1b[2J\xff", f"{JAVA}:31", 1)
    db = client.get_permit_expirable_semaphore("db")
    db.try_set_permits(10)
    db.acquire()
    client.get_semaphore("stock").try_set_permits(5)
    client.get_count_down_latch("done").try_set_count(3)
    with client.get_fenced_lock("billing"):
        pass
    with announced(server.url, redis, "cron:nightly", "fair"):
        found = cells(output(cli("ls")))
    kind, holder, since, ttl, waiters = found.pop("cron:nightly")
    assert (kind, holder, since, waiters) == ("fair", "web-3 (pid 812)", moment_of_announced(), "-")
    assert ttl.endswith(" s")
    assert found == {
        "db": ["permits", "1 of 10 in use", "-", "-", "-"],
        "done": ["latch", "3 to go", "-", "-", "-"],
        "orders": ["fair", "Redisson 00000000:31", "-", "60.0 min", "2"],
        "report": ["read-write", "2 readers", "-", "no lease", "-"],
        "\\x1b[2J\\xff": ["lock", "Redisson 00000000:31", "-", "no lease", "-"],
        "stock": ["semaphore", "5 free", "-", "-", "-"],
    }
    # By pattern and kind.
    for wanted, name in (("?t*", "stock"), ("--kind fair", "orders"), ("--kind read-write r*", "report")):
        assert list(cells(cli("ls", *wanted.split()).out)) == [name]
    assert "nothing like 'r*'" in cli("ls", "--kind", "lock", "r*").err
    # On request: what is free.
    assert cells(cli("ls", "--all", "b*").out) == {"billing": ["fenced", "-", "-", "-", "-"]}
    ended = cli("ls", "--url", user("~* +@all -scan"))
    assert (ended.status, ended.out, ended.err.count("\n")) == (77, "", 1)
    assert "needed are +@read +eval +evalsha +time" in ended.err


def test_interrupted(proxy: Proxy, redis: Any) -> None:
    """Ctrl-C ends the search. What it has found is listed."""
    redis.hset("orders", f"{JAVA}:1", 1)
    reply = proxy.hold_reply(b"DBSIZE")
    ended = interrupted(lambda: reply.held.wait(TIMEOUT), "ls", "--url", proxy.url)
    assert (ended.status, ended.out) == (130, "")
    assert ended.err.splitlines()[-1] == "pyredisson: interrupted: there may be more"


def test_a_server_that_stops_answering(cli: Run, server: Server, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found until then is listed, and the status says that something may be missing."""
    monkeypatch.setattr(walking, "KEYS_IN_A_STEP", 16)
    for number in range(500):
        redis.hset(f"lock:{number}", f"{JAVA}:1", 1)
    ask = walking.Discovery._ask

    async def ask_once(self: Any, walk: Any) -> Any:
        if walk.keys:
            raise RedisConnectionError("away")
        return await ask(self, walk)

    monkeypatch.setattr(walking.Discovery, "_ask", ask_once)
    ended = cli("ls")
    assert (ended.status, 0 < len(cells(ended.out)) < 500) == (1, True)
    assert ended.err == f"pyredisson: incomplete: {server.host}:{server.port} (away)\n"


class TestTables:
    @pytest.mark.parametrize(
        ("name", "width", "columns", "holder"),
        [
            (LONG, None, COLUMNS, "web-3.example.com (pid 812)"),
            (LONG, 120, COLUMNS, "web-3.example.com (pid 812)"),
            (LONG, 90, COLUMNS, "web-3.example.com…  "),
            (LONG, 60, ("NAME", "HOLDER", "TTL"), "  web-3.exampl…  "),
            ("cron:nightly", 60, COLUMNS, "  web-3"),
        ],
    )
    def test_the_name_stays_whole(self, name: str, width: int | None, columns: tuple[str, ...], holder: str) -> None:
        """Columns are left out only if the names need their room."""
        lines = table(COLUMNS, [(name, *LINES[0][1:]), LINES[1]], OPTIONAL, width)
        assert tuple(lines[0].split()) == columns
        assert lines[1].startswith(f"{name}  ")
        assert holder in lines[1]
        assert lines[2].split()[0] == "web"
        assert width is None or max(map(len, lines)) <= width

    def test_a_name_that_is_longer_than_the_terminal(self) -> None:
        shown = {("abc", 3): "abc", ("abcdefgh", 5): "ab…gh", ("abcdefgh", 4): "ab…h", ("漢字漢字漢字", 7): "漢…字"}
        assert {(name, width): cut(name, width) for name, width in shown} == shown
        name = "cron:" + "x" * 50 + ":nightly"
        assert table(("NAME", "KIND"), [(name, "lock")], ("KIND",), 20) == ["NAME", "cron:xxxxx…x:nightly"]
        lines = table(("NAME", "KIND"), [("漢字漢字漢字", "lock"), ("web", "fair")], (), 40)
        assert lines == ["NAME          KIND", "漢字漢字漢字  lock", "web           fair"]

    def test_the_cost_of_a_row(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Of 10,000 rows each call counts. A clock would count what else the machine does."""
        events: list[str] = []
        sys.setprofile(lambda _frame, event, _argument: events.append(event))
        try:
            print_table(COLUMNS, LINES * 50, OPTIONAL, color=True)
        finally:
            sys.setprofile(None)
        assert capsys.readouterr().out.count(LONG) == 50
        assert len([event for event in events if event in ("call", "c_call")]) < 150 * 100


def sections(text: str) -> tuple[list[str], dict[str, list[list[str]]]]:
    """The first lines, and the tables by their first heading: the cells of their lines."""
    head, *tables = text.rstrip("\n").split("\n\n")
    return head.splitlines(), {lines[0][0]: lines[1:] for lines in map(table_of, tables)}


def test_a_lock(cli: Run, server: Server, redis: Any) -> None:
    with announced(server.url, redis, "cron:nightly") as lock:
        lock.lock()
        head, tables = sections(output(cli("inspect", "cron:nightly")))
        states = [cli("inspect", "cron:nightly", "--json").out, *cli("ls", "--json").out.splitlines()]
        raw_owner = redis.hkeys("cron:nightly")[0].decode()
    said = ["cron:nightly: lock (its holder has announced the kind)", f"server: {server.host}:{server.port}"]
    assert head[:2] == said
    [[who, levels, side, since, ttl, raw]] = tables["HOLDER"]
    assert (who, levels, side, since, raw) == ("web-3 (pid 812)", "2", "-", moment_of_announced(), raw_owner)
    assert ttl.endswith(" s")
    for state in map(json.loads, states):
        assert (state["name"], state["kind"], state["certain"], state["held"]) == ("cron:nightly", "lock", True, True)
        assert 0 < state["time_to_live"] <= 30
        holder = state["owners"][0]["holder"]
        assert (holder["host"], holder["pid"], holder["since"]) == ("web-3", 812, "2026-11-20T09:36:17.900000+00:00")
        assert holder["time_to_live"] == state["time_to_live"]
    assert len(states) == 2


def test_a_queue_and_other_kinds(cli: Run, client: pyredisson.Client, redis: Any) -> None:
    """The queue in its order, of this library's waiters and of Java's."""
    ours, java = f"{uuid.UUID(int=6)}:{2**32}", f"{JAVA}:31"
    redis.hset("orders", f"{JAVA}:30", 1)
    redis.rpush("redisson_lock_queue:{orders}", java, ours)
    redis.zadd("redisson_lock_timeout:{orders}", {java: 9 * 10**12})
    redis.hset("pyredisson_fair_waiters:{orders}", ours, 9 * 10**12)
    redis.zadd("pyredisson_fair_clients:{orders}", {ours.partition(":")[0]: 9 * 10**12})
    _, tables = sections(cli("inspect", "orders").out)
    first, second = tables["WAITER"]
    assert first[:4] == ["Redisson 00000000:31", "-", "1", "of Redisson"]
    assert (second[2:4], second[5]) == (["2", "alive"], ours)
    assert [line[3] for line in tables["KEY"]][:2] == ["queue", "scores of the queue"]
    redis.hset("report", mapping={"mode": "read", f"{JAVA}:1": 1, f"{JAVA}:2": 3})
    redis.pexpire("report", 7_300_000)
    redis.set(f"{{report}}:{JAVA}:2:rwlock_timeout:1", 1, px=7_300_000)
    first, second = sections(cli("inspect", "report").out)[1]["HOLDER"]
    assert first[:5] == ["Redisson 00000000:1", "1", "read", "-", "0.0 s"]
    assert second[:5] == ["Redisson 00000000:2", "3", "read", "-", "2.0 h"]
    db = client.get_permit_expirable_semaphore("db")
    db.try_set_permits(3)
    permit, other = sorted([db.acquire(), db.acquire()])
    announce(redis, client.id, {f"{permit} db": "permit"})
    head, tables = sections(cli("inspect", "db").out)
    assert {"permits: 3", "free: 1", "time to live: no end"} <= set(head)
    rows = [permit, "web-3 (pid 812)", moment_of_announced(), "no end"], [other, "-", "-", "no end"]
    assert sorted(tables["PERMIT"]) == [*rows]
    client.get_count_down_latch("done").try_set_count(5)
    client.get_semaphore("stock").try_set_permits(5)
    for name, kind, field in (("done", "latch", "count"), ("stock", "semaphore", "free")):
        head, _ = sections(cli("inspect", name).out)
        assert (head[0].startswith(f"{name}: {kind} ("), f"{field}: 5" in head) == (True, True)
    redis.set("number", 5)
    assert cli("inspect", "number") == (0, "number: a number: a semaphore or a latch, if it is one of ours\n", "")
    assert cli("inspect", "absent") == (0, "absent: there is no such key\n", "")
    head, _ = sections(cli("inspect", "number", "--as", "semaphore").out)
    assert (head[0], "free: 5" in head) == ("number: semaphore (the user says so)", True)
    # A name that is no text, and a lock that is only kept.
    redis.hset(b"\xff\x1b", f"{JAVA}:1:kept", 1)
    head, tables = sections(cli("inspect", "\udcff\x1b").out)
    assert head[0].startswith("\\xff\\x1b: lock (")
    [row] = tables["HOLDER"]
    assert (row[0], row[-1]) == ("Redisson 00000000:1", f"{JAVA}:1:kept (work done, only kept)")


def test_who_waits_and_a_deadlock(cli: Run, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlocks, "CONFIRMED_AFTER", 0.0)
    announce_deadlock(redis)
    listed = cells(cli("ls").out)
    assert [listed[name][-1] for name in ("orders", "stock")] == ["web-2 (pid 9), and 1 more", "web-1 (pid 7)"]
    head, tables = sections(cli("inspect", "orders").out)
    assert DEADLOCK in head
    [second, third] = tables["WAITER"]
    assert (second[0], third[0]) == ("web-2 (pid 9)", "web-3 (pid 812)")
    told = json.loads(cli("inspect", "stock", "--json").out)
    assert (told["deadlocks"], told["waiters"][0]["owner"]["holder"]["pid"]) == ([DEADLOCK], 7)
    ended = cli("doctor", "--json")
    found = {each["check"]: (each["level"], each["text"]) for each in map(json.loads, ended.out.splitlines())}
    assert (ended.status, found["deadlocks"]) == (INCOMPLETE, ("error", DEADLOCK))
    redis.delete("stock")
    assert json.loads(cli("inspect", "orders", "--json").out)["deadlocks"] == []


def test_names_are_completed(server: Server, redis: Any) -> None:
    """As a shell asks: by variables, in a process of its own."""
    for name in ("cron:a", "cron:b", "web", "cron:with a space"):
        redis.hset(name, f"{JAVA}:1", 1)
    asked = {"_PYREDISSON_COMPLETE": "bash_complete", "COMP_WORDS": "pyredisson inspect cron", "COMP_CWORD": "2"}
    assert run(env={**asked, "PYREDISSON_URL": server.url}) == (0, "plain,cron:a\nplain,cron:b\n", "")
    assert run(env={**asked, "PYREDISSON_URL": "redis://127.0.0.1:1"}) == (0, "\n", "")


class Screen(NamedTuple):
    """What the command has written to its terminal."""

    terminal: int
    process: subprocess.Popen[str]

    def until(self, text: str, without: str = "\0") -> None:
        """Waits until a frame that is written from now on contains one text, and not the other."""
        seen, end = b"", time.monotonic() + TIMEOUT
        # The last frame may not be complete.
        while not any(text.encode() in each and without.encode() not in each for each in seen.split(b"in use, ")[1:-1]):
            assert time.monotonic() < end, (text, seen[-2000:])
            if select.select([self.terminal], [], [], 0.1)[0]:
                seen += os.read(self.terminal, 65536)

    def end(self) -> tuple[int, bytes]:
        """Its status, and everything until the process ends. It would block if nobody read what it writes."""
        data = b""
        with suppress(OSError):  # the other end is closed
            while True:
                data += os.read(self.terminal, 65536)
        return self.process.wait(TIMEOUT), data


@contextmanager
def watching(url: str, *arguments: str) -> Iterator[Screen]:
    ours, its = pty.openpty()
    env = {"PYREDISSON_URL": url, "TERM": "xterm", "LINES": "20", "COLUMNS": "120"}
    process = begin("watch", "--interval", "0.1", *arguments, env=env, stdin=its, stdout=its, stderr=its)
    os.close(its)
    try:
        yield Screen(ours, process)
    finally:
        process.kill()
        process.wait(TIMEOUT)
        os.close(ours)


def test_it_follows_what_is_held_and_a_server_that_goes(own_server: Server) -> None:
    with watching(own_server.url, "o*", "--timeout", "1") as screen:
        with own_server.redis() as redis:
            redis.hset("orders", f"{JAVA}:31", 1)
            redis.hset("hidden", f"{JAVA}:31", 1)
            screen.until("orders", without="hidden")
            redis.hset("others", f"{JAVA}:31", 1)
            screen.until("others")
            redis.delete("orders")
            screen.until("others", without="orders")
        own_server.kill()
        # What was seen stays.
        screen.until("server away for ")
        own_server.start()
        with own_server.redis() as redis:
            redis.hset("owned", f"{JAVA}:31", 1)
        screen.until("owned", without="server away")
        screen.process.send_signal(signal.SIGINT)
        status, rest = screen.end()
        assert (status, b"Traceback" in rest) == (130, False)


def test_a_signal_that_ends_it_leaves_the_terminal_as_before(server: Server) -> None:
    with watching(server.url) as screen:
        screen.until("keys looked at")
        screen.process.send_signal(signal.SIGTERM)
        status, rest = screen.end()
        assert (status, b"Traceback" in rest, b"\x1b[?1049l" in rest) == (143, False, True)


def test_more_than_the_terminal_has_lines_and_no_terminal(server: Server, redis: Any) -> None:
    assert run("watch", "--url", server.url) == (2, "", "pyredisson: watch needs a terminal; 'pyredisson ls' doesn't\n")
    for number in range(40):
        redis.hset(f"lock-{number:02}", f"{JAVA}:31", 1)
    with watching(server.url) as screen:
        screen.until("lock-00", without="lock-39")
        os.write(screen.terminal, b"j" * 30)
        screen.until("lock-39", without="lock-00")
        os.write(screen.terminal, b"q")
        # The terminal is as before.
        status, rest = screen.end()
        assert (status, b"\x1b[?1049l" in rest) == (0, True)
