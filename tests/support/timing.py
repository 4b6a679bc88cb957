"""The parts of a test that depend on time, and whether the machine stood still during them."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Watcher = subprocess.Popen[str]
"""The process that notices standstills."""

Stretch = tuple[float, float]
"""The begin and the end of a period."""


class Timed:
    """The parts of one test that depend on time: each `with timed:` block, and everything after `begin`."""

    def __init__(self) -> None:
        self._blocks: list[Stretch] = []
        self._open: list[float] = []
        self._begun = math.inf

    def begin(self) -> None:
        """Everything from now on depends on time."""
        self._begun = min(self._begun, time.monotonic())

    def __enter__(self) -> None:
        self._open.append(time.monotonic())

    def __exit__(self, *_: object) -> None:
        self._blocks.append((self._open.pop(), time.monotonic()))

    def stretches(self, since: float) -> list[Stretch]:
        """All these periods so far, without the time before `since`."""
        found = [*self._blocks, (self._begun, time.monotonic())]
        return [(max(begin, since), end) for begin, end in found if end > max(begin, since)]


def time_from(kind: Any, begin: Callable[[], None]) -> None:
    """Makes every new object of class `kind` call `begin`."""
    make = kind.__init__

    @functools.wraps(make)
    def made(self: object, *args: object, **kwargs: object) -> None:
        begin()
        make(self, *args, **kwargs)

    kind.__init__ = made


def start_watcher() -> Watcher:
    """Starts the process that notices standstills."""
    program = Path(__file__).with_name("standstill.py")
    watcher = subprocess.Popen(
        [sys.executable, "-I", str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that Ctrl-C does not end it
    )
    longest_standstill(watcher, [])  # its answer shows that it has begun to watch
    return watcher


def longest_standstill(watcher: Watcher, stretches: Sequence[Stretch]) -> float:
    """The length in seconds of the longest standstill that overlaps one of these periods; 0: there was none."""
    assert watcher.stdin is not None
    assert watcher.stdout is not None
    watcher.stdin.write(" ".join(str(moment) for stretch in stretches for moment in stretch) + "\n")
    watcher.stdin.flush()
    return float(watcher.stdout.readline())
