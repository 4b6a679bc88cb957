"""The asyncio world: the logic's coroutines are awaited on the event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from redis.exceptions import ConnectionError, RedisError

from pyredisson._backends.aio.connection import Pipeline
from pyredisson._backends.aio.pipeline import PipelineHolder
from pyredisson._backends.aio.wakeup import AioWakeup
from pyredisson._backends.clock import clock
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson.logic.ports import Wakeup


class AioRuntime:
    """A `Runtime` over one pipelined connection."""

    clock = staticmethod(clock)
    blocking = False

    def __init__(self, node: Node, repair: Callable[[bytes], None]) -> None:
        self.scripts = node.scripts
        self.on_command_failed, self.on_command_served = node.on_command_failed, node.on_command_served
        self._asleep: dict[AioWakeup, None] = {}
        self._closed = False
        self._line = PipelineHolder(node)
        self._repair = repair
        self._beside: set[asyncio.Task[None]] = set()

    def send(self, payload: bytes, *, new_connection: bool = False) -> Awaitable[Reply]:
        # `new_connection` needs nothing here: a pipeline that was cut, or met a server that isn't the master, is not
        # used again, and the next one has the server drop it first.
        pipeline = self._line.pipeline
        if pipeline is None or not pipeline.usable or pipeline.loop is not asyncio.get_running_loop():
            return self._send_anew(payload)
        return pipeline.submit(payload)

    async def _send_anew(self, payload: bytes) -> Reply:
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
        pipeline = await self._line.connected()
        if not pipeline.usable:
            # Lost again while this task waited for its turn.
            raise NoReply(ConnectionError("the connection was closed at once"), may_have_run=False)
        return pipeline

    def post(self, payload: bytes) -> None:
        # On the same connection it runs after what was sent before, even if this loop stops right now.
        pipeline = self._line.pipeline
        if pipeline is None or not pipeline.usable or pipeline.loop.is_closed():
            if pipeline is not None and pipeline.waiting:
                # What is still on its way there must not run after this.
                pipeline.node.suspect(pipeline.connection_id)
            self._repair(payload)
            return

        def ended(future: asyncio.Future[Reply]) -> None:
            if future.cancelled() or isinstance(future.exception(), (NoReply, RedisError)):
                self._repair(payload)

        pipeline.submit(payload).add_done_callback(ended)
        pipeline.flush()

    async def wait(self, signal: Wakeup, seconds: float) -> None:
        assert isinstance(signal, AioWakeup)
        await signal.wait(seconds)

    def spawn(self, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(operation())
        # The loop itself would let the garbage collector have it.
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def sleep(self, seconds: float) -> None:
        alarm = AioWakeup()
        try:
            self._asleep[alarm] = None
            if not self._closed:
                await alarm.wait(seconds)
        finally:
            self._asleep.pop(alarm, None)

    def wakeup(self) -> AioWakeup:
        return AioWakeup()

    def jitter(self) -> float:
        return random.random()

    @property
    def connected(self) -> bool:
        """Whether there is a connection that is not closed."""
        pipeline = self._line.pipeline
        return pipeline is not None and pipeline.usable and not pipeline.loop.is_closed()

    def drop(self) -> None:
        """Has the connection closed by its own event loop; on any thread, with no lock and no wait."""
        self._closed = True
        self._line.drop()

    def stop(self) -> list[asyncio.Future[Any]]:
        """Ends the connection and all pauses. Gives what is done when the connection is gone."""
        self._closed = True
        for alarm in list(self._asleep):
            alarm.set()
        return self._line.stop()

    async def close(self) -> None:
        if ending := self.stop():
            await asyncio.wait(ending)
