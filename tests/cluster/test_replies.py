"""What nodes, Sentinels and servers reply, in all forms of their versions; and what is known of a master's replicas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import InvalidResponse, NoPermissionError, ResponseError

from pyredisson._protocol.replication import (
    ASKED_EVERY,
    RELIED_ON,
    REMEMBERED,
    ReplicaState,
    Replication,
    read_replication,
)
from pyredisson._protocol.replies import NonLocalKeyError, as_error, is_transient
from pyredisson._protocol.topology import (
    ALL_SLOTS,
    Member,
    Redirect,
    SentinelAnswer,
    Shard,
    TopologyView,
    names_master,
    read_cluster,
    read_redirect,
    read_role,
    read_sentinel,
    read_slots,
    sentinel_query,
    unconfirmed_master,
)
from pyredisson._settings.address import Address

ASKED = Address("asked.example", 7000)


def member(port: int, id_: bytes, host: str = "10.0.0.1") -> Member:
    return Member(Address(host, port), id_)


def test_masters_replicas_and_slots() -> None:
    reply = [
        [8192, 16383, [b"10.0.0.1", 7001, b"b", []], [b"10.0.0.1", 7003, b"d", []], [b"10.0.0.1", 7004, b"e", []]],
        [0, 99, [b"10.0.0.1", 7000, b"a", []], [b"10.0.0.1", 7002, b"c", []]],
        [101, 8191, [b"10.0.0.1", 7000, b"a", []], [b"10.0.0.1", 7002, b"c", []]],
    ]
    view = read_slots(reply, ASKED)
    assert view.shards == (
        Shard(member(7000, b"a"), (member(7002, b"c"),), ((0, 99), (101, 8191))),
        Shard(member(7001, b"b"), (member(7003, b"d"), member(7004, b"e")), ((8192, 16383),)),
    )
    assert view.covered == 16383


def test_nodes_that_report_in_another_order_give_equal_views() -> None:
    here = [[0, 5, [b"h", 1, b"a"], [b"h", 2, b"b"], [b"h", 3, b"c"]], [6, 9, [b"h", 1, b"a"], [b"h", 2, b"b"]]]
    there = [[0, 9, [b"h", 1, b"a"], [b"h", 3, b"c"], [b"h", 2, b"b"]]]
    here[1].append([b"h", 3, b"c"])
    assert read_slots(here, ASKED) == read_slots(there, ASKED)
    assert read_slots([], ASKED) == TopologyView(())


@pytest.mark.parametrize(
    ("node", "address"),
    [
        ([b"10.0.0.1", 7000, b"a"], Address("10.0.0.1", 7000)),
        ([b"::1", 7000, b"a", []], Address("::1", 7000)),
        ([b"node.example", 7000, b"a", [b"ip", b"10.0.0.1"]], Address("node.example", 7000)),
        # cluster-preferred-endpoint-type unknown-endpoint
        ([None, 7009, b"a", [b"ip", b"10.0.0.1"]], Address("asked.example", 7009)),
        # A node that hasn't met another one doesn't know its address.
        ([b"", 7000, b"a", []], Address("asked.example", 7000)),
        # cluster-preferred-endpoint-type hostname, without a host name
        ([b"?", 7000, b"a", [b"ip", b"10.0.0.1"]], Address("10.0.0.1", 7000)),
        ([b"10.0.0.1", 7000], Address("10.0.0.1", 7000)),
    ],
)
def test_the_address_of_a_node(node: list[object], address: Address) -> None:
    (shard,) = read_slots([[0, 16383, node]], ASKED).shards
    assert shard.master.address == address


@pytest.mark.parametrize("node", [[b"?", 7000, b"a", []], [b"?", 7000, b"a"], [b"10.0.0.1", 0, b"a", []]])
def test_a_node_without_an_address_is_left_out(node: list[object]) -> None:
    master = [b"10.0.0.1", 7001, b"b", []]
    assert read_slots([[0, 5, node], [6, 9, master]], ASKED).covered == 4
    (shard,) = read_slots([[0, 5, master, node]], ASKED).shards
    assert shard.replicas == ()


SLOTS = [[0, 16383, [b"h", 1, b"a"]]]


@pytest.mark.parametrize(
    ("info", "healthy", "epoch"),
    [
        (b"cluster_state:ok\r\ncluster_current_epoch:17\r\ncluster_my_epoch:3\r\n", True, 17),
        (b"cluster_state:fail\r\ncluster_current_epoch:17\r\n", False, 17),
        (NoPermissionError("NOPERM"), True, 0),
    ],
)
def test_the_state_of_the_cluster(info: object, healthy: bool, epoch: int) -> None:
    view = read_cluster([SLOTS, info], ASKED)
    assert (view.healthy, view.epoch, view.covered) == (healthy, epoch, 16384)


@pytest.mark.parametrize(
    ("text", "redirect"),
    [
        ("MOVED 3999 10.0.0.1:6381", Redirect(False, 3999, Address("10.0.0.1", 6381))),
        ("ASK 0 node.example:6381", Redirect(True, 0, Address("node.example", 6381))),
        ("MOVED 16383 ::1:6381", Redirect(False, 16383, Address("::1", 6381))),
        ("MOVED 5 :6381", Redirect(False, 5, Address("asked.example", 6381))),
        ("MOVED 5 ?:6381", Redirect(False, 5, None)),
        ("MOVED 5 10.0.0.1:0", Redirect(False, 5, None)),
    ],
)
def test_redirects(text: str, redirect: Redirect) -> None:
    error = ResponseError(text)
    assert read_redirect(error, ASKED) == redirect


@given(st.lists(st.integers(0, 30), unique=True, min_size=1), st.randoms(use_true_random=False))
def test_ranges_are_joined(slots: list[int], random: object) -> None:
    reply = [[slot, slot, [b"h", 1, b"a"]] for slot in slots]
    (shard,) = read_slots(reply, ASKED).shards
    assert [slot for first, last in shard.slots for slot in range(first, last + 1)] == sorted(slots)
    assert all(last + 1 < first for (_, last), (first, _) in zip(shard.slots, shard.slots[1:], strict=False))


SENTINEL = Address("10.0.0.9", 26379)
MASTER = Address("10.0.0.1", 6379)
NAMED = [b"10.0.0.1", b"6379"]
DETAILS = [b"name", b"mymaster", b"ip", b"10.0.0.1", b"port", b"6379", b"config-epoch", b"7"]
OTHERS = [[b"name", b"x", b"ip", b"10.0.0.8", b"port", b"26379"], [b"ip", b"::1", b"port", b"26380"]]


REFUSED, UNKNOWN = NoPermissionError("NOPERM"), ResponseError("ERR No such master with that name")
REPLICAS = [[b"ip", b"10.0.0.2", b"port", b"6380", b"flags", b"s_down,slave,disconnected"]]


@pytest.mark.parametrize(
    ("replies", "answer"),
    [
        (
            [NAMED, DETAILS, OTHERS, REPLICAS],
            SentinelAnswer(
                MASTER, 7, (Address("10.0.0.8", 26379), Address("::1", 26380)), (Address("10.0.0.2", 6380),)
            ),
        ),
        ([NAMED, REFUSED, REFUSED, REFUSED], SentinelAnswer(MASTER, 0, ())),
        ([None, UNKNOWN, UNKNOWN, UNKNOWN], None),
    ],
    ids=["", "without-details", "no-such-master"],
)
def test_the_answer_of_a_sentinel(replies: list[object], answer: SentinelAnswer | None) -> None:
    assert read_sentinel(replies, SENTINEL) == answer


def test_a_user_without_the_right_to_ask() -> None:
    for read, replies in ((read_sentinel, [REFUSED, DETAILS, OTHERS, []]), (read_cluster, [REFUSED, b""])):
        with pytest.raises(NoPermissionError):
            read(replies, ASKED)


def test_sentinels_are_asked_for_one_master_and_tell_of_all() -> None:
    assert all(payload.endswith(b"$8\r\nmymaster\r\n") for payload in sentinel_query("mymaster"))
    for message, about in ((b"mymaster 10.0.0.1 6379", True), (b"mymaster2 10.0.0.1 6379", False), (b"", False)):
        assert names_master(message, "mymaster") is about


SERVER = b"# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n"
REPLICATION = (
    b"# Replication\r\nrole:master\r\nconnected_slaves:1\r\nslave0:ip=10.0.0.2,port=6380,state=online,lag=0\r\n"
)
FIRST, SECOND = Member(Address("10.0.0.2", 6380)), Member(Address("10.0.0.3", 6381))
SLAVES = [[b"10.0.0.3", b"6381", b"0"], [b"10.0.0.2", b"6380", b"0"]]


def one_master(*replicas: Member, id_: bytes = b"abc", epoch: int = 0) -> TopologyView:
    return TopologyView((Shard(Member(MASTER, id_), replicas, ALL_SLOTS),), epoch)


@pytest.mark.parametrize(
    ("replies", "view"),
    [
        ([[b"master", 100, SLAVES], REPLICATION, SERVER], one_master(FIRST, SECOND, epoch=5)),
        ([[b"slave", b"10.0.0.1", 6379, b"connected", 1], b"role:slave\r\n", SERVER], None),
        ([[b"sentinel", [b"mymaster"]], b"", SERVER], None),
        # INFO tells it too.
        ([REFUSED, REPLICATION, SERVER], one_master(FIRST, epoch=5)),
        ([REFUSED, b"role:slave\r\n", SERVER], None),
    ],
    ids=["master", "replica", "sentinel", "master-without-role", "replica-without-role"],
)
def test_the_role_of_a_server(replies: list[object], view: TopologyView | None) -> None:
    assert read_role(replies, MASTER, 5) == view


def test_without_any_right_the_role_is_unknown() -> None:
    with pytest.raises(NoPermissionError):
        read_role([REFUSED] * 3, MASTER)
    assert unconfirmed_master([REFUSED] * 3, MASTER, 3) == one_master(id_=b"", epoch=3)
    assert unconfirmed_master([REFUSED, REPLICATION, SERVER], MASTER, 3) is None
    assert unconfirmed_master([[b"master", 0, []], REFUSED, SERVER], MASTER, 3) is None


UNREADABLE: dict[Callable[[Any], object], list[object]] = {
    lambda reply: read_slots(reply, ASKED): [
        *[None, 1, b"OK", [1], [[0, 5, b"x"]], [[0, 5]]],
        [[b"x", 5, [b"h", 1, b"a"]]],
    ],
    lambda text: read_redirect(ResponseError(text), ASKED): [
        *["MOVED", "MOVED 5", "MOVED x h:1", "ASK 5 h", "MOVED 5 h:1 "],
    ],
    lambda replies: read_sentinel(replies, ASKED): [
        [[b"10.0.0.1"], DETAILS, [], []],
        [[b"h", b"x"], DETAILS, [], []],
        [[b"h", b"1"], [b"odd"], [], []],
    ],
    lambda role: read_role([role, REPLICATION, SERVER], ASKED): [
        *[None, 1, [], [b"master"], [b"master", 0, [[b"h"]]], [b"master", 0, [[b"h", b"x"]]]],
    ],
}


@pytest.mark.parametrize(("read", "reply"), [(read, reply) for read in UNREADABLE for reply in UNREADABLE[read]])
def test_what_is_unreadable_is_an_error_of_redis(read: Callable[[Any], object], reply: object) -> None:
    with pytest.raises(InvalidResponse, match=r"asked\.example:7000"):
        read(reply)


@pytest.mark.parametrize(
    "text",
    [
        "ERR Script attempted to access a non local key in a cluster node script: e46d14b4, on @user_script:2.",
        "ERR Attempted to access a non local key in a cluster node script: on @user_script:2.",
        "ERR Error running script (call to f_e): Lua script attempted to access a non local key in a cluster node",
    ],
)
def test_the_error_of_each_server(text: str) -> None:
    error = as_error(text)
    assert type(error) is NonLocalKeyError
    assert is_transient(error)


ONE, TWO, THREE = (Address("10.0.0.2", port) for port in (1, 2, 3))
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
    assert of_master.replaces(FORMER)
    assert not of_master.replaces(HISTORY)
    assert not read_replication(OF_REPLICA).replaces(FORMER)
    # A server that doesn't tell.
    assert not read_replication(b"role:master").replaces(b"")


def asked(state: ReplicaState, now: float, *replicas: Address, known: tuple[Address, ...] = ()) -> None:
    state.begin_question(now)
    state.set(Replication(True, HISTORY, FORMER, replicas), known, now)


@pytest.mark.parametrize("replicas", [(), (ONE,)], ids=["none", "one"])
def test_an_answer_counts_for_a_while(replicas: tuple[Address, ...]) -> None:
    state = ReplicaState()
    assert state.is_due(0.0)
    asked(state, 1.0, *replicas)
    assert state.none_until == (-math.inf if replicas else 1.0 + RELIED_ON)
    assert not state.is_due(1.0 + ASKED_EVERY / 2)
    assert state.is_due(1.0 + ASKED_EVERY)
    # One call asks. Until there is an answer, the others rely on the latest one, but not for longer than on any other.
    state.begin_question(1.0 + ASKED_EVERY)
    assert not state.is_due(1.0 + ASKED_EVERY)
    assert state.is_due(1.0 + RELIED_ON)
    assert state.none_until <= 1.0 + RELIED_ON


@pytest.mark.parametrize("replicas", [(), (ONE,)], ids=["none", "one"])
def test_no_call_relies_on_what_was_said_long_ago(replicas: tuple[Address, ...]) -> None:
    state = ReplicaState()
    state.begin_question(0.0)
    assert state.is_due(0.0), "nothing is known yet"
    asked(state, 1.0, *replicas)
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
    assert not state.is_due(60.0)
    assert state.none_until == state.ask_again_at == math.inf


def test_a_replica_that_leaves_is_noticed_once() -> None:
    state = ReplicaState()
    asked(state, 1, ONE, TWO)
    assert not state.left
    assert not state.away
    asked(state, 2, TWO)
    assert state.left == {ONE: 2}
    # It says nothing about what comes after its answer.
    state.on_answer(ONE, 1.5)
    assert state.left == {ONE: 2}
    state.on_answer(ONE, 2.5)
    asked(state, 3, TWO)
    assert not state.left
    # As long as it is away, acquires that too few replicas confirm depend on it.
    assert state.away == (ONE,)
    asked(state, 4, ONE, TWO)
    assert not state.away
    asked(state, 5)
    assert set(state.left) == {ONE, TWO}
    assert state.none_until == -math.inf
    # A server that is known from elsewhere may be master from the beginning.
    state = ReplicaState()
    asked(state, 1, ONE, known=(ONE, THREE))
    assert state.left == {THREE: 1}


def test_a_replica_is_remembered_as_long_as_it_may_come_back() -> None:
    state = ReplicaState()
    asked(state, 1, ONE, TWO)
    state.on_unreachable(ONE, 1000)
    asked(state, REMEMBERED, known=(TWO,))
    assert ONE in state.away
    assert state.is_unreachable(ONE, REMEMBERED)
    asked(state, 1 + REMEMBERED, known=(TWO,))
    assert state.away == (TWO,)
    assert set(state.left) == {TWO}
    assert not state.unreachable
