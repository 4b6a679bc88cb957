"""Pipelined connections: the commands of one iteration of the event loop are sent in one write."""

import asyncio
import ipaddress
import socket
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from time import monotonic
from typing import Any, cast

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._backends.connecting import closed_by_server, credentials_async, note_tls, report_unreachable
from pyredisson._backends.runtime import clock
from pyredisson._core import AppliedReply, IdleCheck, PipelineFields, TaskFuture
from pyredisson._protocol.node import ConnectionId, Handshake, Node, ServerInfo
from pyredisson._protocol.replies import NOT_MASTER, NoReply, Redirected, Reply, code_of, copy_error, reader

BUFFER = 65536
CHECKS_A_TIMEOUT = 4
"""How often the oldest command is checked within the time that a reply may take."""


class PipelineState(Enum):
    """`NEW -> OPEN -> DRAINING -> CLOSED`; each state may be skipped."""

    NEW = "not connected yet"
    OPEN = "takes commands"
    DRAINING = "takes no more commands; replies to sent ones may still come"
    CLOSED = "failed or closed; every command was answered"


ReplyFuture = asyncio.Future[Reply] | TaskFuture | AppliedReply

# A lookup in the class would cost more, and each command looks at the state.
OPEN, DRAINING, CLOSED = PipelineState.OPEN, PipelineState.DRAINING, PipelineState.CLOSED


