"""What a client still has to send when it is closed: one connection, commands in batches, and a bound on the time."""

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
LOOK = 0.005
"""Seconds between two looks whether calls are still under way."""
QUIET = 0.02
"""Seconds without a call under way after which the calls that were under way have left what they leave."""
PATIENCE = 0.4
"""The part of the time after which the connections are cut on which calls still wait for a reply."""
TRIES = 2
"""Of sending a batch: its connection may have been cut, and all commands are idempotent."""
SHORTEST_TIMEOUT = 0.02


class FinalRelease:
    """One client's last commands. Calls that were under way when it was closed leave more of them, in `left`."""

    def __init__(self, config: Config, node: Node, left: dict[bytes, None], deadline: float) -> None:
        self._config = config
        self._node = node
        self._left = left
        self._deadline = deadline
        self._connection: Connection | None = None

    def say(
        self, calls: Callable[[], int], cut: Callable[[], object], client_id: str, *, interrupted: bool = False
    ) -> None:
        """Sends all that is left, and what calls under way leave, until none is under way or the time is over.

        `calls` tells how many are under way; `cut` ends those whose replies don't come. With `interrupted`, one of
        them may be that of a thread which can't go on: once the others are cut, it isn't waited for. What can't be
        sent is logged with its number, and dropped.
        """
        patient_until = clock() + (self._deadline - clock()) * PATIENCE
        busy_at = -math.inf
        try:
            while True:
                # In this order: a call that has ended has left what it leaves, or leaves it within a moment.
                now, under_way = clock(), calls()
                if under_way:
                    busy_at = now
                if batch := list(islice(list(self._left), BATCH)):
                    self._send(batch)
                    for payload in batch:
                        self._left.pop(payload, None)
                elif (not under_way and now - busy_at >= QUIET) or (interrupted and now >= patient_until + QUIET):
                    return
                elif now >= self._deadline:
                    logger.warning("%d calls were still under way when client %s was closed", under_way, client_id)
                    return
                else:
                    if now >= patient_until:
                        cut()
                    time.sleep(LOOK)
        except (NoReply, RedisError) as error:
            logger.warning("%d locks were not given back and end with their leases: %s", len(self._left), error)
            self._left.clear()
        finally:
            self._close()
            # Nobody waits for their ends any more.
            cut()

    def _send(self, batch: list[bytes]) -> None:
        for rest in reversed(range(TRIES)):
            try:
                self._try(batch)
                return
            except NoReply:
                self._close()
                if not rest or clock() >= self._deadline:
                    raise

    def _try(self, batch: list[bytes]) -> None:
        connection = self._connection
        if connection is None or self._node.suspects:
            # A late copy of an acquire must not run after its release: the handshake has the server drop it.
            self._close()
            connection = self._connection = self._opened()
        replies = connection.call_all(batch)
        unknown = [
            as_eval(payload, flags=self._node.scripts.flags)
            for payload, reply in zip(batch, replies, strict=True)
            if isinstance(reply, NoScriptError)
        ]
        if unknown:
            connection.call_all(unknown)

    def _opened(self) -> Connection:
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
