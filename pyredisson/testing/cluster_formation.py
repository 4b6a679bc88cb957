"""How the nodes of a test cluster begin: their settings, and the nodes.conf that makes them members."""

from __future__ import annotations

from collections.abc import Sequence

from pyredisson.testing.cluster_node import ClusterNode
from pyredisson.testing.cluster_view import nodes_file

__all__ = ["REPLICATION_HOST", "cluster_settings", "write_membership"]

REPLICATION_HOST = "127.0.0.2"
"""Where connections between nodes come from if there are proxies, which tell by it that they come from no client."""


def cluster_settings(node_timeout: float, tls: bool, replication_host: str | None) -> dict[str, str]:
    """The settings of every node."""
    settings = {
        "cluster-enabled": "yes",
        "cluster-node-timeout": str(round(node_timeout * 1000)),
        # Else the replicas of other masters would move to a master that has lost its own.
        "cluster-allow-replica-migration": "no",
    }
    if tls:
        settings["tls-cluster"] = "yes"
    if replication_host is not None:
        settings["bind-source-addr"] = replication_host
    return settings


def write_membership(nodes: Sequence[ClusterNode], master_count: int) -> None:
    """Let every node begin as a member of a complete cluster: it takes longer to introduce them to each other."""
    masters, others = nodes[:master_count], nodes[master_count:]
    master_of = {node.id: masters[number % master_count].id for number, node in enumerate(others)}
    epochs = {node.id: number for number, node in enumerate(masters, 1)}
    shards = {node.id: master_of.get(node.id, node.id) for node in nodes}
    members = [(node.id, node.bus_address + _shard(node, shards[node.id]), epochs[shards[node.id]]) for node in nodes]
    for node in nodes:
        text = nodes_file(node.id, members, [each.id for each in masters], master_of)
        (node.prepare() / "nodes.conf").write_text(text)


def _shard(node: ClusterNode, name: str) -> str:
    """What tells a node who is in its shard. Without it Valkey 9.1 ends at the first SPUBLISH, if it has no replica."""
    return f",,shard-id={name}" if node.version >= (7, 2) else ""
