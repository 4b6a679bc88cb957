"""The runtimes of the asyncio backend: the logic's coroutines are awaited on the event loop."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

from pyredisson._backends.aio.operations import call_in
from pyredisson._backends.aio.pipeline import AcquiringHolder, PipelineHolder
from pyredisson._backends.aio.wakeup import AioWakeup, Sleeps
from pyredisson._backends.routed import Keeper, RoutedRuntime, Wake
from pyredisson._backends.runtime import BackendRuntime, DirectRuntime
from pyredisson._protocol.node import Node
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson.logic.ports import Operation, Wakeup


class AioBackend(BackendRuntime):
    """The part of a `Runtime` for asyncio that doesn't depend on the number of servers."""

    blocking = False

    def __init__(self, scripts: ScriptSet) -> None:
        super().__init__(scripts)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sleeps: Sleeps | None = None

    def stop(self) -> list[asyncio.Future[Any]]:
        """Ends all connections and pauses. Returns futures that are done when the connections have ended."""
        self._end_pauses()
        return [ending for holder in self._all_connections() for ending in holder.stop()]

    def drop(self) -> None:
        """Has the event loop close the connections. It can be called on any thread, acquires no mutex, doesn't wait."""
        self._closed = True
        for holder in self._all_connections():
            holder.drop()

    def wakeup(self) -> AioWakeup:
        """A wakeup for a task of the running event loop."""
        sleeps = self._sleeps
        if sleeps is None or not sleeps.run_here:
            # The loop of an earlier `asyncio.run` has ended.
            sleeps = self._sleeps = Sleeps(asyncio.get_running_loop())
        return AioWakeup(sleeps)

    def wait(self, wakeup: Wakeup, seconds: float) -> Coroutine[Any, Any, object]:
        return cast(AioWakeup, wakeup).wait(seconds)

    def spawn(self, operation: Operation) -> None:
        task = asyncio.get_running_loop().create_task(operation())
        # The event loop refers to a task only weakly, so the garbage collector could end it.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def spawner(self) -> Callable[[Operation], None]:
        loop = asyncio.get_running_loop()
        return lambda operation: call_in(loop, partial(self.spawn, operation))

    async def close(self) -> None:
        if ending := self.stop():
            await asyncio.wait(ending)


class AioRuntime(DirectRuntime, AioBackend):
    """A `Runtime` over one pipelined connection."""

    def __init__(self, node: Node, post_elsewhere: Callable[[bytes], None]) -> None:
        self._holder = PipelineHolder(node)
        super().__init__(node, self._holder)
        self.send_then = self._holder.send_then  # type: ignore[method-assign, assignment]
        self._post_elsewhere = post_elsewhere
        """Posts a command over another connection (the watchdog's), when the pipeline can't send it."""

    def post(self, payload: bytes) -> None:
        self._holder.post(payload, self._post_elsewhere)


class RoutedAioRuntime(RoutedRuntime[AcquiringHolder], AioBackend):
    """A `Runtime` over one pipelined connection to each server."""

    def __init__(
        self, config: Config, scripts: ScriptSet, keeper: Keeper, post_elsewhere: Callable[[bytes], None]
    ) -> None:
        super().__init__(config, scripts, keeper)
        self._post_elsewhere = post_elsewhere
        self.before_wait: Callable[[], None] | None = None
        """Called by each task that is about to wait."""

    async def wait(self, wakeup: Wakeup, seconds: float) -> None:
        if self.before_wait is not None:
            self.before_wait()
        await super().wait(wakeup, seconds)

    def _connections_to(self, node: Node) -> AcquiringHolder:
        return AcquiringHolder(node)

    def _on_any_thread(self, wakeup: Wakeup) -> Wake:
        return partial(call_in, asyncio.get_running_loop(), wakeup.set)

    async def _run_all(self, operations: Sequence[Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*operations)

    def post(self, payload: bytes) -> None:
        holder = self._connections.get(self.node_for(payload))  # type: ignore[arg-type]
        if holder is None:
            self._post_elsewhere(payload)
        else:
            holder.post(self.as_sent(payload), self._post_elsewhere)
