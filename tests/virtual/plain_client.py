"""Plain clients (redis-py) of a server in memory. Their commands are replied to at once."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from redis.connection import AbstractConnection

from .network import LATENCY

if TYPE_CHECKING:
    from .server import MemoryServer


class MemoryConnection(AbstractConnection):
    """A connection of redis-py to a server in memory."""

    def __init__(self, server: MemoryServer, **options: Any) -> None:
        super().__init__(**options)
        self.memory = server

    def repr_pieces(self) -> list[tuple[str, object]]:
        return [("server", self.memory.url)]

    def _connect(self) -> MemorySocket:
        if not self.memory.running:
            raise ConnectionRefusedError(111, "Connection refused")
        return MemorySocket(self.memory)

    def _host_error(self) -> str:
        return self.memory.url


class MemorySocket:
    """What redis-py needs of a socket. A command has its reply when `sendall` returns."""

    def __init__(self, server: MemoryServer) -> None:
        self._received = bytearray()
        self._ready_at_the_end, self._other_end = socket.socketpair()
        self._clock = server.clock
        self._session = server.open_session(self._received.extend, lambda _: self._other_end.close())

    def fileno(self) -> int:
        return self._ready_at_the_end.fileno()

    def pending(self) -> int:
        return len(self._received)

    def sendall(self, data: bytes) -> None:
        # What others have sent before arrives before it, as on one machine.
        self._clock.sleep(2 * LATENCY)
        self._session.receive(data)

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer)])

    def recv_into(self, buffer: bytearray) -> int:
        if not self._received and self._other_end.fileno() >= 0:
            raise TimeoutError("nothing was sent")
        part = self._received[: len(buffer)]
        del self._received[: len(part)]
        buffer[: len(part)] = part
        return len(part)

    def settimeout(self, _: float | None) -> None:
        pass

    def shutdown(self, _: int) -> None:
        pass

    def close(self) -> None:
        self._session.left()
        self._ready_at_the_end.close()
        self._other_end.close()

    __del__ = close
