"""The last commands of a client, which release what it holds: large batches within a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from redis.exceptions import ClusterDownError, ConnectionError, RedisError

from pyredisson._backends.runtime import clock, start_thread
from pyredisson._backends.threads.connection import Connection
from pyredisson._backends.threads.runtime import ThreadBackend, run
from pyredisson._client.servers import Servers
from pyredisson._core import Unsent
from pyredisson._diagnostics import logger
from pyredisson._protocol.moving_slots import send_other_forms
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import ASKING, NoReply, Redirected, Reply

THREAD_NAME = "pyredisson-final-release"
BATCH = 1000
POLL_INTERVAL = 0.005
"""Seconds between two looks whether calls are in flight."""
QUIET, QUIET_FOR_EACH = 0.02, 0.005
"""Seconds after which the calls that have ended have added their commands, and seconds more for each of these calls:
their threads run one after the other."""
ABORT_AFTER = 0.4
"""The part of the time limit after which calls that still wait for a reply are aborted."""
MOST_REDIRECTS = 2
"""How often a command is sent to another server than before. More would take too long."""
SHARES = 4
"""A server may use this part of the remaining time, or an equal part of it if there are fewer servers: one may hang."""


T = TypeVar("T")
Target = tuple[Node | None, bool]
"""A server, and whether its commands follow ASKING. None: it isn't known."""


@dataclass(eq=False)
class FinalRelease:
    """Sends all commands of `unsent`, to which calls that were in flight when the client was closed add more."""

    client_id: str
    servers: Servers
    unsent: dict[bytes, bool]
    """The commands, and whether they release something: if one fails that doesn't, there is no warning."""
    deadline: float
    calls: ThreadBackend | None
    """The calls of other threads, which are waited for, and aborted in the end."""
    _connections: dict[tuple[Node, bool], LastConnection] = field(default_factory=dict, init=False)
    _failed: dict[Node | None, RedisError] = field(default_factory=dict, init=False)
    """The servers that didn't reply. They are not tried again."""
    _starts_threads: bool = field(default=False, init=False)
    """Whether threads may be started: not in the handler of a signal, which may have interrupted another start."""
    _refusals: list[RedisError] = field(default_factory=list, init=False)
    """What servers have replied to commands that they haven't run."""
    _reached: bool = field(default=False, init=False)
    """Whether any server has replied."""
    _lost: int = field(default=0, init=False)
    """Commands that could not be sent."""

    def send(self, *, main_thread_stopped: bool = False) -> None:
        """Sends until no call is in flight any more, or until the deadline. What can't be sent is logged and dropped.

        `main_thread_stopped`: a signal handler has stopped the main thread. A call of it never ends, so after the abort
        calls are waited for only while some of them end.
        """
        self._starts_threads = not main_thread_stopped
        try:
            self._send_until_quiet(main_thread_stopped)
        except RedisError:
            # No server replies. What calls in flight may add now can't be sent either.
            self._lost += sum(list(self.unsent.values()))
            self.unsent.clear()
        finally:
            for connection in list(self._connections.values()):
                connection.close()
            # No caller needs the result of a call that is still in flight: the client is closed.
            if self.calls is not None:
                self.calls.abort_calls()
        if self._lost:
            errors = "; ".join(dict.fromkeys(map(str, [*self._failed.copy().values(), *self._refusals])))
            logger.warning("%d locks were not released and end with their leases: %s", self._lost, errors)

    def _send_until_quiet(self, main_thread_stopped: bool) -> None:
        abort_at, aborted = clock() + (self.deadline - clock()) * ABORT_AFTER, False
        busy_at, before, quiet = clock(), 0, 0.0
        while True:
            # Counted before the commands are read: a call adds its commands before it ends, or soon after it.
            in_flight = 0 if self.calls is None else self.calls.calls_in_flight
            if in_flight:
                quiet = max(quiet, QUIET + in_flight * QUIET_FOR_EACH)
            if unsent := list(self.unsent):
                self._send_all(unsent)
            now = clock()
            if now >= abort_at and self.calls is not None:
                self.calls.abort_calls()
                aborted = True
            # The call of a main thread that was stopped doesn't end.
            if unsent or in_flight != before or (in_flight and not (aborted and main_thread_stopped)):
                busy_at, before = now, in_flight
            if unsent:
                continue
            if now - busy_at >= quiet:
                return
            if now >= self.deadline:
                if in_flight:
                    logger.warning("%d calls were still in flight when client %s was closed", in_flight, self.client_id)
                return
            time.sleep(POLL_INTERVAL)

    def _send_all(self, payloads: Sequence[bytes]) -> None:
        """Sends commands, each to its server. Raises if no server has replied yet."""
        for i in range(0, len(payloads), BATCH):
            batch = payloads[i : i + BATCH]
            groups: dict[Target, list[bytes]] = {}
            for payload in batch:
                groups.setdefault((self.servers.serving(payload), False), []).append(payload)
            for left in reversed(range(1 + MOST_REDIRECTS)):
                groups = self._send_groups(groups, follows=left > 0)
            for payload in batch:
                self.unsent.pop(payload, None)
        # After all of them: the first thousand may be for one server, which doesn't reply.
        if not self._reached:
            raise next(iter(self._failed.copy().values()))

    def _send_groups(self, groups: dict[Target, list[bytes]], *, follows: bool) -> dict[Target, list[bytes]]:
        """Sends the commands of each server, with ASKING or without. Returns the redirected ones, if `follows`."""
        redirected: dict[Target, list[bytes]] = {}
        # A server that fails anyway comes last, as it takes the most time.
        in_order = sorted(groups, key=lambda target: self.servers.is_failing(target[0]))
        sent = {
            target: [self.servers.as_sent(payload, asking=target[1]) for payload in groups[target]]
            for target in in_order
        }
        self._connect(in_order)
        # All is written before the first reply is read: so the servers work at the same time.
        for i, target in enumerate(in_order):
            self._use(target, len(in_order) - i, LastConnection.write, sent[target])
        for i, target in enumerate(in_order):
            payloads = groups[target]
            replies = self._use(target, len(in_order) - i, LastConnection.read, sent[target])
            if replies is None:
                self._lost += sum(self.unsent.get(payload, False) for payload in set(payloads))
                continue
            self._reached = True
            for payload, reply in zip(payloads, replies, strict=True):
                if isinstance(reply, Redirected) and follows:
                    node = self.servers.target(reply)
                    redirected.setdefault((node, reply.is_ask), []).append(payload)
                elif isinstance(reply, RedisError) and self.unsent.get(payload):
                    self._lost += 1
                    self._refusals.append(reply)
        return redirected

    def _connect(self, targets: Sequence[Target]) -> None:
        """Connects to several servers at the same time. What this leaves out, `write` does one after the other."""
        new = [
            (node, asking)
            for node, asking in targets
            if node is not None and (node, asking) not in self._connections and not self.servers.is_failing(node)
        ]
        if not self._starts_threads or len(new) < 2:
            return
        connect = partial(self._use, servers=1, use=LastConnection.write, sent=[])
        started: list[threading.Thread] = []
        try:
            for target in new:
                thread = start_thread(partial(connect, target), THREAD_NAME)
                started.append(thread)
        except RuntimeError:
            # No more threads can be started, for example because the interpreter exits.
            self._starts_threads = False
        for thread in started:
            thread.join(max(0.0, self.deadline - clock()))

    def _use(
        self,
        target: Target,
        servers: int,
        use: Callable[[LastConnection, Sequence[bytes], float], T],
        sent: list[bytes],
    ) -> T | None:
        """Uses the connection to one of so many servers that remain. None: it doesn't reply, now or before."""
        node, asking = target
        if node in self._failed:
            return None
        try:
            if node is None:
                raise ClusterDownError("CLUSTERDOWN no server is known that serves the slot")
            if (connection := self._connections.get((node, asking))) is None:
                connection = self._connections[node, asking] = LastConnection(node, asking=asking)
            return use(connection, sent, clock() + (self.deadline - clock()) / min(servers, SHARES))
        except NoReply as failure:
            self._failed[node] = failure.error
        except RedisError as error:
            self._failed[node] = error
        return None


