"""One node of a test cluster: its address, how it begins, and what it knows about all nodes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyredisson.testing.deployment import Node
from pyredisson.testing.proxy import Proxy
from pyredisson.testing.server import bus_port

SLOTS = 16384
Slots = tuple[tuple[int, int], ...]
"""Ranges of slots, each by its first and its last one."""
REPLICATION_HOST = "127.0.0.2"
"""Where connections between nodes come from if there are proxies, which tell by it that they come from no client."""


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


# --- What a node knows


@dataclass(frozen=True, slots=True)
class NodeView:
    """One line of CLUSTER NODES."""

    id: str
    flags: frozenset[str]
    master: str | None
    epoch: int
    """Its own or its master's. Of two masters that claim a slot, the one with the greater epoch has it."""
    connected: bool
    slots: Slots

    @property
    def is_master(self) -> bool:
        return "master" in self.flags

    @property
    def failed(self) -> bool:
        """Whether the other nodes have agreed that it doesn't answer."""
        return "fail" in self.flags

    @property
    def reachable(self) -> bool:
        return self.connected and not self.flags & {"fail", "fail?", "handshake", "noaddr"}

    def has(self, slot: int) -> bool:
        return any(first <= slot <= last for first, last in self.slots)


def read_nodes(reply: str) -> dict[str, NodeView]:
    """Return the lines of the reply to CLUSTER NODES by node id."""
    views = {}
    for line in reply.splitlines():
        name, _address, flags, master, _ping, _pong, epoch, link, *slots = line.split()
        views[name] = NodeView(
            id=name,
            flags=frozenset(flags.split(",")),
            master=None if master == "-" else master,
            epoch=int(epoch),
            connected=link == "connected" or "myself" in flags,
            # A slot in brackets is one that is being moved.
            slots=tuple(_range(each) for each in slots if not each.startswith("[")),
        )
    return views


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def slot_ranges(masters: int) -> list[tuple[int, int]]:
    """All slots in as many ranges of nearly the same size."""
    bounds = [SLOTS * number // masters for number in range(masters + 1)]
    return [(first, after - 1) for first, after in pairwise(bounds)]


def nodes_file(
    myself: str, members: Sequence[tuple[str, str, int]], masters: Sequence[str], master_of: Mapping[str, str]
) -> str:
    """Return the text of the nodes.conf with which `myself` begins as a member of a cluster that is complete.

    Args:
        myself: the id of the node whose file it is.
        members: the id, the address (``host:port@bus``, and what else belongs to it) and the epoch of each node.
        masters: the ids of the masters, which get all slots in equal parts.
        master_of: the id of each replica's master.
    """
    slots = dict(zip(masters, slot_ranges(len(masters)), strict=True))
    lines = []
    for name, address, epoch in members:
        flags = ("myself," if name == myself else "") + ("master" if name in slots else "slave")
        line = f"{name} {address} {flags} {master_of.get(name, '-')} 0 0 {epoch} connected"
        if name in slots:
            first, last = slots[name]
            line += f" {first}-{last}"
        lines.append(line)
    lines.append(f"vars currentEpoch {len(masters)} lastVoteEpoch 0")
    return "\n".join(lines) + "\n"


# --- How a cluster begins


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
