"""Hash slots, compared with Python's CRC and with the CLUSTER KEYSLOT of a real server."""

from __future__ import annotations

import binascii
import sys
import weakref
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from pyredisson._core import SlotMap, crc16, slot
from pyredisson.testing import Server

# Braces often, so that every shape of a hash tag comes up; zero bytes and non-ASCII too.
names = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"{", b"}", b"a", b"bc", b"\0", "ü".encode()]), max_size=12).map(b"".join),
)


Collect = Callable[[], object]


def slot_by_hand(name: bytes) -> int:
    _, opened, rest = name.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    return binascii.crc_hqx(tag if opened and closed and tag else name, 0) % 16384


@given(st.binary(max_size=200))
def test_crc16_is_xmodem(data: bytes) -> None:
    assert crc16(data) == binascii.crc_hqx(data, 0)


def test_crc16_of_the_reference_text() -> None:
    assert crc16(b"123456789") == 0x31C3


@given(names)
def test_slot_follows_the_hash_tag(name: bytes) -> None:
    assert slot(name) == slot_by_hand(name)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]) | st.sampled_from("{}"), max_size=30))
def test_slot_of_text_is_that_of_its_utf8(name: str) -> None:
    assert slot(name) == slot(name.encode())


@pytest.mark.parametrize(
    ("name", "hashed"),
    [
        (b"", b""),
        (b"foo", b"foo"),
        (b"{t}foo", b"t"),
        (b"foo{t}", b"t"),
        (b"a{b", b"a{b"),
        (b"a}b", b"a}b"),
        (b"{}x", b"{}x"),
        (b"{}{t}", b"{}{t}"),  # the first pair decides, though it is empty
        (b"x}y{z}", b"z"),  # a "}" before the "{" doesn't count
        (b"{a{b}c}", b"a{b"),
        (b"{a}{b}", b"a"),
    ],
)
def test_slot_of_each_shape(name: bytes, hashed: bytes) -> None:
    assert slot(name) == binascii.crc_hqx(hashed, 0) % 16384


@pytest.mark.parametrize("name", [1, None, bytearray(b"x"), 1.5])
def test_slot_refuses_other_types(name: object) -> None:
    with pytest.raises(TypeError, match="bytes or str"):
        slot(name)  # type: ignore[arg-type]


def test_slot_refuses_what_utf8_cant_spell() -> None:
    with pytest.raises(UnicodeEncodeError):
        slot("\ud800")


@pytest.fixture(scope="module")
def cluster_node() -> Iterator[Redis]:
    with Server(config={"cluster-enabled": "yes"}) as server, server.redis() as client:
        yield client


@settings(max_examples=50)
@given(batch=st.lists(names, min_size=1, max_size=40))
def test_slot_is_the_servers(cluster_node: Redis, batch: list[bytes]) -> None:
    with cluster_node.pipeline(transaction=False) as asked:
        for name in batch:
            asked.execute_command("CLUSTER KEYSLOT", name)  # type: ignore[no-untyped-call]
        assert asked.execute() == [slot(name) for name in batch]


def test_map_knows_nothing_at_first() -> None:
    assert SlotMap().node("foo") is None


def test_map_gives_the_node_of_the_keys_slot() -> None:
    slots = SlotMap()
    slots.assign(0, 8191, "low")
    slots.assign(8192, 16383, "high")
    assert slot("foo") == 12182
    assert slots.node("foo") == "high"
    assert slots.node(b"{foo}:more") == "high"
    assert slots.node("bar") == "low"  # 5061


def test_map_takes_a_moved_slot_and_forgets() -> None:
    slots = SlotMap()
    slots.assign(0, 16383, "old")
    slots.assign(12182, 12182, "new")
    assert slots.node("foo") == "new"
    assert slots.node("bar") == "old"
    slots.assign(12182, 12182, None)
    assert slots.node("foo") is None


@pytest.mark.parametrize(("first", "last"), [(-1, 5), (0, 16384), (6, 5), (16384, 16384)])
def test_map_refuses_slots_that_are_none(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="not within"):
        SlotMap().assign(first, last, "node")


def test_map_lets_go_of_its_nodes(collector: Collect) -> None:
    class Node:
        slots: SlotMap

    node = Node()
    before = sys.getrefcount(node)
    slots = SlotMap()
    slots.assign(0, 16383, node)
    assert sys.getrefcount(node) > before
    slots.assign(0, 16383, None)
    assert sys.getrefcount(node) == before

    node.slots = slots  # a ring, as when a node knows its cluster
    slots.assign(0, 16383, node)
    gone = weakref.ref(node)
    del node, slots
    collector()
    assert gone() is None
