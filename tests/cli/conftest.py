"""What commands are run on, and how: objects on a server, and processes as a user starts them."""

import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest

import pyredisson
from pyredisson.cli.tables import moment
from pyredisson.testing import Server
from tests.support.children import Commands, Ended, clean_environment, end_of, line, processes
from tests.support.inspecting import announce

Run = Callable[..., Ended]
"""`cli(...)` of a test."""
JAVA = f"{uuid.UUID(int=5)}"
FORKS = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
"""For `run` in the process of the tests: it forks before it has threads, but the tests have some."""
IN_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'pyredisson', *sys.argv[2:]])"
)


@contextmanager
def announced(url: str, redis: Any, name: str, kind: str = "lock") -> Iterator[Any]:
    """A lock that is held by a client which has announced it: on web-3, process 812."""
    with pyredisson.connect(url, announce=False) as client:
        lock = client.get_fair_lock(name) if kind == "fair" else client.get_lock(name)
        lock.lock()
        [field] = redis.hkeys(name)
        announce(redis, client.id, {f"{field.decode().partition(':')[2]} {name}": kind})
        yield lock


def moment_of_announced() -> str:
    """How a table shows when that hold began."""
    return moment(datetime.fromtimestamp(1_795_167_377.9, UTC))


def begin(*arguments: str, env: Mapping[str, str] = {}, **options: Any) -> subprocess.Popen[str]:
    program, pipes = [sys.executable, "-m", "pyredisson", *arguments], {"stdout": PIPE, "stderr": PIPE}
    return subprocess.Popen(program, text=True, env={**clean_environment(), **env}, **pipes | options)


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Two file descriptors: what controls a terminal, and the terminal."""
    pair = pty.openpty()
    try:
        yield pair
    finally:
        for each in pair:
            os.close(each)


def interrupted(event: Callable[[], object], *arguments: str) -> Ended:
    """A command that gets Ctrl-C after the event."""
    with begin(*arguments) as process:
        event()
        process.send_signal(signal.SIGINT)
        return end_of(process)


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def is_running(pid: int) -> bool:
    """Whether the process exists, and is no zombie that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def answered(answer: bytes, *arguments: str) -> Ended:
    """A command in a terminal, with what is typed there."""
    with terminal() as (ours, its), begin(*arguments, stdin=its) as process:
        os.write(ours, answer)
        return end_of(process)


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Runs a command in this process: `command("ls", "--url", url)`. What its child writes is captured, too."""
    return Commands(capfd, monkeypatch)


@pytest.fixture
def cli(command: Commands, server: Server) -> Callable[..., Ended]:
    """Runs a command in this process, on the server of the tests if it says no other: `cli("ls")`."""
    return lambda *arguments: command("--url", server.url, *arguments)


@pytest.fixture
def start(server: Server) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `pyredisson run job ARGUMENTS... -- python -c CODE` on the test's server.

    `begins`: the first line of the command, until which it waits. It is without the terminal of whoever runs the tests.
    """
    with processes(env=clean_environment(), stdin=DEVNULL, stdout=PIPE, stderr=PIPE) as start_process:

        def start_one(
            code: str, *arguments: str, url: str = server.url, begins: str = "runs", **options: Any
        ) -> subprocess.Popen[str]:
            command = ["run", "job", *([] if "--config" in arguments else ["--url", url]), *arguments, *python(code)]
            process = start_process(sys.executable, "-m", "pyredisson", *command, **options)
            assert not begins or line(process) == begins
            return process

        yield start_one


@pytest.fixture
def in_terminal() -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Starts `pyredisson run ARGUMENTS...` as a job of a terminal. Returns the process, and what controls the terminal.

    `stdin`: its input, if that isn't the terminal.
    """
    with terminal() as (controller, its), processes(env=clean_environment(), stdout=PIPE, stderr=PIPE) as start:
        program = (sys.executable, "-c", IN_TERMINAL, its, "run")
        yield lambda *arguments, stdin=its: (start(*program, *arguments, stdin=stdin, pass_fds=(its,)), controller)
