"""The asyncio world: the logic's coroutines are awaited on the event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from pyredisson.runtime import Cut, Reply, Signal
from pyredisson.threads import clock
from pyredisson.wire.node import Node
from pyredisson.wire.pipelined import Line


class AioSignal:
    """A flag that one task waits for; set on the loop's thread only."""

    __slots__ = ("_future", "_set")

    def __init__(self) -> None:
        self._set = False
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    async def wait(self, seconds: float | None) -> bool:
        """Until it is set, or the time is over. It stays set."""
        if self._set:
            return True
        loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _let_go, future)
        try:
            await future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()
        return self._set


class AioRuntime:
    """A `Runtime` over one pipelined connection."""

    clock = staticmethod(clock)

    def __init__(self, node: Node, repair: Callable[[bytes], None]) -> None:
        self.scripts = node.scripts
        self._line = Line(node)
        self._repair = repair

    async def send(self, payload: bytes, *, fresh: bool = False) -> Reply:
        # `fresh` needs nothing here: a pipeline that was cut, or met a server that isn't the master, is not
        # used again, and the next one has the server drop it first.
        pipeline = self._line.pipeline
        if pipeline is None or not pipeline.usable or pipeline.loop is not asyncio.get_running_loop():
            pipeline = await self._line.connected()
        return await pipeline.submit(payload)

    async def send_all(self, payloads: Sequence[bytes]) -> list[Reply]:
        pipeline = await self._line.connected()
        replies = await asyncio.gather(*map(pipeline.submit, payloads), return_exceptions=True)
        for reply in replies:
            if isinstance(reply, Cut):
                raise reply
        return replies

    def post(self, payload: bytes) -> None:
        # On the same connection it runs after what was sent before, even if this loop stops right now.
        pipeline = self._line.pipeline
        if pipeline is None or not pipeline.usable or pipeline.loop.is_closed():
            self._repair(payload)
            return

        def ended(future: asyncio.Future[Reply]) -> None:
            if future.cancelled() or isinstance(future.exception(), (Cut, RedisError)):
                self._repair(payload)

        pipeline.submit(payload).add_done_callback(ended)
        pipeline.flush()

    async def wait(self, signal: Signal, seconds: float) -> None:
        assert isinstance(signal, AioSignal)
        await signal.wait(seconds)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def signal(self) -> AioSignal:
        return AioSignal()

    def jitter(self) -> float:
        return random.random()

    async def close(self) -> None:
        await self._line.close()


def _let_go(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
