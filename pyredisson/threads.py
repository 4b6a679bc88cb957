"""The thread world: every coroutine of the logic runs to its end on the caller's own thread."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from pyredisson._core import Run
from pyredisson.logic.holds import Owner
from pyredisson.logic.shared import Shared
from pyredisson.runtime import Signal
from pyredisson.signals import ThreadSignal
from pyredisson.thread_start import begin
from pyredisson.wire.blocking import Pool
from pyredisson.wire.listener import Listener
from pyredisson.wire.node import Node

P = ParamSpec("P")
T = TypeVar("T")

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts on while the machine is suspended, as the server's clock does."""


clock: Callable[[], float] = functools.partial(time.clock_gettime, CLOCK)
"""Seconds since some moment in the past, never set back. Not a function of ours: it is read for every call."""


def run(operation: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs an operation of the logic: in this world it blocks where others would suspend."""
    return Run(operation, *args, **kwargs).result


class _Local(threading.local):
    """Per thread: the owner that it is."""

    owner: Owner | None = None
    life: _Life | None = None


class _Life:
    """Ends with the thread, like all that is local to it."""

    __slots__ = ("_overlap",)

    def __init__(self, owner: Owner) -> None:
        self._overlap = owner.overlap

    def __del__(self) -> None:
        self._overlap.ended = True


class Callers:
    """Which owner the calling thread is; an owner's id is never given twice, unlike a thread's."""

    local: _Local
    left_elsewhere = False
    """Whether the user was warned of a block that another thread left than the one that entered it."""

    def begin(self, shared: Shared) -> None:
        """Nobody is an owner yet."""
        self._shared = shared
        self.local = _Local()

    def adopt(self) -> Owner:
        """The calling thread becomes an owner."""
        owner = self.local.owner = self._shared.new_owner()
        self.local.life = _Life(owner)
        return owner


class ThreadRuntime(Pool):
    """A `Runtime` over a pool of blocking connections."""

    clock = staticmethod(clock)

    def __init__(self, node: Node, post: Callable[[bytes], None], size: int) -> None:
        super().__init__(node, size)
        self.post = post
        self.listener: Listener | None = None
        """Who waits for a message lends it a hand."""
        self.scripts = node.scripts

    async def wait(self, signal: Signal, seconds: float) -> None:
        assert isinstance(signal, ThreadSignal)
        if self.listener is not None:
            self.listener.wait(signal, seconds)
        else:
            signal.wait(seconds)

    def spawn(self, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        start(operation, "pyredisson-beside")

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def signal(self) -> ThreadSignal:
        return ThreadSignal()

    def jitter(self) -> float:
        return random.random()


def start(operation: Callable[[], Coroutine[Any, Any, None]], name: str) -> threading.Thread:
    """Runs an operation on a thread of its own, which ends with the process."""
    thread = threading.Thread(target=run, args=(operation,), name=name, daemon=True)
    begin(thread)
    return thread
