"""`pyredisson run`: a command under a lock, which it waits for or loses. Real processes, as a user starts them."""

import os
import re
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest
from redis import Redis

import pyredisson
from pyredisson._backends.runtime import clock
from pyredisson._protocol.scripts import script
from pyredisson.cli.run import Wanted, _held
from pyredisson.cli.supervision import Child, Signals, Stopped
from pyredisson.testing import Proxy, Server
from tests.support.backends import eventually, listeners
from tests.support.children import TIMEOUT, end_of, line
from tests.support.children import pyredisson as pyredisson_command

from .conftest import FORKS, Run, is_running, python

pytestmark = FORKS
Start = Callable[..., subprocess.Popen[str]]
SLEEPS = "import time; print('runs', flush=True); time.sleep(60)"
IGNORES_TERM = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('TERM', flush=True));"
    "print('runs', flush=True)\nwhile True: time.sleep(0.05)"
)
HAS_A_CHILD = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print('runs', child.pid, sep='\\n', flush=True); time.sleep(60)"
)
PRINTS_ENVIRONMENT = "import os; print({k: v for k, v in os.environ.items() if k.startswith('PYREDISSON_')})"
COUNTS_INT = (
    "import signal, sys, time\n"
    "count = []\n"
    "signal.signal(signal.SIGINT, lambda *_: count.append(1))\n"
    "signal.signal(signal.SIGALRM, lambda *_: (print('INT', len(count), flush=True), sys.exit(0)))\n"
    "print('runs', flush=True)\n"
    "while True:\n"
    "    time.sleep(0.01)\n"
    "    if count: signal.setitimer(signal.ITIMER_REAL, 0.2); time.sleep(60)\n"
)


@pytest.mark.parametrize(
    ("program", "status", "err"),
    [
        (python("pass"), 0, ""),
        (python("raise SystemExit(3)"), 3, ""),
        (python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), 137, ""),
        (["--", "/no/such/command"], 127, "pyredisson: /no/such/command: No such file or directory\n"),
        (["--", __file__], 126, f"pyredisson: {__file__}: Permission denied\n"),
    ],
)
def test_the_status(cli: Run, admin: Redis, program: list[str], status: int, err: str) -> None:
    assert (cli("run", "job", *program), admin.exists("job")) == ((status, "", err), 0)


def test_the_lock_is_not_acquired(cli: Run, client: pyredisson.Client) -> None:
    with client.get_lock("job"):
        for more, status in (([], 75), (["-E", "9"], 9), (["--quiet"], 75), (["--fair"], 75)):
            ended = cli("run", "job", "--no-wait", *more, *python("print('runs')"))
            assert (ended.status, ended.out) == (status, "")
            assert ("lock 'job' is held by" in ended.err) is ("--quiet" not in more)
        said = "pyredisson: 'job' is used as a lock; a semaphore needs a name of its own\n"
        assert cli("run", "job", "--semaphore", "2", *python("print('runs')")) == (2, "", said)


