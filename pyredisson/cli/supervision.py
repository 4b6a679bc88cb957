"""The process of the command of `run`, and waiting for its end."""

import contextlib
import ctypes
import errno
import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Self

from pyredisson._backends.runtime import clock
from pyredisson.logic.holds import LOST, Hold

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""The exit statuses that shells use."""
PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
OF_THE_TERMINAL = {signal.SIGINT, signal.SIGQUIT}
"""A terminal sends these to the whole group of processes."""
GROUP_POLL = 0.05
"""Seconds between two looks whether processes are left that the command has started."""


class NotStarted(OSError):
    """The command can't be executed."""

    @property
    def status(self) -> int:
        return NOT_FOUND if self.errno == errno.ENOENT else NOT_EXECUTABLE


class Child:
    """A process that waits until it is told to run its command.

    A fork beside other threads may inherit a mutex that is locked for ever. So it is made at first, before the client,
    and so before any thread. If `run` dies while it waits, it ends. If `run` is killed later, the command gets SIGTERM
    (on Linux, unless it is a setuid program).
    """

    def __init__(self, command: Sequence[str], *, own_group: bool) -> None:
        """`own_group`: signals are sent to a process group of its own."""
        self.own_group = own_group
        self.status: int | None = None
        """The exit status, as a shell says it; None: it has not ended."""
        self._told = False
        begin, self._begin = os.pipe()
        self._failure, failure = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._begin)
            os.close(self._failure)
            _run(command, parent, begin, failure, own_group=own_group)
        os.close(begin)
        os.close(failure)

    def start(self, environment: Mapping[str, str]) -> None:
        """Runs the command. Raises `NotStarted` if that can't be done; then the process has ended."""
        self._told = True
        # A broken pipe: a signal has ended the process, which its exit status says.
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._begin, "w", encoding="utf-8") as begin:
            json.dump({**environment}, begin)
        # The end without a byte: the command runs, and its copy of the pipe was closed by that.
        with os.fdopen(self._failure) as failure:
            number = failure.read()
        if number:
            self.wait()
            raise NotStarted(int(number), os.strerror(int(number)))

    def cancel(self) -> None:
        """Ends the process, unless it was told to run the command."""
        if self._told:
            return
        os.close(self._begin)
        os.close(self._failure)
        self.wait()

    def send(self, number: int) -> bool:
        """Sends a signal to the command, and to the processes that it has started. False: none of them is left."""
        try:
            if self.own_group:
                os.killpg(self.pid, number)
            elif self.status is None:
                os.kill(self.pid, number)
            else:
                return False
        except ProcessLookupError:
            return False
        except PermissionError:
            # A setuid program, or (on macOS) only processes that have ended.
            return self.status is None
        return True

    def wait(self, options: int = 0) -> int | None:
        """The exit status, 128 + n after signal n. None: with the option WNOHANG, while the command runs."""
        if self.status is not None:
            return self.status
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            # It ended while SIGCHLD was ignored, as this process was started: the system has forgotten its status.
            self.status = NOT_EXECUTABLE
            return self.status
        if pid:
            code = os.waitstatus_to_exitcode(status)
            self.status = code if code >= 0 else 128 - code
        return self.status


def has_terminal() -> bool:
    """Whether a terminal controls this process, whatever its input and output are.

    Then a shell may control it as a job. A command in another process group would be a job in the background: it could
    not read from the terminal, and Ctrl-Z would stop this process but not the command.
    """
    with contextlib.suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR))
        return True
    return False


def _run(command: Sequence[str], parent: int, begin: int, failure: int, *, own_group: bool) -> NoReturn:
    """In the new process: waits for the environment, and becomes the command. Never returns, whatever happens."""
    try:
        # While the lock is waited for, Ctrl-C in a terminal ends this process as well.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        if own_group:
            os.setpgid(0, 0)
        if sys.platform == "linux":
            # The system sends SIGTERM when the parent dies.
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(0)
        with os.fdopen(begin, encoding="utf-8") as given:
            text = given.read()
        if not text:
            # The lock was not acquired, or the other process was killed.
            os._exit(0)
        # Python ignores these two; the command should not.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvpe(command[0], [*command], json.loads(text))
        except OSError as error:
            os.write(failure, str(error.errno).encode())
    except BaseException as error:  # noqa: BLE001 (nothing may go on in this copy of the process)
        with contextlib.suppress(BaseException):
            os.write(failure, str(getattr(error, "errno", None) or errno.EINVAL).encode())
    os._exit(NOT_EXECUTABLE)


# --- Waiting for its end


class Stopped(BaseException):
    """A signal came while the lock was waited for."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Takes the signals of this process: before the command runs they end the wait, then they are forwarded."""

    def __init__(self) -> None:
        self.raising = True
        """Whether a signal raises `Stopped`. Whoever catches it sets this to False. Until then each signal raises it:
        Python swallows what is raised in a finalizer, and an endless wait must still be ended by the next signal."""
        self._before: dict[int, Any] = {}
        self.woken, self._wake = os.pipe()
        os.set_blocking(self.woken, False)
        os.set_blocking(self._wake, False)

    def __enter__(self) -> Self:
        self._wakeup_before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (*FORWARDED, signal.SIGCHLD):
            before = signal.getsignal(number)
            # An ignored signal stays ignored, as under nohup.
            if before is not signal.SIG_IGN or number == signal.SIGCHLD:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self.raising = False
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self.woken)
        os.close(self._wake)

    def wake(self) -> None:
        """Ends a wait on `woken`. Any thread."""
        with contextlib.suppress(OSError):
            os.write(self._wake, b"\0")

    def taken(self) -> list[int]:
        """The numbers of the signals that came since the last call."""
        with contextlib.suppress(BlockingIOError):
            return [number for number in os.read(self.woken, 4096) if number]
        return []

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.raising and number != signal.SIGCHLD:
            raise Stopped(number)


class Ended(NamedTuple):
    status: int
    lost: bool


def supervise(
    child: Child, signals: Signals, hold: Hold | None, ends: float, grace: float, on_lost: Callable[[], None]
) -> Ended:
    """Returns when the command has ended. `ends`: when to take the lock as lost, on the clock of leases."""
    if hold is not None:
        hold.listen(lambda _: signals.wake())
    # `kill_at`: when what is left of the command gets KILL.
    lost, kill_at = False, math.inf
    while True:
        status = child.wait(os.WNOHANG)
        if not lost and ((hold is not None and hold.state is LOST) or clock() >= ends):
            lost = True
            child.send(signal.SIGTERM)
            child.send(signal.SIGCONT)
            kill_at = time.monotonic() + grace
            # At last: nothing that goes wrong in it keeps the command running.
            on_lost()
        # What the command has started may need the grace as well.
        if status is not None and not (kill_at < math.inf and child.own_group and child.send(0)):
            return Ended(status, lost)
        if time.monotonic() >= kill_at:
            child.send(signal.SIGKILL)
            kill_at = math.inf
        due = min(kill_at - time.monotonic(), (math.inf if lost else ends) - clock())
        # select takes no infinite timeout, and a suspended machine must not make it late by more.
        longest = 60.0 if status is None else GROUP_POLL
        select.select([signals.woken], [], [], max(0.0, min(due, longest)))
        for number in signals.taken():
            if number in FORWARDED and (child.own_group or number not in OF_THE_TERMINAL):
                child.send(number)
