"""The subscription connection of the thread world: whoever waits reads it, one at a time."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterable
from time import monotonic

from redis.exceptions import ConnectionError, RedisError

from pyredisson._backends.thread_start import start_thread
from pyredisson._backends.threads.connection import Connection
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._diagnostics import logger
from pyredisson._protocol.node import Node
from pyredisson._protocol.subscription import Subscription, pause
from pyredisson.logic.channels import LINGER, ChannelRegistry

ALARMS = 4096
"""Bytes that end as many polls."""
GRACE = 0.02
"""Seconds in which a waiter that was just woken comes back to read, or goes."""


class ThreadListener:
    """Keeps a connection subscribed to what the registry's waiters wait for, for as long as the client lives.

    A waiter that finds nobody reading reads itself, and hears its message without a switch of threads: that
    is a good part of a hand-off's time. A thread of its own connects, and reads whenever others wait and no
    waiter does.
    """

    def __init__(self, node: Node, channels: ChannelRegistry) -> None:
        self._node = node
        self._channels = channels
        self._connection: Connection | None = None
        self._subscription = Subscription(channels)
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._reader: dict[str, ThreadWakeup] = {}
        """The signal of whoever reads, as "reader". Not a lock: an interrupt right after it was taken would leave
        it taken for ever, where this tells by whom."""
        self._listener_wakeup = ThreadWakeup()
        """Tells the thread to look whether it is to read, or to connect anew."""
        self._broken = False
        self._why: BaseException | None = None
        self._poll = select.poll()
        self._quiet_since = 0.0
        self._asked_at = 0.0
        """When a PING was sent that isn't answered yet; 0: none."""

    def subscribe(self, channels: Iterable[bytes]) -> None:
        """With the registry's lock held; also of nothing: sees to it that somebody listens."""
        if (self._thread is None or not self._thread.is_alive()) and not self._stopped:
            thread = threading.Thread(target=self._run, name="pyredisson-listener", daemon=True)
            start_thread(thread)
            self._thread = thread
        if self._connection is not None:
            payload = self._subscription.ask(channels)
            if payload:
                self._say(payload)

    def unsubscribe(self, channels: Iterable[bytes]) -> None:
        """With the registry's lock held."""
        self._say(self._subscription.drop(channels))

    def wait(self, signal: ThreadWakeup, seconds: float) -> None:
        """Until the signal is set or the time is over; reads meanwhile, if nobody else does.

        Only a waiter of a channel reads: the registry's set of waiters tells the thread that a reader is still there.
        """
        deadline = monotonic() + seconds
        connection = self._connection
        if connection is None or connection.secure or signal not in self._channels.waiting:
            signal.wait(seconds)
            return
        try:
            if self._reader.setdefault("reader", signal) is signal:
                self._read(connection, signal, deadline)
            else:
                signal.wait(seconds)
        except (OSError, RedisError) as error:
            self._break(connection, error)
        except BaseException as error:
            # What was received may not have been heard.
            self._break(connection, error)
            raise
        finally:
            if self._stand_up(signal) and (self._broken or len(self._channels.waiting) > 1):
                self._listener_wakeup.set()

    def close(self) -> None:
        """Ends the thread, and whoever reads."""
        # Without the registry's lock, for `drop`. The thread looks at `_stopped` after it has set `_connection`; if it
        # has overlooked `_stopped`, it finds the connection shut, or the signal set, and doesn't wait once more.
        self._stopped = True
        connection = self._connection
        if connection is not None:
            connection.shut()
        self._listener_wakeup.set()

    def drop(self) -> None:
        """As `close`, on any thread, with no lock and no wait."""
        self.close()

    def _stand_up(self, signal: ThreadWakeup) -> bool:
        if self._reader.get("reader") is not signal:
            return False
        signal.ring = None
        del self._reader["reader"]
        return True

    def _say(self, payload: bytes) -> None:
        if self._connection is None:
            return
        try:
            self._connection.send(payload)
        except OSError as error:
            self._break(self._connection, error)
            self._listener_wakeup.set()

    def _break(self, connection: Connection, error: BaseException) -> None:
        """Has the thread make a new connection."""
        if self._connection is connection:
            self._broken = True
            self._why = error
            connection.shut()

    def _read(self, connection: Connection, signal: ThreadWakeup, deadline: float, *, for_others: bool = False) -> None:
        """Hears what comes until the signal is set or the deadline has passed.

        The thread, which reads `for_others`, stops when it has woken the only one who waits.
        """
        node, subscription = self._node, self._subscription
        while True:
            due = deadline
            if self._asked_at:
                due = min(due, self._asked_at + node.timeout)
            elif node.ping_interval:
                due = min(due, self._quiet_since + node.ping_interval)
            # Rung only while it polls: who hears its own message needs no bell.
            signal.ring = self._ring
            if signal.is_set():
                return
            ready = self._poll.poll(0 if connection.pending() else max(0.0, due - monotonic()) * 1000)
            signal.ring = None
            if connection.pending() or any(descriptor != self._alarm.fileno() for descriptor, _ in ready):
                for reply in connection.take():
                    subscription.hear(reply)
                if signal.is_set():
                    # At once: somebody waits for it.
                    return
                self._quiet_since = now = monotonic()
                self._asked_at = 0.0
                if for_others and len(self._channels.waiting) <= 1:
                    deadline = min(deadline, now)
                continue
            if ready:
                self._alarm.recv(ALARMS)
                continue
            now = monotonic()
            if now >= deadline:
                return
            self._ask(connection, now)

    def _ask(self, connection: Connection, now: float) -> None:
        """Sends a PING after a long silence; raises when one has found no answer in time."""
        node = self._node
        if self._asked_at:
            if now >= self._asked_at + node.timeout:
                raise ConnectionError(f"{node.address} doesn't answer a PING")
        elif node.ping_interval and now >= self._quiet_since + node.ping_interval:
            with self._channels.mutex:
                connection.send(self._subscription.ping())
            self._asked_at = now

    def _serve(self, connection: Connection) -> None:
        """Reads for others, for as long as the connection lives."""
        channels = self._channels
        with channels.mutex:
            if self._stopped:
                return
            self._poll = select.poll()
            self._poll.register(connection.fileno(), select.POLLIN)
            self._poll.register(self._alarm, select.POLLIN)
            self._quiet_since = monotonic()
            self._asked_at = 0.0
            self._broken = False
            self._subscription = Subscription(channels)
            self._connection = connection
            self.subscribe(channels.names())
        while not self._stopped and not self._broken:
            self._listener_wakeup.clear()
            rest = LINGER
            reader = self._reader.setdefault("reader", self._listener_wakeup)
            if reader is self._listener_wakeup:
                try:
                    waits = LINGER if channels.waiting else 0.0
                    self._read(connection, self._listener_wakeup, monotonic() + waits, for_others=not connection.secure)
                finally:
                    self._stand_up(self._listener_wakeup)
                if connection.secure:
                    rest = 0.0 if channels.waiting else LINGER
                elif channels.waiting:
                    # It was woken, and comes back to read itself, or goes.
                    rest = GRACE
            elif reader not in channels.waiting:
                # Interrupted on its way out.
                self._stand_up(reader)
                continue
            channels.sweep()
            self._listener_wakeup.wait(rest)
        if self._broken:
            raise ConnectionError(f"the connection was found broken: {self._why}")

    def _run(self) -> None:
        # Rung, it ends the reader's poll: its signal was set by another thread.
        alarm, ring = socket.socketpair()
        with alarm, ring:
            alarm.setblocking(False)
            ring.setblocking(False)
            self._alarm, self._ring = alarm, ring
            self._keep_listening()

    def _keep_listening(self) -> None:
        failures = 0
        while not self._stopped:
            connection = Connection(self._node)
            try:
                connection.open()
                failures = 0
                self._serve(connection)
            except Exception as error:  # noqa: BLE001
                # Whatever it was (a credential provider may raise anything): somebody waits to be woken.
                failures += 1
                if not self._stopped:
                    # Not a warning: of a server that is away the node tells, once.
                    logger.debug("subscription lost, it is made anew: %s", error)
            finally:
                with self._channels.mutex:
                    self._connection = None
                    self._channels.on_disconnected()
                connection.shut()
                connection.close()
            if failures and not self._stopped:
                self._listener_wakeup.clear()
                self._listener_wakeup.wait(pause(failures))
