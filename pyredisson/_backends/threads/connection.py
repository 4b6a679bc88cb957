"""Blocking connections for the thread world: one round trip a call, a reply deadline, no reply for anybody else."""

from __future__ import annotations

import builtins

# getaddrinfo imports it with the first name that it looks up; interrupted in the middle of that, it fails for ever.
import encodings.idna  # noqa: F401
import os
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from errno import EBADF, ECONNRESET
from math import ceil

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._core import Exchange, Unsent
from pyredisson._protocol.error_codes import NOT_MASTER
from pyredisson._protocol.handshake import ConnectionId, Handshake
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import reader

BUFFER = 16384
LOOK = 0.1
"""Seconds after which a thread that waits for a reply looks for a signal that came just before it began to wait."""


class Connection:
    """One socket. After any failure it is closed; it never answers a call with the reply to another."""

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_exchange",
        "_fed",
        "_gets",
        "_node",
        "_one_at_a_time",
        "_outbox",
        "_receive",
        "_send",
        "_socket",
        "_timeout",
        "closed",
        "connection_id",
        "secure",
        "server_id",
    )

    def __init__(self, node: Node) -> None:
        self._node = node
        self._timeout = node.timeout
        self._buffer = bytearray(BUFFER)
        self._exchange = Exchange(-1, self._buffer, node.timeout)
        self._socket: socket.socket | None = None
        self.secure = node.config.ssl_context is not None
        self._one_at_a_time = threading.Lock()
        self._outbox: deque[bytes] = deque()
        """What is still to be sent on a subscription, whole commands."""
        self.connection_id: ConnectionId | None = None
        self.server_id: bytes | None = None
        """The identity of the server's process; None where it isn't known."""
        self.closed = True
        """Not open, or not to be used by anybody else."""

    def open(self) -> None:
        """Connects and shakes hands; drops the node's suspects. Raises `NoReply` or what the server objects to."""
        node = self._node
        suspects = list(node.suspects)
        # One for all that it takes: several addresses, TLS, and a handshake that comes byte by byte.
        deadline = time.monotonic() + node.connect_timeout
        try:
            self._connect(deadline)
            handshake = Handshake(node.config, credentials(node), suspects)
            deadline = min(deadline, time.monotonic() + node.timeout)
            info = handshake.read(self._ask(handshake.payload, len(handshake), deadline))
        except BaseException as error:
            self.close()
            node.on_unreachable(error)
            if isinstance(error, ssl.SSLCertVerificationError):
                raise reported(error, node, "connecting to") from error
            # Nothing of the caller's was sent yet, so any trouble with the line is worth another try.
            if isinstance(error, Unsent):
                raise NoReply(reported(error.args[0], node, "connecting to"), may_have_run=False) from error
            if isinstance(error, OSError):
                raise NoReply(reported(error, node, "connecting to"), may_have_run=False) from error
            if type(error) is ConnectionError:
                raise NoReply(error, may_have_run=False) from error
            raise
        if self.secure:
            # Not what was left for the handshake.
            self._bound(time.monotonic() + self._timeout)
        self.connection_id, self.server_id = info.connection_id, info.server_id
        node.on_connected(info, suspects)
        self.closed = False

    def call(self, payload: bytes) -> Reply:
        """One command, one reply; an error reply is raised."""
        # Until its reply is here, whatever happens: nobody else may use this connection.
        self.closed = True
        try:
            size = self._call_securely(payload) if self.secure else self._exchange.call(payload)
            self._fed(self._buffer, 0, size)
            reply = self._gets()
            if reply is False:
                if not size:
                    raise ConnectionError(f"{self._node.address} closed the connection")
                reply = self._rest(time.monotonic() + self._timeout)
            self.closed = False
        except Unsent as unsent:
            raise self._not_sent(unsent) from unsent
        except (OSError, RedisError) as error:
            raise self._cut(error) from error
        except BaseException:
            self.abandon()
            raise
        if isinstance(reply, RedisError):
            self._judge(reply)
            raise reply
        return reply

    def call_all(self, payloads: Sequence[bytes]) -> list[Reply]:
        """Several commands in one write; error replies stand in the list."""
        self.closed = True
        try:
            if self._exchange.closed():
                raise hung_up()
            replies = self._ask(b"".join(payloads), len(payloads), time.monotonic() + self._timeout)
            self.closed = False
            for reply in replies:
                self._judge(reply)
            return replies
        except Unsent as unsent:
            raise self._not_sent(unsent) from unsent
        except (OSError, RedisError) as error:
            raise self._cut(error) from error
        except BaseException:
            self.abandon()
            raise

    def _judge(self, reply: Reply) -> None:
        if isinstance(reply, RedisError) and str(reply).partition(" ")[0] in NOT_MASTER:
            # Not the master, or not yet: a new connection may reach another server.
            self.close()

    def abandon(self) -> None:
        """Closes the connection with a call in flight: its next reply would be the answer to that one."""
        self._node.suspect(self.connection_id)
        self.close()

    def send(self, payload: bytes) -> None:
        """Sends without waiting for anything; for subscriptions."""
        connection = self._socket
        if connection is None:
            raise ConnectionError("the connection is closed")
        self._outbox.append(payload)
        self._flush(connection)

    def _flush(self, connection: socket.socket) -> None:
        # Never waits for whoever reads or sends: that may be this thread, interrupted by a finalizer which the garbage
        # collector runs, and it looks here again.
        while self._outbox and self._one_at_a_time.acquire(blocking=False):
            try:
                while self._outbox:
                    self._send_in_time(connection, self._outbox.popleft())
            finally:
                self._one_at_a_time.release()

    def _send_in_time(self, connection: socket.socket, payload: bytes) -> None:
        if self.secure:
            connection.sendall(payload)
            return
        try:
            self._exchange.send(payload, self._timeout)
        except Unsent as problem:
            raise problem.args[0] from None

    def take(self) -> list[Reply]:
        """What the server says, complete replies only; for one who knows by polling that there is something."""
        with self._one_at_a_time:
            size = self._receive(self._buffer)
        connection = self._socket
        if self._outbox and connection is not None:
            self._flush(connection)
        if not size:
            raise ConnectionError(f"{self._node.address} closed the connection")
        self._fed(self._buffer, 0, size)
        replies = []
        while (reply := self._gets()) is not False:
            replies.append(reply)
        return replies

    def pending(self) -> bool:
        """Whether there is something that no poll of the socket can tell of."""
        return self.secure and isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def fileno(self) -> int:
        """For a poll."""
        return -1 if self._socket is None else self._socket.fileno()

    def shut(self) -> None:
        """Wakes a thread that waits in `receive`; it finds the connection closed."""
        # Read once: another thread may close it meanwhile.
        connection = self._socket
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                # Not connected any more: who reads has noticed.
                return

    def close(self) -> None:
        """Closes the socket, without a word to the server."""
        self.closed = True
        self._exchange.end()
        connection, self._socket = self._socket, None
        if connection is not None:
            # TLS would say good-bye in `close`; a child after fork must not do so for its parent.
            descriptor = connection.detach()
            if descriptor >= 0:
                os.close(descriptor)

    def _connect(self, deadline: float) -> None:
        config = self._node.config
        if config.path is not None:
            connection = self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(left(deadline))
            connection.connect(config.path)
        else:
            connection = self._dial(config.host, config.port, deadline)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if config.socket_keepalive:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if config.ssl_context is not None:
            connection.settimeout(left(deadline))
            connection = config.ssl_context.wrap_socket(
                connection, server_hostname=config.server_hostname or config.host
            )
            self._socket = connection
        self._limit(connection)
        parser = reader()
        self._fed = parser.feed
        self._gets = parser.gets
        self._exchange = Exchange(connection.fileno(), self._buffer, self._timeout)
        self._send = connection.send
        self._receive = connection.recv_into

    def _dial(self, host: str, port: int, deadline: float) -> socket.socket:
        """Connects to the first of the host's addresses that answers; a silent one takes a fair part of the time."""
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for rest in range(len(addresses), 0, -1):
            family, kind, protocol, _, address = addresses[-rest]
            connection = self._socket = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(left(deadline) / rest)
                connection.connect(address)
                return connection
            except OSError:
                if rest == 1:
                    raise
                connection.close()
        raise OSError(f"{host} has no address")

    def _limit(self, connection: socket.socket) -> None:
        if self.secure:
            connection.settimeout(self._timeout)
            return
        # The kernel keeps the deadline: a socket with Python's own would poll before every call.
        connection.settimeout(None)
        look = timeval(self._timeout / ceil(self._timeout / LOOK))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, look)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, look)

    def _ask(self, payload: bytes, count: int, deadline: float) -> list[Reply]:
        """Several commands in one write, and their replies."""
        if self.secure:
            self._send_securely(payload, deadline)
        else:
            self._exchange.send(payload, left(deadline))
        replies = []
        for _ in range(count):
            reply = self._gets()
            replies.append(self._rest(deadline) if reply is False else reply)
        return replies

    def _rest(self, deadline: float) -> Reply:
        """The reply, of which some may have come."""
        while True:
            size = self._receive_securely(deadline) if self.secure else self._exchange.receive(left(deadline))
            if not size:
                raise ConnectionError(f"{self._node.address} closed the connection")
            self._fed(self._buffer, 0, size)
            reply = self._gets()
            if reply is not False:
                return reply

    def _call_securely(self, payload: bytes) -> int:
        if self._exchange.closed():
            raise hung_up()
        deadline = time.monotonic() + self._timeout
        try:
            self._send_securely(payload, deadline)
        except OSError as error:
            # What TLS has not sent to its end, nobody can read.
            raise Unsent(error) from error
        return self._receive_securely(deadline)

    def _send_securely(self, payload: bytes, deadline: float) -> None:
        sent = 0
        with memoryview(payload) as view:
            while sent < len(payload):
                self._bound(deadline)
                sent += self._send(view[sent:])

    def _receive_securely(self, deadline: float) -> int:
        self._bound(deadline)
        return self._receive(self._buffer)

    def _bound(self, deadline: float) -> None:
        """Bounds the next operation of a TLS socket."""
        connection = self._socket
        if connection is None:
            raise OSError(EBADF, os.strerror(EBADF))
        connection.settimeout(left(deadline))

    def _not_sent(self, problem: Unsent) -> NoReply:
        """Nobody has executed it, and nobody will."""
        self.close()
        (error,) = problem.args
        # A server that takes nothing more in is no better over another connection.
        stale = not isinstance(error, (BlockingIOError, builtins.TimeoutError))
        return NoReply(reported(error, self._node, "sending to"), may_have_run=False, stale=stale)

    def _cut(self, error: OSError | RedisError) -> NoReply:
        if self._node.config.path is None or not isinstance(error, ConnectionError | builtins.ConnectionError):
            self._node.suspect(self.connection_id)
        # Else the server itself has ended it: no network in between could still deliver what was sent.
        self.close()
        if isinstance(error, OSError):
            return NoReply(reported(error, self._node, "waiting for"), may_have_run=True, server_id=self.server_id)
        return NoReply(error, may_have_run=True, server_id=self.server_id)


def left(deadline: float) -> float:
    """Seconds until then, always more than none. TimeoutError: it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise builtins.TimeoutError("timed out")
    return seconds


def hung_up() -> Unsent:
    """The server has closed the connection, and nothing was sent since."""
    return Unsent(OSError(ECONNRESET, os.strerror(ECONNRESET)))


def timeval(seconds: float) -> bytes:
    """As the kernel takes it."""
    whole, rest = divmod(seconds, 1)
    return struct.pack("ll", int(whole), int(rest * 1e6))


def credentials(node: Node) -> Sequence[str]:
    config = node.config
    if config.credential_provider is not None:
        return [str(part) for part in config.credential_provider.get_credentials()]
    if config.password is None:
        return ()
    return (config.username, config.password) if config.username else (config.password,)


def reported(error: OSError, node: Node, doing: str) -> RedisError:
    """The exception that redis-py's users expect, saying where and why."""
    if isinstance(error, (BlockingIOError, builtins.TimeoutError)):
        return TimeoutError(f"timeout {doing} {node.address}")
    return ConnectionError(f"error {doing} {node.address}: {error}")
