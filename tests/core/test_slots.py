"""Hash slots, compared with Python's CRC, with redis-py and with a real server; the node for a command."""

from __future__ import annotations

import binascii
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import hiredis
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.crc import key_slot

from pyredisson._core import SlotMap, command, crc16, pack, slot, slot_of_command
from pyredisson._protocol.scripts import as_eval, script
from pyredisson.testing import Server

# Braces often, so that every shape of a hash tag comes up; zero bytes and non-ASCII too.
names = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"{", b"}", b"a", b"bc", b"\0", "ü".encode()]), max_size=12).map(b"".join),
)


arguments = st.one_of(names, st.integers(-(2**63), 2**63 - 1))
words = st.one_of(
    st.sampled_from([b"GET", b"SPUBLISH", b"EVALSH", b"EVALSHA1", b"EVAL_RO"]), names.filter(bool)
).filter(lambda word: word.upper() not in {b"EVAL", b"EVALSHA"})
script_calls = st.sampled_from([b"EVAL", b"EVALSHA", b"eval", b"EvalSha"])

Collect = Callable[[], object]


def slot_by_hand(name: bytes) -> int:
    _, opened, rest = name.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    return binascii.crc_hqx(tag if opened and closed and tag else name, 0) % 16384


@given(st.binary(max_size=200))
def test_crc16_is_xmodem(data: bytes) -> None:
    assert crc16(data) == binascii.crc_hqx(data, 0)


@given(names)
@example(b"")
@example(b"{}{t}")  # the first pair decides, though it is empty
@example(b"x}y{z}")  # a "}" before the "{" doesn't count
@example(b"{a{b}c}")
@example(b"a{b")
def test_slot_follows_the_hash_tag(name: bytes) -> None:
    assert slot(name) == slot_by_hand(name) == key_slot(name)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]) | st.sampled_from("{}"), max_size=30))
def test_slot_of_text_is_that_of_its_utf8(name: str) -> None:
    assert slot(name) == slot(name.encode())


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


def slot_by_words(words: list[bytes]) -> int:
    """The slot of the first key of a command; -1: it has none."""
    if words[0].upper() in {b"EVAL", b"EVALSHA"}:
        return slot_by_hand(words[3]) if int(words[2]) else -1
    return slot_by_hand(words[1]) if len(words) > 1 else -1


def check_route(payload: bytes) -> None:
    wanted = slot_by_words(hiredis_words(payload))
    assert slot_of_command(payload) == wanted
    slots = SlotMap()
    if wanted >= 0:
        slots.assign(wanted, wanted, "its node")
        assert slots.node_for(payload) == "its node"
        slots.assign(wanted, wanted, None)
    assert slots.node_for(payload) is None


def hiredis_words(payload: bytes) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(payload)
    words: list[bytes] = reader.gets()
    return words


@given(words, st.lists(arguments, max_size=4))
@example(b"PING", [])
@example(b"GET", [b""])
@example(b"GET", [0])
def test_the_key_of_a_command_is_its_first_argument(word: bytes, args: list[bytes | int]) -> None:
    check_route(command(word, *args))


@given(script_calls, st.binary(max_size=50), st.lists(arguments, max_size=12), st.lists(arguments, max_size=3))
@example(b"EVALSHA", b"a" * 40, [], [])
@example(b"EVALSHA", b"a" * 40, [b""], [])
@example(b"EVALSHA", b"a" * 40, [], [b"an argument that is no key"])
@example(b"EVAL", b"return 1\r\n$3\r\nfoo\r\n", [b"foo\r\n$3\r\nbar"], [])
def test_the_key_of_a_script_call_follows_the_number_of_keys(
    word: bytes, body: bytes, keys: list[bytes | int], args: list[bytes | int]
) -> None:
    check_route(command(word, body, len(keys), *keys, *args))


@given(names, st.lists(arguments, min_size=2, max_size=2))
def test_the_key_of_a_packed_script_call(name: bytes, args: list[bytes | int]) -> None:
    head = script("lock_acquire", with_shebang=True).head(1, 2)
    payload = pack(head, name, *args)
    check_route(payload)
    check_route(as_eval(payload, with_shebang=True))


def test_the_key_of_a_long_command() -> None:
    check_route(command("EVALSHA", b"a" * 40, 1000, *[b"{t}%d" % i for i in range(1000)]))
    check_route(command("EVAL", b"x" * 100_000, 1, b"k" * 100_000, *range(1000)))


def end_of_key(payload: bytes) -> int:
    """How many bytes of a command are read: up to the end of its key, or to what tells that there is none."""
    words = hiredis_words(payload)
    read = 4 if words[0] in {b"EVAL", b"EVALSHA"} else 2
    if read == 4 and words[2] == b"0":
        read = 3
    head = payload.index(b"\n") + 1
    return head + sum(len(b"$%d\r\n%b\r\n" % (len(word), word)) for word in words[:read])


