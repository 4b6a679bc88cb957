"""`pyredisson run` whose lock is lost: the command never works beside another holder."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import pytest
from redis import Redis

from pyredisson.testing import Server
from tests.support.commands import TIMEOUT, clean_environment
from tests.support.waiting import eventually

from .running import ENDS_ON_TERM, HAS_A_CHILD, IGNORES_TERM, LEASE_OVER, SLEEPS, Running, is_running, python


@pytest.fixture
def short_lease(server: Server, tmp_path: Path) -> list[str]:
    """Options by which a lock that was removed is noticed within a second."""
    file = tmp_path / "redisson.yaml"
    file.write_text(f"lockWatchdogTimeout: 3000\nsingleServerConfig:\n  address: {server.url}\n")
    return ["--config", str(file)]


@pytest.mark.parametrize("code", [SLEEPS, ENDS_ON_TERM])
def test_the_command_is_stopped(start: Callable[..., Running], admin: Redis, short_lease: list[str], code: str) -> None:
    running = start(code, *short_lease)
    assert running.line() == "runs"
    admin.delete("job")
    ended = running.end()
    assert ended.status == 74
    assert ended.err.startswith("pyredisson: lock 'job' was lost (")
    assert ended.err.endswith("; stopping the command\n")
    assert not admin.exists("job")


def test_a_command_that_ignores_term_is_killed(
    start: Callable[..., Running], admin: Redis, short_lease: list[str]
) -> None:
    running = start(IGNORES_TERM, "--grace", "3", *short_lease)
    assert running.line() == "runs"
    admin.delete("job")
    ended = running.end()
    assert (ended.status, ended.out) == (74, "TERM\n")


def test_what_the_command_has_started_is_stopped(
    start: Callable[..., Running], admin: Redis, short_lease: list[str]
) -> None:
    running = start(HAS_A_CHILD, *short_lease)
    pid = int(running.line().split()[1])
    admin.delete("job")
    assert running.end().status == 74
    eventually(lambda: not is_running(pid))


@pytest.mark.parametrize("options", [[], ["--fair"]])
def test_the_end_of_the_lease(start: Callable[..., Running], admin: Redis, options: list[str]) -> None:
    begun = time.monotonic()
    ended = start(SLEEPS, "--lease", "1", *options).end()
    # On a busy machine Python is stopped before it prints anything.
    assert (ended.status, ended.err) == (74, LEASE_OVER)
    assert time.monotonic() - begun >= 1
    # On the server it may end a moment later.
    eventually(lambda: not admin.exists("job"))


def test_nobody_reads_stderr(start: Callable[..., Running], admin: Redis, short_lease: list[str]) -> None:
    running = start(SLEEPS, *short_lease)
    assert running.line() == "runs"
    cast(IO[str], running.process.stderr).close()
    admin.delete("job")
    assert running.end().status == 74


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
    assert process.returncode == 74
    assert err.startswith("pyredisson: lock 'job' was lost (")
    assert err.count("\n") == 1


def test_in_a_terminal(in_terminal: Callable[..., Any], admin: Redis, short_lease: list[str]) -> None:
    process, _ = in_terminal("job", *short_lease, *python(SLEEPS))
    assert process.stdout.readline() == "runs\n"
    admin.delete("job")
    assert process.wait(TIMEOUT) == 74


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
