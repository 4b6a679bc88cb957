"""A connection without a client library: it sends and receives exactly what the test says."""

from __future__ import annotations

import socket
from collections.abc import Callable

import hiredis

from pyredisson.testing import Proxy


class BareConnection:
    """A bare connection: what is sent and received is exactly what the test says."""

    def __init__(self, proxy: Proxy) -> None:
        self.socket = socket.create_connection((proxy.host, proxy.port), 5)
        self.reader = hiredis.Reader()

    def send(self, *commands: str) -> None:
        # hiredis's stub knows tuples of one word only
        packed = [hiredis.pack_command(tuple(line.split())) for line in commands]  # type: ignore[arg-type]
        self.socket.sendall(b"".join(packed))

    def receive(self, seconds: float = 5.0) -> object:
        """Return the next reply; EOFError at the end of the connection."""
        self.socket.settimeout(seconds)
        while (reply := self.reader.gets()) is False:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self.reader.feed(data)
        return reply

    def ask(self, command: str) -> object:
        self.send(command)
        return self.receive()

    def silent(self) -> bool:
        try:
            self.receive(0.15)
        except TimeoutError:
            return True
        return False


Dial = Callable[[], BareConnection]
