"""Names of keys and channels, spelled as a running Redisson spells them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyredisson._core import latch_channel, parts_on_cluster, prefixed, slot, suffixed

names = st.one_of(
    st.binary(max_size=30), st.lists(st.sampled_from([b"{", b"}", b"a", b"bc", b":"]), max_size=10).map(b"".join)
)


def test_spelling() -> None:
    assert prefixed(b"redisson_lock__channel", b"foo") == b"redisson_lock__channel:{foo}"
    assert suffixed(b"{t}foo", b"timeout") == b"{t}foo:timeout"
    assert latch_channel(b"{t}foo") == b"redisson_countdownlatch__channel__{{t}foo}"


@given(name=names, word=st.binary(min_size=1, max_size=10))
def test_braces_are_added_only_to_a_name_without_one(name: bytes, word: bytes) -> None:
    tagged = name if b"{" in name else b"{" + name + b"}"
    assert prefixed(word, name) == word + b":" + tagged
    assert suffixed(name, word) == tagged + b":" + word
    assert latch_channel(name) == b"redisson_countdownlatch__channel__{" + name + b"}"


@pytest.mark.parametrize(
    ("names", "part"),
    [
        ([b"foo", b"{t}foo", b"foo{t}", b"{a{b}", b"{a}b}", b"x}y{z}"], False),
        ([b"", b"a{b", b"{", b"{}x", b"{}{t}", b"a}b", b"}", b"}{", b"x}y{z"], True),
    ],
)
def test_names_that_part(names: list[bytes], part: bool) -> None:
    assert [parts_on_cluster(name) for name in names] == [part] * len(names)


def hashed(key: bytes) -> bytes:
    """The part of a key that decides on its slot: the first hash tag, or all of it if that is empty."""
    return re.sub(rb"\A[^{]*\{([^}]+)\}.*", rb"\1", key, flags=re.DOTALL)


@given(name=names, words=st.lists(st.from_regex(rb"[a-z_]{1,12}", fullmatch=True), min_size=8))
def test_a_name_parts_when_its_keys_do(name: bytes, words: list[bytes]) -> None:
    companions = [prefixed(word, name) for word in words] + [suffixed(name, word) for word in words]
    # Not the slots: two hash tags may happen to have the same one.
    together = {hashed(companion) for companion in companions} == {hashed(name)}
    assert parts_on_cluster(name) == (not together)


@given(name=names.filter(lambda name: b"{" not in name))
def test_the_latch_channel_stays_with_a_name_without_braces(name: bytes) -> None:
    if not parts_on_cluster(name):
        assert slot(latch_channel(name)) == slot(name)


def test_the_latch_channel_parts_from_a_name_with_a_hash_tag() -> None:
    assert not parts_on_cluster(b"{t}foo")
    assert slot(latch_channel(b"{t}foo")) == slot(b"{t") != slot(b"{t}foo")


@pytest.mark.parametrize("name", ["foo", None, 1])
def test_names_are_bytes(name: Any) -> None:
    for function in (
        lambda: prefixed(b"word", name),
        lambda: suffixed(name, b"word"),
        lambda: latch_channel(name),
        lambda: parts_on_cluster(name),
    ):
        with pytest.raises(TypeError):
            function()
