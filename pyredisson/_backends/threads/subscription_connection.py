"""A connection for subscriptions: commands are sent without waiting for their replies."""

from __future__ import annotations

import select
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
        """Held by the thread that sends, or that uses a TLS socket: TLS allows one at a time."""
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

    def receive(self, seconds: float, stop: socket.socket) -> list[Reply] | None:
        """Receives what comes within that time, and returns the replies that are complete. One thread at a time.

        None: nothing came, or there is something to receive from `stop`.
        """
        if self.secure:
            size = self._receive_tls_or_stop(seconds, stop)
        else:
            # Without the mutex: other threads only send.
            size = self._exchange.receive_or_stop(stop.fileno(), seconds)
        if size < 0:
            return None
        if not size:
            raise closed_by_server(self._node)
        self._feed(self._buffer, 0, size)
        replies = []
        next_reply = self._next_reply
        while (reply := next_reply()) is not False:
            replies.append(reply)
        return replies

    def _receive_tls_or_stop(self, seconds: float, stop: socket.socket) -> int:
        """Returns how many bytes were received; -1: none."""
        if not self._has_decrypted_data():
            poll = select.poll()
            poll.register(self.fileno(), select.POLLIN)
            poll.register(stop, select.POLLIN)
            if all(number == stop.fileno() for number, _ in poll.poll(seconds * 1000)):
                return -1
        with self._mutex:
            size = self._receive(self._buffer)
        connection = self._socket
        if self._outbox and connection is not None:
            self._flush(connection)
        return size

    def _has_decrypted_data(self) -> bool:
        """Whether TLS has received data already, of which polling the socket knows nothing."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
