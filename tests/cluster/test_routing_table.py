"""The routing table: redirects, views, and what their changes are reported as."""

from __future__ import annotations

import gc
import time
import weakref

import pytest
from redis.exceptions import ConnectionError, ResponseError

from pyredisson._protocol import routing, server_health
from pyredisson._protocol.routing import Changes, RoutingTable
from pyredisson._protocol.topology import Member, Shard, TopologyView
from pyredisson._settings.address import Address
from tests.support.topologies import LAST, Recorder, address, ask, make_node, moved, shard, view


@pytest.fixture
def table() -> RoutingTable:
    return RoutingTable(make_node, None)


@pytest.fixture
def recorder(table: RoutingTable) -> Recorder:
    return Recorder(table)


def apply(table: RoutingTable, new: TopologyView) -> None:
    table.apply(new, table.begin_view())


THREE = view(shard(0, ((0, 5000),), 3), shard(1, ((5001, 10000),), 4), shard(2, ((10001, LAST),), 5))


def test_a_table_without_a_view_knows_no_node(table: RoutingTable) -> None:
    assert not table.ready
    assert table.node_of_slot(0) is None
    assert table.node_for(b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n") is None


def test_the_first_view(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    assert table.ready
    assert table.epoch == 1
    assert set(table.nodes) == {address(0), address(1), address(2)}
    assert table.node_of_slot(5000) is table.nodes[address(0)]
    assert table.node_of_slot(5001) is table.nodes[address(1)]
    assert table.node_of_key(b"foo") is table.nodes[address(2)]  # slot 12182
    assert table.replicas == {address(0): 1, address(1): 1, address(2): 1}
    changes = recorder.latest()
    assert changes.moved_slots == frozenset(range(LAST + 1))
    assert changes.new_masters == tuple(table.nodes.values())
    assert not changes.failed_over_slots
    assert not changes.removed_nodes


def test_the_same_view_again_changes_nothing(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    recorder.changes.clear()
    nodes, version = dict(table.nodes), table.version
    apply(table, view(*THREE.shards, epoch=7))
    assert table.nodes == nodes
    assert table.version == version
    assert table.epoch == 7
    assert not recorder.changes


def test_a_moved_slot_is_in_the_map_at_once(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    version = table.version
    node = table.redirect(moved(7, 1), table.nodes[address(0)])
    assert node is table.nodes[address(1)]
    assert table.node_of_slot(7) is node
    assert table.node_of_slot(8) is table.nodes[address(0)]
    assert table.version != version
    assert recorder.requests == 1
    assert not table.troubled


def test_moved_to_a_new_node(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    recorder.changes.clear()
    node = table.redirect(moved(7, 9), table.nodes[address(0)])
    assert table.nodes[address(9)] is node
    table.apply(THREE, 0)
    assert table.node_of_slot(7) is node, "the redirect is newer than the view"
    assert table.nodes[address(9)] is node
    apply(table, view(shard(0, ((0, 6), (8, 5000)), 3), *THREE.shards[1:], shard(9, ((7, 7),))))
    assert table.node_of_slot(7) is node
    changes = recorder.latest()
    assert changes.moved_slots == {7}
    assert changes.new_masters == (node,)


def test_a_later_view_replaces_a_redirect(table: RoutingTable) -> None:
    apply(table, THREE)
    table.redirect(moved(7, 9), table.nodes[address(0)])
    assert table.redirect_target is not None
    apply(table, THREE)
    assert table.redirect_target is None
    assert table.node_of_slot(7) is table.nodes[address(0)]
    assert address(9) not in table.nodes


def test_a_view_that_contradicts_a_newer_redirect(table: RoutingTable) -> None:
    apply(table, THREE)
    begun = table.begin_view()
    assert not table.contradicts(THREE, begun)
    table.redirect(moved(7, 1), table.nodes[address(0)])
    assert table.contradicts(THREE, begun)
    agreeing = view(shard(0, ((0, 6), (8, 5000))), shard(1, ((7, 7), (5001, 10000))), THREE.shards[2])
    assert not table.contradicts(agreeing, begun)
    assert not table.contradicts(THREE, table.begin_view())


def test_ask_is_not_put_into_the_map(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    node = table.redirect(ask(7, 9), table.nodes[address(0)])
    assert node.endpoint == address(9)
    assert table.node_of_slot(7) is table.nodes[address(0)]
    assert recorder.requests == 0
    apply(table, THREE)
    assert table.redirect(ask(7, 9), table.nodes[address(0)]) is node, "the node is kept while it imports a slot"
    assert table.nodes[address(9)] is node


def test_a_node_that_ask_has_named_is_removed_in_the_end(
    table: RoutingTable, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(table, THREE)
    node = table.redirect(ask(7, 9), table.nodes[address(0)])
    recorder.changes.clear()
    monkeypatch.setattr(routing, "REDIRECT_TARGET_KEPT", 0.0)
    moved_on = view(shard(1, ((0, 10000),)), THREE.shards[2])
    apply(table, moved_on)
    assert node in recorder.latest().removed_nodes


def test_redirects_without_an_address_lead_to_a_view(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    asked = table.nodes[address(0)]
    assert table.redirect(ResponseError("MOVED 7 ?:7001"), asked) is asked
    # Connections have copies of a node, for which there are no other connections.
    assert table.redirect(ResponseError("MOVED 7 ?:7001"), asked.with_timeout(0.1)) is asked
    assert recorder.requests == 2
    assert table.troubled


def test_redirects_are_translated() -> None:
    table = RoutingTable(make_node, lambda announced: Address("outside", announced.port + 1))
    apply(table, THREE)
    node = table.redirect(moved(7, 1), table.nodes[address(0)])
    assert node.endpoint == Address("outside", 7002)


def test_a_failover(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    old = table.nodes[address(1)]
    recorder.changes.clear()
    apply(table, view(THREE.shards[0], shard(4, ((5001, 10000),)), THREE.shards[2], epoch=2))
    assert recorder.latest() == Changes(
        failed_over_slots=frozenset(range(5001, 10001)),
        new_masters=(table.nodes[address(4)],),
        removed_nodes=(old,),
        demoted_nodes=(old,),
    )


def test_a_failover_to_a_replica_that_no_view_has_shown(table: RoutingTable, recorder: Recorder) -> None:
    """It was added, and promoted by CLUSTER FAILOVER, between two views."""
    apply(table, THREE)
    old = table.nodes[address(1)]
    recorder.changes.clear()
    apply(table, view(THREE.shards[0], shard(8, ((5001, 10000),), 1), THREE.shards[2], epoch=2))
    changes = recorder.latest()
    assert len(changes.failed_over_slots) == 5000
    assert changes.demoted_nodes == (old,)


def test_a_failover_and_back_keeps_the_node_with_its_suspects(table: RoutingTable) -> None:
    apply(table, THREE)
    old = table.nodes[address(1)]
    apply(table, view(THREE.shards[0], shard(4, ((5001, 10000),), 1), THREE.shards[2]))
    assert address(1) not in table.nodes
    apply(table, THREE)
    assert table.nodes[address(1)] is old


def test_a_migration(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    recorder.changes.clear()
    apply(table, view(shard(0, ((0, 4000),), 3), shard(1, ((4001, 10000),), 4), THREE.shards[2]))
    assert recorder.latest() == Changes(moved_slots=frozenset(range(4001, 5001)))


def test_a_redirect_doesnt_hide_the_change_from_the_listeners(table: RoutingTable, recorder: Recorder) -> None:
    """The former master says MOVED before a view shows the failover."""
    apply(table, THREE)
    old = table.nodes[address(1)]
    table.redirect(moved(6000, 4), old)
    recorder.changes.clear()
    apply(table, view(THREE.shards[0], shard(4, ((5001, 10000),), 1), THREE.shards[2]))
    changes = recorder.latest()
    assert 6000 in changes.failed_over_slots
    assert changes.demoted_nodes == (old,)
    assert changes.new_masters == (table.nodes[address(4)],)


def test_a_master_without_replicas_whose_slots_go_elsewhere(table: RoutingTable, recorder: Recorder) -> None:
    """CLUSTER SLOTS doesn't tell whether such a master lives. The holds are looked at, but nothing is cut off."""
    apply(table, THREE)
    old = table.nodes[address(1)]
    recorder.changes.clear()
    apply(table, view(shard(0, ((0, 10000),)), THREE.shards[2]))
    changes = recorder.latest()
    assert len(changes.failed_over_slots) == 5000
    assert changes.removed_nodes == (old,)
    assert not changes.demoted_nodes


def test_a_dead_master_whose_slots_go_elsewhere(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    old = table.nodes[address(1)]
    old.on_unreachable(ConnectionError("refused"), time.monotonic())
    assert table.troubled
    recorder.changes.clear()
    apply(table, view(shard(0, ((0, 10000),)), THREE.shards[2]))
    assert recorder.latest().demoted_nodes == (old,)
    assert not table.troubled


def test_another_server_behind_the_same_address(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    node = table.nodes[address(1)]
    recorder.changes.clear()
    other = Shard(Member(address(1), b"another"), (), ((5001, 10000),))
    apply(table, view(THREE.shards[0], other, THREE.shards[2]))
    assert table.nodes[address(1)] is node
    changes = recorder.latest()
    assert len(changes.failed_over_slots) == 5000
    assert changes.demoted_nodes == (node,)
    assert not changes.removed_nodes
    assert not changes.new_masters


def test_unassigned_slots_have_no_node_and_remember_their_master(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    apply(table, view(THREE.shards[0], THREE.shards[2]))
    assert table.node_of_slot(6000) is None
    recorder.changes.clear()
    apply(table, view(THREE.shards[0], shard(8, ((5001, 10000),)), THREE.shards[2]))
    assert len(recorder.latest().failed_over_slots) == 5000


def test_failures_of_nodes_request_views_until_they_recover(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    node = table.nodes[address(0)]
    assert not table.troubled
    node.on_failure()
    assert recorder.requests == 1
    assert table.troubled
    assert table.is_failing(address(0))
    node.on_handshake(None)
    assert not table.troubled


def test_a_restarted_server_is_reported_though_the_view_is_the_same(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    node = table.nodes[address(1)]
    recorder.changes.clear()
    node.on_handshake(b"first")
    node.with_timeout(0.1).on_handshake(b"first")
    node.on_handshake(None)
    apply(table, THREE)
    assert (recorder.requests, recorder.changes) == (0, [])
    node.with_timeout(0.1).on_handshake(b"second")
    assert recorder.requests == 1
    apply(table, THREE)
    assert recorder.latest() == Changes(failed_over_slots=frozenset(range(5001, 10001)))
    apply(table, THREE)
    assert not recorder.changes


def test_copies_of_a_node_report_for_it(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    table.nodes[address(0)].with_timeout(0.1).on_failure()
    assert recorder.requests == 1
    assert table.is_failing(address(0))


def test_failures_of_removed_nodes_are_nobodys_concern(table: RoutingTable, recorder: Recorder) -> None:
    apply(table, THREE)
    node = table.nodes[address(1)]
    apply(table, view(THREE.shards[0], shard(4, ((5001, 10000),), 1), THREE.shards[2]))
    recorder.requests = 0
    node.on_failure()
    assert recorder.requests == 0
    assert not table.troubled


def test_a_request_makes_views_urgent_for_a_while(
    table: RoutingTable, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.request_refresh("READONLY")
    assert recorder.requests == 1
    assert table.troubled
    monkeypatch.setattr(server_health, "URGENT", 0.0)
    table.request_refresh("READONLY")
    assert not table.troubled


def test_remembered_nodes_are_bounded(table: RoutingTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_KNOWN", 3)
    for number in range(10):
        apply(table, view(shard(number, ((0, LAST),))))
    node = table.nodes[address(9)]
    apply(table, view(shard(0, ((0, LAST),))))
    apply(table, view(shard(9, ((0, LAST),))))
    assert table.nodes[address(9)] is node
    assert len(table._known) <= 3


def test_listeners_are_referred_to_weakly(table: RoutingTable) -> None:
    recorder = Recorder(table)
    reference = weakref.ref(recorder)
    table.on_request = lambda: None
    del recorder
    gc.collect()
    assert reference() is None
    apply(table, THREE)


def test_a_listener_that_fails_doesnt_stop_the_others(table: RoutingTable, caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def follow(self, changes: Changes) -> None:
            raise ValueError("planted")

    failing = Failing()
    table.listen(failing.follow)
    recorder = Recorder(table)
    apply(table, THREE)
    assert len(recorder.changes) == 1
    assert "planted" in caplog.text
