"""The process of the command of `run`: it is forked before any thread exists, and begins when the lock is held."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""The exit statuses that shells use."""
PR_SET_PDEATHSIG = 1


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
        """Whether the process was told to run the command."""
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
        """Runs the command. Raises `OSError` if that can't be done; then the process has ended."""
        self._told = True
        # A broken pipe: a signal has ended the process, which its exit status says.
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._begin, "w", encoding="utf-8") as begin:
            json.dump({**environment}, begin)
        # The end without a byte: the command runs, and its copy of the pipe was closed by that.
        with os.fdopen(self._failure) as failure:
            number = failure.read()
        if number:
            self.wait()
            raise OSError(int(number), os.strerror(int(number)))

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

    def poll(self) -> int | None:
        """The exit status, 128 + n after signal n; None: the command runs."""
        if self.status is None:
            self._wait(os.WNOHANG)
        return self.status

    def wait(self) -> int:
        """Waits for the end of the process."""
        if self.status is None:
            self._wait(0)
        assert self.status is not None
        return self.status

    def _wait(self, options: int) -> None:
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            # It ended while SIGCHLD was ignored, as this process was started: the system has forgotten its status.
            self.status = NOT_EXECUTABLE
            return
        if pid:
            self.status = _as_shells_do(status)


def has_terminal() -> bool:
    """Whether a terminal controls this process, whatever its input and output are.

    Then a shell may control it as a job. A command in another process group would be a job in the background: it could
    not read from the terminal, and Ctrl-Z would stop this process but not the command.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True


def status_of(error: OSError) -> int:
    """The exit status after a command that couldn't be run."""
    return NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE


def _as_shells_do(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _run(command: Sequence[str], parent: int, begin: int, failure: int, *, own_group: bool) -> NoReturn:
    """In the new process: waits for the environment, and becomes the command. Never returns, whatever happens."""
    try:
        # While the lock is waited for, Ctrl-C in a terminal ends this process as well.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        if own_group:
            os.setpgid(0, 0)
        _die_with(parent)
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


def _die_with(parent: int) -> None:
    """Has the system send SIGTERM when the parent dies."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(0)
