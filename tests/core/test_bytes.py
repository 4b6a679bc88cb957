"""Names of keys as a running Redisson spells them, commands as hiredis packs them, and the hash slots of both.

And replies as hiredis reads them: of any bytes, however they are cut into reads.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from itertools import pairwise
from typing import Any

import hiredis
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from pyredisson import _core
from pyredisson._core import ReplyReader, SlotMap, command, pack, prefixed, slot, slot_of_command, suffixed
from pyredisson._protocol.scripts import ScriptSet, script

# Braces often, so that every shape of a hash tag comes up; zero bytes and non-ASCII too.
names = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"{", b"}", b"a", b"bc", b"\0", "ü".encode()]), max_size=12).map(b"".join),
)


@given(name=names, word=st.binary(min_size=1, max_size=10))
def test_braces_are_added_only_to_a_name_without_one(name: bytes, word: bytes) -> None:
    tagged = name if b"{" in name else b"{" + name + b"}"
    assert prefixed(word, name) == word + b":" + tagged
    assert suffixed(name, word) == tagged + b":" + word
    assert _core.latch_channel(name) == b"redisson_countdownlatch__channel__{" + name + b"}"


def hashed(key: bytes) -> bytes:
    """The part of a key that decides on its slot: the first hash tag, or all of it if that is empty."""
    return re.sub(rb"\A[^{]*\{([^}]+)\}.*", rb"\1", key, flags=re.DOTALL)


@given(name=names, words=st.lists(st.from_regex(rb"[a-z_]{1,12}", fullmatch=True), min_size=8))
@example(b"{a}b}", [b"word", b"other"])
@example(b"{}{t}", [b"word", b"other"])
def test_a_name_parts_when_its_keys_do(name: bytes, words: list[bytes]) -> None:
    companions = [prefixed(word, name) for word in words] + [suffixed(name, word) for word in words]
    # Not the slots: two hash tags may happen to have the same one.
    assert _core.parts_on_cluster(name) == (set(map(hashed, companions)) != {hashed(name)})


numbers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)


def bulk(arg: bytes | int | str) -> bytes:
    body = arg if isinstance(arg, bytes) else str(arg).encode()
    return b"$%d\r\n%b\r\n" % (len(body), body)


@given(st.lists(st.binary(max_size=30) | texts | numbers, min_size=1, max_size=12))
@example(["EVALSHA", b"\0\r\n", "grün", 0, -1, 9, 10, -10, 99, 100, 2**63 - 1, -(2**63)])
@example([b"x" * size for size in (0, 9, 10, 99, 100, 999, 1000, 100_000)])
@example(list(range(1000)))
@example([])
def test_command_is_what_hiredis_packs(args: list[Any]) -> None:
    assert command(*args) == bytes(hiredis.pack_command(tuple(args)))


@given(st.binary(max_size=80), st.lists(st.binary(max_size=30) | numbers, max_size=6))
@example(b"", [])
@example(b"", [HTTPStatus.OK])  # a number as well
def test_pack_appends_each_argument_as_a_bulk_string(head: bytes, args: list[bytes | int]) -> None:
    assert pack(head, *args) == head + b"".join(map(bulk, args))


def test_nothing_is_kept_of_an_argument() -> None:
    body, number = b"x" * 50, 2**40
    before = sys.getrefcount(body), sys.getrefcount(number)
    for _ in range(100):
        pack(b"", body, number)
        with pytest.raises(TypeError):
            pack(b"", body, number, 1.0)  # type: ignore[arg-type]
    assert (sys.getrefcount(body), sys.getrefcount(number)) == before


arguments = st.one_of(names, numbers)
words = st.one_of(
    st.sampled_from([b"GET", b"SPUBLISH", b"EVALSH", b"EVALSHA1", b"EVAL_RO"]), names.filter(bool)
).filter(lambda word: word.upper() not in {b"EVAL", b"EVALSHA"})


@given(st.binary(max_size=200) | names | st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("{}")))
@example(b"")
@example(b"{}{t}")  # the first pair decides, though it is empty
@example(b"x}y{z}")  # a "}" before the "{" doesn't count
@example(b"{a{b}c}")
@example(b"a{b")
def test_the_slot_is_redis_pys_and_follows_the_hash_tag(name: bytes | str) -> None:
    assert slot(name) == key_slot(name.encode() if isinstance(name, str) else name)


HEAD = script("lock_acquire", with_shebang=True).head(1, 2)
commands = st.builds(lambda word, args: command(word, *args), words, st.lists(arguments, max_size=4))
script_calls = st.builds(
    lambda word, body, keys, args: command(word, body, len(keys), *keys, *args),
    st.sampled_from([b"EVAL", b"EVALSHA", b"eval", b"EvalSha"]),
    st.binary(max_size=50),
    st.lists(arguments, max_size=12),
    st.lists(arguments, max_size=3),
)
packed_calls = st.builds(lambda name, args: pack(HEAD, name, *args), names, st.lists(arguments, min_size=2, max_size=2))


@settings(max_examples=400)
@given(commands | script_calls | packed_calls | packed_calls.map(ScriptSet().as_eval))
@example(command(b"PING"))
@example(command(b"GET", b""))
@example(command(b"GET", 0))
@example(command(b"EVALSHA", b"a" * 40, 0))
@example(command(b"EVALSHA", b"a" * 40, 1, b""))
@example(command(b"EVALSHA", b"a" * 40, 0, b"an argument that is no key"))
@example(command(b"EVAL", b"return 1\r\n$3\r\nfoo\r\n", 1, b"foo\r\n$3\r\nbar"))
@example(command(b"EVALSHA", b"a" * 40, 1000, *[b"{t}%d" % i for i in range(1000)]))
@example(command(b"EVAL", b"x" * 100_000, 1, b"k" * 100_000, *range(1000)))
def test_a_command_has_the_slot_of_its_first_key(payload: bytes) -> None:
    words = read(theirs(), [payload])[0][0]
    keys = words[3 : 3 + int(words[2])] if words[0].upper() in {b"EVAL", b"EVALSHA"} else words[1:]
    wanted = key_slot(keys[0]) if keys else -1
    assert slot_of_command(payload) == wanted
    slots = SlotMap()
    if wanted >= 0:
        slots.assign(wanted, wanted, "its node")
        assert slots.node_for(payload) == "its node"
        slots.assign(wanted, wanted, None)
    else:
        slots.assign(0, 16383, "any node")
    assert slots.node_for(payload) is None


CALLS = (("PING",), ("GET", "{t}foo"), ("GET", b""), ("EVAL", "return 1", 0, "foo"))
SCRIPT_CALLS = (("EVALSHA", b"a" * 40, 1, "foo", 30000), ("EVALSHA", b"a" * 40, 12, *range(12)))


@pytest.mark.parametrize("payload", [command(*words) for words in (*CALLS, *SCRIPT_CALLS)])
def test_a_command_that_ends_too_early(payload: bytes) -> None:
    """It is read up to the end of its key, or to what tells that there is none."""
    words = read(theirs(), [payload])[0][0]
    count = 2 if words[0] not in {b"EVAL", b"EVALSHA"} else 3 if words[2] == b"0" else 4
    end = payload.index(b"\n") + 1 + len(b"".join(map(bulk, words[:count])))
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
    for read_slot in (slot_of_command, SlotMap().node_for):
        with pytest.raises(ValueError, match="not a command in Redis's protocol"):
            read_slot(payload)


COMMAND = command("EVALSHA", b"a" * 40, 2, "{t}foo", "{t}bar", 30000)
new = st.binary(max_size=2) | st.sampled_from([b"$", b"*", b"9", b"\r", b"\n"])
changes = st.lists(st.tuples(st.integers(0, len(COMMAND) - 1), new), max_size=4)


@given(st.just(COMMAND) | st.binary(max_size=60) | st.binary(max_size=60).map(b"*3\r\n$4\r\nEVAL\r\n".__add__), changes)
def test_any_bytes_are_read_or_refused(data: bytes, changes: list[tuple[int, bytes]]) -> None:
    payload = bytearray(data)
    for place, word in changes:
        payload[place : place + 1] = word
    with suppress(ValueError):
        assert -1 <= slot_of_command(bytes(payload)) < 16384


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


def test_map_lets_go_of_its_nodes(collector: Callable[[], object]) -> None:
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


NO_BYTES = ("text", None, 1, bytearray(b"*1\r\n$4\r\nPING\r\n"))
NO_ARGUMENTS = (True, False, 1.0, None, bytearray(b"x"), memoryview(b"x"), [b"x"])
NO_SLOTS = ((-1, 5), (0, 16384), (6, 5), (16384, 16384))
TAKE_BYTES = (_core.latch_channel, _core.parts_on_cluster, slot_of_command, SlotMap().node_for)
REFUSED: list[tuple[type[Exception], str | None, Callable[..., object], tuple[Any, ...]]] = [
    *((TypeError, None, function, (wrong,)) for function in TAKE_BYTES for wrong in NO_BYTES),
    *((TypeError, None, prefixed, (b"word", name)) for name in NO_BYTES),
    *((TypeError, None, suffixed, (name, b"word")) for name in NO_BYTES),
    *((TypeError, "bytes or str", slot, (name,)) for name in (1, None, bytearray(b"x"), 1.5)),
    (UnicodeEncodeError, None, slot, ("\ud800",)),
    *((TypeError, f"bytes, str or int, not {type(arg).__name__}", command, (b"before", arg)) for arg in NO_ARGUMENTS),
    (UnicodeEncodeError, None, command, ("SET", "\ud800")),
    *((TypeError, f"bytes or int, not {type(arg).__name__}", pack, (b"", b"before", arg)) for arg in NO_ARGUMENTS),
    (TypeError, None, pack, (b"", "text")),
    *((TypeError, None, pack, (head,)) for head in ("text", None, 1)),
    *((OverflowError, None, pack, (b"", number)) for number in (2**63, -(2**63) - 1, 10**30)),
    *((ValueError, "not within", SlotMap().assign, (*slots, "node")) for slots in NO_SLOTS),
    *((ValueError, "not within", SlotMap().node_of_slot, (number,)) for number in (-1, 16384, 2**31)),
]


@pytest.mark.parametrize(("error", "match", "function", "args"), REFUSED)
def test_what_is_refused(error: type[Exception], match: str | None, function: Callable[..., object], args: Any) -> None:
    with pytest.raises(error, match=match):
        function(*args)


class InvalidError(Exception):
    """In place of the exception that a connection raises."""


class ReplyError(Exception):
    """An error reply."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReplyError) and self.args == other.args

    __hash__ = Exception.__hash__


