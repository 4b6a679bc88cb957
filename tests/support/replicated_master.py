"""A master whose replicas a test freezes, and what the master says about them."""

from __future__ import annotations

from typing import Any

from pyredisson.testing import Cluster
from pyredisson.testing.cluster_node import ClusterNode


class ReplicatedMaster:
    """The master of a cluster of one, and its replicas."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        (self.node,) = cluster.masters()
        self.replicas = cluster.replicas_of(self.node)
        self.frozen: list[ClusterNode] = []

    def freeze(self, count: int | None = None) -> None:
        """Freezes so many replicas, or all of them. They stay connected."""
        for replica in self.replicas[:count]:
            self.frozen.append(replica)
            replica.pause()

    def restore(self) -> None:
        while self.frozen:
            self.frozen.pop().resume()
        assert self.node.ask("WAIT", len(self.replicas), 10000) is not None

    def online(self) -> int:
        info: dict[str, Any] = self.node.ask("INFO", "replication")
        return sum(info[key]["state"] == "online" for key in info if key.startswith("slave") and key[5:].isdigit())

    def waits(self) -> int:
        """How often the server has executed WAIT."""
        stats: dict[str, Any] = self.node.ask("INFO", "commandstats")
        return int(stats.get("cmdstat_wait", {"calls": 0})["calls"])

    def exists(self, name: str) -> bool:
        return bool(self.node.ask("EXISTS", name))
