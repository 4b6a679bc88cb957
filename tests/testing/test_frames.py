"""RESP frames are cut correctly from pieces of any size, and replies are matched to requests."""

from __future__ import annotations

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyredisson.testing.frames import Frames, Ledger, Request, arguments

FRAMES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":-3\r\n",
    b"$5\r\na\r\nbc\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*2\r\n*1\r\n$1\r\na\r\n:1\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"(12345678901234567890\r\n",
    b"!5\r\nERR x\r\n",
    b"=7\r\ntxt:a\r\n\r\n",
    b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n+c\r\n",
    b"~2\r\n+a\r\n+b\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n",
    b"|1\r\n+ttl\r\n:3600\r\n*2\r\n+a\r\n+b\r\n",
    b"PING\r\n",
]


def pack(*words: bytes) -> bytes:
    # hiredis's stub knows tuples of one word only
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return packed


@given(st.lists(st.sampled_from(FRAMES)), st.lists(st.integers(1, 12), min_size=1))
def test_frames_survive_any_cutting(frames: list[bytes], sizes: list[int]) -> None:
    stream, scanner, found, turn = b"".join(frames), Frames(), [], 0
    while stream:
        size = sizes[turn % len(sizes)]
        found += scanner.feed(stream[:size])
        stream, turn = stream[size:], turn + 1
    assert found == frames


@given(st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=6), max_size=6))
def test_packed_commands_come_out_whole(commands: list[list[bytes]]) -> None:
    packed = [pack(*words) for words in commands]
    found = Frames().feed(b"".join(packed))
    assert found == packed
    assert [arguments(frame) for frame in found] == [tuple(words) for words in commands]


def test_what_is_not_resp_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        Frames().feed(b"*x\r\n")


def sent(ledger: Ledger, *words: bytes) -> Request:
    request = Request(pack(*words), None)
    ledger.sent(request)
    return request


def confirmation(kind: bytes, word: bytes, channel: bytes) -> bytes:
    return kind + b"3\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n:1\r\n" % (len(word), word, len(channel), channel)


@pytest.mark.parametrize("kind", [b"*", b">"])
@pytest.mark.parametrize("prefix", [b"", b"p", b"s"])
def test_confirmations_belong_to_their_subscription(kind: bytes, prefix: bytes) -> None:
    ledger = Ledger()
    first = sent(ledger, prefix.upper() + b"SUBSCRIBE", b"a", b"b")
    second = sent(ledger, prefix + b"unsubscribe")
    third = sent(ledger, b"PING")
    word = prefix + b"subscribe"
    assert ledger.answered(confirmation(kind, word, b"a")) is first
    assert ledger.answered(confirmation(kind, prefix + b"message", b"a")) is None
    assert ledger.answered(confirmation(kind, word, b"b")) is first
    word = prefix + b"unsubscribe"
    assert ledger.answered(confirmation(kind, word, b"a")) is second
    assert ledger.answered(confirmation(kind, word, b"b")) is second
    assert ledger.answered(b"+PONG\r\n") is third
    assert ledger.answered(b"-ERR unasked\r\n") is None


def test_replies_that_look_like_messages_and_messages_that_nobody_asked_for() -> None:
    ledger = Ledger()
    request = sent(ledger, b"LRANGE", b"l", b"0", b"-1")
    # Nothing is subscribed to.
    assert ledger.answered(confirmation(b"*", b"message", b"c")) is request
    # A refused subscription is answered once.
    first, second = sent(ledger, b"SSUBSCRIBE", b"a", b"b"), sent(ledger, b"PING")
    assert ledger.answered(b"-MOVED 1 h:1\r\n") is first
    assert ledger.answered(b"+PONG\r\n") is second
    # The server may end a sharded subscription unasked.
    first = sent(ledger, b"SSUBSCRIBE", b"a")
    assert ledger.answered(confirmation(b"*", b"ssubscribe", b"a")) is first
    assert ledger.answered(confirmation(b"*", b"sunsubscribe", b"a")) is None
