"""Connections in memory between an asyncio client and servers in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum
from itertools import count
from typing import Any, Protocol

from pyredisson._core import IdleCheck

from .time import VirtualClock, VirtualLoop

LATENCY = 0.000_05
"""Virtual seconds of each way, on average. Equal times would let the same client win every race for a lock."""
RECENTLY_USED = 0.005
"""Virtual seconds after its last use in which a client doesn't look whether a connection was closed."""

Send = Callable[[bytes], None]
Schedule = Callable[[float, Callable[[], None]], object]
Close = Callable[[bool], None]
"""Ends a connection from the server's side; whether with RST."""


class Connection(Protocol):
    """A connection, as its client sees the other end."""

    def receive(self, data: bytes) -> None:
        """Something arrives from the client."""

    def left(self) -> None:
        """The client has closed the connection."""


class Listener(Protocol):
    """A server, or a proxy before one."""

    def open_session(self, send: Send, close: Close) -> Connection:
        """A client connects. `send` takes what it is sent."""
        ...


PORTS = count(2)
"""For what listens on 127.0.0.1. No real server of a test has such a port."""
SERVERS: dict[tuple[str, int], Listener] = {}
"""What listens, by address."""


async def connect(
    loop: VirtualLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> tuple[MemoryTransport, asyncio.BaseProtocol]:
    """What `create_connection` does."""
    await asyncio.sleep(2 * LATENCY)
    server = SERVERS.get((host, port))
    if server is None:
        raise ConnectionRefusedError(111, f"Connect call failed ('{host}', {port})")
    protocol = factory()
    transport = MemoryTransport(loop, protocol, server)
    protocol.connection_made(transport)
    return transport, protocol


End = Enum("End", ["FIN", "RST"])
"""How a server ends a connection."""


class Way:
    """One direction of a connection: what is put in at one end comes out at the other one later, in order."""

    def __init__(self, loop: VirtualLoop, schedule: Schedule, deliver: Callable[[Any], None]) -> None:
        self._loop, self._schedule, self._deliver = loop, schedule, deliver
        self._under_way: deque[bytes | End] = deque()
        self._latest = 0.0
        """When the part that was put in last arrives."""
        self._ended: Callable[[], None] | None = None

    def put(self, data: bytes | End) -> None:
        """Sends data, unless the client's event loop is gone."""
        if self._loop.is_closed():
            return
        self._under_way.append(data)
        self._latest = max(self._latest, self._loop.time() + LATENCY * self._loop.clock.random.uniform(0.5, 1.5))
        # One timer for each part; equal times have no order, the parts have.
        self._schedule(self._latest, self._arrive)

    def end(self, ended: Callable[[], None]) -> None:
        """Nothing more is put in. `ended` is called behind what is under way: a command that was sent runs."""
        self._ended = ended
        if not self._under_way:
            ended()

    def _arrive(self) -> None:
        self._deliver(self._under_way.popleft())
        if self._ended is not None and not self._under_way:
            self._ended()


class MemorySocket:
    """What a client asks of the socket under a transport."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.ended = False
        """Whether the server has closed the connection. The event loop may not know yet."""

    def fileno(self) -> MemorySocket:
        return self

    def setsockopt(self, *_: int) -> None: ...


class MemoryIdleCheck(IdleCheck):
    def __init__(self, socket: MemorySocket | int) -> None:
        super().__init__(-1)
        self._socket = None if isinstance(socket, int) else socket
        self._last_used = 0.0 if self._socket is None else self._socket.clock()

    def closed(self) -> bool:
        if self._socket is None:
            return False
        now = self._socket.clock()
        if self._socket.ended and now - self._last_used >= RECENTLY_USED:
            return True
        self._last_used = now
        return False

    def detach(self) -> None:
        self._socket = None


class MemoryTransport(asyncio.Transport):
    """A client's end of a connection."""

    def __init__(self, loop: VirtualLoop, protocol: Any, server: Listener) -> None:
        self._socket = MemorySocket(loop.clock)
        super().__init__({"socket": self._socket})
        self._loop, self._protocol = loop, protocol
        self._closing = False
        self._to_client = Way(loop, loop.call_at, self._receive)
        self._session = server.open_session(self._to_client.put, self._end_by_server)
        self._to_server = Way(loop, loop.clock.call_beside, self._session.receive)

    def _end_by_server(self, reset: bool) -> None:
        self._socket.ended = True
        self._to_client.put(End.RST if reset else End.FIN)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._to_server.put(bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def abort(self, error: Exception | None = None) -> None:
        if not self._closing:
            self._closing = True
            self._to_server.end(self._session.left)
            self._loop.call_soon(self._protocol.connection_lost, error)

    close = abort

    def _receive(self, data: bytes | End) -> None:
        if self._closing:
            return
        if isinstance(data, End):
            if data is End.FIN:
                self._protocol.eof_received()
            self.abort(ConnectionResetError(104, "Connection reset by peer") if data is End.RST else None)
            return
        view = memoryview(data)
        while view and not self._closing:
            buffer = self._protocol.get_buffer(len(view))
            part = view[: len(buffer)]
            buffer[: len(part)] = part
            self._protocol.buffer_updated(len(part))
            view = view[len(part) :]
