"""The last commands of a client, which release what it holds: one connection, large batches, and a time limit."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from itertools import islice

from redis.exceptions import NoScriptError, RedisError

from pyredisson._backends.clock import clock
from pyredisson._backends.threads.connection import Connection
from pyredisson._diagnostics import logger
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.node import Node
from pyredisson._protocol.scripts import as_eval
from pyredisson._settings.config import Config

BATCH = 1000
POLL_INTERVAL = 0.005
"""Seconds between two looks whether calls are in flight."""
QUIET = 0.02
"""Seconds without a call in flight after which all calls that have ended have added their commands."""
ABORT_AFTER = 0.4
"""The part of the time limit after which calls that still wait for a reply are aborted."""
ATTEMPTS = 2
"""To send a batch. The connection may break once, and all commands are idempotent."""
SHORTEST_TIMEOUT = 0.02


class FinalRelease:
    """Sends all commands of `unsent`, to which calls that were in flight when the client was closed add more."""

    def __init__(
        self,
        config: Config,
        node: Node,
        unsent: dict[bytes, None],
        deadline: float,
        count_calls_in_flight: Callable[[], int],
        abort_calls: Callable[[], None],
    ) -> None:
        """`abort_calls` ends the calls of other threads that wait for a reply."""
        self._config = config
        self._node = node
        self._unsent = unsent
        self._deadline = deadline
        self._count_calls_in_flight = count_calls_in_flight
        self._abort_calls = abort_calls
        self._connection: Connection | None = None

    def send(self, *, main_thread_stopped: bool = False) -> None:
        """Sends until no call is in flight any more, or until the deadline. What can't be sent is logged and dropped.

        `main_thread_stopped`: one of the calls in flight may be that of the main thread, which a signal handler has
        stopped. Such a call never ends. So no call is waited for after the abort.
        """
        try:
            self._send_until_quiet(main_thread_stopped)
        except (NoReply, RedisError) as error:
            logger.warning("%d locks were not released and end with their leases: %s", len(self._unsent), error)
            self._unsent.clear()
        finally:
            self._close()
            # No caller needs the result of a call that is still in flight: the client is closed.
            self._abort_calls()

    def _send_until_quiet(self, main_thread_stopped: bool) -> None:
        abort_at = clock() + (self._deadline - clock()) * ABORT_AFTER
        busy_at = -math.inf
        while True:
            # The calls are counted before the commands are read: a call adds its commands before it ends, or within
            # the time `QUIET` after that.
            now, in_flight = clock(), self._count_calls_in_flight()
            if in_flight:
                busy_at = now
            if batch := list(islice(list(self._unsent), BATCH)):
                self._send_batch(batch)
                for payload in batch:
                    self._unsent.pop(payload, None)
            elif (not in_flight and now - busy_at >= QUIET) or (main_thread_stopped and now >= abort_at + QUIET):
                return
            elif now >= self._deadline:
                logger.warning(
                    "%d calls were still in flight when client %s was closed", in_flight, self._node.client_id
                )
                return
            else:
                if now >= abort_at:
                    self._abort_calls()
                time.sleep(POLL_INTERVAL)

    def _send_batch(self, batch: list[bytes]) -> None:
        for remaining in reversed(range(ATTEMPTS)):
            try:
                self._attempt(batch)
                return
            except NoReply:
                self._close()
                if not remaining or clock() >= self._deadline:
                    raise

    def _attempt(self, batch: list[bytes]) -> None:
        connection = self._connection
        if connection is None or self._node.suspects:
            # An acquire in doubt must not run after its release: the handshake has the server drop its connection.
            self._close()
            connection = self._connection = self._open()
        replies = connection.call_all(batch)
        unknown = [
            as_eval(payload, with_shebang=self._node.scripts.with_shebang)
            for payload, reply in zip(batch, replies, strict=True)
            if isinstance(reply, NoScriptError)
        ]
        if unknown:
            connection.call_all(unknown)

    def _open(self) -> Connection:
        """A connection with the timeouts that the deadline allows: two commands that hang must not exceed it."""
        timeout = max(SHORTEST_TIMEOUT, (self._deadline - clock()) / 2)
        node = Node(dataclasses.replace(self._config, timeout=timeout, connect_timeout=timeout))
        node.client_id = self._node.client_id
        node.suspects, node.scripts = self._node.suspects, self._node.scripts
        node.availability = self._node.availability
        connection = Connection(node)
        connection.open()
        return connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