def ours() -> ReplyReader:
    return ReplyReader(ReplyError, InvalidError)


def theirs() -> Any:
    return hiredis.Reader(replyError=ReplyError, protocolError=InvalidError)


def read(parser: Any, parts: Iterable[bytes]) -> tuple[list[Any], str]:
    """The replies in these bytes, and what is wrong with the ones that follow."""
    found: list[Any] = []
    try:
        for part in parts:
            parser.feed(part)
            while (reply := parser.gets()) is not False:
                found.append(reply)
    except InvalidError as error:
        return found, str(error)
    return found, ""


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[first:end] for first, end in pairwise(places)]


def sent(reply: Any) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return bulk(reply)
    if isinstance(reply, list):
        return b"*%d\r\n%b" % (len(reply), b"".join(map(sent, reply)))
    return b"%c%b\r\n" % (b"-" if isinstance(reply, ReplyError) else b"+", str(reply).encode())


LINES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20)
REPLIES = st.recursive(
    st.none() | numbers | st.binary(max_size=100) | LINES | st.builds(ReplyError, LINES),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)
PIECES = [
    *(b"+ - : $ * 0 1 2 01 -0 -1 -2 +1 a \xff \r \n OK".split(b" ")),
    *(b"\r\n", b"*1\r\n", b"*2\r\n", b"$2\r\n", b"$0\r\n", b"$-1\r\n", b"ab\r\n"),
    *(b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"18446744073709551616", b"4294967295"),
]
CUTS = st.lists(st.integers(0, 1000), max_size=4)


