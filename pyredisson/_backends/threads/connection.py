"""Blocking connections: one command, one reply, within a deadline. A reply never answers another call's command."""

import builtins

# getaddrinfo imports it for the first name. An interrupt in the middle of that would break all later lookups.
import encodings.idna  # noqa: F401
import os
import signal
import socket
import struct
import threading
import time

# The function behind `signal.getsignal`, which takes much longer as it makes an enum of each result.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Sequence
from errno import EBADF, ECONNRESET
from math import ceil

from redis.exceptions import RedisError

from pyredisson._backends.connecting import as_redis_error, closed_by_server, credentials, note_tls, report_unreachable
from pyredisson._backends.runtime import clock
from pyredisson._core import Exchange, Unsent
from pyredisson._protocol.node import ConnectionId, Handshake, Node
from pyredisson._protocol.replies import NOT_MASTER, NoReply, Redirected, Reply, code_of, reader

BUFFER = 16384
SIGNAL_CHECK = 0.1
"""Seconds after which a thread that waits for a reply checks for a signal that came just before it began to wait."""


class ClientSocket:
    """A socket, plain or with TLS, that is connected to a node, and the parser of its replies.

    The socket is stored before it is connected, so that after an interrupt at any moment `close` closes it.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._timeout = node.timeout
        self._buffer = bytearray(BUFFER)
        self._exchange = Exchange(-1, self._buffer, node.timeout)
        self._socket: socket.socket | None = None
        self.secure = node.config.ssl_context is not None

    def fileno(self) -> int:
        """The file descriptor, to poll; -1 when the socket is closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def shut_down(self) -> None:
        """Ends every operation of other threads on the socket: each of them finds it closed."""
        # Read once: another thread may close the connection at the same time.
        if (connection := self._socket) is not None:
            try:
                # Not a TLS socket's own method: from its first step on, another thread's `send` would send plain text.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:
                return  # it isn't connected any more, which a thread that reads has noticed

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
        seconds, fraction = divmod(self._timeout / ceil(self._timeout / SIGNAL_CHECK), 1)
        interval = struct.pack("ll", int(seconds), int(fraction * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)

    def _round_trip(self, payload: bytes, count: int, deadline: float) -> list[Reply]:
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
            self._feed(self._buffer, size)
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
        if (connection := self._socket) is None:
            raise OSError(EBADF, os.strerror(EBADF))
        connection.settimeout(remaining(deadline))


def remaining(deadline: float) -> float:
    """Seconds until the deadline, always more than 0. TimeoutError: it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise builtins.TimeoutError("timed out")
    return seconds


class Connection(ClientSocket):
    """One connection for one call at a time. After a failure it is closed."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.connection_id: ConnectionId | None = None
        self.server_id: bytes | None = None
        """Both as in `ServerInfo`, after the handshake."""
        self.idle = False
        """Whether it is connected, and no command has been sent, or is about to be sent, whose reply isn't read yet. A
        pool keeps no other connections."""

    def open(self) -> None:
        """Connects and makes the handshake, in which the server drops the node's suspects. `NoReply`: another try may
        succeed."""
        node = self._node
        suspects = list(node.suspects)
        began = time.monotonic()
        # One deadline for everything: several addresses, TLS, and a handshake that comes byte by byte.
        deadline = began + node.connect_timeout
        try:
            self._connect(deadline)
            handshake = Handshake(node.config, credentials(node.config), suspects)
            deadline = min(deadline, time.monotonic() + node.timeout)
            info = handshake.read(self._round_trip(handshake.payload, len(handshake), deadline))
        except BaseException as error:
            self.close()
            if not raised_by_handler(error):
                report_unreachable(error, node, began)
            raise
        if self.secure:
            # The handshake has set the socket's timeout to the time that remained for the handshake.
            self._set_tls_deadline(time.monotonic() + self._timeout)
        self.connection_id, self.server_id = info.connection_id, info.server_id
        node.on_connected(info, suspects, clock())
        self.idle = True

    def call(self, payload: bytes) -> Reply:
        """Sends one command and returns its reply; an error reply is raised."""
        # Until the reply is read. If an interrupt ends the call before that, no other call may use this connection.
        self.idle = False
        try:
            size = self._call_tls(payload) if self.secure else self._exchange.call(payload)
            self._feed(self._buffer, size)
            reply = self._next_reply()
            if reply is False:
                if not size:
                    raise closed_by_server(self._node)
                reply = self._read_reply(time.monotonic() + self._timeout)
            self.idle = True
        except BaseException as error:
            self._close_after(error)
            raise
        if isinstance(reply, RedisError):
            self._on_error_reply(reply)
            raise reply
        return reply

    def call_all(self, payloads: Sequence[bytes], extra_seconds: float = 0.0) -> list[Reply]:
        """Sends several commands in one write and returns all replies, which may take so many seconds longer."""
        self.idle = False
        try:
            self._check_open()
            deadline = time.monotonic() + self._timeout + extra_seconds
            replies = self._round_trip(b"".join(payloads), len(payloads), deadline)
            self.idle = True
            for reply in replies:
                if isinstance(reply, RedisError):
                    self._on_error_reply(reply)
            return replies
        except BaseException as error:
            self._close_after(error)
            raise

    def closed_by_server(self) -> bool:
        """Whether the server has closed the connection, which no call uses. Sends nothing."""
        return self._exchange.closed()

    def _on_error_reply(self, error: RedisError) -> None:
        if isinstance(error, Redirected):
            error.asked, error.server_id = self._node, self.server_id
        elif code_of(error) in NOT_MASTER:
            self.close()

    def close(self) -> None:
        self.idle = False
        super().close()

    def _check_open(self) -> None:
        """Raises `Unsent` if the server has closed the connection, before a command is sent."""
        if self._exchange.closed():
            raise Unsent(OSError(ECONNRESET, os.strerror(ECONNRESET)))

    def _call_tls(self, payload: bytes) -> int:
        self._check_open()
        deadline = time.monotonic() + self._timeout
        try:
            self._send_tls(payload, deadline)
        except OSError as error:
            if raised_by_handler(error):
                raise
            # The server can't decrypt a TLS record that wasn't sent completely.
            raise Unsent(error) from error
        return self._receive_tls(deadline)

    def _close_after(self, error: BaseException) -> None:
        """Closes the connection when `error` has ended a call before its reply was read. Raises `NoReply`; returns
        after an interrupt, which the call raises itself."""
        node = self._node
        if not isinstance(error, (Unsent, OSError, RedisError)) or raised_by_handler(error):
            # The reply of its command would answer the next one.
            node.suspect(self.connection_id)
            self.close()
            return
        if isinstance(error, Unsent):
            self.close()
            (reason,) = error.args
            # After a timeout another connection is no better: the server doesn't read what is sent to it.
            stale = not isinstance(reason, (BlockingIOError, builtins.TimeoutError))
            raise NoReply(as_redis_error(reason, node, "sending to"), may_have_run=False, stale=stale) from error
        node.suspect_after(error, self.connection_id)
        self.close()
        shown = as_redis_error(error, node, "waiting for") if isinstance(error, OSError) else error
        raise NoReply(shown, may_have_run=True, server_id=self.server_id) from error


RAISES_SOCKET_ERRORS = frozenset(("pyredisson", "socket", "ssl", "encodings"))
"""The packages in which a failed operation on a socket may raise."""

SIGNALS = tuple(map(int, signal.valid_signals()))


def may_run_handlers() -> bool:
    """Whether the calling thread may run the user's handler of a signal: on the main thread, if there is one."""
    if threading.current_thread() is not threading.main_thread():
        return False
    # Python's own handler of SIGINT only raises KeyboardInterrupt.
    return any(callable(handler := getsignal(each)) and handler is not signal.default_int_handler for each in SIGNALS)


def raised_by_handler(error: BaseException) -> bool:
    """Whether the handler of a signal raised `error`, and not the operation that the signal has interrupted.

    A handler may raise an OSError, as the built-in TimeoutError of many recipes for a time limit. It is meant for the
    caller, and says nothing about the connection. The innermost frame of its traceback is the handler's. An
    operation that fails is written in C, and has no frame.
    """
    trace = error.__traceback__
    if trace is None or threading.current_thread() is not threading.main_thread():
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    module = str(trace.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] not in RAISES_SOCKET_ERRORS
