"""Real servers and real network faults for the tests and demos of programs that use Redis or Valkey.

`Server` runs a server process of its own, `Replicated` a master with replicas, `Sentinels` the same with sentinels, and
`Cluster` a whole cluster. `Proxy` stands between a client and a server and breaks what it is told to.
"""

from pyredisson.testing.cluster import Cluster
from pyredisson.testing.cluster_node import AtomicMove, ClusterNode
from pyredisson.testing.proxy import Proxy
from pyredisson.testing.relay import Fault, Hold
from pyredisson.testing.replicated import Replicated, ReplicatedNode, SentinelNode, Sentinels
from pyredisson.testing.server import Server, ServerError, find_executable

__all__ = [
    "AtomicMove",
    "Cluster",
    "ClusterNode",
    "Fault",
    "Hold",
    "Proxy",
    "Replicated",
    "ReplicatedNode",
    "SentinelNode",
    "Sentinels",
    "Server",
    "ServerError",
    "find_executable",
]
