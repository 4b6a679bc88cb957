"""The subscription connection of the thread world: one thread that reads, any thread that subscribes."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from redis.exceptions import ConnectionError

from pyredisson._core import command
from pyredisson.logic.holds import logger
from pyredisson.logic.hub import LINGER, Hub
from pyredisson.wire.blocking import Connection
from pyredisson.wire.node import Node
from pyredisson.wire.subscription import PING, Subscription, pause


class Listener:
    """Keeps a connection subscribed to what the hub's waiters wait for, for as long as the client lives."""

    def __init__(self, node: Node, hub: Hub) -> None:
        self._node = node
        self._hub = hub
        self._connection: Connection | None = None
        self._subscription = Subscription(hub)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def subscribe(self, channels: Iterable[bytes]) -> None:
        """With the hub's lock held."""
        if (self._thread is None or not self._thread.is_alive()) and not self._stop.is_set():
            thread = threading.Thread(target=self._run, name="pyredisson-listener", daemon=True)
            thread.start()
            self._thread = thread
        if self._connection is not None:
            self._say(self._subscription.ask(channels))

    def unsubscribe(self, channels: Iterable[bytes]) -> None:
        """With the hub's lock held."""
        self._say(command(b"UNSUBSCRIBE", *channels))

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        with self._hub.mutex:
            if self._connection is not None:
                self._connection.shut()

    def _say(self, payload: bytes) -> None:
        if self._connection is None:
            return
        try:
            self._connection.send(payload)
        except OSError:
            # The reading thread finds the connection broken, makes a new one and subscribes anew.
            self._connection.shut()

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            connection = Connection(self._node)
            try:
                connection.open()
                failures = 0
                self._listen(connection)
            except Exception as error:  # noqa: BLE001
                # Whatever it was (a credential provider may raise anything): somebody waits to be woken.
                failures += 1
                if not self._stop.is_set():
                    logger.warning("subscription lost, it is made anew: %s", error)
            finally:
                with self._hub.mutex:
                    self._connection = None
                    self._hub.disconnected()
                connection.close()
            if failures:
                self._stop.wait(pause(failures))

    def _listen(self, connection: Connection) -> None:
        node, hub = self._node, self._hub
        with hub.mutex:
            if self._stop.is_set():
                return
            self._connection = connection
            subscription = self._subscription = Subscription(hub)
            self.subscribe(hub.names())
        asked = False
        connection.limit(node.ping_interval or LINGER)
        while not self._stop.is_set():
            reply = connection.receive()
            if reply is not False:
                # First of all: somebody waits for it.
                subscription.hear(reply)
                if asked:
                    asked = False
                    connection.limit(node.ping_interval or LINGER)
                continue
            if asked:
                raise ConnectionError(f"{node.address} doesn't answer a PING")
            hub.sweep()
            if node.ping_interval:
                with hub.mutex:
                    connection.send(PING)
                asked = True
                connection.limit(node.timeout)
