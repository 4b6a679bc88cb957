"""`pyredisson ls`: what it lists is what the server has, and nothing of other programs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

import pyredisson
from pyredisson.cli.ls import COLUMNS, OPTIONAL
from pyredisson.cli.tables import cut, print_table, table
from pyredisson.inspection import discovery as walking
from pyredisson.testing import Proxy, Server
from tests.support.commands import TIMEOUT, Commands, clean_environment

from .objects import JAVA, add_foreign_keys, announced, moment_of_announced


def rows(text: str) -> list[list[str]]:
    """The lines of a table as cells."""
    return [[cell for cell in line.split("  ") if cell] for line in map(str.strip, text.splitlines())]


def cells(text: str) -> dict[str, list[str]]:
    """The lines of a table by their names."""
    head, *lines = [[cell.strip() for cell in row] for row in rows(text)]
    assert head == ["NAME", "KIND", "HOLDER", "SINCE", "TTL", "WAITERS"]
    assert [line[0] for line in lines] == sorted(line[0] for line in lines)
    return {line[0]: line[1:] for line in lines}


def test_the_table(command: Commands, server: Server, redis: Any) -> None:
    add_foreign_keys(redis)
    redis.hset("orders", f"{JAVA}:31", 1)
    # Shown as 60.0 min for the next 5 s.
    redis.pexpire("orders", 3_602_000)
    redis.rpush("redisson_lock_queue:{orders}", f"{JAVA}:32", f"{JAVA}:33")
    redis.hset("report", mapping={"mode": "read", f"{JAVA}:1": 1, f"{JAVA}:2": 1})
    redis.hset("stays", f"{JAVA}:31", 1)
    with announced(server.url, redis, "cron:nightly", "fair"), pyredisson.connect(server.url) as client:
        db = client.get_permit_expirable_semaphore("db")
        db.try_set_permits(10)
        db.acquire()
        client.get_semaphore("stock").try_set_permits(5)
        client.get_count_down_latch("done").try_set_count(3)
        ended = command("ls", "--url", server.url)
    assert (ended.status, ended.err) == (0, "")
    found = cells(ended.out)
    nightly = found.pop("cron:nightly")
    assert nightly[:3] == ["fair", "web-3 (pid 812)", moment_of_announced()]
    assert nightly[3].endswith(" s")
    assert nightly[4] == "-"
    assert found == {
        "db": ["permits", "1 of 10 in use", "-", "-", "-"],
        "done": ["latch", "3 to go", "-", "-", "-"],
        "orders": ["fair", "Redisson 00000000:31", "-", "60.0 min", "2"],
        "report": ["read-write", "2 readers", "-", "no lease", "-"],
        "stays": ["lock", "Redisson 00000000:31", "-", "no lease", "-"],
        "stock": ["semaphore", "5 free", "-", "-", "-"],
    }


def test_lines_of_json(command: Commands, server: Server, redis: Any) -> None:
    with announced(server.url, redis, "cron:nightly") as lock:
        ended = command("ls", "--json", "--url", server.url)
        [state] = map(json.loads, ended.out.splitlines())
        assert (state["name"], state["kind"], state["certain"], state["held"]) == ("cron:nightly", "lock", True, True)
        assert 0 < state["time_to_live"] <= 30
        [owner] = state["owners"]
        assert owner["holder"]["host"] == "web-3"
        assert owner["holder"]["since"] == "2026-11-20T09:36:17.900000+00:00"
        assert owner["holder"]["time_to_live"] == state["time_to_live"]
        assert lock.is_held()


def test_what_is_free_is_listed_on_request(command: Commands, server: Server) -> None:
    with pyredisson.connect(server.url) as client:
        with client.get_fenced_lock("billing"):
            pass
        ended = command("ls", "--url", server.url)
        assert ended == (0, "", f"pyredisson: nothing is held at {server.host}:{server.port}/0\n")
        assert cells(command("ls", "--all", "--url", server.url).out) == {"billing": ["fenced", "-", "-", "-", "-"]}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["cron:a", "cron:b", "web"]),
        (["cron:*"], ["cron:a", "cron:b"]),
        (["web"], ["web"]),
        (["--kind", "lock"], ["cron:a", "web"]),
        (["--kind", "read-write", "cron:*"], ["cron:b"]),
    ],
)
def test_patterns_and_kinds(
    command: Commands, server: Server, redis: Any, arguments: list[str], names: list[str]
) -> None:
    for name in ("cron:a", "web"):
        redis.hset(name, f"{JAVA}:1", 1)
    redis.hset("cron:b", mapping={"mode": "write", f"{JAVA}:1:write": 1})
    assert list(cells(command("ls", *arguments, "--url", server.url).out)) == names


def test_nothing_like_the_pattern(command: Commands, server: Server) -> None:
    ended = command("ls", "cron", "--url", server.url)
    assert ended == (0, "", f"pyredisson: nothing like 'cron' is held at {server.host}:{server.port}/0\n")


def test_names_cannot_control_the_terminal(command: Commands, server: Server, redis: Any) -> None:
    redis.hset("\x1b[2J", f"{JAVA}:1", 1)
    redis.hset(b"\xff", f"{JAVA}:1", 1)
    ended = command("ls", "--url", server.url)
    assert "\x1b" not in ended.out
    assert set(cells(ended.out)) == {"\\x1b[2J", "\\xff"}


def test_it_never_calls_keys(command: Commands, server: Server, redis: Any) -> None:
    """What a step may call is tested with the walk."""
    redis.hset("orders", f"{JAVA}:1", 1)
    redis.config_resetstat()
    command("ls", "--url", server.url)
    assert "cmdstat_keys" not in redis.info("commandstats")


def test_interrupted(server: Server, proxy: Proxy, redis: Any) -> None:
    """Ctrl-C ends the search. What it has found is listed."""
    redis.hset("orders", f"{JAVA}:1", 1)
    reply = proxy.hold_reply(b"DBSIZE")
    program = [sys.executable, "-m", "pyredisson", "ls", "--url", proxy.url]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
    ) as process:
        assert reply.held.wait(TIMEOUT)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "pyredisson: interrupted: there may be more"


def test_a_server_that_stops_answering(
    command: Commands, server: Server, proxy: Proxy, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found until then is listed, and the status says that something may be missing."""
    monkeypatch.setattr(walking, "KEYS_IN_A_STEP", 16)
    redis.hset("orders", f"{JAVA}:1", 1)
    for number in range(500):
        redis.set(f"counter:{number}", number)
    # The replies to the second step and its repeats are lost.
    step = walking.Discovery._advance
    steps = 0

    async def advance(self: Any, walk: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            proxy.drop_reply(b"DBSIZE", times=walking.MOST_TRIES)
        await step(self, walk)

    monkeypatch.setattr(walking.Discovery, "_advance", advance)
    ended = command("ls", "--url", proxy.url, "--timeout", "1")
    assert ended.status == 1
    assert ended.err.splitlines()[-1].startswith(f"pyredisson: incomplete: 127.0.0.1:{proxy.port} (")


LONG = "billing:invoices:export:customer-4711"
LINES = [(LONG, "lock", "web-3.example.com (pid 812)", "12:34:56", "29.9 s", "-"), ("web", "fair", "-", "-", "-", "2")]


class TestTables:
    @pytest.mark.parametrize(
        ("width", "columns", "holder"),
        [
            (None, COLUMNS, "web-3.example.com (pid 812)"),
            (120, COLUMNS, "web-3.example.com (pid 812)"),
            (90, COLUMNS, "web-3.example.com…  "),
            (60, ("NAME", "HOLDER", "TTL"), "  web-3.exampl…  "),
        ],
    )
    def test_the_name_stays_whole(self, width: int | None, columns: tuple[str, ...], holder: str) -> None:
        head, first, other = table(COLUMNS, LINES, OPTIONAL, width)
        assert tuple(head.split()) == columns
        assert first.startswith(f"{LONG}  ")
        assert holder in first
        assert other.split()[0] == "web"
        assert width is None or max(map(len, (head, first, other))) <= width

    def test_short_names_leave_room(self) -> None:
        """Columns are left out only if the names need their room."""
        lines = table(COLUMNS, [("cron:nightly", *LINES[0][1:])], OPTIONAL, 60)
        assert tuple(lines[0].split()) == ("NAME", "KIND", "HOLDER", "SINCE", "TTL", "WAITERS")
        assert max(map(len, lines)) <= 60

    def test_wide_characters(self) -> None:
        lines = table(("NAME", "KIND"), [("漢字漢字漢字", "lock"), ("web", "fair")], (), 40)
        assert lines == ["NAME          KIND", "漢字漢字漢字  lock", "web           fair"]

    @pytest.mark.parametrize("width", [40, 20])
    def test_a_name_that_is_longer_than_the_terminal(self, width: int) -> None:
        head, one = table(("NAME", "KIND"), [("cron:" + "x" * 50 + ":nightly", "lock")], ("KIND",), width)
        assert head == "NAME"
        assert (one[:6], one[-3:], len(one)) == ("cron:x", "tly", width)
        assert "…" in one

    def test_the_cost_of_a_row(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Of 10,000 rows each call counts. A clock would count what else the machine does."""
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            print_table(COLUMNS, LINES * 50, OPTIONAL, color=True)
        finally:
            sys.setprofile(None)
        assert capsys.readouterr().out.count(LONG) == 50
        assert calls < 150 * 100

    @pytest.mark.parametrize(
        ("name", "width", "shown"),
        [("abc", 3, "abc"), ("abcdefgh", 5, "ab…gh"), ("abcdefgh", 4, "ab…h"), ("漢字漢字漢字", 7, "漢…字")],
    )
    def test_a_long_name(self, name: str, width: int, shown: str) -> None:
        assert cut(name, width) == shown


def test_without_rights(command: Commands, server: Server, redis: Any) -> None:
    redis.execute_command("ACL", "SETUSER", "app", "reset", "on", ">x", "~*", "+@all", "-scan")
    ended = command("ls", "--url", f"redis://app:x@{server.host}:{server.port}")
    assert (ended.status, ended.out) == (77, "")
    assert "needed are +@read +eval +evalsha +time" in ended.err
    assert ended.err.count("\n") == 1
