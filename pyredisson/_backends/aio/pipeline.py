"""The pipelined connection of one client to one node: the one in use, and the making of the next."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import ConnectionError

from pyredisson._backends.aio.connection import OPEN, Pipeline, connect
from pyredisson._backends.aio.loops import call_in, end_in
from pyredisson._protocol.error_copies import copy_error
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.node import Node
from pyredisson.errors import ClosedError


class PipelineHolder:
    """Holds the pipeline in use, and replaces it when it fails."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.pipeline: Pipeline | None = None
        self._connecting: asyncio.Task[Pipeline] | None = None
        self._closed = False

    async def connected(self) -> Pipeline:
        """An open pipeline of the running loop. Callers that ask at the same time share one new connection."""
        if self._closed:
            raise ClosedError(f"client {self._node.client_id} is closed")
        loop = asyncio.get_running_loop()
        if self.pipeline is not None and self.pipeline.loop is not loop:
            if not self.pipeline.loop.is_closed():
                raise RuntimeError("a client of pyredisson.asyncio belongs to one event loop, and this is another")
            self.pipeline = None
        if self.pipeline is not None and self.pipeline.state is OPEN:
            return self.pipeline
        connecting = self._connecting
        if connecting is None or connecting.get_loop() is not loop:
            connecting = self._connecting = loop.create_task(connect(self._node))
            connecting.add_done_callback(self._on_connected)
        # The task isn't awaited itself: the cancellation of one caller must not cancel it for the others, and its own
        # cancellation must not cancel the callers.
        await asyncio.wait([connecting])
        return self._outcome(connecting)

    def _outcome(self, connecting: asyncio.Task[Pipeline]) -> Pipeline:
        """The result for one of the callers that waited. Each caller gets an exception object of its own."""
        if self._closed:
            raise ClosedError(f"client {self._node.client_id} is closed")
        if connecting.cancelled():
            # The program has cancelled every task that it found. This caller was not cancelled.
            raise NoReply(ConnectionError(f"connecting to {self._node.address} was cancelled"), may_have_run=False)
        error = connecting.exception()
        if error is None:
            return connecting.result()
        raise error.copy() if isinstance(error, NoReply) else copy_error(error)

    def _on_connected(self, task: asyncio.Task[Pipeline]) -> None:
        if self._connecting is task:
            self._connecting = None
        if not task.cancelled() and task.exception() is None:
            if self._closed:
                # The client was closed after the handshake, and before this callback.
                task.result().close()
            else:
                self.pipeline = task.result()

    def drop(self) -> None:
        """Has the connection's event loop call `stop`. It can be called on any thread, and doesn't wait."""
        self._closed = True
        connecting, pipeline = self._connecting, self.pipeline
        if connecting is not None:
            call_in(connecting.get_loop(), self.stop)
        elif pipeline is not None:
            call_in(pipeline.loop, self.stop)

    def stop(self) -> list[asyncio.Future[Any]]:
        """Ends the connection, or the making of one. Returns futures that are done when they have ended."""
        self._closed = True
        ending: list[asyncio.Future[Any]] = []
        if self._connecting is not None:
            # When it is cancelled it closes the connection that it has opened.
            ending += end_in(self._connecting.get_loop(), self._connecting.cancel, self._connecting)
        pipeline, self.pipeline = self.pipeline, None
        if pipeline is not None:
            ending += end_in(pipeline.loop, pipeline.close, pipeline.disconnected)
        return ending
