"""A blocking socket, plain or with TLS, whose operations have deadlines."""

from __future__ import annotations

import builtins

# getaddrinfo imports it for the first name that it looks up. An interrupt in the middle of that import would break all
# later lookups.
import encodings.idna  # noqa: F401
import os
import socket
import struct
import time
from errno import EBADF
from math import ceil

from pyredisson._backends.failures import closed_by_server, note_tls
from pyredisson._backends.threads.handlers import raised_by_handler
from pyredisson._core import Exchange
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import reader

BUFFER = 16384
SIGNAL_CHECK = 0.1
"""Seconds after which a thread that waits for a reply checks for a signal that came just before it began to wait."""


class ClientSocket:
    """A socket that is connected to a node, and the parser of its replies.

    The socket is stored in the object before it is connected, so that after an interrupt at any moment `close`
    closes it.
    """

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_exchange",
        "_feed",
        "_next_reply",
        "_node",
        "_receive",
        "_send",
        "_socket",
        "_timeout",
        "secure",
    )

    def __init__(self, node: Node) -> None:
        self._node = node
        self._timeout = node.timeout
        self._buffer = bytearray(BUFFER)
        self._exchange = Exchange(-1, self._buffer, node.timeout)
        self._socket: socket.socket | None = None
        self.secure = node.config.ssl_context is not None
        """Whether the connection uses TLS."""

    def fileno(self) -> int:
        """The file descriptor, to poll; -1 when the socket is closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def shut_down(self) -> None:
        """Ends every operation of other threads on the socket: each of them finds it closed."""
        # Read once: another thread may close the connection at the same time.
        connection = self._socket
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                # It isn't connected any more, which a thread that reads has noticed.
                return

    def close(self) -> None:
        """Closes the socket without sending anything."""
        self._exchange.detach()
        connection, self._socket = self._socket, None
        if connection is not None:
            # A TLS socket's own `close` would send a goodbye. After a fork the child must not send it for its parent.
            descriptor = connection.detach()
            if descriptor >= 0:
                os.close(descriptor)

    def _connect(self, deadline: float) -> None:
        config = self._node.config
        if config.path is not None:
            connection = self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(remaining(deadline))
            connection.connect(config.path)
        else:
            connection = self._connect_tcp(config.host, config.port, deadline)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if config.socket_keepalive:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if config.ssl_context is not None:
            connection.settimeout(remaining(deadline))
            try:
                connection = config.ssl_context.wrap_socket(
                    connection, server_hostname=config.server_hostname or config.host
                )
            except OSError as error:
                if not raised_by_handler(error):
                    note_tls(error)
                raise
            self._socket = connection
        self._set_timeouts(connection)
        parser = reader()
        self._feed = parser.feed
        self._next_reply = parser.gets
        self._exchange = Exchange(connection.fileno(), self._buffer, self._timeout)
        self._send = connection.send
        self._receive = connection.recv_into

    def _connect_tcp(self, host: str, port: int, deadline: float) -> socket.socket:
        """Connects to the first of the host's addresses that answers; each may use an equal part of the time."""
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for count in range(len(addresses), 0, -1):
            family, kind, protocol, _, address = addresses[-count]
            connection = self._socket = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(remaining(deadline) / count)
                connection.connect(address)
                return connection
            except OSError as error:
                if count == 1 or raised_by_handler(error):
                    raise
                connection.close()
        raise OSError(f"{host} has no address")

    def _set_timeouts(self, connection: socket.socket) -> None:
        if self.secure:
            connection.settimeout(self._timeout)
            return
        # The kernel's own timeouts are used: a Python socket with a timeout would poll before every operation.
        connection.settimeout(None)
        interval = _timeval(self._timeout / ceil(self._timeout / SIGNAL_CHECK))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)

    def _round_trip(self, payload: bytes, count: int, deadline: float) -> list[Reply]:
        """Sends `count` commands in one write, and reads their replies."""
        self._write(payload, deadline)
        return self._read_replies(count, deadline)

    def _write(self, payload: bytes, deadline: float) -> None:
        if self.secure:
            self._send_tls(payload, deadline)
        else:
            self._exchange.send(payload, remaining(deadline))

    def _read_replies(self, count: int, deadline: float) -> list[Reply]:
        replies = []
        for _ in range(count):
            reply = self._next_reply()
            replies.append(self._read_reply(deadline) if reply is False else reply)
        return replies

    def _read_reply(self, deadline: float) -> Reply:
        """Reads until a reply is complete; a part of it may have been read before."""
        while True:
            size = self._receive_tls(deadline) if self.secure else self._exchange.receive(remaining(deadline))
            if not size:
                raise closed_by_server(self._node)
            self._feed(self._buffer, 0, size)
            reply = self._next_reply()
            if reply is not False:
                return reply

    def _send_tls(self, payload: bytes, deadline: float) -> None:
        sent = 0
        with memoryview(payload) as view:
            while sent < len(payload):
                self._set_tls_deadline(deadline)
                sent += self._send(view[sent:])

    def _receive_tls(self, deadline: float) -> int:
        self._set_tls_deadline(deadline)
        return self._receive(self._buffer)

    def _set_tls_deadline(self, deadline: float) -> None:
        """Bounds the next operation of a TLS socket."""
        connection = self._socket
        if connection is None:
            raise OSError(EBADF, os.strerror(EBADF))
        connection.settimeout(remaining(deadline))


def remaining(deadline: float) -> float:
    """Seconds until the deadline, always more than 0. TimeoutError: it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise builtins.TimeoutError("timed out")
    return seconds


def _timeval(seconds: float) -> bytes:
    """The kernel's `struct timeval`."""
    whole, fraction = divmod(seconds, 1)
    return struct.pack("ll", int(whole), int(fraction * 1e6))
