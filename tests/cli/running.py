"""Runs commands as a user does: `pyredisson run` while a test does something, and others with what is typed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

from tests.support.commands import TIMEOUT, Ended, clean_environment

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


class Running:
    """A `run` that goes on while the test does something."""

    def __init__(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyredisson", "run", *arguments],
            env=clean_environment(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Without the terminal of whoever runs the tests.
            start_new_session=True,
        )

    def line(self) -> str:
        """The next line of the command."""
        return cast(IO[str], self.process.stdout).readline().strip()

    def end(self) -> Ended:
        """Waits for the end."""
        out, err = self.process.communicate(timeout=TIMEOUT)
        return Ended(self.process.returncode, out, err)


def interrupted(event: Callable[[], object], *arguments: str) -> Ended:
    """A command that gets Ctrl-C after the event."""
    program = [sys.executable, "-m", "pyredisson", *arguments]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
    ) as process:
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
    ours, its = pty.openpty()
    program = [sys.executable, "-m", "pyredisson", *arguments]
    try:
        with subprocess.Popen(
            program, stdin=its, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
        ) as process:
            os.write(ours, answer)
            out, err = process.communicate(timeout=TIMEOUT)
    finally:
        os.close(ours)
        os.close(its)
    return Ended(process.returncode, out, err)
