"""The routing table: redirects, views, and what their changes are reported as; what is known of a master's replicas."""

import gc
import math
import time
import weakref
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError

from pyredisson._protocol import replication, routing
from pyredisson._protocol.node import Node
from pyredisson._protocol.replication import ReplicaState, Replication, read_replication
from pyredisson._protocol.routing import Changes, RoutingTable
from pyredisson._protocol.topology import Member, Shard, TopologyView
from pyredisson._settings.address import Address
from tests.support.topologies import LAST, Recorder, address, ask, make_node, moved, shard, view

THREE = view(shard(0, ((0, 5000),), 3), shard(1, ((5001, 10000),), 4), shard(2, ((10001, LAST),), 5))
SECOND = range(5001, 10001)
"""The slots of the second master."""


def apply(table: RoutingTable, new: TopologyView) -> None:
    table.apply(new, table.begin_view())


def second(new: Shard) -> TopologyView:
    """With this one in place of the second shard."""
    return view(THREE.shards[0], new, THREE.shards[2])


RANGE = ((5001, 10000),)
MIGRATED = view(shard(0, ((0, 4000),), 3), shard(1, ((4001, 10000),), 4), THREE.shards[2])
JOINED = view(shard(0, ((0, 10000),)), THREE.shards[2])
ANOTHER = Shard(Member(address(1), b"another"), (), RANGE)


@pytest.fixture
def table() -> RoutingTable:
    """A table that knows three masters."""
    made = RoutingTable(make_node, None)
    apply(made, THREE)
    return made


@pytest.fixture
def recorder(table: RoutingTable) -> Recorder:
    return Recorder(table)


@pytest.fixture
def old(table: RoutingTable) -> Node:
    """The second master."""
    return table.nodes[address(1)]


def test_the_first_views() -> None:
    table = RoutingTable(make_node, None)
    recorder = Recorder(table)
    get = b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n"
    assert (table.ready, table.node_of_slot(0), table.node_for(get)) == (False, None, None)
    apply(table, THREE)
    masters = [table.nodes[address(number)] for number in range(3)]
    assert (table.ready, table.epoch, list(table.shards)) == (True, 1, list(map(address, range(3))))
    assert [len(shard.replicas) for shard in table.shards.values()] == [1, 1, 1]
    # The slot of the key is 12182.
    assert [table.node_of_slot(5000), table.node_of_slot(5001), table.node_of_key(b"foo")] == masters
    assert list(table.nodes.values()) == masters
    assert recorder.latest() == Changes(moved_slots=frozenset(range(LAST + 1)), new_masters=tuple(masters))
    # The same view again changes nothing.
    version = table.version
    apply(table, view(*THREE.shards, epoch=7))
    assert (list(table.nodes.values()), table.version, table.epoch, recorder.changes) == (masters, version, 7, [])
    # A master without slots is none.
    apply(table, view(shard(2, ((0, LAST),)), shard(1, ()), shard(0, ())))
    assert [node.endpoint for node in table.masters()] == [address(2)]


def test_a_redirect_counts_until_a_later_view(table: RoutingTable, recorder: Recorder) -> None:
    asked, begun = table.nodes[address(0)], table.begin_view()
    assert not table.contradicts(THREE, begun)
    node = table.redirect(moved(7, 9), asked)
    assert table.nodes[address(9)] is table.redirect_target is node
    assert table.contradicts(THREE, begun)
    agreeing = view(shard(0, ((0, 6), (8, 5000)), 3), *THREE.shards[1:], shard(9, ((7, 7),)))
    assert not table.contradicts(agreeing, begun)
    assert not table.contradicts(THREE, table.begin_view())
    table.apply(THREE, begun)
    assert table.node_of_slot(7) is node, "the redirect is newer than the view"
    apply(table, agreeing)
    assert table.node_of_slot(7) is node
    assert table.redirect_target is None
    changes = recorder.latest()
    assert (changes.moved_slots, changes.new_masters) == (frozenset({7}), (node,))
    apply(table, THREE)
    table.redirect(moved(7, 9), asked)
    apply(table, THREE)
    assert table.redirect_target is None
    assert (table.node_of_slot(7), table.nodes.get(address(9))) == (asked, None)


