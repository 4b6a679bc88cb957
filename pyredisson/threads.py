"""The thread world: every coroutine of the logic runs to its end on the caller's own thread."""

from __future__ import annotations

import functools
import random
import threading
import time
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from pyredisson._core import Run
from pyredisson.logic.holds import Owner
from pyredisson.logic.shared import Shared
from pyredisson.misuse import warn_user
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


ON_AN_EVENT_LOOP = (
    "a client for threads is used on a thread that runs an event loop: its calls block the loop, and all tasks of the"
    " loop are one owner, so a lock doesn't exclude one of them from another. Use pyredisson.asyncio.connect() there,"
    " or asyncio.to_thread()"
)


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
    on_event_loop = False
    """Whether the user was warned of a client for threads on the thread of an event loop."""
    left_elsewhere = False
    """Whether the user was warned of a block that another thread left than the one that entered it."""

    def begin(self, shared: Shared) -> None:
        """Nobody is an owner yet."""
        self._shared = shared
        self.local = _Local()

    def current(self) -> Owner:
        """The calling thread's owner."""
        if _get_running_loop() is not None:
            self.warn_of_loop()
        return self.local.owner or self._adopt()

    def warn_of_loop(self) -> None:
        """On a thread whose event loop is running; once."""
        if not self.on_event_loop:
            self.on_event_loop = True
            warn_user(ON_AN_EVENT_LOOP)

    def _adopt(self) -> Owner:
        owner = self.local.owner = self._shared.new_owner()
        self.local.life = _Life(owner)
        return owner


class ThreadRuntime(Pool):
    """A `Runtime` over a pool of blocking connections."""

    clock = staticmethod(clock)
    blocking = True

    def __init__(self, node: Node, post: Callable[[bytes], None], size: int) -> None:
        super().__init__(node, size)
        self.post = post
        self.listener: Listener | None = None
        """Who waits for a message lends it a hand."""
        self.callers: Callers | None = None
        """Who is warned of waiting on the thread of an event loop."""
        self.scripts = node.scripts
        self.refused, self.served = node.refused, node.served
        self._asleep: dict[ThreadSignal, None] = {}

    @property
    def connected(self) -> bool:
        """Whether there is a connection that is not closed."""
        return bool(self._all)

    def drop(self) -> None:
        """Closes all connections, which nobody uses any more; on any thread, with no lock and no wait."""
        run(self.close)

    async def wait(self, signal: Signal, seconds: float) -> None:
        assert isinstance(signal, ThreadSignal)
        if self.callers is not None and _get_running_loop() is not None:
            self.callers.warn_of_loop()
        if self.listener is not None:
            self.listener.wait(signal, seconds)
        else:
            signal.wait(seconds)

    def spawn(self, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        start(operation, "pyredisson-beside")

    async def sleep(self, seconds: float) -> None:
        alarm = ThreadSignal()
        try:
            self._asleep[alarm] = None
            if not self._closed:
                alarm.wait(seconds)
        finally:
            self._asleep.pop(alarm, None)

    async def close(self) -> None:
        await super().close()
        for alarm in list(self._asleep):
            alarm.set()

    @property
    def calls_under_way(self) -> int:
        """How many calls have a connection, wait for one, or pause before they are sent again."""
        return self.in_use + len(self._asleep)

    def signal(self) -> ThreadSignal:
        return ThreadSignal()

    def jitter(self) -> float:
        return random.random()


def start(operation: Callable[[], Coroutine[Any, Any, None]], name: str) -> threading.Thread:
    """Runs an operation on a thread of its own, which ends with the process."""
    thread = threading.Thread(target=run, args=(operation,), name=name, daemon=True)
    begin(thread)
    return thread
