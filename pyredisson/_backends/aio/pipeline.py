"""The pipelined connection of one client to one node: the one in use, and the making of the next."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import ConnectionError

from pyredisson._backends.aio.connection import Pipeline, call_in, connect, ended
from pyredisson._protocol.error_copies import copy_error
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.node import Node
from pyredisson.errors import ClosedError


class PipelineHolder:
    """The way to one node: the pipeline in use, and the making of the next."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.pipeline: Pipeline | None = None
        self._connecting: asyncio.Task[Pipeline] | None = None
        self._closed = False

    async def connected(self) -> Pipeline:
        """A usable pipeline of the running loop; however many ask, one connection is made."""
        if self._closed:
            raise ClosedError(f"client {self._node.client_id} is closed")
        loop = asyncio.get_running_loop()
        if self.pipeline is not None and self.pipeline.loop is not loop:
            if not self.pipeline.loop.is_closed():
                raise RuntimeError("a client of pyredisson.asyncio belongs to one event loop, and this is another")
            self.pipeline = None
        if self.pipeline is not None and self.pipeline.usable:
            return self.pipeline
        connecting = self._connecting
        if connecting is None or connecting.get_loop() is not loop:
            connecting = self._connecting = loop.create_task(connect(self._node))
            connecting.add_done_callback(self._made)
        # Not awaited itself: one caller's cancellation is not the others', and its own is not theirs.
        await asyncio.wait([connecting])
        return self._outcome(connecting)

    def _outcome(self, connecting: asyncio.Task[Pipeline]) -> Pipeline:
        """What one of those gets that waited for it. Raises an exception of its own in each."""
        if self._closed:
            raise ClosedError(f"client {self._node.client_id} is closed")
        if connecting.cancelled():
            # By a program that cancels every task it finds; this caller's wasn't.
            raise NoReply(ConnectionError(f"connecting to {self._node.address} was cancelled"), may_have_run=False)
        error = connecting.exception()
        if error is None:
            return connecting.result()
        raise error.copy() if isinstance(error, NoReply) else copy_error(error)

    def _made(self, task: asyncio.Task[Pipeline]) -> None:
        if self._connecting is task:
            self._connecting = None
        if not task.cancelled() and task.exception() is None:
            if self._closed:
                # It was made at the very moment.
                task.result().close()
            else:
                self.pipeline = task.result()

    def drop(self) -> None:
        """Has its event loop call `stop`; on any thread, with no lock and no wait."""
        self._closed = True
        connecting, pipeline = self._connecting, self.pipeline
        if connecting is not None:
            call_in(connecting.get_loop(), self.stop)
        elif pipeline is not None:
            call_in(pipeline.loop, self.stop)

    def stop(self) -> list[asyncio.Future[Any]]:
        """Ends the connection, or the making of one. Gives what is done when they are gone."""
        self._closed = True
        ending: list[asyncio.Future[Any]] = []
        if self._connecting is not None:
            # It closes what it has opened.
            ending += ended(self._connecting.get_loop(), self._connecting.cancel, self._connecting)
        pipeline, self.pipeline = self.pipeline, None
        if pipeline is not None:
            ending += ended(pipeline.loop, pipeline.close, pipeline.gone)
        return ending
