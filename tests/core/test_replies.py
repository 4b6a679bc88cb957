"""Replies as hiredis reads them: of any bytes, however they are cut into reads."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import hiredis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyredisson._core import ReplyReader

Cuts = list[int]


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


def cut(data: bytes, cuts: Cuts) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[first:end] for first, end in pairwise(places)]


def packed(reply: Any) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, list):
        return b"*%d\r\n%b" % (len(reply), b"".join(map(packed, reply)))
    return b"%c%b\r\n" % (b"-" if isinstance(reply, ReplyError) else b"+", str(reply).encode())


LINES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
REPLIES = st.recursive(
    st.none() | INTEGERS | st.binary(max_size=100) | LINES | st.builds(ReplyError, LINES),
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
def test_any_replies(replies: list[Any], cuts: Cuts) -> None:
    parts = cut(b"".join(map(packed, replies)), cuts)
    wanted = [reply.encode() if isinstance(reply, str) else reply for reply in replies]
    assert read(ours(), parts) == read(theirs(), parts) == (_with_bytes(wanted), "")


def _with_bytes(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_with_bytes(each) for each in reply]
    return reply.encode() if isinstance(reply, str) else reply


@given(st.lists(st.sampled_from(PIECES), max_size=9).map(b"".join), CUTS)
@example(b"+a\rb\r\n", [])
@example(b":9223372036854775808\r\n", [])
@example(b"*2\r\na", [])
def test_any_bytes(data: bytes, cuts: Cuts) -> None:
    parts = cut(data, cuts)
    found, wrong = read(ours(), parts)
    others, wrong_there = read(theirs(), parts)
    if wrong.endswith(("doesn't end where it should", "is no length")):
        # hiredis doesn't look at the two bytes behind a bulk string, and takes longer ones than any server sends.
        assert found == others[: len(found)]
    else:
        assert (found, bool(wrong)) == (others, bool(wrong_there))


def test_what_follows_a_bulk_string() -> None:
    assert read(ours(), [b"$2\r\nabc\n"]) == ([], "a bulk string doesn't end where it should")


def test_arrays_that_are_nested_too_deeply() -> None:
    nested: Any = 1
    for _ in range(16):
        nested = [nested]
    assert read(ours(), [packed(nested)]) == ([nested], "")
    assert read(ours(), [b"*1\r\n" * 17 + b":1\r\n"]) == ([], "arrays are nested too deeply")


def test_what_a_server_pushes() -> None:
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


def test_a_cut_at_every_byte() -> None:
    replies = [b"ab", [1, [None, b""], ReplyError("wrong")], -3, "OK"]
    data = b"".join(map(packed, replies))
    assert read(ours(), [data[at : at + 1] for at in range(len(data))]) == ([*replies[:3], b"OK"], "")


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
    parts = cut(packed(long) + b":1\r\n" + packed([long, None]), [10, 65_536, 131_072, 999_990, 1_000_020, 1_500_000])
    assert read(ours(), parts) == ([long, 1, [long, None]], "")
    parser = ours()
    assert [read(parser, [packed(reply)])[0] for reply in (long, 1, long)] == [[long], [1], [long]]
