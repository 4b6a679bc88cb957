"""Real servers and real network faults for the tests and demos of programs that use Redis or Valkey.

`Server` runs a server process of its own, `Cluster` a whole cluster. `Proxy` stands between a client and a server and
breaks what it is told to.
"""

from pyredisson.testing.cluster import Cluster
from pyredisson.testing.cluster_node import ClusterNode
from pyredisson.testing.faults import Fault, Hold
from pyredisson.testing.process import ServerError, find_executable
from pyredisson.testing.proxy import Proxy
from pyredisson.testing.server import Server

__all__ = ["Cluster", "ClusterNode", "Fault", "Hold", "Proxy", "Server", "ServerError", "find_executable"]
