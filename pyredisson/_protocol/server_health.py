"""Which servers fail, and which were found to be another process than before."""

from __future__ import annotations

from time import monotonic

from pyredisson._protocol.node import Node

TROUBLE_REMEMBERED = 15.0
"""Seconds after the latest failure of a node for which it counts as failing, if it doesn't recover. Longer than two
attempts to connect to a host that doesn't answer are apart, with the usual settings."""
URGENT = 2.5
"""Seconds for which the topology is asked for often after a request for no particular node: longer than the pauses of
a call that is repeated (`logic.retry`), so the requests of one outage follow each other without a gap."""


class ServerHealth:
    """What the connections of one client have found out about its servers.

    Any thread may call any method. As in `RoutingTable`, each step is one operation on a dict.
    """

    def __init__(self) -> None:
        self.restarted: dict[Node, None] = {}
        """Nodes whose server was found to be another process, until `take_restarted`."""
        self._failed_at: dict[Node, float] = {}
        """When a node failed last, until it recovers."""
        self._server_ids: dict[Node, bytes] = {}
        """The identity of the server's process in the latest handshake."""
        self._urgent_until = 0.0
        self._trouble_began = 0.0
        """When a node began to fail last, or a server not to serve."""

    def is_failing(self, node: Node) -> bool:
        """Whether the server has failed lately, and has not recovered."""
        failed = self._failed_at.get(node)
        return failed is not None and monotonic() - failed < TROUBLE_REMEMBERED

    @property
    def urgent(self) -> bool:
        """Whether a server didn't serve a short time ago."""
        return monotonic() < self._urgent_until

    @property
    def trouble_lasts(self) -> float:
        """For how many seconds the latest trouble has lasted, if there is any."""
        return monotonic() - self._trouble_began

    def on_not_served(self) -> None:
        """A server, no particular one, didn't serve."""
        now = monotonic()
        if now >= self._urgent_until:
            self._trouble_began = now
        self._urgent_until = now + URGENT

    def on_failure(self, node: Node) -> None:
        """The server could not be reached, or didn't reply in time."""
        if not self.is_failing(node):
            self._trouble_began = monotonic()
        self._failed_at[node] = monotonic()

    def on_handshake(self, node: Node, server_id: bytes | None) -> bool:
        """The server has replied to a handshake. Returns whether it has recovered, or is another process."""
        recovered = self.recovered(node)
        restarted = server_id is not None and self._server_ids.get(node, server_id) != server_id
        if server_id is not None:
            self._server_ids[node] = server_id
        if restarted:
            self.restarted[node] = None
        return recovered or restarted

    def recovered(self, node: Node) -> bool:
        """The node's failures don't count any more. Returns whether there were any."""
        return self._failed_at.pop(node, None) is not None

    def take_restarted(self) -> set[Node]:
        """The nodes whose server was found to be another process since the latest call."""
        restarted = set(self.restarted.copy())
        for node in restarted:
            self.restarted.pop(node, None)
        return restarted

    def identified_as(self, server_id: bytes) -> list[Node]:
        """The nodes whose latest handshake was with that process."""
        return [node for node, id_ in list(self._server_ids.items()) if id_ == server_id]

    def forget(self, node: Node) -> None:
        """The node isn't remembered any more."""
        self._failed_at.pop(node, None)
        self._server_ids.pop(node, None)
