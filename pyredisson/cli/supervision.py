"""Waiting for the end of a command: signals are forwarded, and it is stopped when its lock is lost."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

from pyredisson._backends.clock import clock
from pyredisson.cli.child import Child
from pyredisson.logic.holds import LOST, Hold

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
OF_THE_TERMINAL = {signal.SIGINT, signal.SIGQUIT}
"""A terminal sends these to the whole group of processes."""
GROUP_POLL = 0.05
"""Seconds between two looks whether processes are left that the command has started."""


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    """The end of a command."""

    status: int
    lost: bool
    """Whether the lock was lost before."""


def supervise(
    child: Child, signals: Signals, hold: Hold | None, ends: float, grace: float, on_lost: Callable[[], None]
) -> Ended:
    """Returns when the command has ended. `ends`: when to take the lock as lost, on the clock of leases."""
    if hold is not None:
        hold.listen(lambda _: signals.wake())
    lost, kill_at = False, None
    while True:
        ended = child.poll() is not None
        if not lost and ((hold is not None and hold.state is LOST) or clock() >= ends):
            lost = True
            child.send(signal.SIGTERM)
            child.send(signal.SIGCONT)
            kill_at = time.monotonic() + grace
            # At last: nothing that goes wrong in it keeps the command running.
            on_lost()
        # What the command has started may need the grace as well.
        if ended and not (kill_at is not None and child.own_group and child.send(0)):
            assert child.status is not None
            return Ended(child.status, lost)
        if kill_at is not None and time.monotonic() >= kill_at:
            child.send(signal.SIGKILL)
            kill_at = None
        select.select([signals.woken], [], [], _timeout(ended, kill_at, None if lost else ends))
        for number in signals.taken():
            if number in FORWARDED and (child.own_group or number not in OF_THE_TERMINAL):
                child.send(number)


def _timeout(ended: bool, kill_at: float | None, ends: float | None) -> float | None:
    """Seconds until something is to be done without a signal; None: nothing."""
    limits = [GROUP_POLL] if ended else []
    if kill_at is not None:
        limits.append(kill_at - time.monotonic())
    if ends is not None:
        limits.append(ends - clock())
    limit = min(limits, default=None)
    # select takes no infinite timeout, and a suspended machine must not make it late by more.
    return None if limit is None else max(0.0, min(limit, 60.0))
