"""The connections to one of several servers: acquires that replicas confirm have a connection of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from pyredisson._backends.aio.connection import Pipeline
from pyredisson._backends.aio.pipeline import PipelineHolder
from pyredisson._core import TaskFuture
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson.logic.ports import Granted


class AcquiringHolder(PipelineHolder):
    """Two pipelines: one for acquires with WAIT, and one for all other commands.

    While WAIT waits, the server executes nothing else of the same connection. A replica that doesn't answer would delay
    every release of the client.
    """

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._acquires = PipelineHolder(node.with_longer_timeout(node.config.replicas_sync_timeout))
        self._batches: _Batches | None = None

    async def acquire(
        self, commands: Sequence[bytes], wait: bytes | None, granted: Granted, *, new_connection: bool
    ) -> tuple[Reply, Reply, bytes | None]:
        """Sends the command of an acquire, see `AcquiringConnections`."""
        holder = self._acquires
        if self._node.suspects:
            # An earlier copy may be in doubt on another connection. The next handshake has the server drop that one.
            holder.suspect()
        pipeline = await holder.opened()
        batches = self._batches
        if batches is None or batches.pipeline is not pipeline:
            batches = self._batches = _Batches(pipeline)
        try:
            reply, confirmed = await batches.acquire(commands, wait, granted)
        except asyncio.CancelledError:
            if len(commands) > 1:
                # The undo of this command goes to the node that serves the slot so far, and reaches this node by
                # another connection. It must not overtake the command.
                holder.suspect()
            raise
        return reply, confirmed, pipeline.server_id

    def post(self, payload: bytes, post_elsewhere: Callable[[bytes], None]) -> None:
        """As for one pipeline. The command must not overtake an acquire that it undoes, on either connection.

        So it may be sent more than once, which does no harm: it is idempotent.
        """
        acquires = self._acquires.pipeline
        if acquires is not None and acquires.waiting:
            self._acquires.post(payload, post_elsewhere)
        if self._node.suspects:
            post_elsewhere(payload)
        else:
            super().post(payload, post_elsewhere)

    @property
    def connected(self) -> bool:
        """Whether a connection exists that is not closed."""
        return super().connected or self._acquires.connected

    def retire(self) -> None:
        """As for one pipeline."""
        super().retire()
        self._acquires.retire()

    def disconnect(self) -> None:
        """As for one pipeline."""
        super().disconnect()
        self._acquires.disconnect()

    def drop(self) -> None:
        """As for one pipeline."""
        super().drop()
        self._acquires.drop()

    def stop(self) -> list[asyncio.Future[Any]]:
        """As for one pipeline."""
        return super().stop() + self._acquires.stop()


class _Acquire:
    """One acquire that replicas are to confirm."""

    __slots__ = ("commands", "confirmed", "replies")

    def __init__(self, commands: Sequence[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self.commands = commands
        self.replies = [TaskFuture(loop) for _ in commands]
        """The last one is the reply to the acquire."""
        self.confirmed = TaskFuture(loop)
        """The reply to the WAIT behind it."""


class _Batches:
    """Sends acquires over one pipeline in batches, each with one WAIT for all of them.

    Acquires that come while a WAIT waits are sent when it has ended, not behind it: the server would execute each batch
    only after all WAITs before it, so with a replica that doesn't answer they would add up.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._collected: list[_Acquire] = []
        """Acquires that are still to be sent."""
        self._wait = b""
        """The WAIT for the next batch."""
        self._busy = False
        """Whether a batch is on its way, or about to be sent."""

    async def acquire(self, commands: Sequence[bytes], wait: bytes | None, granted: Granted) -> tuple[Reply, Reply]:
        """Returns the reply to an acquire, and the reply to its WAIT; None if nothing was granted."""
        reply: TaskFuture
        confirmed: TaskFuture | None = None
        if wait is not None:
            acquire = _Acquire(commands, self.pipeline.loop)
            reply, confirmed = acquire.replies[-1], acquire.confirmed
            self._collect(acquire, wait)
        elif len(commands) == 1:
            # In one write with others of this iteration of the event loop.
            reply = self.pipeline.send(commands[0])
        else:
            replies = [TaskFuture(self.pipeline.loop) for _ in commands]
            reply = replies[-1]
            self.pipeline.submit_all(commands, replies)
        try:
            value = await reply
        except RedisError as error:
            return error, None
        if confirmed is None or not granted(value):
            return value, None
        return value, await confirmed

    def _collect(self, acquire: _Acquire, wait: bytes) -> None:
        """Has an acquire sent with the next batch."""
        self._wait = wait
        self._collected.append(acquire)
        if not self._busy:
            self._busy = True
            self.pipeline.loop.call_soon(self._send)

    def _send(self) -> None:
        """Sends all that were collected."""
        # One that was cancelled was not sent, and must not be: its undo may be on its way.
        batch = [acquire for acquire in self._collected if not acquire.replies[-1].done()]
        self._collected.clear()
        if not batch:
            self._busy = False
            return
        waiting: asyncio.Future[Reply] = self.pipeline.loop.create_future()
        waiting.add_done_callback(partial(self._on_confirmed, batch))
        commands = [command for acquire in batch for command in acquire.commands]
        replies = [reply for acquire in batch for reply in acquire.replies]
        self.pipeline.submit_all([*commands, self._wait], [*replies, waiting])

    def _on_confirmed(self, batch: Sequence[_Acquire], waiting: asyncio.Future[Reply]) -> None:
        """The WAIT of a batch has ended."""
        error = waiting.exception()
        for acquire in batch:
            future = acquire.confirmed
            if future.done():
                continue
            if isinstance(error, NoReply):
                future.set_exception(error.copy())
            else:
                future.set_result(waiting.result() if error is None else error)
        self._send()
