"""Redirects and views in any order, against a model of what the routing table has to know."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyredisson._protocol.node import Node
from pyredisson._protocol.routing import Changes, RoutingTable
from tests.support.topologies import LAST, Recorder, address, ask, make_node, moved, shard, view


class TableModel(RuleBasedStateMachine):
    """The newest knowledge about each slot is in the map, in whatever order redirects and views come."""

    SLOTS = (0, 1, 2, 3, LAST)

    @initialize()
    def begin(self) -> None:
        self.table = RoutingTable(make_node, None)
        self.recorder = Recorder(self.table)
        self.begun: list[tuple[int, int]] = []
        self.step = 0
        self.expected: dict[int, tuple[int, int | None]] = {}
        """For each slot the step from which its knowledge is, and the master."""
        self.served: dict[int, int] = {}
        self.seen: dict[int, Node] = {}
        self._apply(dict.fromkeys(self.SLOTS, 0), 0, self.table.begin_view())

    def _apply(self, owners: dict[int, int | None], step: int, begun: int) -> None:
        masters = sorted({owner for owner in owners.values() if owner is not None})
        shards = [
            shard(owner, tuple((slot, slot) for slot in self.SLOTS if owners[slot] == owner)) for owner in masters
        ]
        self.recorder.changes.clear()
        self.table.apply(view(*shards), begun)
        for slot, owner in owners.items():
            known, _ = self.expected.get(slot, (-1, None))
            if known <= step:
                self.expected[slot] = (step, owner)
        reported = self.recorder.changes[0] if self.recorder.changes else Changes()
        changed = {slot for slot, owner in owners.items() if owner is not None and self.served.get(slot) != owner}
        assert reported.moved_slots | reported.failed_over_slots == changed
        assert not reported.moved_slots & reported.failed_over_slots
        self.served |= {slot: owner for slot, owner in owners.items() if owner is not None}

    @rule()
    def ask_for_a_view(self) -> None:
        self.step += 1
        self.begun = [*self.begun[-2:], (self.step, self.table.begin_view())]

    @rule(data=st.data())
    def a_view_comes(self, data: st.DataObject) -> None:
        if self.begun:
            step, begun = self.begun[-1]
            owner = st.one_of(st.none(), st.integers(0, 3))
            self._apply({slot: data.draw(owner) for slot in self.SLOTS}, step, begun)

    @rule(slot=st.sampled_from(SLOTS), number=st.integers(0, 5))
    def a_slot_has_moved(self, slot: int, number: int) -> None:
        self.step += 1
        asked = next(iter(self.table._known.values()))
        node = self.table.redirect(moved(slot, number), asked)
        assert node.endpoint == address(number)
        self.expected[slot] = (self.step, number)

    @rule(slot=st.sampled_from(SLOTS), number=st.integers(0, 5))
    def a_slot_is_moving(self, slot: int, number: int) -> None:
        asked = next(iter(self.table._known.values()))
        assert self.table.redirect(ask(slot, number), asked).endpoint == address(number)

    @invariant()
    def the_map_has_the_newest_knowledge(self) -> None:
        for slot, (_, owner) in self.expected.items():
            node = self.table.node_of_slot(slot)
            assert (None if node is None else node.endpoint) == (None if owner is None else address(owner))
            if node is not None and owner is not None:
                assert self.table.nodes[address(owner)] is node
                assert self.seen.setdefault(owner, node) is node, "an address has one node"


TestTableModel = TableModel.TestCase
TestTableModel.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