class Pipeline(PipelineFields, asyncio.BufferedProtocol):
    """One connection. Replies come in the order of the commands; a failure fails all commands without a reply."""

    def __init__(self, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = get_ident()
        self.node = node
        self.connection_id: ConnectionId | None = None
        self.server_id: bytes | None = None
        """Both as in `ServerInfo`, after the handshake."""
        self.state = PipelineState.NEW
        self.on_reply: Callable[[Reply], None] | None = None
        """Handles every reply, in place of the commands' futures. Used by the handshake and by subscriptions."""
        self.on_doubt: Callable[[], None] = lambda: None
        """Called in the event loop when this connection of a subscription may be dead."""
        self.failed: asyncio.Future[RedisError] = loop.create_future()
        """Done when the connection has failed or was closed; its result is the error."""
        self.disconnected: asyncio.Future[None] = loop.create_future()
        """Done when the event loop has closed the socket."""
        self._transport: asyncio.Transport | None = None
        self._idle_check = IdleCheck(-1)
        self._replies: deque[ReplyFuture] = deque()
        """The futures of the commands without a reply, in their order; the last of them belong to `_unsent`."""
        self._unsent: list[bytes] = []
        """Commands that are sent at the end of this iteration of the event loop."""
        self._send_at_once = True
        """Whether commands come one by one, so that waiting for others would only delay them."""
        self._timer: asyncio.TimerHandle | None = None
        self._checked: ReplyFuture | None = None
        """The oldest command at the latest check of the timer."""
        self._checks = 0
        self._buffer = bytearray(BUFFER)
        self._view = memoryview(self._buffer)
        self._reader = reader()

    @property
    def connected(self) -> bool:
        """Whether the event loop has handed over a connection, be it open or closed by now."""
        return self._transport is not None

    @property
    def waiting(self) -> bool:
        """Whether there are commands without a reply."""
        return bool(self._replies)

    def submit_all(self, payloads: Sequence[bytes], futures: Sequence[ReplyFuture]) -> None:
        """Sends several commands in one write, now. Their replies go to `futures`."""
        self.gather(payloads, futures)
        self.flush()
        if self._timer is None:
            self._check_timeout()

    def flush(self) -> None:
        """Sends the commands that have gathered."""
        if self._unsent and self._transport is not None:
            if self.state is not OPEN or self._idle_check.closed():
                self._fail_unsent()
                return
            self._write_unsent()

    def _fail_unsent(self) -> None:
        """The server closed the connection before these commands were sent. Replies to earlier ones may still come."""
        self._leave(OPEN, DRAINING)
        error = closed_by_server(self.node)
        for _ in self._unsent:
            future = self._replies.pop()
            if not future.done():
                future.set_exception(NoReply(copy_error(error), may_have_run=False, stale=True))
        self._unsent.clear()
        if self._replies:
            self.node.suspect(self.connection_id)

    def write(self, payload: bytes) -> None:
        """Sends commands whose replies go to `on_reply`; does nothing when the connection isn't open."""
        # uvloop's transport raises when it is closed, where asyncio's drops the data.
        if self._transport is not None and self.state is OPEN and not self._transport.is_closing():
            self._transport.write(payload)

    def close(self) -> None:
        """Closes the connection; commands without a reply fail at once, and may have run."""
        self._fail(ConnectionError(f"the connection to {self.node.address} was closed"))

    def drain(self) -> None:
        """Takes no more commands, and closes the connection after the replies to the commands that were sent."""
        self.flush()
        self._leave(OPEN, DRAINING)
        if self.state is DRAINING and not self._replies and self._transport is not None:
            self._transport.close()

    def _leave(self, old: PipelineState, new: PipelineState) -> None:
        """Changes the state, if it is `old`."""
        if self.state is old:
            self.state = new

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No check of its class: uvloop's transports have the methods of asyncio.Transport without inheriting them.
        self._transport = cast(asyncio.Transport, transport)
        if (connection := transport.get_extra_info("socket")) is not None:
            self._idle_check = IdleCheck(connection.fileno())
        self._leave(PipelineState.NEW, OPEN)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._buffer[0]:
            # A signal's handler has raised between a read and `buffer_updated`: each reply would go to another call.
            raise ConnectionResetError("an interrupt has lost what was read")
        return self._view

    def buffer_updated(self, size: int) -> None:
        try:
            self.hand_out_replies(size)
        except RedisError as error:
            # The server doesn't speak Redis's protocol.
            self._fail(error)
            return
        if self.state is not OPEN and not self._replies and self._transport is not None:
            self._transport.close()

    def read_on(self) -> None:
        """Hands out the replies of a read that an interrupt has ended in the middle, unless the connection failed."""
        if self.state is not CLOSED:
            self.buffer_updated(0)

    def _on_error_reply(self, error: RedisError) -> None:
        if isinstance(error, Redirected):
            error.asked, error.server_id = self.node, self.server_id
        elif code_of(error) in NOT_MASTER:
            self._leave(OPEN, DRAINING)

    def eof_received(self) -> None:
        # From now on the transport drops what is written.
        self._leave(OPEN, DRAINING)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(closed_by_server(self.node) if error is None else ConnectionError(str(error)))
        if not self.disconnected.done():
            self.disconnected.set_result(None)

    def _on_write_failed(self, error: BaseException) -> None:
        # At once, as making the text may fail, too.
        self._leave(OPEN, DRAINING)
        self._fail(ConnectionError(f"error sending to {self.node.address}: {error!r}"))

    def _fail(self, error: RedisError) -> None:
        self.state = CLOSED
        self._idle_check.detach()
        if self._replies:
            self.node.suspect_after(error, self.connection_id)
        unsent = len(self._unsent)
        self._unsent.clear()
        while self._replies:
            future = self._replies[-1]
            if not future.done():
                future.set_exception(NoReply(copy_error(error), may_have_run=unsent <= 0, server_id=self.server_id))
            self._replies.pop()
            unsent -= 1
        # Not before: after an interrupt in here it fails the commands that are left.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.failed.done():
            self.failed.set_result(error)
        # In a closed loop it would raise. The collector, which may have ended a handshake there, closes the socket.
        if self._transport is not None and not self.loop.is_closed():
            self._transport.abort()

    def _check_timeout(self) -> None:
        """Fails the connection when the oldest command is still the same after the time that a reply may take."""
        if not self._replies:
            self._timer = None
            # An error reply refers to the frames of its call, and these to the client, which may have been dropped.
            self._checked = None
            return
        oldest = self._replies[0]
        if oldest is not self._checked:
            self._checked = oldest
            self._checks = 0
        self._checks += 1
        self._timer = self.loop.call_later(self.node.timeout / CHECKS_A_TIMEOUT, self.check_timeout)
        if self._checks > CHECKS_A_TIMEOUT:
            self._fail(TimeoutError(f"timeout waiting for {self.node.address}"))


async def connect(node: Node) -> Pipeline:
    """A new connection after its handshake, in which the server drops the node's suspects. `NoReply`: another try may
    succeed."""
    suspects = list(node.suspects)
    began = monotonic()
    pipeline = Pipeline(node, asyncio.get_running_loop())
    try:
        async with asyncio.timeout(node.connect_timeout):
            handshake = Handshake(node.config, await credentials_async(node.config), suspects)
            await _open_transport(pipeline)
            async with asyncio.timeout(node.timeout):
                info = await _shake_hands(pipeline, handshake)
        pipeline.connection_id, pipeline.server_id = info.connection_id, info.server_id
        node.on_connected(info, suspects, clock())
    except BaseException as error:
        if node.config.ssl_context is not None and not pipeline.connected:
            note_tls(error)
        pipeline.close()
        report_unreachable(error, node, began)
        raise
    return pipeline


async def _open_transport(pipeline: Pipeline) -> None:
    node, loop = pipeline.node, pipeline.loop
    config = node.config
    if config.path is not None:
        transport, _ = await loop.create_unix_connection(lambda: pipeline, config.path)
    else:
        where: dict[str, Any] = {"host": config.host, "port": config.port}
        try:
            ipaddress.ip_address(config.host)
        except ValueError:
            where = {"sock": await _connect_tcp(loop, config.host, config.port, node.connect_timeout)}
        transport, _ = await loop.create_connection(
            lambda: pipeline,
            **where,
            ssl=config.ssl_context,
            server_hostname=(config.server_hostname or config.host) if config.ssl_context else None,
        )
        if config.socket_keepalive:
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if not pipeline.connected:
        # `connection_made` has raised, which the event loop only logs: the caller would get a timeout instead.
        transport.abort()
        raise ConnectionError(f"the event loop made a connection to {node.address} without handing it over")


async def _connect_tcp(loop: asyncio.AbstractEventLoop, host: str, port: int, seconds: float) -> socket.socket:
    """Connects to the first of the host's addresses that answers; each may use an equal part of the time."""
    deadline = loop.time() + seconds
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for count in range(len(addresses), 0, -1):
        family, kind, protocol, _, address = addresses[-count]
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            async with asyncio.timeout((deadline - loop.time()) / count):
                await loop.sock_connect(connection, address)
            return connection
        except BaseException as error:
            connection.close()
            if count == 1 or not isinstance(error, OSError):
                raise
    raise OSError(f"{host} has no address")


async def _shake_hands(pipeline: Pipeline, handshake: Handshake) -> ServerInfo:
    replies: list[Any] = []
    complete: asyncio.Future[Any] = pipeline.loop.create_future()

    def on_reply(reply: Reply) -> None:
        replies.append(reply)
        if len(replies) == len(handshake) and not complete.done():
            complete.set_result(None)

    pipeline.on_reply = on_reply
    pipeline.write(handshake.payload)
    await asyncio.wait([complete, pipeline.failed], return_when=asyncio.FIRST_COMPLETED)
    pipeline.on_reply = None
    if not replies:
        raise ConnectionError(f"{pipeline.failed.result()}")
    return handshake.read(replies)
