"""Reading one subscription connection: messages are passed on, and after a silence the server gets a PING."""

from __future__ import annotations

import contextlib
import socket
from time import monotonic

from redis.exceptions import ConnectionError

from pyredisson._backends.threads.subscription_connection import SubscriptionConnection
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._protocol.node import Node
from pyredisson._protocol.subscription import Subscription
from pyredisson.logic.channels import ListenedChannels

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
        # Ends the poll of the thread that reads. It fails if the pipe is full, so that the poll ends anyway, or if the
        # listener has ended.
        with contextlib.suppress(OSError):
            self._self_pipe.writer.send(b"\0")

    def read(self, wakeup: ThreadWakeup, deadline: float, *, for_others: bool = False) -> None:
        """Passes on messages until the wakeup is set or the deadline has passed.

        With `for_others`, it also ends when a message may have woken the only waiter: that waiter reads next.
        """
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
