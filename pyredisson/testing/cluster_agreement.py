"""Whether all living nodes of a test cluster know the same, and serve what they have."""

from __future__ import annotations

from collections.abc import Sequence

from pyredisson.testing.cluster_node import ClusterNode
from pyredisson.testing.cluster_view import SLOTS, NodeView, Slots

__all__ = ["disagreement"]

Views = dict[str, NodeView]


def disagreement(living: Sequence[ClusterNode]) -> str | None:
    """Ask all living nodes; return in words what they don't agree about, and None if they agree."""
    views = [(node, node.view()) for node in living]
    for node, view in views:
        for other in living:
            if other.id not in view:
                return f"{node.port} doesn't know {other.port}"
            if not view[other.id].reachable:
                return f"{node.port} doesn't reach {other.port}"
        if (known := roles(view)) != roles(views[0][1]):
            return f"{node.port} and {living[0].port} know different masters or slots: {known}, {roles(views[0][1])}"
    for node, view in views:
        if (missing := unserved(node, view) or unlinked(node, view, living)) is not None:
            return missing
    return None


def roles(view: Views) -> dict[str, tuple[str | None, Slots, int]]:
    """The master of each node, its slots, and the epoch of each node that serves slots.

    If a slot moved before all knew the epoch of its node, the next node could get the same one. Then nodes that had
    seen the slot at the former would never believe that it is at the latter.
    """
    # The epochs of the others decide nothing. The epoch of a frozen replica isn't passed on while it is frozen.
    return {name: (each.master, each.slots, each.epoch if each.slots else 0) for name, each in view.items()}


def unserved(node: ClusterNode, view: Views) -> str | None:
    """A node that has been started serves nothing for about two seconds, to learn first about a promotion meanwhile."""
    covered = sum(last - first + 1 for each in view.values() if not each.failed for first, last in each.slots)
    if covered == SLOTS and "cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
        return f"{node.port} says that the cluster is down, although all slots are assigned"
    return None


def unlinked(node: ClusterNode, view: Views, living: Sequence[ClusterNode]) -> str | None:
    """Replicas must be connected to their masters, and clients that ask this node must be told about them."""
    alive = {each.id: each for each in living}
    shown = {replica[2] for replica in replicas_shown(node)}
    for each in view.values():
        if each.id not in alive or each.master not in alive:
            continue
        if each.id == node.id and ((role := node.ask("ROLE"))[0] != "slave" or role[3] != "connected"):
            return f"the replica {node.port} is not connected to its master: {role}"
        if view[each.master].slots and each.id not in shown:
            return f"{node.port} doesn't tell clients about the replica {alive[each.id].port}"
    return None


def replicas_shown(node: ClusterNode) -> list[list[str]]:
    """The replicas in the reply to CLUSTER SLOTS: host, port, id."""
    return [replica for entry in node.ask("CLUSTER", "SLOTS") for replica in entry[3:]]