class TestCommand:
    def test_its_environment(self, cli: Run) -> None:
        tokens = []
        for _ in range(2):
            found = eval(cli("run", "job", *python(PRINTS_ENVIRONMENT)).out)
            assert found["PYREDISSON_LOCK"] == "job"
            assert found["PYREDISSON_TOKEN"] == found["PYREDISSON_FENCING_TOKEN"]
            tokens.append(int(found["PYREDISSON_FENCING_TOKEN"]))
        assert 0 < tokens[0] < tokens[1]
        assert cli("run", "job", "--fair", *python(PRINTS_ENVIRONMENT)).out == "{'PYREDISSON_LOCK': 'job'}\n"

    def test_its_input_and_output_and_that_the_lock_is_held(self, start: Start, admin: Redis) -> None:
        code = "import sys; print('runs', flush=True); print(input()); print('wrong', file=sys.stderr)"
        running = start(code, "--ttl", "300", "--at-most", "3600", stdin=subprocess.PIPE)
        assert admin.hlen("job") == 1
        assert 290_000 < admin.pttl("job") <= 300_000
        cast(IO[str], running.stdin).write("given\n")
        assert (end_of(running), admin.exists("job")) == ((0, "given\n", "wrong\n"), 0)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_a_signal_is_forwarded(self, start: Start, admin: Redis, number: signal.Signals) -> None:
        running = start("import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)\n" + SLEEPS)
        running.send_signal(number)
        assert (end_of(running), admin.exists("job")) == ((128 + number, "", ""), 0)

    def test_a_signal_or_the_release_ends_the_wait(self, start: Start, client: pyredisson.Client, admin: Redis) -> None:
        with client.get_lock("job"):
            first, second = (start("print('runs')", begins="") for _ in range(2))
            eventually(lambda: listeners(admin, "job") == 2, seconds=TIMEOUT)
            first.send_signal(signal.SIGTERM)
            assert end_of(first) == (128 + signal.SIGTERM, "", "")
        assert (end_of(second), admin.exists("job")) == ((0, "runs\n", ""), 0)

    def test_a_killed_run_ends_the_command(self, start: Start) -> None:
        running = start("import os, time; print('runs', os.getpid(), sep='\\n', flush=True); time.sleep(60)")
        pid = int(line(running))
        running.kill()
        eventually(lambda: not is_running(pid))

    def test_ctrl_c_in_a_terminal(self, in_terminal: Callable[..., Any], server: Server) -> None:
        """The terminal sends it to both; the command must get it once. Before, it reads from the terminal.

        Also if stdin is something else. In the background it would be stopped, and the lock renewed for ever.
        """
        code = f"print('asks', flush=True); print(open('/dev/tty').readline(), end='', flush=True)\n{COUNTS_INT}"
        process, controller = in_terminal("job", "--url", server.url, *python(code), stdin=subprocess.DEVNULL)
        assert process.stdout.readline() == "asks\n"
        os.write(controller, b"given\n")
        assert [process.stdout.readline() for _ in range(2)] == ["given\n", "runs\n"]
        os.write(controller, termios.tcgetattr(controller)[6][termios.VINTR])
        assert (process.stdout.readline(), process.wait(TIMEOUT)) == ("INT 1\n", 0)

    @pytest.mark.parametrize("begin", ["signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "os.closerange(0, 3)"])
    def test_how_it_was_started(self, server: Server, begin: str) -> None:
        """By a process that ignores SIGCHLD; or without input and output, as by `<&- >&- 2>&-`."""
        execute = "os.execv(sys.executable, [sys.executable, '-m', 'pyredisson', *sys.argv[1:]])"
        code = f"import os, signal, sys; {begin}; {execute}"
        arguments, command = ["run", "job", "--url", server.url], python("raise SystemExit(3)")
        assert pyredisson_command(*arguments, *command, code=code) == (3, "", "")
        with pyredisson.connect(server.url) as client, client.get_lock("job"):
            assert pyredisson_command(*arguments, "--no-wait", *command, code=code).status == 75

    def test_its_process_is_killed_before_it_begins(self) -> None:
        child = Child(["true"], own_group=True)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        child.start({})
        assert child.wait() == 137

    def test_a_stop_that_python_swallows(self) -> None:
        """As in a finalizer. The next signal stops the wait."""
        with Signals():
            for _ in range(2):
                with pytest.raises(Stopped):
                    signal.raise_signal(signal.SIGUSR1)


@pytest.mark.usefixtures("announced")
@pytest.mark.parametrize("kind", [[], ["--fair"], ["--semaphore", "1"]])
def test_at_least(cli: Run, admin: Redis, kind: list[str]) -> None:
    keeping = ["run", "job", "--no-wait", *kind, "--at-least", "3600"]
    # Another machine may have the command, so nothing is kept.
    assert cli(*keeping, "--", "/no/such/command").status == 127
    assert cli(*keeping, *python("pass")).status == 0
    ended = cli("run", "job", "--no-wait", *kind, *python("print('runs')"))
    assert (ended.status, ended.out) == (75, "")
    if "--semaphore" not in kind:
        assert [str(field).endswith(":kept'") for field in admin.hkeys("job")] == [True]
        assert 30_000 < int(str(admin.pttl("job"))) <= 3_600_000
        # Also when the first one has ended, and with it its client.
        who = rf"{re.escape(os.uname().nodename)} \(pid \d+\)"
        assert re.search(rf"'job' is kept for another [\d.]+ s after a run on {who}$", ended.err.strip())


class TestSemaphore:
    def test_so_many_at_a_time(self, start: Start, cli: Run, client: pyredisson.Client) -> None:
        first = start(SLEEPS, "--semaphore", "2")
        second = cli("run", "job", "--semaphore", "2", *python(PRINTS_ENVIRONMENT))
        assert (second.status, len(eval(second.out)["PYREDISSON_PERMIT"])) == (0, 32)
        said = "pyredisson: semaphore 'job' has 2 permits, not 3: 2 count\n"
        assert cli("run", "job", "--semaphore", "3", *python("pass")) == (0, "", said)
        semaphore = client.get_permit_expirable_semaphore("job")
        semaphore.acquire()
        assert cli("run", "job", "--semaphore", "2", "--no-wait", *python("print('runs')")).status == 75
        first.send_signal(signal.SIGTERM)
        assert (end_of(first).status, semaphore.available_permits()) == (128 + signal.SIGTERM, 1)

    def test_the_reply_comes_late(self, proxy: Proxy, server: Server, admin: Redis) -> None:
        """As after a pause of the process. The lease has begun on the server, so the command must end sooner."""
        reply = proxy.hold_reply(script("permit_acquire", with_shebang=server.version >= (7,)).sha)
        wanted = Wanted("job", None, 3600.0, 0.0, fair=False, semaphore=1, grace=10.0, conflict=75, quiet=False)

        def hold() -> float:
            with pyredisson.connect(proxy.url, timeout=TIMEOUT) as client, _held(client, wanted) as held:
                return held.ends

        with pyredisson.connect(server.url) as other, ThreadPoolExecutor() as threads:
            done = threads.submit(hold)
            assert reply.held.wait(TIMEOUT)
            [permit] = cast(list[bytes], admin.zrange("{job}:timeout", 0, -1))
            assert other.get_permit_expirable_semaphore("job").update_lease_time(permit.hex(), 600)
            reply.deliver()
            assert done.result(TIMEOUT) <= clock() + 600


@pytest.fixture
def short_lease(server: Server, tmp_path: Path) -> list[str]:
    """Options by which a lock that was removed is noticed within a second."""
    file = tmp_path / "redisson.yaml"
    file.write_text(f"lockWatchdogTimeout: 3000\nsingleServerConfig:\n  address: {server.url}\n")
    return ["--config", str(file)]


@pytest.mark.parametrize("code", [HAS_A_CHILD, IGNORES_TERM])
def test_the_command_is_stopped(start: Start, admin: Redis, short_lease: list[str], code: str) -> None:
    """By TERM, then by KILL, with what it has started."""
    running = start(code, "--grace", "3", *short_lease)
    child = int(line(running)) if code is HAS_A_CHILD else None
    admin.delete("job")
    ended = end_of(running)
    assert (ended.status, ended.out) == (74, "TERM\n" if code is IGNORES_TERM else "")
    assert ended.err.startswith("pyredisson: lock 'job' was lost (")
    assert ended.err.endswith("; stopping the command\n")
    assert not admin.exists("job")
    eventually(lambda: child is None or not is_running(child))


@pytest.mark.parametrize(
    ("limit", "options"), [*product(("--lease", "--at-most"), ([], ["--fair"])), ("--lease", ["--semaphore", "1"])]
)
def test_the_end_of_the_lease(start: Start, admin: Redis, options: list[str], limit: str) -> None:
    begun = time.monotonic()
    # On a busy machine Python is stopped before it prints anything.
    ended = end_of(start(SLEEPS, limit, "1", *options, begins=""))
    assert (ended.status, ended.err) == (74, f"pyredisson: the time of {limit} is over; stopping the command\n")
    assert time.monotonic() - begun >= 1
    # On the server it may end a moment later.
    eventually(lambda: options == ["--semaphore", "1"] or not admin.exists("job"))


@pytest.mark.parametrize("closed", ["stdout", "stderr", "nothing"])
def test_who_reads_output(start: Start, in_terminal: Any, admin: Redis, short_lease: list[str], closed: str) -> None:
    if closed == "stdout":
        code = "import sys, time; print('runs', file=sys.stderr, flush=True); time.sleep(60)"
        process = start(code, *short_lease, begins="", preexec_fn=lambda: os.close(1))
        assert cast(IO[str], process.stderr).readline() == "runs\n"
    elif closed == "stderr":
        process = start(SLEEPS, *short_lease)
        cast(IO[str], process.stderr).close()
    else:
        process, _ = in_terminal("job", *short_lease, *python(SLEEPS))
        assert line(process) == "runs"
    admin.delete("job")
    assert process.wait(TIMEOUT) == 74
    if closed == "stdout":
        err = cast(IO[str], process.stderr).read()
        assert (err.startswith("pyredisson: lock 'job' was lost ("), err.count("\n")) == (True, 1)


def test_a_run_that_was_stopped(start: Start, admin: Redis, short_lease: list[str]) -> None:
    """When it goes on, its lease has ended, and another process has the lock."""
    running = start(SLEEPS, *short_lease)
    running.send_signal(signal.SIGSTOP)
    eventually(lambda: not admin.exists("job"))
    admin.hset("job", "other:1", "1")
    running.send_signal(signal.SIGCONT)
    assert (end_of(running).status, admin.hkeys("job")) == (74, [b"other:1"])


def test_the_server_is_away_at_the_end(start: Start, own_server: Server) -> None:
    code = "print('runs', flush=True); input(); raise SystemExit(3)"
    running = start(code, "--timeout", "1", url=own_server.url, stdin=subprocess.PIPE)
    own_server.kill()
    cast(IO[str], running.stdin).write("\n")
    ended = end_of(running)
    assert (ended.status, "can't be released" in ended.err) == (3, True)


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
    given: Any = {"fair": False, "semaphore": None, "grace": 10.0, "conflict": 75, "quiet": False, **options}
    assert Wanted("job", wait, None, 0.0, **given).says_that_it_waits is says


@pytest.mark.parametrize("semaphore", [[], ["--semaphore", "1"]])
def test_a_refusal(cli: Run, client: pyredisson.Client, semaphore: list[str]) -> None:
    """It ends with what a person can use: no id of the owner that wanted the lock."""
    held: Any = client.get_lock("job")
    if semaphore:
        client.get_permit_expirable_semaphore("job").try_set_permits(1)
        held = client.get_permit_expirable_semaphore("job").permit()
    arguments = ["run", "job", *semaphore]
    with held:
        now = cli(*arguments, "--no-wait", *python("pass"))
        later = cli(*arguments, "--wait", "0.1", *python("pass"))
        both = cli(*arguments, "--wait", "0.1", "--verbose", *python("pass"))
    end = "no permit of semaphore 'job' is free" if semaphore else ", unless that is extended"
    assert now.err.endswith(f"{end}\n")
    assert later.err.endswith(f"{end}; waited 0.1 s\n")
    assert [line.rpartition("; ")[2] for line in both.err.splitlines()] == ["waiting", "waited 0.1 s"]
    assert semaphore or re.match("pyredisson: lock 'job' is held by .*, free in [0-9.]+ s at the latest, ", both.err)
    assert {now.status, later.status, both.status} == {75}
