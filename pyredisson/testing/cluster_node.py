"""One node of a test cluster: its id, the address that it announces, and what it knows about the others."""

from __future__ import annotations

import secrets
from typing import Any

from pyredisson.testing.cluster_view import NodeView, read_nodes
from pyredisson.testing.deployment import Node
from pyredisson.testing.process import bus_port
from pyredisson.testing.proxy import Proxy

__all__ = ["ClusterNode"]


class ClusterNode(Node):
    """One node of a `Cluster`. All methods of a `Server` act on this node only, and return at once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.id = secrets.token_hex(20)
        """The id by which the other nodes know it. It stays the same when the node is started again."""
        self.proxy: Proxy | None = None
        self._unannounced = dict(self._config)
        self._announced: tuple[str, int] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that clients are told: what it announces (its proxy), else its own."""
        return self._announced or (self.host, self.port)

    @property
    def bus_address(self) -> str:
        """The address as nodes.conf has it."""
        host, port = self._announced or (self.host, self.internal_port)
        return f"{host}:{port}@{bus_port(self.internal_port)}"

    def announce(self, address: tuple[str, int] | None) -> None:
        """Set the address that the node tells clients and other nodes. To be called before the first start."""
        self._announced = address
        given = {"cluster-announce-ip": self.address[0]}
        if address is not None:
            bus = bus_port(self.internal_port)
            given |= {"cluster-announce-port": str(address[1]), "cluster-announce-bus-port": str(bus)}
        self._config = given | self._unannounced

    def view(self) -> dict[str, NodeView]:
        """What this node knows about all nodes, by their ids."""
        return read_nodes(self.ask("CLUSTER", "NODES"))

    def set_slot(self, slot: int, *state: str) -> None:
        """Run CLUSTER SETSLOT on this node."""
        self.ask("CLUSTER", "SETSLOT", slot, *state)
