"""`pyredisson run` that waits for its lock, and whose lock is lost: the command never works beside another holder."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest
from redis import Redis

import pyredisson
from pyredisson.cli.run import Wanted
from pyredisson.testing import Server
from tests.support.commands import TIMEOUT, Ended, clean_environment
from tests.support.waiting import eventually

from .running import ENDS_ON_TERM, HAS_A_CHILD, IGNORES_TERM, LEASE_OVER, SLEEPS, Running, is_running, python


@pytest.fixture
def short_lease(server: Server, tmp_path: Path) -> list[str]:
    """Options by which a lock that was removed is noticed within a second."""
    file = tmp_path / "redisson.yaml"
    file.write_text(f"lockWatchdogTimeout: 3000\nsingleServerConfig:\n  address: {server.url}\n")
    return ["--config", str(file)]


@pytest.mark.parametrize("code", [HAS_A_CHILD, ENDS_ON_TERM, IGNORES_TERM])
def test_the_command_is_stopped(start: Callable[..., Running], admin: Redis, short_lease: list[str], code: str) -> None:
    """By TERM, then by KILL, with what it has started."""
    running = start(code, "--grace", "3", *short_lease)
    assert running.line() == "runs"
    child = int(running.line()) if code is HAS_A_CHILD else None
    admin.delete("job")
    ended = running.end()
    assert (ended.status, ended.out) == (74, "TERM\n" if code is IGNORES_TERM else "")
    assert ended.err.startswith("pyredisson: lock 'job' was lost (")
    assert ended.err.endswith("; stopping the command\n")
    assert not admin.exists("job")
    eventually(lambda: child is None or not is_running(child))


@pytest.mark.parametrize("options", [[], ["--fair"], ["--semaphore", "1"]])
def test_the_end_of_the_lease(start: Callable[..., Running], admin: Redis, options: list[str]) -> None:
    begun = time.monotonic()
    ended = start(SLEEPS, "--lease", "1", *options).end()
    # On a busy machine Python is stopped before it prints anything.
    assert (ended.status, ended.err) == (74, LEASE_OVER)
    assert time.monotonic() - begun >= 1
    # On the server it may end a moment later.
    eventually(lambda: options == ["--semaphore", "1"] or not admin.exists("job"))


@pytest.mark.parametrize("stderr", ["closed", "a terminal"])
def test_whoever_reads_stderr(
    start: Callable[..., Running],
    in_terminal: Callable[..., Any],
    admin: Redis,
    short_lease: list[str],
    stderr: str,
) -> None:
    if stderr == "closed":
        process = start(SLEEPS, *short_lease).process
    else:
        process, _ = in_terminal("job", *short_lease, *python(SLEEPS))
    assert cast(IO[str], process.stdout).readline() == "runs\n"
    if stderr == "closed":
        cast(IO[str], process.stderr).close()
    admin.delete("job")
    assert process.wait(TIMEOUT) == 74


def test_stdout_is_closed(server: Server, admin: Redis, short_lease: list[str]) -> None:
    code = "import sys, time; print('runs', file=sys.stderr, flush=True); time.sleep(60)"
    arguments = ["-m", "pyredisson", "run", "job", *short_lease, *python(code)]
    program = ["sh", "-c", 'exec "$0" "$@" >&-', sys.executable, *arguments]
    with subprocess.Popen(
        program, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=clean_environment()
    ) as process:
        assert cast(IO[str], process.stderr).readline() == "runs\n"
        admin.delete("job")
        _, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, err.count("\n")) == (74, 1)
    assert err.startswith("pyredisson: lock 'job' was lost (")


def test_a_run_that_was_stopped(start: Callable[..., Running], admin: Redis, short_lease: list[str]) -> None:
    """When it goes on, its lease has ended, and another process has the lock."""
    running = start(SLEEPS, *short_lease)
    assert running.line() == "runs"
    running.process.send_signal(signal.SIGSTOP)
    eventually(lambda: not admin.exists("job"))
    admin.hset("job", "other:1", "1")
    running.process.send_signal(signal.SIGCONT)
    assert running.end().status == 74
    assert admin.hkeys("job") == [b"other:1"]


def test_the_server_is_away_at_the_end(start: Callable[..., Running], own_server: Server) -> None:
    code = "print('runs', flush=True); input(); raise SystemExit(3)"
    running = start(code, "--timeout", "1", url=own_server.url, stdin=subprocess.PIPE)
    assert running.line() == "runs"
    own_server.kill()
    cast(IO[str], running.process.stdin).write("\n")
    ended = running.end()
    assert ended.status == 3
    assert "can't be released" in ended.err


WAITS = re.compile(r"pyredisson: lock 'job' is held by .*, free in [\d.]+ s at the latest, .*; waiting")


def test_it_says_for_whom_it_waits(server: Server, admin: Redis) -> None:
    ours, its = pty.openpty()
    try:
        program = [sys.executable, "-m", "pyredisson", "run", "job", "--url", server.url, *python("pass")]
        with pyredisson.connect(server.url) as client, client.get_lock("job") as lock:
            process = subprocess.Popen(program, stderr=its, env=clean_environment(), start_new_session=True)
            eventually(lambda: admin.pubsub_numsub("redisson_lock__channel:{job}")[0][1], seconds=TIMEOUT)
            assert lock.is_held()
        assert process.wait(TIMEOUT) == 0
        os.write(its, b"\n")
        said = os.read(ours, 65536).decode().strip()
        assert WAITS.fullmatch(said), said
    finally:
        os.close(ours)
        os.close(its)


@pytest.mark.parametrize(
    ("wait", "options", "terminal", "says"),
    [
        (None, {}, True, True),
        (60.0, {}, True, True),
        (0.0, {}, True, False),
        (None, {"quiet": True}, True, False),
        (None, {}, False, False),
        (None, {"verbose": True}, False, True),
    ],
)
def test_who_is_told_for_whom_it_waits(
    monkeypatch: pytest.MonkeyPatch, wait: float | None, options: dict[str, bool], terminal: bool, says: bool
) -> None:
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: terminal))
    given = {"fair": False, "semaphore": None, "grace": 10.0, "conflict": 75, "quiet": False, **options}
    wanted: Any = Wanted
    assert wanted("job", wait, None, 0.0, **given).says_that_it_waits is says


@pytest.mark.parametrize("semaphore", [[], ["--semaphore", "1"]])
def test_a_refusal(run: Callable[..., Ended], server: Server, semaphore: list[str]) -> None:
    """It ends with what a person can use: no id of the owner that wanted the lock."""
    with pyredisson.connect(server.url) as client:
        held: Any = client.get_lock("job")
        if semaphore:
            held = client.get_permit_expirable_semaphore("job").permit()
            client.get_permit_expirable_semaphore("job").try_set_permits(1)
        with held:
            now, later = (run("job", *wait, *semaphore, *python("pass")) for wait in (["--no-wait"], ["--wait", "0.1"]))
            both = run("job", "--verbose", "--wait", "0.1", *semaphore, *python("pass"))
    end = "no permit of semaphore 'job' is free" if semaphore else ", unless that is extended"
    assert now.err.endswith(f"{end}\n")
    assert later.err.endswith(f"{end}; waited 0.1 s\n")
    assert [line.rpartition("; ")[2] for line in both.err.splitlines()] == ["waiting", "waited 0.1 s"]
    assert {now.status, later.status, both.status} == {75}
