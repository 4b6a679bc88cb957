"""The asyncio world's connections: one pipelined connection a node, whose commands of one tick leave in one write."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._backends.threads.connection import credentials, reported
from pyredisson._core import Idle
from pyredisson._protocol.error_codes import NOT_MASTER
from pyredisson._protocol.error_copies import copy_error
from pyredisson._protocol.handshake import ConnectionId, Handshake
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import reader

BUFFER = 65536
LOOKS_A_DEADLINE = 4
"""How often the oldest open command is looked at in the time that a reply may take."""


class Pipeline(asyncio.BufferedProtocol):
    """One connection. Replies come in the order of the commands; a failure ends all that are open."""

    def __init__(self, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.connection_id: ConnectionId | None = None
        self.server_id: bytes | None = None
        """The identity of the server's process; None where it isn't known."""
        self.usable = True
        """Whether new commands may go this way."""
        self.hear: Callable[[Reply], None] | None = None
        """Takes what comes, in place of the commands' futures: for subscriptions."""
        self.lost = loop.create_future()
        """Done when the connection has failed or was closed; its result is the error."""
        self.gone = loop.create_future()
        """Done when the event loop has closed the socket."""
        self.node = node
        self._transport: asyncio.Transport | None = None
        self._socket = Idle(-1)
        self._open: deque[asyncio.Future[Reply]] = deque()
        self._unsent: list[bytes] = []
        self._lone = True
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at: asyncio.Future[Reply] | None = None
        self._looks = 0
        self._create_future = loop.create_future
        self._buffer = bytearray(BUFFER)
        self._view = memoryview(self._buffer)
        parser = reader()
        self._feed = parser.feed
        self._gets = parser.gets

    @property
    def waiting(self) -> bool:
        """Whether commands are on their way."""
        return bool(self._open)

    def submit(self, payload: bytes) -> asyncio.Future[Reply]:
        """Sends a command with the others of this tick; at once if it seems to be the only one."""
        future: asyncio.Future[Reply] = self._create_future()
        waiting = self._open
        if not waiting and self._lone and not self._socket.closed():
            waiting.append(future)
            self._transport.write(payload)  # type: ignore[union-attr]
        else:
            waiting.append(future)
            if not self._unsent:
                self.loop.call_soon(self.flush)
            self._unsent.append(payload)
        if self._timer is None:
            self._look()
        return future

    def flush(self) -> None:
        """Writes what has gathered."""
        if self._unsent and self._transport is not None:
            if not self.usable or self._socket.closed():
                self._turn_back()
                return
            payload = b"".join(self._unsent)
            self._unsent.clear()
            self._transport.write(payload)

    def _turn_back(self) -> None:
        """The server closed the connection while the loop was busy: what has gathered is not sent.

        The replies to what was sent before may still be there to be read, and the end after them.
        """
        self.usable = False
        error = ConnectionError(f"{self.node.address} closed the connection")
        for _ in self._unsent:
            future = self._open.pop()
            if not future.done():
                future.set_exception(NoReply(copy_error(error), may_have_run=False, stale=True))
        self._unsent.clear()
        if self._open:
            self.node.suspect(self.connection_id)

    def write(self, payload: bytes) -> None:
        """Sends without waiting for anything, for subscriptions; nothing once the connection has failed."""
        # uvloop's transport raises where asyncio's drops the data.
        if self._transport is not None and self.usable:
            self._transport.write(payload)

    def close(self) -> None:
        """Ends the connection; what is open fails, and is suspect, at once."""
        self._fail(ConnectionError(f"the connection to {self.node.address} was closed"))

    @property
    def made(self) -> bool:
        """Whether the event loop has handed over a connection."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No check of its class: uvloop's transports have the methods of asyncio.Transport without inheriting them.
        self._transport = cast(asyncio.Transport, transport)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            self._socket = Idle(connection.fileno())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, size: int) -> None:
        self._feed(self._buffer, 0, size)
        gets, hear, answer = self._gets, self.hear, self._open.popleft
        answered = 0
        try:
            while (reply := gets()) is not False:
                if hear is not None:
                    hear(reply)
                    continue
                future = answer()
                answered += 1
                try:
                    if isinstance(reply, RedisError):
                        if str(reply).partition(" ")[0] in NOT_MASTER:
                            self.usable = False
                        future.set_exception(reply)
                    else:
                        future.set_result(reply)
                except asyncio.InvalidStateError:
                    # Its caller was cancelled; the reply is nobody's.
                    continue
        except RedisError as error:
            # Not Redis's protocol.
            self._fail(error)
            return
        self._lone = answered <= 1
        if not self.usable and not self._open and self._transport is not None:
            self._transport.close()

    def eof_received(self) -> None:
        # The transport drops what is written from now on.
        self.usable = False

    def connection_lost(self, error: Exception | None) -> None:
        what = f"{self.node.address} closed the connection" if error is None else str(error)
        self._fail(ConnectionError(what))
        if not self.gone.done():
            self.gone.set_result(None)

    def _fail(self, error: RedisError) -> None:
        self.usable = False
        self._socket.end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._open and (self.node.config.path is None or not isinstance(error, ConnectionError)):
            # Where the server itself has ended a unix socket, nothing could still deliver what was sent.
            self.node.suspect(self.connection_id)
        unsent = len(self._unsent)
        self._unsent.clear()
        while self._open:
            future = self._open.pop()
            if not future.done():
                future.set_exception(NoReply(copy_error(error), may_have_run=unsent <= 0, server_id=self.server_id))
            unsent -= 1
        if not self.lost.done():
            self.lost.set_result(error)
        if self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        """Fails the connection when its oldest command is the same as at every look of one deadline."""
        if not self._open:
            self._timer = None
            return
        oldest = self._open[0]
        if oldest is not self._looked_at:
            self._looked_at = oldest
            self._looks = 0
        self._looks += 1
        if self._looks > LOOKS_A_DEADLINE:
            self._fail(TimeoutError(f"timeout waiting for {self.node.address}"))
            return
        self._timer = self.loop.call_later(self.node.timeout / LOOKS_A_DEADLINE, self._look)


def call_in(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> None:
    """Has it called by that event loop, unless that is closed; from any thread."""
    if not loop.is_closed():
        # It may be closed by its own thread meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(work)


def ended(
    loop: asyncio.AbstractEventLoop, end: Callable[[], object], done: asyncio.Future[Any]
) -> list[asyncio.Future[Any]]:
    """Calls `end` in `loop`, unless that is closed. Gives what to wait for, if it is the running loop."""
    if loop.is_closed():
        return []
    if loop is not asyncio.get_running_loop():
        loop.call_soon_threadsafe(end)
        return []
    end()
    return [done]


async def connect(node: Node) -> Pipeline:
    """A new connection after its handshake. Raises `NoReply` or what the server objects to."""
    config = node.config
    loop = asyncio.get_running_loop()
    suspects = list(node.suspects)
    pipeline = Pipeline(node, loop)
    try:
        async with asyncio.timeout(node.connect_timeout):
            handshake = Handshake(config, await _credentials(node), suspects)
            if config.path is not None:
                transport, _ = await loop.create_unix_connection(lambda: pipeline, config.path)
            else:
                transport, _ = await loop.create_connection(
                    lambda: pipeline,
                    config.host,
                    config.port,
                    ssl=config.ssl_context,
                    server_hostname=(config.server_hostname or config.host) if config.ssl_context else None,
                )
                if config.socket_keepalive:
                    connection = transport.get_extra_info("socket")
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if not pipeline.made:
                # Else nothing would be sent, and the error that the event loop has only logged would become a timeout.
                transport.abort()
                raise ConnectionError(f"the event loop made a connection to {node.address} without handing it over")
            async with asyncio.timeout(node.timeout):
                replies = await _exchange(pipeline, handshake)
            info = handshake.read(replies)
    except BaseException as error:
        pipeline.close()
        node.on_unreachable(error.error if isinstance(error, NoReply) else error)
        if isinstance(error, ssl.SSLCertVerificationError):
            raise reported(error, node, "connecting to") from error
        # Nothing of the caller's was sent yet, so any trouble with the line is worth another try.
        if isinstance(error, NoReply):
            raise NoReply(error.error, may_have_run=False) from error
        if isinstance(error, OSError):
            raise NoReply(reported(error, node, "connecting to"), may_have_run=False) from error
        if type(error) is ConnectionError:
            raise NoReply(error, may_have_run=False) from error
        raise
    pipeline.connection_id, pipeline.server_id = info.connection_id, info.server_id
    node.on_connected(info, suspects)
    return pipeline


async def _exchange(pipeline: Pipeline, handshake: Handshake) -> list[Any]:
    replies: asyncio.Future[list[Any]] = pipeline.loop.create_future()
    heard: list[Any] = []

    def hear(reply: Reply) -> None:
        heard.append(reply)
        if len(heard) == len(handshake) and not replies.done():
            replies.set_result(heard)

    pipeline.hear = hear
    pipeline.write(handshake.payload)
    await asyncio.wait([replies, pipeline.lost], return_when=asyncio.FIRST_COMPLETED)
    pipeline.hear = None
    if not heard:
        raise ConnectionError(f"{pipeline.lost.result()}")
    return heard


async def _credentials(node: Node) -> Sequence[str]:
    provider = node.config.credential_provider
    if provider is not None:
        return [str(part) for part in await provider.get_credentials_async()]
    return credentials(node)
