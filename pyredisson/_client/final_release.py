"""The last commands of a client, which release what it holds: large batches within a time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import islice

from redis.exceptions import ClusterDownError, RedisError

from pyredisson._backends.clock import clock
from pyredisson._client.last_connection import LastConnection
from pyredisson._client.servers import Servers
from pyredisson._diagnostics import logger
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.redirects import Redirected

BATCH = 1000
POLL_INTERVAL = 0.005
"""Seconds between two looks whether calls are in flight."""
QUIET = 0.02
"""Seconds without a call in flight after which all calls that have ended have added their commands."""
ABORT_AFTER = 0.4
"""The part of the time limit after which calls that still wait for a reply are aborted."""
MOST_REDIRECTS = 2
"""How often a command is sent to another server than before. More would take too long."""
SHARES = 4
"""A server may use this part of the remaining time, or an equal part of it if there are fewer servers. One that hangs
must not use up the time of the others."""


class FinalRelease:
    """Sends all commands of `unsent`, to which calls that were in flight when the client was closed add more."""

    def __init__(
        self,
        client_id: str,
        servers: Servers,
        unsent: dict[bytes, None],
        deadline: float,
        count_calls_in_flight: Callable[[], int],
        abort_calls: Callable[[], None],
    ) -> None:
        """`abort_calls` ends the calls of other threads that wait for a reply."""
        self._client_id = client_id
        self._servers = servers
        self._unsent = unsent
        self._deadline = deadline
        self._count_calls_in_flight = count_calls_in_flight
        self._abort_calls = abort_calls
        self._connections: dict[Node, LastConnection] = {}
        self._failed: dict[Node | None, RedisError] = {}
        """The servers that didn't reply. They are not tried again."""
        self._reached = False
        """Whether any server has replied."""
        self._lost = 0
        """Commands that could not be sent."""

    def send(self, *, main_thread_stopped: bool = False) -> None:
        """Sends until no call is in flight any more, or until the deadline. What can't be sent is logged and dropped.

        `main_thread_stopped`: one of the calls in flight may be that of the main thread, which a signal handler has
        stopped. Such a call never ends. So no call is waited for after the abort.
        """
        try:
            self._send_until_quiet(main_thread_stopped)
        except RedisError:
            # No server replies. What calls in flight may add now can't be sent either.
            self._lost = len(self._unsent)
            self._unsent.clear()
        finally:
            for connection in self._connections.values():
                connection.close()
            # No caller needs the result of a call that is still in flight: the client is closed.
            self._abort_calls()
        if self._lost:
            errors = "; ".join(dict.fromkeys(map(str, self._failed.values())))
            logger.warning("%d locks were not released and end with their leases: %s", self._lost, errors)

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
                logger.warning("%d calls were still in flight when client %s was closed", in_flight, self._client_id)
                return
            else:
                if now >= abort_at:
                    self._abort_calls()
                time.sleep(POLL_INTERVAL)

    def _send_batch(self, batch: Sequence[bytes]) -> None:
        """Sends commands, each to its server. Raises if no server has replied yet."""
        groups: dict[tuple[Node | None, bool], list[bytes]] = {}
        for payload in batch:
            groups.setdefault((self._servers.serving(payload), False), []).append(payload)
        for _ in range(1 + MOST_REDIRECTS):
            groups = self._send_groups(groups)
        if not self._reached:
            raise next(iter(self._failed.values()))

    def _send_groups(
        self, groups: dict[tuple[Node | None, bool], list[bytes]]
    ) -> dict[tuple[Node | None, bool], list[bytes]]:
        """Sends the commands of each server, with ASKING or without. Returns those that were redirected."""
        redirected: dict[tuple[Node | None, bool], list[bytes]] = {}
        # A server that fails anyway comes last, as it takes the most time.
        in_order = sorted(groups.items(), key=lambda group: self._servers.is_failing(group[0][0]))
        for i, ((node, asking), payloads) in enumerate(in_order):
            replies = self._send_to(node, payloads, len(in_order) - i, asking=asking)
            for payload, reply in zip(payloads, replies, strict=False):
                if isinstance(reply, Redirected):
                    target = self._servers.target(reply)
                    redirected.setdefault((target, reply.is_ask), []).append(payload)
        return redirected

    def _send_to(self, node: Node | None, payloads: Sequence[bytes], servers: int, *, asking: bool) -> list[Reply]:
        """The replies of one of so many servers that remain; none if it doesn't reply."""
        try:
            if node is None:
                raise ClusterDownError("CLUSTERDOWN no server is known that serves the slot")
            if node in self._failed:
                raise self._failed[node]
            seconds = (self._deadline - clock()) / min(servers, SHARES)
            commands = [self._servers.as_sent(payload, asking=asking) for payload in payloads]
            replies = self._connection_to(node).send(commands, clock() + seconds, asking=asking)
        except NoReply as failure:
            self._failed[node] = failure.error
        except RedisError as error:
            self._failed[node] = error
        else:
            self._reached = True
            return replies
        self._lost += len(payloads)
        return []

    def _connection_to(self, node: Node) -> LastConnection:
        connection = self._connections.get(node)
        if connection is None:
            connection = self._connections[node] = LastConnection(node)
        return connection
