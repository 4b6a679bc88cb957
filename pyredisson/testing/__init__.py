"""Real servers and real network faults for the tests and demos of programs that use Redis or Valkey.

`Server` runs a server process of its own; `Proxy` stands between a client and a server and breaks
what it is told to.
"""

from pyredisson.testing.faults import Fault, Hold
from pyredisson.testing.process import ServerError, find_executable
from pyredisson.testing.proxy import Proxy
from pyredisson.testing.server import Server

__all__ = ["Fault", "Hold", "Proxy", "Server", "ServerError", "find_executable"]
