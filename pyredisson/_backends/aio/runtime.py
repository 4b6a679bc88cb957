"""The runtimes of the asyncio backend, and the pipelined connections of one client to each node, on which they send."""

import asyncio
from _thread import get_ident
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from redis.exceptions import ConnectionError, RedisError

from pyredisson._backends.aio.connection import OPEN, Pipeline, connect
from pyredisson._backends.aio.operations import call_in, end_in
from pyredisson._backends.aio.wakeup import AioWakeup, Sleeps
from pyredisson._backends.connecting import check_in_use
from pyredisson._backends.routed import Keeper, RoutedRuntime, Wake
from pyredisson._backends.runtime import BackendRuntime, DirectRuntime, clock
from pyredisson._core import PipelineSender, TaskFuture
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import ASKING, Answers, NoReply, Reply, copy_error
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson.logic.ports import Granted, Operation, Wakeup

POSTED_AGAIN = 10.0
"""Seconds. After them it would be repeated for too long: the server remembers a call that adds to a number for eleven
minutes, and what is sent elsewhere is repeated for ten."""


class PipelineHolder(PipelineSender):
    """Holds the pipeline in use, and replaces it when it fails."""

    pipeline: Pipeline | None

    def __init__(self, node: Node) -> None:
        super().__init__(OPEN)
        self._node = node
        self._connecting: asyncio.Task[Pipeline] | None = None
        self._posted: dict[asyncio.Future[Reply], tuple[float, Callable[[], None]]] = {}
        """For each posted command without a reply, until when it may be sent elsewhere, and what does that."""
        self._closed = False
        self._retired = False

    @property
    def connected(self) -> bool:
        pipeline = self.pipeline
        return pipeline is not None and pipeline.state is OPEN and not pipeline.loop.is_closed()

    async def exchange(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> Answers:
        """Sends several commands, one directly after the other."""
        pipeline = await self.opened()
        try:
            replies = await asyncio.gather(*map(pipeline.submit, payloads), return_exceptions=True)
        except asyncio.CancelledError:
            self.suspect_asking(payloads)
            raise
        for reply in replies:
            if isinstance(reply, NoReply):
                raise reply
        return replies, pipeline.server_id

    def post(self, payload: bytes, post_elsewhere: Callable[[bytes], None]) -> None:
        """Sends a command without waiting for it. `post_elsewhere` gets it if that isn't possible, or fails."""
        # Over the same connection it runs after earlier commands. It is written now, even if the loop stops.
        pipeline = self.pipeline
        gone = pipeline is None or pipeline.state is not OPEN or pipeline.loop.is_closed()
        # On another thread: a call on another event loop was refused, and has sent nothing over this pipeline.
        if pipeline is None or gone or pipeline.thread != get_ident():
            if pipeline is not None and gone and pipeline.waiting:
                # A command that is still in flight there must not run after this one.
                pipeline.node.suspect(pipeline.connection_id)
            post_elsewhere(payload)
            return

        def on_done(future: asyncio.Future[Reply]) -> None:
            self._posted.pop(future, None)
            if future.cancelled() or isinstance(future.exception(), (NoReply, RedisError)):
                post_elsewhere(payload)

        future = pipeline.submit(payload)
        self._posted[future] = clock() + POSTED_AGAIN, partial(post_elsewhere, payload)
        future.add_done_callback(on_done)
        pipeline.flush()

    async def _connect_and_send(self, payload: bytes, apply: Callable[[Reply], object] | None = None) -> Reply:
        pipeline = await self.opened()
        return await pipeline.send(payload, apply)

    async def opened(self) -> Pipeline:
        """An open pipeline of the running loop. Callers that ask for a new one at the same time share it."""
        check_in_use(self._node, closed=self._closed, retired=self._retired)
        loop = asyncio.get_running_loop()
        if (pipeline := self.pipeline) is not None and pipeline.loop is not loop:
            if not pipeline.loop.is_closed():
                raise RuntimeError("a client of pyredisson.asyncio belongs to one event loop, and this is another")
            self._abandon(pipeline)
            pipeline = None
        if pipeline is not None and pipeline.state is OPEN:
            return pipeline
        connecting = self._connecting
        if connecting is None or connecting.get_loop() is not loop:
            connecting = self._connecting = loop.create_task(connect(self._node))
            connecting.add_done_callback(self._on_connected)
        # The task isn't awaited itself: if it or a caller is cancelled, that must not cancel the others.
        await asyncio.wait([connecting])
        check_in_use(self._node, closed=self._closed, retired=self._retired)
        if connecting.cancelled():
            # The program has cancelled every task that it found. This caller was not cancelled.
            raise NoReply(ConnectionError(f"connecting to {self._node.address} was cancelled"), may_have_run=False)
        if (error := connecting.exception()) is not None:
            # Each caller gets an exception object of its own.
            raise error.copy() if isinstance(error, NoReply) else copy_error(error)
        pipeline = connecting.result()
        if pipeline.state is not OPEN:
            # The connection failed after it was made, and before this task ran again.
            raise NoReply(ConnectionError("the connection was closed at once"), may_have_run=False)
        return pipeline

    def _abandon(self, pipeline: Pipeline) -> None:
        """The loop of this pipeline was closed: nobody learns what becomes of its commands. None of them may run late,
        as tasks of that loop undo theirs when they are collected; and what was posted is sent elsewhere."""
        if pipeline.waiting:
            pipeline.node.suspect(pipeline.connection_id)
        self.pipeline = None
        now, posted, self._posted = clock(), self._posted, {}
        for until, send_elsewhere in posted.values():
            if now < until:
                send_elsewhere()

    def _on_connected(self, task: asyncio.Task[Pipeline]) -> None:
        if self._connecting is task:
            self._connecting = None
        if not task.cancelled() and task.exception() is None:
            pipeline = self.pipeline = task.result()
            # Read after the pipeline was stored, as `drop` and `retire` set them before they look for a pipeline.
            if self._closed:
                pipeline.close()
            elif self._retired:
                pipeline.drain()

    def retire(self) -> None:
        """Closes the connection, after the replies to its commands, and makes no other. Can be called on any thread."""
        self._retired = True
        if (pipeline := self.pipeline) is not None:
            self._end(pipeline, pipeline.drain)

    def disconnect(self) -> None:
        """Closes the connection, so its commands get no reply. The next command connects anew. On any thread."""
        connecting, pipeline = self._connecting, self.pipeline
        if connecting is not None:
            call_in(connecting.get_loop(), connecting.cancel)
        if pipeline is not None:
            self._end(pipeline, pipeline.close)

    def _end(self, pipeline: Pipeline, end: Callable[[], object]) -> None:
        if pipeline.loop.is_closed():
            self._abandon(pipeline)
        else:
            call_in(pipeline.loop, end)

    def suspect(self) -> None:
        """Has the server drop the present connection before the next one is used."""
        if (pipeline := self.pipeline) is not None and pipeline.state is OPEN:
            pipeline.node.suspect(pipeline.connection_id)
            pipeline.drain()

    def suspect_asking(self, payloads: Sequence[bytes]) -> None:
        """As `suspect`, after a cancellation, if the cancelled commands follow ASKING: their undo reaches this node by
        another connection, from the node that serves the slot so far, and must not overtake them."""
        if payloads[0] == ASKING:
            self.suspect()

    def drop(self) -> None:
        """Has the connection's event loop call `stop`, unless that is closed. On any thread; it doesn't wait."""
        self._closed = True
        connecting, pipeline = self._connecting, self.pipeline
        if connecting is not None:
            call_in(connecting.get_loop(), self.stop)
        elif pipeline is not None:
            self._end(pipeline, self.stop)

    def stop(self) -> list[asyncio.Future[Any]]:
        """Ends the connection, or the making of one. Returns futures that are done when they have ended."""
        self._closed = True
        ending: list[asyncio.Future[Any]] = []
        if (connecting := self._connecting) is not None:
            # When it is cancelled it closes the connection that it has opened.
            ending += end_in(connecting.get_loop(), connecting.cancel, connecting)
        pipeline, self.pipeline = self.pipeline, None
        if pipeline is not None and pipeline.loop.is_closed():
            self._abandon(pipeline)
        elif pipeline is not None:
            ending += end_in(pipeline.loop, pipeline.close, pipeline.disconnected)
        return ending


class AcquiringHolder(PipelineHolder):
    """Two pipelines: one for acquires that replicas confirm, and one for all other commands.

    While WAIT waits for a replica, the server executes nothing else of its connection, such as releases.
    """

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._acquires = PipelineHolder(node.with_longer_timeout(node.config.replicas_sync_timeout))
        self._batches: _Batches | None = None

    async def acquire(
        self, commands: Sequence[bytes], wait: bytes | None, granted: Granted, *, new_connection: bool
    ) -> tuple[Reply, Reply, bytes | None]:
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
            holder.suspect_asking(commands)
            raise
        return reply, confirmed, pipeline.server_id

    def post(self, payload: bytes, post_elsewhere: Callable[[bytes], None]) -> None:
        """As for one pipeline. Idempotent, so it may go over both: it must not overtake an acquire that it undoes."""
        if (acquires := self._acquires.pipeline) is not None and acquires.waiting:
            self._acquires.post(payload, post_elsewhere)
        if self._node.suspects:
            post_elsewhere(payload)
        else:
            super().post(payload, post_elsewhere)

    @property
    def connected(self) -> bool:
        return super().connected or self._acquires.connected

    def retire(self) -> None:
        super().retire()
        self._acquires.retire()

    def disconnect(self) -> None:
        super().disconnect()
        self._acquires.disconnect()

    def drop(self) -> None:
        super().drop()
        self._acquires.drop()

    def stop(self) -> list[asyncio.Future[Any]]:
        return super().stop() + self._acquires.stop()


class _Acquire(NamedTuple):
    """One acquire that replicas are to confirm."""

    commands: Sequence[bytes]
    replies: Sequence[TaskFuture]
    """The last one is for the acquire."""
    confirmed: TaskFuture
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
        self._waiting: asyncio.Future[Reply] | None = None
        """The reply to the WAIT of the latest batch."""

    async def acquire(self, commands: Sequence[bytes], wait: bytes | None, granted: Granted) -> tuple[Reply, Reply]:
        """Returns the reply to an acquire, and the reply to its WAIT; None if nothing was granted."""
        loop = self.pipeline.loop
        confirmed: TaskFuture | None = None
        if wait is None and len(commands) == 1:
            # In one write with others of this iteration of the event loop.
            replies = [self.pipeline.send(commands[0])]
        else:
            replies = [TaskFuture(loop) for _ in commands]
            if wait is None:
                self.pipeline.submit_all(commands, replies)
            else:
                # First: after an exception in here nothing is noted. Twice: one may strike where `_send` begins.
                loop.call_soon(self._send)
                loop.call_soon(self._send)
                confirmed = TaskFuture(loop)
                self._collected.append(_Acquire(commands, replies, confirmed))
                self._wait = wait
        try:
            value = await replies[-1]
        except RedisError as error:
            return error, None
        return value, await confirmed if confirmed is not None and granted(value) else None

    def _send(self) -> None:
        """Sends what was collected, unless a batch is on its way. After an exception it is called once more."""
        if self._waiting is not None and not self._waiting.done():
            return
        # One that was cancelled was not sent, and must not be: its undo may be on its way.
        batch = [acquire for acquire in self._collected if not acquire.replies[-1].done()]
        if not batch:
            self._collected.clear()
            return
        waiting: asyncio.Future[Reply] = self.pipeline.loop.create_future()
        for _ in range(2):
            waiting.add_done_callback(partial(self._on_confirmed, batch))
        commands = [command for acquire in batch for command in acquire.commands]
        replies = [reply for acquire in batch for reply in acquire.replies]
        try:
            self.pipeline.submit_all([*commands, self._wait], [*replies, waiting])
            self._waiting, self._collected = waiting, []
        except BaseException:
            # Nobody knows what was sent. It isn't sent again: it has failed when the next call comes.
            self.pipeline.close()
            raise

    def _on_confirmed(self, batch: Sequence[_Acquire], waiting: asyncio.Future[Reply]) -> None:
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