SHORTEST_TIMEOUT = 0.02


class LastConnection:
    """The connection to one server. `write` and `read` are apart, so that several servers work at the same time."""

    _connection: _PartedConnection | None = None

    def __init__(self, node: Node, *, asking: bool) -> None:
        """`asking`: for commands whose slots are still being moved to the server."""
        self._node = node
        self._asking = asking
        self._closed = False

    def write(self, payloads: Sequence[bytes], deadline: float) -> None:
        """Connects where needed, and sends the commands, if there are any."""
        try:
            self._write(payloads, deadline)
        except NoReply:
            # The connection may break once, and all commands are idempotent.
            self._disconnect()
            if clock() >= deadline:
                raise
            self._write(payloads, deadline)

    def read(self, payloads: Sequence[bytes], deadline: float) -> list[Reply]:
        """The replies to the commands of `write`, with error replies in the list."""
        try:
            replies = self._read(len(payloads))
        except NoReply:
            self._disconnect()
            if clock() >= deadline:
                raise
            self._write(payloads, deadline)
            replies = self._read(len(payloads))

        async def send(forms: list[bytes]) -> list[Reply]:
            self._write(forms, deadline)
            return self._read(len(forms))

        run(send_other_forms, list(payloads), replies, self._node.scripts, send)
        return replies

    def close(self) -> None:
        """Closes the connection, also one that another thread is about to make."""
        self._closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        # One step: of `close` and the thread that connects, one closes it.
        if (connection := self.__dict__.pop("_connection", None)) is not None:
            connection.close()

    def _write(self, payloads: Sequence[bytes], deadline: float) -> None:
        connection = self._open(deadline)
        if payloads:
            commands = [part for payload in payloads for part in (ASKING, payload)] if self._asking else payloads
            connection.write(commands)

    def _read(self, count: int) -> list[Reply]:
        connection = self._connection
        assert connection is not None, "`write` has succeeded, or has raised"
        return connection.read(2 * count)[1::2] if self._asking else connection.read(count)

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

    def write(self, payloads: Sequence[bytes]) -> None:
        self.idle = False
        with self._failing():
            self._write(b"".join(payloads), time.monotonic() + self._timeout)

    def read(self, count: int) -> list[Reply]:
        """The next replies; error replies are in the list."""
        with self._failing():
            replies = self._read_replies(count, time.monotonic() + self._timeout)
        self.idle = True
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
            self._close_after(error)
            raise