def test_the_map_keeps_its_node(table: RoutingTable, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ASK, and after MOVED without an address: the topology has to be looked at. An address is translated."""
    asked = table.nodes[address(0)]
    node = table.redirect(ask(7, 9), asked)
    assert (node.endpoint, table.node_of_slot(7), recorder.requests) == (address(9), asked, 0)
    apply(table, THREE)
    assert table.nodes[address(9)] is node, "the node is kept while it imports a slot"
    assert table.redirect(ask(7, 9), asked) is node
    monkeypatch.setattr(routing, "REDIRECT_TARGET_KEPT", 0.0)
    apply(table, JOINED)
    assert node in recorder.latest().removed_nodes
    # Connections have copies of a node, for which there are no other connections.
    for one in (asked, asked.with_timeout(0.1)):
        assert table.redirect(ResponseError("MOVED 7 ?:7001"), one) is asked
    assert (recorder.requests, table.troubled) == (2, True)
    outside = RoutingTable(make_node, lambda announced: Address("outside", announced.port + 1))
    apply(outside, THREE)
    assert outside.redirect(moved(7, 1), asked).endpoint == Address("outside", 7002)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        pytest.param(second(shard(4, RANGE)), ((), SECOND, 4, True, True), id="a failover"),
        # It was added, and promoted by CLUSTER FAILOVER, between two views.
        pytest.param(second(shard(8, RANGE, 1)), ((), SECOND, 8, True, True), id="a failover to an unknown replica"),
        pytest.param(second(shard(8, RANGE)), ((), SECOND, 8, True, False), id="all its slots go to a new server"),
        pytest.param(MIGRATED, (range(4001, 5001), (), None, False, False), id="a migration"),
        # CLUSTER SLOTS doesn't tell whether such a master lives. The holds are looked at, but nothing is cut off.
        pytest.param(JOINED, ((), SECOND, None, True, False), id="a master without replicas whose slots go elsewhere"),
        pytest.param(second(ANOTHER), ((), SECOND, None, False, True), id="another server behind the same address"),
    ],
)
def test_changes(table: RoutingTable, recorder: Recorder, old: Node, new: TopologyView, expected: Any) -> None:
    moved_slots, failed_over, promoted, removed, demoted = expected
    apply(table, new)
    assert recorder.latest() == Changes(
        moved_slots=frozenset(moved_slots),
        failed_over_slots=frozenset(failed_over),
        new_masters=() if promoted is None else (table.nodes[address(promoted)],),
        removed_nodes=(old,) if removed else (),
        demoted_nodes=(old,) if demoted else (),
    )
    assert removed or table.nodes[address(1)] is old


def test_a_failover_and_back(table: RoutingTable, recorder: Recorder, old: Node) -> None:
    """The former master says MOVED before a view shows the failover. That hides nothing from listeners."""
    table.redirect(moved(6000, 4), old)
    apply(table, second(shard(4, RANGE, 1)))
    changes = recorder.latest()
    assert 6000 in changes.failed_over_slots
    assert (changes.demoted_nodes, changes.new_masters) == ((old,), (table.nodes[address(4)],))
    assert address(1) not in table.nodes
    # Failures of a removed node are nobody's concern.
    requests = recorder.requests
    old.on_failure()
    assert (recorder.requests, table.troubled) == (requests, False)
    apply(table, THREE)
    assert table.nodes[address(1)] is old
    recorder.latest()
    # It dies, and its slots go elsewhere.
    old.on_unreachable(ConnectionError("refused"), time.monotonic())
    assert table.troubled
    apply(table, JOINED)
    assert recorder.latest().demoted_nodes == (old,)
    assert not table.troubled
    # A slot that nobody serves remembers its former master.
    apply(table, view(THREE.shards[2]))
    assert [table.node_of_slot(slot) for slot in (0, 6000, 10000)] == [None] * 3
    recorder.latest()
    apply(table, view(shard(8, ((0, 10000),)), THREE.shards[2]))
    assert len(recorder.latest().failed_over_slots) == 10001


@pytest.mark.parametrize("copied", [False, True], ids=["a node", "a copy of it"])
def test_views_are_urgent_while_a_node_fails_or_does_not_serve(
    table: RoutingTable, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    node = table.nodes[address(0)]
    node = node.with_timeout(0.1) if copied else node
    assert not table.troubled
    node.on_failure()
    assert (recorder.requests, table.troubled, table.is_failing(address(0))) == (1, True, True)
    node.on_handshake(None)
    assert not table.troubled
    requested = recorder.requests
    table.request_refresh("READONLY")
    assert (recorder.requests, table.troubled) == (requested + 1, True)
    monkeypatch.setattr(routing, "URGENT", 0.0)
    table.request_refresh("READONLY")
    assert not table.troubled


def test_a_restarted_server_is_reported_in_the_same_view(table: RoutingTable, recorder: Recorder, old: Node) -> None:
    old.on_handshake(b"first")
    old.with_timeout(0.1).on_handshake(b"first")
    old.on_handshake(None)
    apply(table, THREE)
    assert (recorder.requests, recorder.changes) == (0, [])
    old.with_timeout(0.1).on_handshake(b"second")
    assert recorder.requests == 1
    apply(table, THREE)
    assert recorder.latest() == Changes(failed_over_slots=frozenset(SECOND))
    apply(table, THREE)
    assert not recorder.changes


def test_remembered_nodes_are_bounded(table: RoutingTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_KNOWN", 3)
    for number in range(10):
        apply(table, view(shard(number, ((0, LAST),))))
        table.nodes[address(number)].on_handshake(b"%d" % number)
    node = table.nodes[address(9)]
    for number in (0, 9):
        apply(table, view(shard(number, ((0, LAST),))))
    assert table.nodes[address(9)] is node
    assert max(len(table._known), len(table.health._server_ids)) <= 3


def test_listeners_are_referred_to_weakly_and_one_that_fails_doesnt_stop_the_others(
    table: RoutingTable, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Recorder):
        def on_changes(self, changes: Changes) -> None:
            raise ValueError("planted")

    # The second one is dropped at once.
    failing, dropped, recorder = Failing(table), weakref.ref(Recorder(table)), Recorder(table)
    gc.collect()
    assert dropped() is None
    apply(table, second(shard(4, RANGE)))
    assert (len(failing.changes), len(recorder.changes), "planted" in caplog.text) == (0, 1, True)


# The replicas of a master

ONE, TWO, ELSEWHERE = (Address("10.0.0.2", port) for port in (1, 2, 3))
HISTORY, FORMER = b"a" * 40, b"b" * 40
OF_MASTER = b"""# Replication\r
role:master\r
connected_slaves:4\r
slave0:ip=10.0.0.2,port=1,state=online,offset=14,lag=0\r
slave1:ip=10.0.0.2,port=2,state=wait_bgsave,offset=0,lag=0\r
slave2:ip=::1,port=3,state=online,offset=14,lag=1\r
slave3:ip=10.0.0.9,port=4,state=send_bulk,offset=0,lag=0\r
master_failover_state:no-failover\r
master_replid:%b\r
master_replid2:%b\r
""" % (HISTORY, FORMER)
OF_REPLICA = b"role:slave\r\nmaster_host:10.0.0.1\r\nmaster_replid:%b\r\nmaster_replid2:%b\r\n" % (HISTORY, FORMER)


def test_only_a_master_replaces_the_one_whose_history_it_has_continued() -> None:
    of_master = read_replication(OF_MASTER)
    assert of_master == Replication(True, HISTORY, FORMER, (ONE, Address("::1", 3)))
    assert (of_master.replaces(FORMER), of_master.replaces(HISTORY)) == (True, False)
    assert not read_replication(OF_REPLICA).replaces(FORMER)
    # A server that doesn't tell.
    assert not read_replication(b"role:master").replaces(b"")


def asked(state: ReplicaState, now: float, *replicas: Address, known: tuple[Address, ...] = ()) -> None:
    state.begin_question(now)
    state.set(Replication(True, HISTORY, FORMER, replicas), known, now)


@pytest.mark.parametrize("replicas", [(), (ONE,)], ids=["none", "one"])
def test_an_answer_counts_for_a_while(replicas: tuple[Address, ...]) -> None:
    state, again, relied_on = ReplicaState(), 1.0 + replication.ASKED_EVERY, 1.0 + replication.RELIED_ON
    assert state.is_due(0.0)
    state.begin_question(0.0)
    assert state.is_due(0.0), "nothing is known yet"
    asked(state, 1.0, *replicas)
    assert state.none_until == (-math.inf if replicas else relied_on)
    assert (state.is_due(1.0 + replication.ASKED_EVERY / 2), state.is_due(again)) == (False, True)
    # One call asks. Until there is an answer, the others rely on the latest one, but not for longer than on any other.
    state.begin_question(again)
    assert (state.is_due(again), state.is_due(relied_on)) == (False, True)
    assert state.none_until <= relied_on
    # No call relies on what was said long ago.
    state.begin_question(60.0)
    assert state.is_due(60.0)
    assert state.none_until < 60.0


def test_whose_answers_count() -> None:
    state = ReplicaState()
    asked(state, 2.0, ONE)
    # Overtaken by the one before it.
    asked(state, 1.0)
    assert (state.online, state.asked_at) == (1, 2.0)
    state.set(read_replication(OF_REPLICA), (), 1.5)
    assert state.online == 1
    # That of a server that is no master any more.
    state.set(read_replication(OF_REPLICA), (), 3.0)
    assert state.online is None
    assert state.is_due(3.0)
    # A master that refuses WAIT is asked no more.
    state.refuse()
    assert (state.is_due(60.0), state.none_until, state.ask_again_at) == (False, math.inf, math.inf)


def test_a_replica_that_leaves_is_noticed_once_and_remembered() -> None:
    state = ReplicaState()
    asked(state, 1, ONE, TWO)
    assert (state.left, state.away) == ({}, ())
    for now in (2, 2.2):
        asked(state, now, TWO)
        assert state.left == {ONE: 2}
    # It says nothing about what comes after its answer.
    state.on_answer(ONE, 1.5)
    assert state.left == {ONE: 2}
    state.on_answer(ONE, 2.5)
    asked(state, 3, TWO)
    assert not state.left
    # As long as it is away, acquires that too few replicas confirm depend on it.
    assert state.away == (ONE,)
    state.unreachable[ONE] = 9
    asked(state, 4, ONE, TWO)
    assert not state.away
    assert not state.unreachable
    asked(state, 5)
    assert (set(state.left), state.none_until) == ({ONE, TWO}, -math.inf)
    # A server that is known from elsewhere may be master from the beginning.
    state = ReplicaState()
    asked(state, 1, ONE, known=(ONE, ELSEWHERE))
    assert state.left == {ELSEWHERE: 1}
    # It is remembered as long as it may come back.
    state = ReplicaState()
    asked(state, 1, ONE, TWO)
    state.unreachable[ONE] = 1000
    asked(state, replication.REMEMBERED, known=(TWO,))
    assert ONE in state.away
    assert state.unreachable[ONE] > replication.REMEMBERED
    asked(state, 1 + replication.REMEMBERED, known=(TWO,))
    assert (state.away, set(state.left), len(state.unreachable)) == ((TWO,), {TWO}, 0)
