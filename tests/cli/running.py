"""What commands are run on, and how: objects on a server, and processes as a user starts them."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast

import pyredisson
from pyredisson.cli.tables import moment
from tests.support.commands import TIMEOUT, Ended, clean_environment
from tests.support.inspecting import FOREIGN, announce

Run = Callable[..., Ended]
"""`cli(...)` of a test."""
JAVA = f"{uuid.UUID(int=5)}"
SINCE = 1_795_167_377_900
"""When the hold of `announced` began, ms."""


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
    return moment(datetime.fromtimestamp(SINCE / 1000, UTC))


def add_foreign_keys(redis: Any) -> None:
    """Keys of other programs, which no command may show."""
    for each in FOREIGN.values():
        redis.execute_command(*each)


SLEEPS = "import time; print('runs', flush=True); time.sleep(60)"
IGNORES_TERM = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('TERM', flush=True));"
    "print('runs', flush=True)\nwhile True: time.sleep(60)"
)
ENDS_ON_TERM = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5));"
    "print('runs', flush=True); time.sleep(60)"
)
HAS_A_CHILD = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print('runs', child.pid, sep='\\n', flush=True); time.sleep(60)"
)
LEASE_OVER = "pyredisson: the time of --lease is over; stopping the command\n"
IN_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "os.setsid(); fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'pyredisson', *sys.argv[2:]])"
)


def begin(*arguments: str, code: str | None = None, **options: Any) -> subprocess.Popen[str]:
    """Starts a command. `code`: instead of `-m pyredisson`."""
    program = [sys.executable, *(["-m", "pyredisson"] if code is None else ["-c", code]), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(program, text=True, env=clean_environment(), **pipes | options)


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Two file descriptors: what controls a terminal, and the terminal."""
    pair = pty.openpty()
    try:
        yield pair
    finally:
        for each in pair:
            os.close(each)


class Running:
    """A `run` that goes on while the test does something."""

    def __init__(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> None:
        # Without the terminal of whoever runs the tests.
        self.process = begin("run", *arguments, stdin=stdin, start_new_session=True)

    def line(self) -> str:
        """The next line of the command."""
        return cast(IO[str], self.process.stdout).readline().strip()

    def end(self) -> Ended:
        """Waits for the end."""
        out, err = self.process.communicate(timeout=TIMEOUT)
        return Ended(self.process.returncode, out, err)


def interrupted(event: Callable[[], object], *arguments: str) -> Ended:
    """A command that gets Ctrl-C after the event."""
    with begin(*arguments) as process:
        event()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
    return Ended(process.returncode, out, err)


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def is_running(pid: int) -> bool:
    """Whether the process exists, and is no zombie that nobody waits for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def answered(answer: bytes, *arguments: str) -> Ended:
    """A command in a terminal, with what is typed there."""
    with terminal() as (ours, its), begin(*arguments, stdin=its) as process:
        os.write(ours, answer)
        out, err = process.communicate(timeout=TIMEOUT)
    return Ended(process.returncode, out, err)