@given(st.lists(REPLIES, max_size=5), CUTS)
@example([b"ab", [1, [None, b""], ReplyError("wrong")], -3, "OK"], list(range(50)))  # a cut at every byte
def test_any_replies(replies: list[Any], cuts: list[int]) -> None:
    parts = cut(b"".join(map(sent, replies)), cuts)
    assert read(ours(), parts) == read(theirs(), parts) == (_with_bytes(replies), "")


def _with_bytes(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_with_bytes(each) for each in reply]
    return reply.encode() if isinstance(reply, str) else reply


@given(st.lists(st.sampled_from(PIECES), max_size=9).map(b"".join), CUTS)
@example(b"+a\rb\r\n", [])
@example(b":9223372036854775808\r\n", [])
@example(b"*2\r\na", [])
def test_any_bytes(data: bytes, cuts: list[int]) -> None:
    parts = cut(data, cuts)
    found, wrong = read(ours(), parts)
    others, wrong_there = read(theirs(), parts)
    if wrong.endswith(("doesn't end where it should", "is no length")):
        # hiredis doesn't look at the two bytes behind a bulk string, and takes longer ones than any server sends.
        assert found == others[: len(found)]
    else:
        assert (found, bool(wrong)) == (others, bool(wrong_there))


def test_what_hiredis_takes_otherwise() -> None:
    assert read(ours(), [b"$2\r\nabc\n"]) == ([], "a bulk string doesn't end where it should")
    nested: Any = 1
    for _ in range(16):
        nested = [nested]
    assert read(ours(), [sent(nested)]) == ([nested], "")
    assert read(ours(), [b"*1\r\n" * 17 + b":1\r\n"]) == ([], "arrays are nested too deeply")
    # What a server pushes.
    assert read(ours(), [b">3\r\n$9\r\nsubscribe\r\n_\r\n:1\r\n"]) == ([[b"subscribe", None, 1]], "")
    assert read(ours(), [b"_1\r\n:1\r\n"]) == ([], "a null has no value")


