"""The connection of a final release to one server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from redis.exceptions import ConnectionError, NoScriptError, RedisError

from pyredisson._backends.clock import clock
from pyredisson._backends.threads.connection import ACTIVE, IDLE, Connection
from pyredisson._backends.threads.handlers import raised_by_handler
from pyredisson._core import Unsent
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.redirects import ASKING
from pyredisson._protocol.scripts import as_eval

ATTEMPTS = 2
"""To send a batch. The connection may break once, and all commands are idempotent."""
SHORTEST_TIMEOUT = 0.02


class LastConnection:
    """Sends batches of commands, and connects where needed.

    Each batch is written by `write`, and its replies are read by `read`. So several servers work at the same time.
    """

    def __init__(self, node: Node, *, asking: bool) -> None:
        """`asking`: for commands whose slots are still being moved to the server."""
        self._node = node
        self._asking = asking
        self._connection: _PartedConnection | None = None
        self._closed = False

    def open(self, deadline: float) -> None:
        """Connects. Half of the time may be used for it."""
        for remaining in reversed(range(ATTEMPTS)):
            try:
                self._open(deadline)
                return
            except NoReply:
                if not remaining or clock() >= deadline:
                    raise

    def write(self, payloads: Sequence[bytes], deadline: float) -> None:
        """Sends commands in one write."""
        for remaining in reversed(range(ATTEMPTS)):
            try:
                self._open(deadline).write(self._commands(payloads))
                return
            except NoReply:
                self._disconnect()
                if not remaining or clock() >= deadline:
                    raise

    def read(self, payloads: Sequence[bytes], deadline: float) -> list[Reply]:
        """The replies to the commands of `write`, with error replies in the list."""
        try:
            replies = self._read(len(payloads))
        except NoReply:
            self._disconnect()
            if clock() >= deadline:
                raise
            self._open(deadline).write(self._commands(payloads))
            replies = self._read(len(payloads))
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            with_shebang = self._node.scripts.with_shebang
            again = [as_eval(payloads[i], with_shebang=with_shebang) for i in unknown]
            self._open(deadline).write(self._commands(again))
            for i, reply in zip(unknown, self._read(len(again)), strict=True):
                replies[i] = reply
        return replies

    def close(self) -> None:
        """Closes the connection, also one that another thread is about to make."""
        self._closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _read(self, count: int) -> list[Reply]:
        connection = self._connection
        assert connection is not None, "`write` has succeeded, or has raised"
        return connection.read(2 * count)[1::2] if self._asking else connection.read(count)

    def _commands(self, payloads: Sequence[bytes]) -> Sequence[bytes]:
        return [part for payload in payloads for part in (ASKING, payload)] if self._asking else payloads

    def _open(self, deadline: float) -> _PartedConnection:
        """A connection with the timeouts that the deadline allows: two commands that hang must not exceed it."""
        connection = self._connection
        # An acquire in doubt must not run after its release: the handshake has the server drop its connection.
        if connection is not None and not self._node.suspects:
            return connection
        self._disconnect()
        timeout = max(SHORTEST_TIMEOUT, (deadline - clock()) / 2)
        node = self._node.with_timeout(timeout)
        # Also where that is longer than usual.
        node.timeout = node.connect_timeout = timeout
        connection = _PartedConnection(node)
        connection.open()
        self._connection = connection
        # Read after the connection was stored.
        if self._closed:
            self._disconnect()
            raise NoReply(ConnectionError("the final release has ended"), may_have_run=False)
        return connection


class _PartedConnection(Connection):
    """A connection on which the writing of commands and the reading of their replies are two calls."""

    __slots__ = ()

    def write(self, payloads: Sequence[bytes]) -> None:
        """Sends commands in one write."""
        self.state = ACTIVE
        with self._failing():
            self._write(b"".join(payloads), time.monotonic() + self._timeout)

    def read(self, count: int) -> list[Reply]:
        """The next replies; error replies are in the list."""
        with self._failing():
            replies = self._read_replies(count, time.monotonic() + self._timeout)
        self.state = IDLE
        for reply in replies:
            if isinstance(reply, RedisError):
                self._on_error_reply(reply)
        return replies

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Raises `NoReply` after a failure of the connection."""
        try:
            yield
        except (Unsent, OSError, RedisError) as error:
            if raised_by_handler(error):
                raise
            raise self._close_after_failure(error) from error
