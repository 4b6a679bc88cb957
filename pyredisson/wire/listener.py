"""The subscription connection of the thread world: one thread that reads, any thread that subscribes."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Iterable

from redis.exceptions import ConnectionError, RedisError

from pyredisson._core import command
from pyredisson.logic.holds import logger
from pyredisson.logic.hub import LINGER, Hub
from pyredisson.runtime import Cut
from pyredisson.wire.blocking import Connection
from pyredisson.wire.node import Node

PING = command(b"PING")
LONGEST_PAUSE = 2.0


class Listener:
    """Keeps a connection subscribed to what the hub's waiters wait for, for as long as the client lives."""

    def __init__(self, node: Node, hub: Hub) -> None:
        self._node = node
        self._hub = hub
        self._connection: Connection | None = None
        self._asked: deque[bytes] = deque()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def subscribe(self, channels: Iterable[bytes]) -> None:
        """With the hub's lock held. A failure is noticed by the thread that reads."""
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="pyredisson-listener", daemon=True)
            self._thread.start()
        for channel in channels:
            if self._connection is not None:
                self._asked.append(channel)
                self._say(b"SUBSCRIBE", channel)

    def unsubscribe(self, channels: Iterable[bytes]) -> None:
        """With the hub's lock held."""
        self._say(b"UNSUBSCRIBE", *channels)

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        with self._hub.mutex:
            if self._connection is not None:
                self._connection.shut()

    def _say(self, *args: bytes) -> None:
        if self._connection is None:
            return
        try:
            self._connection.send(command(*args))
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
            except Cut as cut:
                failures += 1
                logger.info("subscription: %s", cut.error)
            except (RedisError, OSError) as error:
                failures += 1
                logger.warning("subscription: %s", error)
            finally:
                with self._hub.mutex:
                    self._connection = None
                    self._asked.clear()
                connection.close()
                self._hub.disconnected()
            if failures:
                pause = min(0.05 * 2 ** min(failures, 6), LONGEST_PAUSE)
                self._stop.wait(pause * (0.5 + random.random() / 2))

    def _listen(self, connection: Connection) -> None:
        with self._hub.mutex:
            if self._stop.is_set():
                return
            self._connection = connection
            self.subscribe(self._hub.names())
        node, hub = self._node, self._hub
        interval = node.ping_interval
        asked = False
        next_sweep = time.monotonic() + LINGER
        while not self._stop.is_set():
            reply = connection.receive(node.timeout if asked else interval or LINGER)
            if time.monotonic() >= next_sweep:
                hub.sweep()
                next_sweep = time.monotonic() + LINGER
            if reply is False:
                if asked:
                    raise ConnectionError(f"{node.address} doesn't answer a PING")
                if interval:
                    with hub.mutex:
                        connection.send(PING)
                    asked = True
                continue
            asked = False
            if isinstance(reply, RedisError):
                # An error in reply to the PING is an answer, too.
                if self._asked:
                    hub.refused(self._asked.popleft(), reply)
            elif reply[0] == b"message":
                hub.message(reply[1], reply[2])
            elif reply[0] == b"subscribe":
                self._asked.popleft()
                hub.subscribed(reply[1])