def test_an_error_whose_exception_cannot_be_made() -> None:
    """No reply is skipped: the next call begins with the same one."""
    made = iter([ZeroDivisionError, ReplyError])

    def as_error(text: str) -> Exception:
        if (kind := next(made)) is ZeroDivisionError:
            raise kind
        return kind(text)

    parser = ReplyReader(as_error, InvalidError)
    parser.feed(b":1\r\n-wrong\r\n:2\r\n")
    assert parser.gets() == 1
    with pytest.raises(ZeroDivisionError):
        parser.gets()
    assert (parser.gets(), parser.gets(), parser.gets()) == (ReplyError("wrong"), 2, False)


def test_a_part_of_a_buffer() -> None:
    parser, buffer = ours(), bytearray(b":1\r\n:2\r\n")
    parser.feed(buffer, 4)
    buffer[1:2] = b"3"
    assert (parser.gets(), parser.gets()) == (1, False)
    for wrong, error in (((buffer, 9), ValueError), ((memoryview(buffer),), TypeError), ((None,), TypeError)):
        with pytest.raises(error):
            parser.feed(*wrong)


def test_a_long_reply_and_then_short_ones() -> None:
    long = b"x" * 1_000_000
    parts = cut(sent(long) + b":1\r\n" + sent([long, None]), [10, 65_536, 131_072, 999_990, 1_000_020, 1_500_000])
    assert read(ours(), [*parts, sent(1), sent(long)]) == ([long, 1, [long, None], 1, long], "")
