"""The subscriptions of the threads backend: a thread that waits for a message reads the connection itself.

Messages are passed on, and after a silence the server gets a PING.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic, sleep

from redis.exceptions import ConnectionError, RedisError

from pyredisson._backends.connecting import closed_by_server
from pyredisson._backends.routed import NodeListeners
from pyredisson._backends.runtime import start_thread
from pyredisson._backends.threads.connection import Connection, may_run_handlers, raised_by_handler
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import Unsent, remove_value
from pyredisson._diagnostics import logger
from pyredisson._protocol.node import Node
from pyredisson._protocol.pubsub import Subscription, pause
from pyredisson._protocol.replies import Reply
from pyredisson.logic.channels import LINGER
from pyredisson.logic.routed_channels import ListenedChannels

WOKEN_WAITER_RETURNS = 0.02
"""Seconds in which a waiter that was just woken comes back to read, or leaves. The thread reads again after that."""
TLS_IS_USED = 0.001
"""Seconds after which the thread looks again whether it may read."""
SelfPipe = tuple[socket.socket, socket.socket]
"""A byte that is sent to the second one ends a poll that waits for the first one."""
PIPE_BYTES = 4096
"""How many wakeups' bytes are read from the self-pipe at a time."""


class ThreadListener:
    """Keeps a connection subscribed to the channels of the registry, for as long as the registry wants one.

    A waiter that finds no other reader reads the connection itself, and so gets its message without a switch of
    threads, which would be a large part of the time of a hand-off. The listener's own thread connects, and reads while
    others wait and none of them reads. Over TLS only that thread reads. And a thread on which a handler of a signal
    may run doesn't read: while it runs, it would keep the messages from all others, which it may wait for.
    """

    def __init__(self, node: Node, channels: ListenedChannels) -> None:
        self._node = node
        self._channels = channels
        self._wakeup = ThreadWakeup()
        """Makes the listener's thread check whether it has to read, to connect or to end."""
        self._role = ReaderRole()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def subscribe(self, channels: Iterable[bytes]) -> None:
        """With the registry's mutex held. Starts the thread if it doesn't run, also for no channels."""
        if (messages := self._role.messages) is not None:
            # The thread runs: it ends only after it has disconnected.
            if channels and (payload := messages.subscription.subscribe_commands(channels)):
                self._send(messages, payload)
        elif not self.running and not self._stopped:
            self._thread = start_thread(self._run, "pyredisson-listener")

    def unsubscribe(self, channels: Iterable[bytes], *, moved: bool = False) -> None:
        """With the registry's mutex held. `moved`: the slots of these channels have left the node."""
        messages = self._role.messages
        if messages is not None and (payload := messages.subscription.unsubscribe_commands(channels, moved=moved)):
            self._send(messages, payload)

    def reconnect(self) -> None:
        """Replaces the connection. It can be called on any thread, acquires no mutex, doesn't block."""
        if (messages := self._role.messages) is not None:
            self._role.fail(messages, ConnectionError(f"{self._node.address} was replaced as the master"))
            self._wakeup.set()

    @property
    def running(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_alive()

    def wait(self, wakeup: ThreadWakeup, seconds: float) -> None:
        """Waits until the wakeup is set or the time is over, and reads messages meanwhile, if no other thread does.
        Only a waiter of a channel reads: the registry's set of waiters tells whether the reader still waits."""
        deadline = monotonic() + seconds
        role, waiting = self._role, self._channels.waiting
        messages = role.messages
        if messages is None or wakeup not in waiting:
            wakeup.wait(seconds)
            return
        if messages.connection.secure or may_run_handlers():
            if role.unread:
                self._wakeup.set()
            wakeup.wait(seconds)
            return
        try:
            if role.take(wakeup) is wakeup:
                messages.read(wakeup, deadline)
            else:
                wakeup.wait(seconds)
        except BaseException as error:
            # A message that was received may not have been passed on. All waiters look again after a new connection.
            role.fail(messages, error)
            if not isinstance(error, (OSError, RedisError)) or raised_by_handler(error):
                raise
        finally:
            # This waiter isn't among the waiters of this node any more if its channel has moved to another node.
            if role.release(wakeup) and (role.failure is not None or len(waiting) > (wakeup in waiting)):
                self._wakeup.set()

    def drop(self) -> None:
        """Ends the thread, and the reading of a waiter. It can be called on any thread, and acquires no mutex."""
        # The thread looks at `_stopped` after it has set the connection. If it has read `_stopped` too early, it finds
        # the connection shut down, or its wakeup set, so it doesn't wait once more.
        self._stopped = True
        if (messages := self._role.messages) is not None:
            messages.connection.shut_down()
        self._wakeup.set()

    def _send(self, messages: MessageReader, payload: bytes) -> None:
        try:
            messages.connection.send(payload)
        except OSError as error:
            self._role.fail(messages, error)
            self._wakeup.set()

    def _run(self) -> None:
        failures = 0
        while not self._ends():
            if self._connect_and_serve():
                failures = 0
            failures += 1
            # Nobody else does it without a connection. Channels without waiters must not keep it connecting.
            self._channels.sweep()
            if not self._stopped:
                self._wakeup.clear()
                self._wakeup.wait(pause(failures))

    def _ends(self) -> bool:
        """Whether the thread ends now: the listener was closed, or has no channels."""
        with self._channels.mutex:
            if self._channels.is_unused():
                # The next `subscribe` starts another thread.
                self._thread = None
                return True
            return self._stopped

    def _connect_and_serve(self) -> bool:
        """Returns after the connection has failed; whether there was one."""
        connection = SubscriptionConnection(self._node)
        connected = False
        try:
            # In here: the process may have no descriptor left for it, either.
            with self_pipe() as pipe:
                connection.open()
                connected = True
                self._serve(MessageReader(self._node, connection, self._channels, pipe))
        except Exception as error:  # noqa: BLE001
            # Any exception, as a credential provider may raise anything: waiters rely on this thread.
            if not self._stopped:
                # Not a warning: the node warns once of a server that is away.
                logger.debug("subscription lost, it is made anew: %s", error)
        finally:
            with self._channels.mutex:
                self._role.disconnected()
                self._channels.on_disconnected()
                # Whoever sends has the mutex: none is about to use the number of the descriptor.
                connection.shut_down()
                connection.close()
        return connected

    def _serve(self, messages: MessageReader) -> None:
        """Reads whenever no waiter does, until the connection fails or the listener is closed."""
        channels, role = self._channels, self._role
        with channels.mutex:
            if self._stopped:
                return
            role.connected(messages)
            self.subscribe(channels.names())
        checks = self._node.silence_checks
        checks[messages.check] = None
        try:
            self._read_until_broken(messages)
        finally:
            checks.pop(messages.check, None)
        if role.failure is not None:
            raise ConnectionError(f"the connection was found broken: {role.failure}")

    def _read_until_broken(self, messages: MessageReader) -> None:
        channels, role = self._channels, self._role
        while not self._stopped and role.failure is None and not channels.is_unused():
            self._wakeup.clear()
            rest = LINGER
            reader = role.take(self._wakeup)
            if reader is self._wakeup:
                rest = self._read_for_waiters(messages)
            elif reader not in channels.client_waiting:
                # An interrupt ended that waiter's call before it released the role.
                role.release(reader)
                continue
            channels.sweep()
            self._wakeup.wait(rest)

    def _read_for_waiters(self, messages: MessageReader) -> float:
        """Reads as the listener's thread. Returns after how many seconds it has to look again."""
        channels, secure = self._channels, messages.connection.secure
        duration = LINGER if channels.waiting else 0.0
        try:
            messages.read(self._wakeup, monotonic() + duration, for_others=not secure)
        finally:
            self._role.release(self._wakeup)
        if not channels.waiting:
            return LINGER
        return 0.0 if secure else WOKEN_WAITER_RETURNS


class ThreadListeners(NodeListeners):
    """The listeners of one client. A waiter reads the connection on which its message will arrive."""

    _make = ThreadListener

    def call(self, function: Callable[[], None]) -> None:
        """Any thread may set the wakeups of threads."""
        function()

    def wait(self, wakeup: ThreadWakeup, seconds: float) -> None:
        """Waits until the wakeup is set or the time is over. Before that, channels follow their slots."""
        channels = self._channels
        if channels.stale:
            channels.refresh()
        place = channels.place_of.get(wakeup)
        listener = None if place is None else self._listeners.get(place)
        if listener is None:
            wakeup.wait(seconds)
        else:
            listener.wait(wakeup, seconds)


class ReaderRole:
    """The connection of one listener, and which thread reads it.

    There is no connection (`connected` and `disconnected` change that); or nobody reads it (until `take`); or a waiter
    or the listener's thread does (until `release`); or it is broken (`fail`), and about to be replaced. Each change is
    a single operation that an interrupt can't leave half done.
    """

    def __init__(self) -> None:
        self.messages: MessageReader | None = None
        """Reads the present connection. None: there is no connection."""
        self.failure: BaseException | None = None
        """Why the present connection is broken."""
        self._reader: dict[str, ThreadWakeup] = {}
        """The wakeup of the thread that reads, under the key "reader"."""

    @property
    def unread(self) -> bool:
        """Whether no thread reads a connection that works."""
        return self.messages is not None and self.failure is None and not self._reader

    def connected(self, messages: MessageReader) -> None:
        self.failure = None
        self.messages = messages

    def take(self, wakeup: ThreadWakeup) -> ThreadWakeup:
        """Makes the thread with this wakeup the reader, if no other thread reads. Returns the reader's wakeup."""
        # One operation on a dict, which also says who reads: an interrupt would leave a mutex locked for ever. This
        # thread in `release`, and the listener's thread, find out whether this thread became the reader.
        return self._reader.setdefault("reader", wakeup)

    def release(self, wakeup: ThreadWakeup) -> bool:
        """The thread with this wakeup reads no longer. False: it wasn't the reader."""
        wakeup.self_pipe = None
        return remove_value(self._reader, "reader", wakeup)

    def fail(self, messages: MessageReader, error: BaseException) -> None:
        """The connection failed: nobody reads it any more, and the listener's thread replaces it."""
        if self.messages is messages:
            self.failure = error
            messages.connection.shut_down()

    def disconnected(self) -> None:
        self.messages = None


@contextlib.contextmanager
def self_pipe() -> Iterator[SelfPipe]:
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        yield reader, writer


class MessageReader:
    """Reads one subscription connection; one thread at a time."""

    def __init__(
        self, node: Node, connection: SubscriptionConnection, channels: ListenedChannels, pipe: SelfPipe
    ) -> None:
        self.connection = connection
        self.subscription = Subscription(channels, node.scripts.pubsub)
        self._node = node
        self._channels = channels
        self._woken, self._wake = pipe
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
            self._wake.send(b"\0")

    def read(self, wakeup: ThreadWakeup, deadline: float, *, for_others: bool = False) -> None:
        """Passes on messages until the wakeup is set or the deadline has passed; with `for_others`, also until one may
        have woken the only waiter, which reads next."""
        connection, woken = self.connection, self._woken
        while True:
            # Set only while this thread polls: a wakeup that its own reading sets needs no byte in the pipe.
            wakeup.self_pipe = self._wake
            if wakeup.is_set():
                return
            replies = connection.receive(self._seconds_to_poll(deadline), woken)
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
                woken.recv(PIPE_BYTES)
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
        self._user: dict[str, object] = {}
        """Which call sends, or uses a TLS socket, under the key "user": TLS allows one at a time."""
        self._outbox: deque[bytes] = deque()
        """Whole commands that are still to be sent."""

    def send(self, payload: bytes) -> None:
        if (connection := self._socket) is None:
            raise ConnectionError("the connection is closed")
        self._outbox.append(payload)
        self._flush(connection)

    def _flush(self, connection: socket.socket) -> None:
        # Never waits for the other user. That may be this very thread, interrupted by a finalizer which the garbage
        # collector runs; and every user looks at the outbox once more afterwards. No mutex, see `ReaderRole.take`.
        me = object()
        try:
            while self._outbox and self._user.setdefault("user", me) is me:
                while self._outbox:
                    self._send_completely(connection, self._outbox.popleft())
                remove_value(self._user, "user", me)
        finally:
            remove_value(self._user, "user", me)

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
        me = object()
        if self._user.setdefault("user", me) is not me:
            # Another thread sends.
            sleep(TLS_IS_USED)
            return -1
        try:
            size = self._receive(self._buffer)
        finally:
            remove_value(self._user, "user", me)
        connection = self._socket
        if self._outbox and connection is not None:
            self._flush(connection)
        return size