@pytest.mark.parametrize(
    "payload",
    [
        command("PING"),
        command("GET", "{t}foo"),
        command("GET", b""),
        command("EVALSHA", b"a" * 40, 1, "foo", 30000),
        command("EVALSHA", b"a" * 40, 12, *range(12)),
        command("EVAL", "return 1", 0, "foo"),
    ],
)
def test_a_command_that_ends_too_early(payload: bytes) -> None:
    end = end_of_key(payload)
    for size in range(end):
        with pytest.raises(ValueError, match="not a command in Redis's protocol"):
            slot_of_command(payload[:size])
    assert slot_of_command(payload[:end]) == slot_of_command(payload)


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"PING\r\n", b"+OK\r\n", b"$3\r\nfoo\r\n", b"*0\r\n", b"*-1\r\n", b"*\r\n$3\r\nGET\r\n"),
        *(b"*2\r\n$-1\r\n$3\r\nfoo\r\n", b"*2\r\n$3\r\nGET\r\n$-1\r\n", b"*2\r\n$3\r\nGET\r\n:1\r\n"),
        *(b"*2\r\n$3\r\nGET\r\n$4\r\nfoo\r\n", b"*2\r\n$3\r\nGET\r\n$2\r\nfoo\r\n", b"*2\n$3\nGET\n$3\nfoo\n"),
        *(b"*2x\r\n$3\r\nGET\r\n$3\r\nfoo\r\n", b"*2\r\n$3\r\nGET\r\n$ 3\r\nfoo\r\n"),
        b"*1000000000\r\n$3\r\nGET\r\n$3\r\nfoo\r\n",
        *(b"*2\r\n$3\r\nGET\r\n$%d\r\nfoo\r\n" % size for size in (999999999, 2**63 - 1, 2**64 + 3)),
        *(command("EVAL", "return 1"), command("EVAL", "return 1", 1)),
        *(command("EVAL", "return 1", count, "foo") for count in (2, "", "one", -1, "1 ", str(2**64 + 1))),
    ],
)
def test_bytes_that_are_no_command(payload: bytes) -> None:
    with pytest.raises(ValueError, match="not a command in Redis's protocol"):
        slot_of_command(payload)
    with pytest.raises(ValueError, match="not a command in Redis's protocol"):
        SlotMap().node_for(payload)


COMMAND = command("EVALSHA", b"a" * 40, 2, "{t}foo", "{t}bar", 30000)
changes = st.tuples(
    st.integers(0, len(COMMAND) - 1), st.binary(max_size=2) | st.sampled_from([b"$", b"*", b"9", b"\r", b"\n"])
)


def changed(changes: list[tuple[int, bytes]]) -> bytes:
    payload = bytearray(COMMAND)
    for place, word in changes:
        payload[place : place + 1] = word
    return bytes(payload)


@given(
    st.lists(changes, min_size=1, max_size=4).map(changed)
    | st.binary(max_size=60)
    | st.binary(max_size=60).map(b"*3\r\n$4\r\nEVAL\r\n".__add__)
)
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    try:
        found = slot_of_command(payload)
    except ValueError:
        return
    assert -1 <= found < 16384


@pytest.mark.parametrize("payload", [None, "text", bytearray(b"*1\r\n$4\r\nPING\r\n"), 1])
def test_a_payload_is_bytes(payload: Any) -> None:
    with pytest.raises(TypeError):
        slot_of_command(payload)
    with pytest.raises(TypeError):
        SlotMap().node_for(payload)


def test_map_gives_the_node_of_the_keys_slot() -> None:
    slots = SlotMap()
    assert slots.node("foo") is slots.node_of_slot(0) is slots.node_for(command("GET", "foo")) is None
    slots.assign(0, 8191, "low")
    slots.assign(8192, 16383, "high")
    assert slot("foo") == 12182
    assert slots.node("foo") == slots.node(b"{foo}:more") == "high"
    assert slots.node("bar") == "low"  # 5061
    assert slots.node_for(command("GET", "foo")) == slots.node_of_slot(12182) == "high"
    assert slots.node_for(command("GET", "bar")) == slots.node_of_slot(5061) == "low"
    assert (slots.node_of_slot(8191), slots.node_of_slot(8192)) == ("low", "high")
    # A moved slot.
    for node in ("new", None):
        slots.assign(12182, 12182, node)
        assert (slots.node("foo"), slots.node("bar")) == (node, "low")


def test_map_gives_no_node_for_a_command_without_a_key() -> None:
    slots = SlotMap()
    slots.assign(0, 16383, "node")
    assert slots.node_for(command("PING")) is None
    assert slots.node_for(command("EVAL", "return 1", 0, "foo")) is None


@pytest.mark.parametrize("numbers", [(-1, 5), (0, 16384), (6, 5), (16384, 16384), (-1,), (16384,), (2**31,)])
def test_map_refuses_slots_that_are_none(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not within"):
        SlotMap().assign(*numbers, "node") if len(numbers) == 2 else SlotMap().node_of_slot(*numbers)


def test_map_lets_go_of_its_nodes(collector: Collect) -> None:
    class Node:
        slots: SlotMap

    node = Node()
    before = sys.getrefcount(node)
    slots = SlotMap()
    slots.assign(0, 16383, node)
    assert sys.getrefcount(node) == before + 16384
    for payload in (command("GET", "foo"), command("PING")):
        for _ in range(100):
            slots.node_for(payload)
            slots.node_of_slot(7)
            with pytest.raises(ValueError, match="not a command"):
                slots.node_for(payload[:-1])
    assert sys.getrefcount(node) == before + 16384
    slots.assign(0, 16383, None)
    assert sys.getrefcount(node) == before

    node.slots = slots  # a ring, as when a node knows its cluster
    slots.assign(0, 16383, node)
    gone = weakref.ref(node)
    del node, slots
    collector()
    assert gone() is None
