"""What nodes of a cluster reply, in all forms that their versions and settings produce."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import AskError, ClusterDownError, InvalidResponse, NoPermissionError, ResponseError

from pyredisson._protocol.cluster import Redirect, is_redirect, read_redirect, read_slots, read_view
from pyredisson._protocol.topology import Member, Shard, TopologyView
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


def test_an_empty_cluster() -> None:
    assert read_slots([], ASKED) == TopologyView(())


@pytest.mark.parametrize("reply", [None, 1, b"OK", [1], [[0, 5, b"x"]], [[0, 5]], [[b"x", 5, [b"h", 1, b"a"]]]])
def test_an_unreadable_reply_is_an_error_of_redis(reply: object) -> None:
    with pytest.raises(InvalidResponse, match=r"asked\.example:7000"):
        read_slots(reply, ASKED)


SLOTS = [[0, 16383, [b"h", 1, b"a"]]]


def test_the_state_of_the_cluster() -> None:
    view = read_view([SLOTS, b"cluster_state:ok\r\ncluster_current_epoch:17\r\ncluster_my_epoch:3\r\n"], ASKED)
    assert (view.healthy, view.epoch) == (True, 17)
    view = read_view([SLOTS, b"cluster_state:fail\r\ncluster_current_epoch:17\r\n"], ASKED)
    assert not view.healthy


def test_a_user_without_the_right_to_cluster_info_has_a_view_all_the_same() -> None:
    view = read_view([SLOTS, NoPermissionError("NOPERM")], ASKED)
    assert (view.healthy, view.epoch, view.covered) == (True, 0, 16384)


def test_an_error_reply_is_raised() -> None:
    with pytest.raises(NoPermissionError):
        read_view([NoPermissionError("NOPERM"), b""], ASKED)


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
    assert is_redirect(error)
    assert read_redirect(error, ASKED) == redirect


@pytest.mark.parametrize(
    "error", [ClusterDownError("CLUSTERDOWN down"), ResponseError("ERR MOVED 1 h:1"), ValueError("MOVED 1 h:1")]
)
def test_other_errors_are_no_redirects(error: Exception) -> None:
    assert not is_redirect(error)


@pytest.mark.parametrize("text", ["MOVED", "MOVED 5", "MOVED x h:1", "ASK 5 h", "MOVED 5 h:1 "])
def test_an_unreadable_redirect_is_an_error_of_redis(text: str) -> None:
    with pytest.raises(InvalidResponse, match=r"asked\.example:7000"):
        read_redirect(ResponseError(text), ASKED)


def test_redirects_of_redis_py_are_not_needed() -> None:
    """redis-py's class takes the text without its first word; ours are plain error replies."""
    assert not is_redirect(AskError("5 h:1"))


@given(st.lists(st.integers(0, 30), unique=True, min_size=1), st.randoms(use_true_random=False))
def test_ranges_are_joined(slots: list[int], random: object) -> None:
    reply = [[slot, slot, [b"h", 1, b"a"]] for slot in slots]
    (shard,) = read_slots(reply, ASKED).shards
    assert [slot for first, last in shard.slots for slot in range(first, last + 1)] == sorted(slots)
    assert all(last + 1 < first for (_, last), (first, _) in zip(shard.slots, shard.slots[1:], strict=False))
