"""Listens to one Sentinel, so that a master that was replaced is known even if it doesn't fail for this client."""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable

from redis.exceptions import RedisError

from pyredisson._backends.failures import as_redis_error
from pyredisson._backends.thread_start import start_thread
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._client.topology.queries import QueryConnection
from pyredisson._client.topology.sentinels import Sentinels
from pyredisson._core import Unsent, command
from pyredisson._diagnostics import logger
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.sentinel import SWITCH_CHANNEL, names_master
from pyredisson._protocol.subscription import PING
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config

PAUSE = 0.5
"""Seconds before another Sentinel is listened to, after a connection has failed."""


class SwitchListener:
    """A daemon thread with a subscription to one Sentinel at a time."""

    def __init__(
        self,
        sentinels: Sentinels,
        config: Config,
        *,
        on_listening: Callable[[], None],
        on_switch: Callable[[], None],
    ) -> None:
        """Neither callback may block. `on_listening`: earlier messages were lost, so the master has to be looked at.
        `on_switch`: a Sentinel says that the master was replaced."""
        assert config.master_name is not None
        self._sentinels = sentinels
        self._name = config.master_name
        self._timeout = config.timeout
        # Without messages, the master is looked at after the interval anyway.
        self._silence = min(config.ping_interval or config.topology_refresh_interval, config.topology_refresh_interval)
        self._on_listening = on_listening
        self._on_switch = on_switch
        self._thread: threading.Thread | None = None
        self._connection: ListeningConnection | None = None
        self._ended = ThreadWakeup()
        self._closed = False

    def start(self) -> None:
        """Starts the thread if it doesn't run. Called by one thread."""
        if self._closed or (self._thread is not None and self._thread.is_alive()):
            return
        thread = threading.Thread(target=self._run, name="pyredisson-sentinel", daemon=True)
        try:
            start_thread(thread)
        except RuntimeError as error:
            # No thread can be started. The next look at the topology tries again.
            logger.debug("the Sentinels can't be listened to: %s", error)
            return
        self._thread = thread

    def close(self) -> None:
        """Ends the thread. Can be called on any thread, takes no mutex and doesn't wait."""
        self._closed = True
        connection = self._connection
        if connection is not None:
            connection.shut_down()
        self._ended.set()

    def _run(self) -> None:
        while not self._closed:
            for sentinel in self._sentinels.known():
                try:
                    self._listen(sentinel)
                except Exception as error:  # noqa: BLE001
                    # Any exception, as a credential provider may raise anything. Another Sentinel may do better.
                    logger.debug("the Sentinel at %s is not listened to any more: %s", sentinel, error)
                self._ended.wait(PAUSE)
                if self._closed:
                    return

    def _listen(self, sentinel: Address) -> None:
        """Returns never; raises when the connection has failed."""
        connection = self._connection = ListeningConnection(self._sentinels.config_of(sentinel), self._timeout)
        try:
            if not self._closed:
                connection.subscribe()
            self._on_listening()
            while not self._closed:
                message = connection.receive(self._silence, self._timeout)
                if isinstance(message, list) and message[0] == b"message" and names_master(message[2], self._name):
                    self._sentinels.prefer(sentinel)
                    self._on_switch()
        finally:
            self._connection = None
            connection.close()


class ListeningConnection(QueryConnection):
    """A connection to a Sentinel that is subscribed to the switches of masters."""

    __slots__ = ()

    def subscribe(self) -> None:
        """Connects and subscribes. Raises the error if the Sentinel refuses it."""
        [reply] = self.ask([command(b"SUBSCRIBE", SWITCH_CHANNEL)])
        if isinstance(reply, RedisError):
            raise reply

    def receive(self, silence: float, timeout: float) -> Reply:
        """The next message or reply. After so many seconds of silence the Sentinel has to answer a PING in time."""
        reply = self._next_reply()
        if reply is not False:
            return reply
        try:
            try:
                return self._read_reply(time.monotonic() + silence)
            except (BlockingIOError, builtins.TimeoutError):
                [reply] = self._round_trip(PING, 1, time.monotonic() + timeout)
                return reply
        except Unsent as unsent:
            raise as_redis_error(unsent.args[0], self._node, "sending to") from unsent
        except OSError as error:
            raise as_redis_error(error, self._node, "waiting for") from error
