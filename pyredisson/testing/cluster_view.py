"""What one node of a cluster knows about all of its nodes, as it tells or keeps it in its nodes.conf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["SLOTS", "NodeView", "Slots", "nodes_file", "read_nodes", "slot_ranges"]

SLOTS = 16384
Slots = tuple[tuple[int, int], ...]
"""Ranges of slots, each by its first and its last one."""


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
