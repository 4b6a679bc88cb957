"""The connection of a final release to one server."""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import NoScriptError

from pyredisson._backends.clock import clock
from pyredisson._backends.threads.connection import Connection
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.redirects import ASKING
from pyredisson._protocol.scripts import as_eval

ATTEMPTS = 2
"""To send a batch. The connection may break once, and all commands are idempotent."""
SHORTEST_TIMEOUT = 0.02


class LastConnection:
    """Sends batches of commands, and connects where needed."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._connection: Connection | None = None

    def send(self, payloads: Sequence[bytes], deadline: float, *, asking: bool = False) -> list[Reply]:
        """The replies, with error replies in the list. `asking`: the slots of the commands are still being moved."""
        for remaining in reversed(range(ATTEMPTS)):
            try:
                return self._attempt(payloads, deadline, asking)
            except NoReply:
                self.close()
                if not remaining or clock() >= deadline:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Closes the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _attempt(self, payloads: Sequence[bytes], deadline: float, asking: bool) -> list[Reply]:
        connection = self._connection
        if connection is None or self._node.suspects:
            # An acquire in doubt must not run after its release: the handshake has the server drop its connection.
            self.close()
            connection = self._connection = self._open(deadline)
        replies = _call(connection, payloads, asking)
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            with_shebang = self._node.scripts.with_shebang
            again = [as_eval(payloads[i], with_shebang=with_shebang) for i in unknown]
            for i, reply in zip(unknown, _call(connection, again, asking), strict=True):
                replies[i] = reply
        return replies

    def _open(self, deadline: float) -> Connection:
        """A connection with the timeouts that the deadline allows: two commands that hang must not exceed it."""
        timeout = max(SHORTEST_TIMEOUT, (deadline - clock()) / 2)
        node = self._node.with_timeout(timeout)
        # Also where that is longer than usual.
        node.timeout = node.connect_timeout = timeout
        connection = Connection(node)
        connection.open()
        return connection


def _call(connection: Connection, payloads: Sequence[bytes], asking: bool) -> list[Reply]:
    if not asking:
        return connection.call_all(payloads)
    return connection.call_all([part for payload in payloads for part in (ASKING, payload)])[1::2]
