"""Keepers of topologies, and what their tables report."""

import time
from collections.abc import Iterable
from typing import Any, Protocol

from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._client.servers import open_topology
from pyredisson._protocol.node import Node
from pyredisson._protocol.routing import Changes
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson._settings.fields import Topology
from tests.support.waiting import TIME_LIMIT


class HasAddress(Protocol):
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class Watched:
    """A keeper, and the changes that its table has reported. It refreshes on request only."""

    def __init__(self, topology: Topology, nodes: Iterable[HasAddress | tuple[str, int]], **fields: Any) -> None:
        addresses = tuple(
            Address(*node) if isinstance(node, tuple) else Address(node.host, node.port) for node in nodes
        )
        fields = {"topology_refresh_interval": 1000.0} | fields
        self.keeper = open_topology(Config.of(topology=topology, nodes=addresses, **fields), "client", ScriptSet())
        self.table = self.keeper.table
        self.changes: list[Changes] = []
        self.known_at = 0.0
        """When the latest change was reported."""
        self.table.listen(self.follow)

    def follow(self, changes: Changes) -> None:
        self.known_at = time.monotonic()
        self.changes.append(changes)

    def discover(self) -> None:
        """Waits for the first map, as a call does. Raises what a call would raise."""
        wakeup = ThreadWakeup()
        self.keeper.wait_until_known(wakeup.set)
        assert wakeup.wait(TIME_LIMIT)
        self.keeper.check_known()
        self.changes.clear()

    def node_at(self, server: HasAddress) -> Node:
        return self.table.nodes[Address(server.host, server.port)]

    @property
    def only_node(self) -> Node:
        [node] = self.table.nodes.values()
        assert self.table.node_of_slot(0) is self.table.node_of_slot(16383) is node
        return node

    def close(self) -> None:
        self.keeper.close()
        thread = self.keeper._thread
        if thread is not None:
            thread.join(TIME_LIMIT)
            assert not thread.is_alive()
