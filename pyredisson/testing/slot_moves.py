"""Moving slots of a test cluster with their keys, in one go or step by step."""

from __future__ import annotations

from collections.abc import Sequence

from pyredisson.testing.cluster_node import ClusterNode

__all__ = ["SlotMoves", "forget_slot"]

_MIGRATE_MS = 5000
_KEYS_AT_ONCE = 100


class SlotMoves:
    """The slots that are being moved. Its methods tell the nodes, and don't wait until the others have noticed."""

    def __init__(self, password: str | None) -> None:
        self._credentials = [] if password is None else ["AUTH", password]
        self._moves: dict[int, tuple[ClusterNode, ClusterNode]] = {}

    def begin(self, slot: int, source: ClusterNode, to: ClusterNode) -> None:
        # In this order: a client that the source sends to the target by ASK must be served there.
        to.set_slot(slot, "IMPORTING", source.id)
        source.set_slot(slot, "MIGRATING", to.id)
        self._moves[slot] = source, to

    def move_keys(self, slot: int, names: Sequence[str | bytes]) -> None:
        source, to = self._move(slot)
        if names:
            self._migrate(source, to, names)
            return
        # Until none is left: clients may add keys to the ones that the source still has.
        while found := source.ask("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_AT_ONCE):
            self._migrate(source, to, found)

    def finish(self, slot: int, masters: Sequence[ClusterNode]) -> None:
        source, to = self._move(slot)
        # The new node first: if the old one were told first and both stopped here, no node would have the slot.
        others = [node for node in masters if node is not to and node is not source]
        for node in (to, source, *others):
            node.set_slot(slot, "NODE", to.id)
        del self._moves[slot]

    def clear(self) -> None:
        self._moves.clear()

    def _move(self, slot: int) -> tuple[ClusterNode, ClusterNode]:
        if slot not in self._moves:
            raise ValueError(f"slot {slot} is not being moved: begin_move() comes first")
        return self._moves[slot]

    def _migrate(self, source: ClusterNode, to: ClusterNode, names: Sequence[str | bytes]) -> None:
        source.ask(
            *("MIGRATE", to.host, to.internal_port, "", 0, _MIGRATE_MS, *self._credentials, "KEYS", *names),
        )


def forget_slot(slot: int, nodes: Sequence[ClusterNode]) -> str | None:
    """Let the nodes forget who has the slot, as nobody has it any more. Returns in words who still knew."""
    knowing = [node for node in nodes if any(view.has(slot) for view in node.view().values())]
    for node in knowing:
        node.ask("CLUSTER", "DELSLOTS", slot)
    return f"still assigned: {[node.port for node in knowing]}" if knowing else None
