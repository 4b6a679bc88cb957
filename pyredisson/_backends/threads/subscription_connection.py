"""A connection for subscriptions: commands are sent without waiting for their replies."""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque

from redis.exceptions import ConnectionError

from pyredisson._backends.failures import closed_by_server
from pyredisson._backends.threads.connection import Connection
from pyredisson._core import Unsent
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.node import Node


class SubscriptionConnection(Connection):
    """A connection that one thread reads while others send."""

    __slots__ = ("_mutex", "_outbox")

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._mutex = threading.Lock()
        """Held by the thread that uses the socket: TLS allows one at a time, and commands must not be mixed."""
        self._outbox: deque[bytes] = deque()
        """Whole commands that are still to be sent."""

    def send(self, payload: bytes) -> None:
        """Sends commands without waiting for their replies."""
        connection = self._socket
        if connection is None:
            raise ConnectionError("the connection is closed")
        self._outbox.append(payload)
        self._flush(connection)

    def _flush(self, connection: socket.socket) -> None:
        # Never waits for the mutex. Its owner may be this very thread, interrupted by a finalizer which the garbage
        # collector runs; and every owner looks at the outbox once more after it has released the mutex.
        while self._outbox and self._mutex.acquire(blocking=False):
            try:
                while self._outbox:
                    self._send_completely(connection, self._outbox.popleft())
            finally:
                self._mutex.release()

    def _send_completely(self, connection: socket.socket, payload: bytes) -> None:
        if self.secure:
            connection.sendall(payload)
            return
        try:
            self._exchange.send(payload, self._timeout)
        except Unsent as unsent:
            raise unsent.args[0] from None

    def receive(self) -> list[Reply]:
        """Receives what has arrived, and returns the replies that are complete. It blocks if nothing has arrived."""
        with self._mutex:
            size = self._receive(self._buffer)
        connection = self._socket
        if self._outbox and connection is not None:
            self._flush(connection)
        if not size:
            raise closed_by_server(self._node)
        self._feed(self._buffer, 0, size)
        replies = []
        while (reply := self._next_reply()) is not False:
            replies.append(reply)
        return replies

    def has_decrypted_data(self) -> bool:
        """Whether TLS has received data already, of which polling the socket knows nothing."""
        return self.secure and isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
