"""How a client of several servers knows which of them serves what."""

from __future__ import annotations

from pyredisson._client.topology.cluster_source import ClusterSource
from pyredisson._client.topology.keeper import Source, TopologyKeeper
from pyredisson._client.topology.replicated_source import ReplicatedSource
from pyredisson._client.topology.sentinel_source import SentinelSource
from pyredisson._protocol.availability import Observe
from pyredisson._protocol.node import Node
from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config

SHORTEST_SETTLING = 15.0
"""Seconds after a change of the topology within which all clients have noticed it: usually three times the interval at
which they look, which is 5 s for Redisson, too."""


def open_topology(config: Config, client_id: str, scripts: ScriptSet, observe: Observe | None = None) -> TopologyKeeper:
    """The keeper of a new client, and its table, whose nodes share `scripts`. Nothing is connected, no thread started.

    A command is packed before it is known which node serves it, so all nodes get scripts of the same form.
    """

    def make_node(address: Address) -> Node:
        node = Node(config.at(address))
        node.client_id = client_id
        node.scripts = scripts
        node.availability.tell(observe, node.address)
        return node

    settling = max(SHORTEST_SETTLING, 3 * config.topology_refresh_interval) if scripts.pubsub is PubSub.AUTO else 0.0
    table = RoutingTable(make_node, None if config.address_mapper is None else config.map_address, settling)
    return TopologyKeeper(table, _source(config, table), config.topology_refresh_interval, config.describe())


def _source(config: Config, table: RoutingTable) -> Source:
    if config.topology == "cluster":
        return ClusterSource(config, table)
    if config.topology == "sentinel":
        return SentinelSource(config, table)
    assert config.topology == "replicated", config.topology
    return ReplicatedSource(config, table)
