"""How often a node of a cluster can be elected: the votes of its last election count for some time."""

from __future__ import annotations

import time

from pyredisson.testing.cluster_node import ClusterNode

__all__ = ["Elections"]

_SHORTEST_ELECTION_SECONDS = 2.0


class Elections:
    """The elections of one cluster.

    A node takes part in an election for twice the node timeout, and begins the next one after as long again. If it is
    to be promoted before that, it counts the votes of its last election again (Redis 7.0), and takes over with an old
    epoch. The others refuse that: the old master undoes the promotion, or without it the nodes never agree.
    """

    def __init__(self, node_timeout: float) -> None:
        self.node_timeout = node_timeout
        self._won: dict[str, float] = {}

    def won(self, node: ClusterNode) -> None:
        self._won[node.id] = time.monotonic()

    def wait_until_electable(self, node: ClusterNode) -> None:
        if node.id in self._won:
            next_election = self._won[node.id] + 2 * max(2 * self.node_timeout, _SHORTEST_ELECTION_SECONDS)
            # No server tells when it is ready for the next one.
            time.sleep(max(0.0, next_election - time.monotonic()))

    @staticmethod
    def confirm(node: ClusterNode) -> None:
        """Give a node that has just become master the greatest epoch, unless it has that, so that all accept it."""
        if node.alive and node.view()[node.id].is_master:
            node.ask("CLUSTER", "BUMPEPOCH")
