"""The runtimes of the threads backend: every coroutine of the logic runs to its end on the caller's own thread."""

from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

from pyredisson._backends.routed import Keeper, RoutedRuntime, Wake
from pyredisson._backends.runtime import BackendRuntime, DirectRuntime, start_thread
from pyredisson._backends.threads.callers import Callers
from pyredisson._backends.threads.pool import Pool
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import Run
from pyredisson._protocol.node import Node
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson.logic.ports import Operation, Wakeup

P = ParamSpec("P")
T = TypeVar("T")


def run(operation: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs an operation of the logic on the calling thread. It blocks where asyncio would suspend it."""
    return Run(operation, *args, **kwargs).result


class ThreadBackend(BackendRuntime):
    """The part of a `Runtime` for threads that doesn't depend on the number of servers."""

    blocking = True

    wait_for_message: Callable[[ThreadWakeup, float], None] | None = None
    """Waits until the wakeup is set or the time is over, and may read messages for the listener meanwhile."""
    callers: Callers | None = None
    """Warns a thread that runs an event loop, when it waits."""

    def limit_timeout(self, seconds: float) -> None:
        for pool in self._all_connections():
            pool.limit_timeout(seconds)

    def close_idle(self) -> None:
        """Closes the connections that no call uses."""
        for pool in self._all_connections():
            pool.close_idle()

    @property
    def calls_in_flight(self) -> int:
        """The number of calls that use a connection, wait for one, or pause before they are sent again."""
        in_use: int = sum(pool.calls_in_flight for pool in self._all_connections())
        return in_use + len(self._pauses)

    def abort_calls(self) -> None:
        for pool in self._all_connections():
            pool.abort_calls()

    async def close(self) -> None:
        # Before the pools are looked for: whoever makes one now closes it.
        self._closed = True
        for pool in self._all_connections():
            pool.close()
        self._end_pauses()

    def wakeup(self) -> ThreadWakeup:
        return ThreadWakeup()

    async def wait(self, wakeup: Wakeup, seconds: float) -> None:
        assert isinstance(wakeup, ThreadWakeup)
        if self.callers is not None and _get_running_loop() is not None:
            self.callers.warn_of_loop()
        if self.wait_for_message is not None:
            self.wait_for_message(wakeup, seconds)
        else:
            wakeup.wait(seconds)

    def spawn(self, operation: Operation) -> None:
        start_thread(partial(run, operation), "pyredisson-background")

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

    def is_open(self) -> bool:
        return self.pool.is_open()


class RoutedThreadRuntime(RoutedRuntime[Pool], ThreadBackend):
    """A `Runtime` over a pool of blocking connections for each server."""

    def __init__(
        self, config: Config, scripts: ScriptSet, keeper: Keeper, post: Callable[[bytes], None], size: int
    ) -> None:
        """`size`: the largest number of connections to each server."""
        super().__init__(config, scripts, keeper)
        self.post = post
        self._size = size
        self._timeout = float("inf")

    def limit_timeout(self, seconds: float) -> None:
        self._timeout = min(self._timeout, seconds)
        super().limit_timeout(seconds)

    def connections_of(self, node: Node) -> Pool:
        pool = super().connections_of(node)
        # After the pool was stored, as `limit_timeout` sets the limit before it looks for pools.
        pool.limit_timeout(self._timeout)
        return pool

    def _connections_to(self, node: Node) -> Pool:
        return Pool(node, self._size)

    def _on_any_thread(self, wakeup: Wakeup) -> Wake:
        return wakeup.set

    async def _run_all(self, operations: Sequence[Coroutine[Any, Any, None]]) -> None:
        remaining = list(operations)
        try:
            while remaining:
                await remaining.pop(0)
        finally:
            # After an interrupt: a coroutine that was never awaited would be reported.
            for operation in remaining:
                operation.close()
