"""The runtime of the asyncio backend: the logic's coroutines are awaited on the event loop."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

from pyredisson._backends.aio.loops import call_in
from pyredisson._backends.aio.pipeline import PipelineHolder
from pyredisson._backends.aio.sleeps import Sleeps
from pyredisson._backends.aio.wakeup import AioWakeup
from pyredisson._backends.runtime import BackendRuntime, DirectRuntime
from pyredisson._protocol.node import Node
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.logic.ports import Operation, Wakeup


class AioBackend(BackendRuntime):
    """The part of a `Runtime` for asyncio that doesn't depend on the number of servers."""

    blocking = False

    def __init__(self, scripts: ScriptSet) -> None:
        super().__init__(scripts)
        self._tasks: set[asyncio.Task[None]] = set()
        self._sleeps: Sleeps | None = None

    @abstractmethod
    def stop(self) -> list[asyncio.Future[Any]]:
        """Ends all connections and pauses. Returns futures that are done when the connections have ended."""

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
        self.send_then = self._holder.send_then  # type: ignore[method-assign]
        self._post_elsewhere = post_elsewhere
        """Posts a command over another connection (the watchdog's), when the pipeline can't send it."""

    def post(self, payload: bytes) -> None:
        self._holder.post(payload, self._post_elsewhere)

    def stop(self) -> list[asyncio.Future[Any]]:
        self._end_pauses()
        return self._holder.stop()

    def drop(self) -> None:
        """Has the connection's event loop close it. It can be called on any thread, acquires no mutex, doesn't wait."""
        self._closed = True
        self._holder.drop()
