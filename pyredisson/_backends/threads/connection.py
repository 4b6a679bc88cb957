"""Blocking connections: one command, one reply, within a deadline. A reply never answers another call's command."""

from __future__ import annotations

import builtins
import os
import time
from collections.abc import Sequence
from enum import Enum
from errno import ECONNRESET

from redis.exceptions import RedisError

from pyredisson._backends.credentials import credentials
from pyredisson._backends.failures import as_redis_error, closed_by_server, connect_failure
from pyredisson._backends.threads.handlers import raised_by_handler
from pyredisson._backends.threads.sockets import ClientSocket
from pyredisson._core import Unsent
from pyredisson._protocol.error_codes import is_not_master
from pyredisson._protocol.handshake import ConnectionId, Handshake
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.redirects import Redirected


class ConnectionState(Enum):
    """`NEW -> IDLE -> ACTIVE -> IDLE`; any state `-> CLOSED`. A pool keeps a connection only while it is IDLE."""

    NEW = "not connected yet"
    IDLE = "connected, no command in flight"
    ACTIVE = "a command was sent, or is about to be sent, and its reply isn't read yet"
    CLOSED = "closed for good"


# A lookup in the class would cost more, and each call changes the state twice.
IDLE, ACTIVE, CLOSED = ConnectionState.IDLE, ConnectionState.ACTIVE, ConnectionState.CLOSED


class Connection(ClientSocket):
    """One connection for one call at a time. After a failure it is closed."""

    __slots__ = ("connection_id", "server_id", "state")

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.connection_id: ConnectionId | None = None
        """How the server identifies this connection. None: unknown."""
        self.server_id: bytes | None = None
        """The identity of the server's process. None: unknown."""
        self.state = ConnectionState.NEW

    def open(self) -> None:
        """Connects and makes the handshake, in which the server drops the node's suspects.

        Raises `NoReply` where another try may succeed, otherwise the error reply or the TLS error.
        """
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
            failure = error if raised_by_handler(error) else connect_failure(error, node, began)
            if failure is error:
                raise
            raise failure from error
        if self.secure:
            # The handshake has set the socket's timeout to the time that remained for the handshake.
            self._set_tls_deadline(time.monotonic() + self._timeout)
        self.connection_id, self.server_id = info.connection_id, info.server_id
        node.on_connected(info, suspects)
        self.state = IDLE

    def call(self, payload: bytes) -> Reply:
        """Sends one command and returns its reply; an error reply is raised."""
        # Until the reply is read. If an interrupt ends the call before that, no other call may use this connection.
        self.state = ACTIVE
        try:
            size = self._call_tls(payload) if self.secure else self._exchange.call(payload)
            self._feed(self._buffer, 0, size)
            reply = self._next_reply()
            if reply is False:
                if not size:
                    raise closed_by_server(self._node)
                reply = self._read_reply(time.monotonic() + self._timeout)
            self.state = IDLE
        except (Unsent, OSError, RedisError) as error:
            if raised_by_handler(error):
                self._close_in_doubt()
                raise
            raise self._close_after_failure(error) from error
        except BaseException:
            self._close_in_doubt()
            raise
        if isinstance(reply, RedisError):
            self._on_error_reply(reply)
            raise reply
        return reply

    def call_all(self, payloads: Sequence[bytes], extra_seconds: float = 0.0) -> list[Reply]:
        """Sends several commands in one write and returns their replies; error replies are in the list.

        The replies may take so many seconds longer than usual.
        """
        self.state = ACTIVE
        try:
            if self._exchange.closed():
                raise _closed_before()
            deadline = time.monotonic() + self._timeout + extra_seconds
            replies = self._round_trip(b"".join(payloads), len(payloads), deadline)
            self.state = IDLE
            for reply in replies:
                if isinstance(reply, RedisError):
                    self._on_error_reply(reply)
            return replies
        except (Unsent, OSError, RedisError) as error:
            if raised_by_handler(error):
                self._close_in_doubt()
                raise
            raise self._close_after_failure(error) from error
        except BaseException:
            self._close_in_doubt()
            raise

    def closed_by_server(self) -> bool:
        """Whether the server has closed the connection, which no call uses. Sends nothing."""
        return self._exchange.closed()

    def _on_error_reply(self, error: RedisError) -> None:
        if isinstance(error, Redirected):
            error.replied_by(self._node, self.server_id)
        elif is_not_master(error):
            self.close()

    def _close_in_doubt(self) -> None:
        """Closes the connection after an interrupt with a command in flight, whose reply would answer the next one."""
        self._node.suspect(self.connection_id)
        self.close()

    def close(self) -> None:
        self.state = CLOSED
        super().close()

    def _call_tls(self, payload: bytes) -> int:
        if self._exchange.closed():
            raise _closed_before()
        deadline = time.monotonic() + self._timeout
        try:
            self._send_tls(payload, deadline)
        except OSError as error:
            if raised_by_handler(error):
                raise
            # The server can't decrypt a TLS record that wasn't sent completely.
            raise Unsent(error) from error
        return self._receive_tls(deadline)

    def _close_after_failure(self, error: Unsent | OSError | RedisError) -> NoReply:
        """Closes the connection after a failure in a call. Returns what the call raises: no reply was received."""
        node = self._node
        if isinstance(error, Unsent):
            self.close()
            (reason,) = error.args
            # After a timeout another connection is no better: the server doesn't read what is sent to it.
            stale = not isinstance(reason, (BlockingIOError, builtins.TimeoutError))
            return NoReply(as_redis_error(reason, node, "sending to"), may_have_run=False, stale=stale)
        node.suspect_after(error, self.connection_id)
        self.close()
        if isinstance(error, OSError):
            error = as_redis_error(error, node, "waiting for")
        return NoReply(error, may_have_run=True, server_id=self.server_id)


def _closed_before() -> Unsent:
    """The server closed the connection before the command was sent."""
    return Unsent(OSError(ECONNRESET, os.strerror(ECONNRESET)))
