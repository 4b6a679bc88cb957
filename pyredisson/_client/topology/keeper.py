"""Keeps the routing table of one client up to date, on a thread of its own."""

import os
import random
import threading
from time import monotonic
from typing import Protocol

from redis.exceptions import RedisError, TimeoutError

from pyredisson._backends.routed import Wake
from pyredisson._backends.runtime import start_thread
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._diagnostics import logger
from pyredisson._protocol.replies import NoReply, copy_error, is_transient
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.topology import TopologyView

PAUSE = 0.1
"""Seconds between two refreshes: this to twice as much at random, so that clients don't ask at the same moments."""
LONGEST_PAUSE = 1.0
GROWTH = 0.005
"""In a long outage the pause is this part of its duration so far: all clients of the cluster ask, perhaps for hours."""
SPREAD = 0.1
"""The part of the interval by which it is varied."""


class Source(Protocol):
    def look(self) -> tuple[TopologyView, int]:
        """A view, and the number of `RoutingTable.begin_view`. Blocks. Raises what best says why there is none."""

    def close(self) -> None:
        """Ends `look`. Can be called on any thread, takes no mutex."""


class TopologyKeeper:
    """A daemon thread that refreshes a routing table: on request, while a server fails, and at an interval.

    The thread starts with the first request. It refers to nothing of the client but the table, which refers to its
    listeners weakly. So it doesn't keep the client alive, and ends when the client is closed or dropped.
    """

    def __init__(self, table: RoutingTable, source: Source, interval: float, servers: str) -> None:
        """`servers` describes the servers, for messages."""
        self.table = table
        self._source = source
        self._interval = interval
        self._servers = servers
        self._process = os.getpid()
        # Re-entrant: a finalizer that the garbage collector runs while the thread is started may request a refresh.
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None
        self._runs: dict[str, threading.Thread] = {}
        """The thread that runs the loop."""
        self._requested = ThreadWakeup()
        self._ended = ThreadWakeup()
        self._waiting: dict[Wake, None] = {}
        """The callers that wait for the end of a refresh."""
        self._failure: Exception | None = None
        """Why the latest refresh failed. None: it didn't."""
        self._failing_since: float | None = None
        self._refreshing = False
        """Whether a refresh is going on, whose end the callers that wait will be told."""
        table.on_request = self.request

    # --- For callers on any thread

    def request(self) -> None:
        """Has the topology looked at soon. Neither blocks nor raises. All requests before a refresh cause that one."""
        self._requested.set()
        thread = self._thread
        if thread is None or not thread.is_alive():
            self._start()

    def wait_until_known(self, wake: Wake) -> None:
        """Has `wake` called on the keeper's thread when a refresh ends, or at once if the topology is known. It may be
        called more than once, and after `forget`."""
        self._waiting[wake] = None
        if self.table.ready:
            wake()
        elif not self._refreshing:
            self.request()

    def forget(self, wake: Wake) -> None:
        """Undoes `wait_until_known`."""
        self._waiting.pop(wake, None)

    def check_known(self) -> None:
        """Raises if the topology isn't known: `NoReply` if another try may help, otherwise the error itself."""
        if self.table.ready:
            return
        if (failure := self._failure) is None:
            failure = TimeoutError(f"{self._servers}: no server has replied in time")
        if isinstance(failure, RedisError) and is_transient(failure):
            raise NoReply(copy_error(failure), may_have_run=False) from failure
        raise copy_error(failure)

    def close(self) -> None:
        """Ends the thread. Can be called on any thread, takes no mutex and doesn't wait."""
        # The thread looks at `_ended` after it has cleared its other wakeup, and before each question.
        self._ended.set()
        self._source.close()
        self._requested.set()

    def _start(self) -> None:
        # After a fork, the child has a keeper of its own.
        if self._ended.is_set() or os.getpid() != self._process:
            return
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return
            try:
                start_thread(self._run, "pyredisson-topology")
            except RuntimeError as error:
                # No thread can be started, for example because the interpreter exits. The next request tries again.
                logger.debug("the topology can't be refreshed: %s", error)
                self._wake_all()

    # --- The thread

    def _run(self) -> None:
        # Requests at the same moment may start several threads. The first one stays.
        thread = threading.current_thread()
        if self._runs.setdefault("run", thread) is not thread:
            return
        self._thread = thread
        try:
            while True:
                # In this order: a caller that begins to wait from now on needs no further refresh.
                self._refreshing = True
                self._requested.clear()
                if self._ended.is_set():
                    return
                self._refresh()
                self._ended.wait(self._pause() * (1 + random.random()))
                if not self.table.troubled:
                    # Without a map somebody has to need one: a wrong password must not be sent again and again.
                    seconds = self._interval * random.uniform(1 - SPREAD, 1 + SPREAD)
                    self._requested.wait(seconds if self.table.ready else threading.TIMEOUT_MAX)
        finally:
            self._refreshing = False
            self._runs.clear()

    def _pause(self) -> float:
        """Seconds until the next refresh, at least."""
        if not self.table.troubled:
            return PAUSE
        return min(max(PAUSE, GROWTH * self.table.health.trouble_lasts), LONGEST_PAUSE)

    def _refresh(self) -> None:
        try:
            self.table.apply(*self._source.look())
        except Exception as error:  # noqa: BLE001
            # Any exception: a user's function that maps addresses or provides credentials may raise anything.
            self._on_failure(error)
        else:
            self._failure = None
            since, self._failing_since = self._failing_since, None
            if since is not None:
                logger.warning("the topology is refreshed again (%s) after %.1f s", self._servers, monotonic() - since)
        finally:
            # First: a caller that begins to wait from now on requests another refresh. This one wakes earlier callers.
            self._refreshing = False
            self._wake_all()

    def _wake_all(self) -> None:
        while self._waiting:
            try:
                wake, _ = self._waiting.popitem()
            except KeyError:
                return
            try:
                wake()
            except Exception as error:  # noqa: BLE001
                # Its event loop is closed, for example. The others are to be woken.
                logger.debug("a waiter for the topology can't be woken: %s", error)

    def _on_failure(self, error: Exception) -> None:
        if self._ended.is_set():
            return
        self._failure = error
        if self._failing_since is not None:
            logger.debug("the refresh of the topology still fails (%s): %s", self._servers, error)
            return
        self._failing_since = monotonic()
        unexpected = None if isinstance(error, RedisError) else error
        logger.warning(
            "the refresh of the topology fails (%s): %s; it is tried again", self._servers, error, exc_info=unexpected
        )
