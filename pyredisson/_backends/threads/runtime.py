"""The runtime of the threads backend: every coroutine of the logic runs to its end on the caller's own thread."""

from __future__ import annotations

from abc import abstractmethod
from asyncio import _get_running_loop
from collections.abc import Callable
from typing import Protocol

from pyredisson._backends.runtime import BackendRuntime, DirectRuntime
from pyredisson._backends.threads.callers import Callers
from pyredisson._backends.threads.operations import run, start
from pyredisson._backends.threads.pool import Pool
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._protocol.node import Node
from pyredisson.logic.ports import Operation, Wakeup


class WaitingListener(Protocol):
    """What hears the messages for waiting threads."""

    def wait(self, wakeup: ThreadWakeup, seconds: float) -> None:
        """Waits until the wakeup is set or the time is over, and may read messages meanwhile."""


class ThreadBackend(BackendRuntime):
    """The part of a `Runtime` for threads that doesn't depend on the number of servers."""

    blocking = True

    listener: WaitingListener | None = None
    """A thread that waits for a message may read it for the listener."""
    callers: Callers | None = None
    """Warns a thread that runs an event loop, when it waits."""

    @property
    @abstractmethod
    def calls_in_flight(self) -> int:
        """The number of calls that use a connection, wait for one, or pause before they are sent again."""

    @abstractmethod
    def abort_calls(self) -> None:
        """Ends the calls that wait for a reply: each finds its connection closed."""

    @abstractmethod
    async def close(self) -> None: ...

    def wakeup(self) -> ThreadWakeup:
        return ThreadWakeup()

    async def wait(self, wakeup: Wakeup, seconds: float) -> None:
        assert isinstance(wakeup, ThreadWakeup)
        if self.callers is not None and _get_running_loop() is not None:
            self.callers.warn_of_loop()
        if self.listener is not None:
            self.listener.wait(wakeup, seconds)
        else:
            wakeup.wait(seconds)

    def spawn(self, operation: Operation) -> None:
        start(operation, "pyredisson-background")

    def spawner(self) -> Callable[[Operation], None]:
        return self.spawn

    def drop(self) -> None:
        """As `close`. It can be called on any thread, acquires no mutex and doesn't wait."""
        run(self.close)


class ThreadRuntime(DirectRuntime, ThreadBackend):
    """A `Runtime` over a pool of blocking connections."""

    def __init__(self, node: Node, post: Callable[[bytes], None], size: int) -> None:
        self.pool = Pool(node, size)
        super().__init__(node, self.pool)
        self.post = post

    @property
    def calls_in_flight(self) -> int:
        return self.pool.calls_in_flight + len(self._pauses)

    def abort_calls(self) -> None:
        self.pool.abort_calls()

    def is_open(self) -> bool:
        return self.pool.is_open()

    async def close(self) -> None:
        self.pool.close()
        self._end_pauses()
