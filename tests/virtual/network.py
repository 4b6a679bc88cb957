"""Connections in memory between an asyncio client and servers in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from .server import MemoryServer
from .time import VirtualLoop

LATENCY = 0.000_05
"""Virtual seconds of each way, on average. Equal times would let the same client win every race for a lock."""

SERVERS: dict[tuple[str, int], MemoryServer] = {}
"""The servers that listen, by their addresses."""


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


class Way:
    """One direction of a connection: what is put in at one end comes out at the other one later, in order."""

    def __init__(self, loop: VirtualLoop, deliver: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._deliver = deliver
        self._under_way: deque[bytes] = deque()
        self._latest = 0.0
        """When the part that was put in last arrives."""
        self._ended: Callable[[], None] | None = None

    def put(self, data: bytes) -> None:
        """Sends data, unless the client's event loop is gone."""
        if self._loop.is_closed():
            return
        self._under_way.append(data)
        self._latest = max(self._latest, self._loop.time() + LATENCY * self._loop.random.uniform(0.5, 1.5))
        # One timer for each part; equal times have no order, the parts have.
        self._loop.call_at(self._latest, self._arrive)

    def end(self, ended: Callable[[], None]) -> None:
        """Nothing more is put in. `ended` is called behind what is under way: a command that was sent runs."""
        self._ended = ended
        if not self._under_way:
            ended()

    def _arrive(self) -> None:
        try:
            self._deliver(self._under_way.popleft())
        except Exception as error:  # noqa: BLE001 - it ends the test
            self._loop.fail(error)
        if self._ended is not None and not self._under_way:
            self._ended()


class Socket:
    """What a client asks of the socket under a transport."""

    def fileno(self) -> int:
        return -1

    def setsockopt(self, *_: int) -> None:
        pass


class MemoryTransport(asyncio.Transport):
    """A client's end of a connection."""

    def __init__(self, loop: VirtualLoop, protocol: Any, server: MemoryServer) -> None:
        super().__init__({"socket": Socket()})
        self._loop = loop
        self._protocol = protocol
        self._closing = False
        self._to_client = Way(loop, self._receive)
        self._session = server.open_session(self._to_client.put, lambda: self._to_client.put(b""))
        self._to_server = Way(loop, self._session.receive)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._to_server.put(bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._end()

    def abort(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self._closing:
            self._closing = True
            self._to_server.end(self._session.left)
            self._loop.call_soon(self._protocol.connection_lost, None)

    def _receive(self, data: bytes) -> None:
        if self._closing:
            return
        if not data:
            self._protocol.eof_received()
            self._end()
            return
        view = memoryview(data)
        while view and not self._closing:
            buffer = self._protocol.get_buffer(len(view))
            part = view[: len(buffer)]
            buffer[: len(part)] = part
            self._protocol.buffer_updated(len(part))
            view = view[len(part) :]
