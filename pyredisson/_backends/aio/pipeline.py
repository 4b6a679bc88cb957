"""The pipelined connection of one client to one node: the one in use, and the making of the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ConnectionError, RedisError

from pyredisson._backends.aio.connection import OPEN, Pipeline, connect
from pyredisson._backends.aio.loops import call_in, end_in
from pyredisson._core import PipelineSender
from pyredisson._protocol.error_copies import copy_error
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson.errors import ClosedError


class PipelineHolder(PipelineSender):
    """Holds the pipeline in use, and replaces it when it fails."""

    pipeline: Pipeline | None

    def __init__(self, node: Node) -> None:
        super().__init__(OPEN)
        self._node = node
        self._connecting: asyncio.Task[Pipeline] | None = None
        self._closed = False
        self._retired = False

    @property
    def connected(self) -> bool:
        """Whether a connection exists that is not closed."""
        pipeline = self.pipeline
        return pipeline is not None and pipeline.state is OPEN and not pipeline.loop.is_closed()

    async def exchange(
        self, payloads: Sequence[bytes], *, new_connection: bool = False
    ) -> tuple[list[Reply], bytes | None]:
        """Sends several commands, one directly after the other; error replies are in the list. Also the identity of
        the server."""
        pipeline = await self.opened()
        replies = await asyncio.gather(*map(pipeline.submit, payloads), return_exceptions=True)
        for reply in replies:
            if isinstance(reply, NoReply):
                raise reply
        return replies, pipeline.server_id

    def post(self, payload: bytes, post_elsewhere: Callable[[bytes], None]) -> None:
        """Sends a command without waiting for it. `post_elsewhere` gets it if that isn't possible, or fails."""
        # Over the same connection it runs after the commands that were sent before. It is written now, so it goes out
        # even if the loop stops.
        pipeline = self.pipeline
        if pipeline is None or pipeline.state is not OPEN or pipeline.loop.is_closed():
            if pipeline is not None and pipeline.waiting:
                # A command that is still in flight there must not run after this one.
                pipeline.node.suspect(pipeline.connection_id)
            post_elsewhere(payload)
            return

        def on_done(future: asyncio.Future[Reply]) -> None:
            if future.cancelled() or isinstance(future.exception(), (NoReply, RedisError)):
                post_elsewhere(payload)

        pipeline.submit(payload).add_done_callback(on_done)
        pipeline.flush()

    async def _connect_and_send(self, payload: bytes, apply: Callable[[Reply], object] | None = None) -> Reply:
        pipeline = await self.opened()
        return await pipeline.send(payload, apply)

    async def opened(self) -> Pipeline:
        """An open pipeline of the running loop."""
        self._check_not_retired()
        pipeline = await self._connect()
        self._check_not_retired()
        if pipeline.state is not OPEN:
            # The connection failed after it was made, and before this task ran again.
            raise NoReply(ConnectionError("the connection was closed at once"), may_have_run=False)
        return pipeline

    def _check_not_retired(self) -> None:
        """Raises `NoReply` if the server serves nothing any more: nobody would close a new connection to it."""
        if self._retired:
            # Stale: another server serves the command now, so it is sent again at once.
            error = ConnectionError(f"{self._node.address} serves nothing any more")
            raise NoReply(error, may_have_run=False, stale=True)

    async def _connect(self) -> Pipeline:
        """The pipeline of the running loop, or a new one, which callers that ask at the same time share."""
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
                pipeline = self.pipeline = task.result()
                # Read after the pipeline was stored, as `retire` sets it before it looks for a pipeline.
                if self._retired:
                    pipeline.drain()

    def retire(self) -> None:
        """Closes the connection, after the replies to its commands, and makes no other. Can be called on any thread."""
        self._retired = True
        pipeline = self.pipeline
        if pipeline is not None:
            call_in(pipeline.loop, pipeline.drain)

    def disconnect(self) -> None:
        """Closes the connection, so its commands get no reply. The next command connects anew. On any thread."""
        connecting, pipeline = self._connecting, self.pipeline
        if connecting is not None:
            call_in(connecting.get_loop(), connecting.cancel)
        if pipeline is not None:
            call_in(pipeline.loop, pipeline.close)

    def suspect(self) -> None:
        """Has the server drop the present connection before the next one is used."""
        pipeline = self.pipeline
        if pipeline is not None and pipeline.state is OPEN:
            pipeline.node.suspect(pipeline.connection_id)
            pipeline.drain()

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
