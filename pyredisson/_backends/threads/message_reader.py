"""Reading one subscription connection: messages are passed on, and after a silence the server gets a PING."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections import deque
from time import monotonic

from redis.exceptions import ConnectionError

from pyredisson._backends.connecting import closed_by_server
from pyredisson._backends.threads.connection import Connection
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import Unsent
from pyredisson._protocol.node import Node
from pyredisson._protocol.pubsub import Subscription
from pyredisson._protocol.replies import Reply
from pyredisson.logic.routed_channels import ListenedChannels

PIPE_BYTES = 4096
"""How many wakeups' bytes are read from the self-pipe at a time."""


class SelfPipe:
    """A pair of sockets: a byte that is sent to `writer` ends a poll that waits for `reader`."""

    def __init__(self) -> None:
        self.reader, self.writer = socket.socketpair()
        self.reader.setblocking(False)
        self.writer.setblocking(False)

    def __enter__(self) -> SelfPipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()
        self.writer.close()


class MessageReader:
    """Reads one subscription connection; one thread at a time."""

    def __init__(
        self, node: Node, connection: SubscriptionConnection, channels: ListenedChannels, self_pipe: SelfPipe
    ) -> None:
        self.connection = connection
        self.subscription = Subscription(channels, node.scripts.pubsub)
        self._node = node
        self._channels = channels
        self._self_pipe = self_pipe
        self._silent_since = monotonic()
        self._ping_sent_at = 0.0
        """When a PING was sent that has no reply yet; 0: none."""
        self._doubted = False
        """Whether to send a PING at once."""

    def check(self) -> None:
        """Has a PING sent, to find out whether the connection is dead. On any thread; acquires no mutex."""
        self._doubted = True
        # Ends the poll of the thread that reads, as a full pipe does. It also fails if the listener has ended.
        with contextlib.suppress(OSError):
            self._self_pipe.writer.send(b"\0")

    def read(self, wakeup: ThreadWakeup, deadline: float, *, for_others: bool = False) -> None:
        """Passes on messages until the wakeup is set or the deadline has passed; with `for_others`, also until one may
        have woken the only waiter, which reads next."""
        connection, self_pipe = self.connection, self._self_pipe
        while True:
            # Set only while this thread polls: a wakeup that its own reading sets needs no byte in the pipe.
            wakeup.self_pipe = self_pipe.writer
            if wakeup.is_set():
                return
            replies = connection.receive(self._seconds_to_poll(deadline), self_pipe.reader)
            wakeup.self_pipe = None
            if replies is not None:
                self.subscription.on_replies(replies)
                # The reply to a PING may have come with a message.
                self._ping_sent_at = 0.0
                if wakeup.is_set():
                    # Without any delay: a message has woken this very thread.
                    return
                self._silent_since = now = monotonic()
                if for_others and len(self._channels.waiting) <= 1:
                    deadline = min(deadline, now)
                continue
            with contextlib.suppress(BlockingIOError):
                self_pipe.reader.recv(PIPE_BYTES)
            if (now := monotonic()) >= deadline:
                return
            self._ping_after_silence(now)

    def _seconds_to_poll(self, deadline: float) -> float:
        """Until the deadline, or until a PING or its reply is due."""
        node = self._node
        if self._ping_sent_at:
            deadline = min(deadline, self._ping_sent_at + node.timeout)
        elif node.ping_interval:
            if self._doubted:
                return 0
            deadline = min(deadline, self._silent_since + node.ping_interval)
        return max(0.0, deadline - monotonic())

    def _ping_after_silence(self, now: float) -> None:
        """Sends a PING after a long silence, or in doubt. ConnectionError: a PING got no reply in time."""
        node = self._node
        if self._ping_sent_at:
            if now >= self._ping_sent_at + node.timeout:
                node.on_failure()
                raise ConnectionError(f"{node.address} doesn't answer a PING")
        elif node.ping_interval and (self._doubted or now >= self._silent_since + node.ping_interval):
            self._doubted = False
            # The mutex keeps the order of the commands sent the same as that in `subscription`.
            with self._channels.mutex:
                self.connection.send(self.subscription.ping_command())
            self._ping_sent_at = now


class SubscriptionConnection(Connection):
    """A connection that one thread reads while others send, without waiting for replies."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._mutex = threading.Lock()
        """Held by the thread that sends, or that uses a TLS socket: TLS allows one at a time."""
        self._outbox: deque[bytes] = deque()
        """Whole commands that are still to be sent."""

    def send(self, payload: bytes) -> None:
        if (connection := self._socket) is None:
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
        """Receives what comes within that time, and returns the replies that are complete. None: nothing came, or there
        is something to receive from `stop`. One thread at a time."""
        if self.secure:
            size = self._receive_tls_or_stop(seconds, stop)
        else:
            # Without the mutex: other threads only send.
            size = self._exchange.receive_or_stop(stop.fileno(), seconds)
        if size < 0:
            return None
        if not size:
            raise closed_by_server(self._node)
        self._feed(self._buffer, size)
        replies = []
        next_reply = self._next_reply
        while (reply := next_reply()) is not False:
            replies.append(reply)
        return replies

    def _receive_tls_or_stop(self, seconds: float, stop: socket.socket) -> int:
        """Returns how many bytes were received; -1: none."""
        connection = self._socket
        # TLS may have received data already, of which polling the socket knows nothing.
        if not (isinstance(connection, ssl.SSLSocket) and connection.pending()):
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
