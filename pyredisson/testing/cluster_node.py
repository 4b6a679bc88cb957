"""One node of a test cluster: its address, what it knows about all nodes, how it begins, and how it hands slots on."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from pyredisson._protocol.replies import pairs
from pyredisson.testing.deployment import Node
from pyredisson.testing.proxy import Proxy
from pyredisson.testing.server import ServerError, bus_port

SLOTS = 16384
Slots = tuple[tuple[int, int], ...]
"""Ranges of slots, each by its first and its last one."""


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
        views = map(NodeView.of_line, self.ask("CLUSTER", "NODES").splitlines())
        return {view.id: view for view in views}

    def set_slot(self, slot: int, *state: str) -> None:
        """Run CLUSTER SETSLOT on this node."""
        self.ask("CLUSTER", "SETSLOT", slot, *state)


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

    @classmethod
    def of_line(cls, line: str) -> NodeView:
        name, _address, flags, master, _ping, _pong, epoch, link, *slots = line.split()
        # A slot in brackets is one that is being moved.
        ranges = [each.partition("-") for each in slots if not each.startswith("[")]
        return cls(
            id=name,
            flags=frozenset(flags.split(",")),
            master=None if master == "-" else master,
            epoch=int(epoch),
            connected=link == "connected" or "myself" in flags,
            slots=tuple((int(first), int(last or first)) for first, _, last in ranges),
        )

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


def write_membership(nodes: Sequence[ClusterNode], master_count: int) -> None:
    """Let every node begin as a member of a complete cluster: it takes longer to introduce them to each other. The
    first ones are the masters, which get all slots in equal parts."""
    bounds = [SLOTS * number // master_count for number in range(master_count + 1)]
    members = []
    for number, node in enumerate(nodes):
        place = number % master_count
        master = nodes[place]
        role, slots = f"slave {master.id}", ""
        if node is master:
            role, slots = "master -", f" {bounds[place]}-{bounds[place + 1] - 1}"
        # Without its shard, Valkey 9.1 ends at the first SPUBLISH, if it has no replica.
        shard = f",,shard-id={master.id}" if node.version >= (7, 2) else ""
        members.append((f"{node.id} {node.bus_address}{shard}", f"{role} 0 0 {place + 1} connected{slots}"))
    for myself, node in enumerate(nodes):
        lines = [f"{who} {'myself,' if at == myself else ''}{rest}" for at, (who, rest) in enumerate(members)]
        text = "\n".join([*lines, f"vars currentEpoch {master_count} lastVoteEpoch 0", ""])
        (node._prepare() / "nodes.conf").write_text(text)


_MOVED = {"success", "completed"}
_FAILED = {"failed", "cancelled", "canceled"}


class AtomicMove:
    """A move of slots by the servers themselves, all keys at once. Until it ends, the slots are where they were.

    At the end the source lets writes wait for some milliseconds, until the target serves the slots.
    """

    def __init__(self, first: int, last: int, source: ClusterNode, to: ClusterNode) -> None:
        try:
            before = _exports(source)
            source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", to.id)
            [self._id] = _exports(source) - before
            self._asked = source
            self._query: tuple[str, ...] = ("GETSLOTMIGRATIONS",)
            self._cancellation: tuple[str, ...] = ("CANCELSLOTMIGRATIONS",)
        except ResponseError as error:
            if "unknown subcommand" not in str(error):
                raise
            self._asked, self._id = to, _begin_on_redis(first, last, to)
            self._query = ("MIGRATION", "STATUS", "ID", self._id)
            self._cancellation = ("MIGRATION", "CANCEL", "ID", self._id)

    @property
    def state(self) -> str:
        """The state in the words of the server."""
        return str(self._status()["state"])

    def cancel(self) -> None:
        """Give the move up: its slots stay where they are. On Valkey this ends all moves of the source."""
        self._asked.ask("CLUSTER", *self._cancellation)

    def missing(self) -> str | None:
        """In words, what the move waits for; None when it has ended well. `ServerError`: it failed or was cancelled."""
        status = self._status()
        if status["state"] in _FAILED:
            raise ServerError(f"the slots have not moved: {status}")
        return None if status["state"] in _MOVED else str(status)

    def _status(self) -> dict[str, Any]:
        answers = map(pairs, self._asked.ask("CLUSTER", *self._query))
        return next(each for each in answers if self._id in (each.get("name"), each.get("id")))


def _exports(source: ClusterNode) -> set[str]:
    found = map(pairs, source.ask("CLUSTER", "GETSLOTMIGRATIONS"))
    return {each["name"] for each in found if each["operation"] == "EXPORT"}


def _begin_on_redis(first: int, last: int, to: ClusterNode) -> str:
    try:
        return str(to.ask("CLUSTER", "MIGRATION", "IMPORT", first, last))
    except ResponseError as error:
        if "unknown subcommand" not in str(error):
            raise
        raise ServerError(f"slots move atomically on Valkey 9.0 and Redis 8.4 or later: {error}") from error
