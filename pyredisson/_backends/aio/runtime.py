"""The runtime of the asyncio backend: the logic's coroutines are awaited on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from redis.exceptions import ConnectionError, RedisError

from pyredisson._backends.aio.connection import OPEN, Pipeline
from pyredisson._backends.aio.pipeline import PipelineHolder
from pyredisson._backends.aio.wakeup import AioWakeup
from pyredisson._backends.runtime import BackendRuntime
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson.logic.ports import Wakeup


class AioRuntime(BackendRuntime):
    """A `Runtime` over one pipelined connection."""

    blocking = False

    def __init__(self, node: Node, post_elsewhere: Callable[[bytes], None]) -> None:
        super().__init__(node)
        self._holder = PipelineHolder(node)
        self._post_elsewhere = post_elsewhere
        """Posts a command over another connection (the watchdog's), when the pipeline can't send it."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        """Whether a connection exists that is not closed."""
        pipeline = self._holder.pipeline
        return pipeline is not None and pipeline.state is OPEN and not pipeline.loop.is_closed()

    def send(self, payload: bytes, *, new_connection: bool = False) -> Awaitable[Reply]:
        # `new_connection` changes nothing here. A pipeline that has failed, or has met a server that isn't the master,
        # isn't used again, and the handshake of the next one has the server drop it.
        pipeline = self._holder.pipeline
        if pipeline is None or pipeline.state is not OPEN or pipeline.loop is not asyncio.get_running_loop():
            return self._connect_and_send(payload)
        return pipeline.submit(payload)

    async def _connect_and_send(self, payload: bytes) -> Reply:
        pipeline = await self._connected()
        return await pipeline.submit(payload)

    async def send_identified(self, payload: bytes, *, new_connection: bool = False) -> tuple[Reply, bytes | None]:
        pipeline = await self._connected()
        return await pipeline.submit(payload), pipeline.server_id

    async def send_all(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> list[Reply]:
        pipeline = await self._connected()
        replies = await asyncio.gather(*map(pipeline.submit, payloads), return_exceptions=True)
        for reply in replies:
            if isinstance(reply, NoReply):
                raise reply
        return replies

    async def _connected(self) -> Pipeline:
        pipeline = await self._holder.connected()
        if pipeline.state is not OPEN:
            # The connection failed after it was made, and before this task ran again.
            raise NoReply(ConnectionError("the connection was closed at once"), may_have_run=False)
        return pipeline

    def post(self, payload: bytes) -> None:
        # Over the same connection it runs after the commands that were sent before. It is written now, so it goes out
        # even if the loop stops.
        pipeline = self._holder.pipeline
        if pipeline is None or pipeline.state is not OPEN or pipeline.loop.is_closed():
            if pipeline is not None and pipeline.waiting:
                # A command that is still in flight there must not run after this one.
                pipeline.node.suspect(pipeline.connection_id)
            self._post_elsewhere(payload)
            return

        def on_done(future: asyncio.Future[Reply]) -> None:
            if future.cancelled() or isinstance(future.exception(), (NoReply, RedisError)):
                self._post_elsewhere(payload)

        pipeline.submit(payload).add_done_callback(on_done)
        pipeline.flush()

    def wakeup(self) -> AioWakeup:
        return AioWakeup()

    async def wait(self, wakeup: Wakeup, seconds: float) -> None:
        assert isinstance(wakeup, AioWakeup)
        await wakeup.wait(seconds)

    def spawn(self, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(operation())
        # The event loop refers to a task only weakly, so the garbage collector could end it.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> list[asyncio.Future[Any]]:
        """Ends the connection and all pauses. Returns futures that are done when the connection has ended."""
        self._end_pauses()
        return self._holder.stop()

    async def close(self) -> None:
        if ending := self.stop():
            await asyncio.wait(ending)

    def drop(self) -> None:
        """Has the connection's event loop close it. It can be called on any thread, acquires no mutex, doesn't wait."""
        self._closed = True
        self._holder.drop()
