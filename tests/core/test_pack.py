"""Packed commands, compared with hiredis's packing."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import hiredis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyredisson._core import command, pack

numbers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)


def packed(args: Iterable[bytes | str | int]) -> bytes:
    everything: Any = tuple(args)  # its stub allows for one argument only
    return bytes(hiredis.pack_command(everything))


def bulk(arg: bytes | int | str) -> bytes:
    body = arg if isinstance(arg, bytes) else str(arg).encode()
    return b"$%d\r\n%b\r\n" % (len(body), body)


@given(st.lists(st.binary(max_size=30) | texts | numbers, min_size=1, max_size=12))
@example(["EVALSHA", b"\0\r\n", "grün", 0, -1, 9, 10, -10, 99, 100, 2**63 - 1, -(2**63)])
@example([b"x" * size for size in (0, 9, 10, 99, 100, 999, 1000, 100_000)])
def test_command_is_what_hiredis_packs(args: list[bytes | str | int]) -> None:
    assert command(*args) == packed(args)


@given(st.binary(max_size=80), st.lists(st.binary(max_size=30) | numbers, max_size=6))
def test_pack_appends_each_argument_as_a_bulk_string(head: bytes, args: list[bytes | int]) -> None:
    assert pack(head, *args) == head + b"".join(map(bulk, args))


def test_the_fewest_and_many_arguments() -> None:
    assert (pack(b""), command()) == (b"", b"*0\r\n")
    assert command(*range(1000)) == packed(range(1000))


def test_an_enum_of_ints_is_its_number() -> None:
    class Holds(IntEnum):
        TWO = 2

    assert pack(b"", Holds.TWO) == b"$1\r\n2\r\n"


@pytest.mark.parametrize("arg", [True, False, 1.0, None, bytearray(b"x"), memoryview(b"x"), [b"x"]])
def test_other_types_are_refused(arg: object) -> None:
    with pytest.raises(TypeError, match=f"bytes, str or int, not {type(arg).__name__}"):
        command(b"before", arg)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"bytes or int, not {type(arg).__name__}"):
        pack(b"", b"before", arg)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "function", "args"),
    [
        (TypeError, pack, (b"", "text")),
        *((TypeError, pack, (head,)) for head in ("text", None, 1)),
        *((OverflowError, pack, (b"", number)) for number in (2**63, -(2**63) - 1, 10**30)),
        (UnicodeEncodeError, command, ("SET", "\ud800")),
    ],
)
def test_what_is_refused(error: type[Exception], function: Any, args: tuple[Any, ...]) -> None:
    with pytest.raises(error):
        function(*args)


def test_nothing_is_kept_of_an_argument() -> None:
    body, number = b"x" * 50, 2**40
    before = sys.getrefcount(body), sys.getrefcount(number)
    for _ in range(100):
        pack(b"", body, number)
        with pytest.raises(TypeError):
            pack(b"", body, number, 1.0)  # type: ignore[arg-type]
    assert (sys.getrefcount(body), sys.getrefcount(number)) == before
