"""Cuts a RESP byte stream into whole frames, and finds out which reply belongs to which request."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import hiredis

if TYPE_CHECKING:
    from pyredisson.testing.faults import Fault

__all__ = ["Frames", "Ledger", "Request", "arguments"]

_SIZED = b"$=!"
_CHILDREN = {b"*"[0]: 1, b"~"[0]: 1, b">"[0]: 1, b"%"[0]: 2, b"|"[0]: 2}
_SUBSCRIBING = (b"subscribe", b"psubscribe", b"ssubscribe")
_UNSUBSCRIBING = (b"unsubscribe", b"punsubscribe", b"sunsubscribe")
_MESSAGES = (b"message", b"pmessage", b"smessage")


class Frames:
    """Collects bytes and returns whole frames. It reads only the lengths, so the bytes of a frame stay unchanged."""

    __slots__ = ("_at", "_buffer", "_open")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0  # everything before is scanned
        self._open = 1  # elements still missing in the frame being scanned

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames which `data` completes; ValueError when it isn't RESP."""
        self._buffer += data
        frames = []
        while self._scan_element():
            if self._open == 0:
                frames.append(bytes(self._buffer[: self._at]))
                del self._buffer[: self._at]
                self._at, self._open = 0, 1
        return frames

    def _scan_element(self) -> bool:
        buffer = self._buffer
        line_end = buffer.find(b"\r\n", self._at)
        if line_end < 0:
            return False
        end = line_end + 2
        kind = buffer[self._at]
        more = 0
        if kind in _SIZED:
            size = int(buffer[self._at + 1 : line_end])
            if size >= 0:
                end += size + 2
            if len(buffer) < end:
                return False
        elif kind in _CHILDREN:
            more = max(0, int(buffer[self._at + 1 : line_end])) * _CHILDREN[kind]
            # An attribute precedes the element that it belongs to, and is no element itself.
            more += kind == b"|"[0]
        self._at = end
        self._open += more - 1
        return True


class Request:
    """A request that was sent to the server, and that the server has not yet answered completely."""

    __slots__ = ("expected", "fault", "name")

    def __init__(self, frame: bytes, fault: Fault | None) -> None:
        words = arguments(frame)
        self.name = words[0].lower() if words else b""
        self.fault = fault
        # Confirmed once per channel. For an UNSUBSCRIBE of all channels, the ledger knows their number.
        several = self.name in _SUBSCRIBING + _UNSUBSCRIBING
        self.expected = len(words) - 1 if several else 1


class Ledger:
    """The unanswered requests of one connection, in order."""

    __slots__ = ("_channels", "_pubsub", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()
        self._channels: dict[bytes, set[bytes]] = {name: set() for name in _SUBSCRIBING}
        self._pubsub = False

    def sent(self, request: Request) -> None:
        self._waiting.append(request)
        self._pubsub = self._pubsub or request.name in _SUBSCRIBING + _UNSUBSCRIBING

    def answered(self, frame: bytes) -> Request | None:
        """Return the request that `frame` answers; None for a frame that the server sends without a request."""
        if frame[:1] == b">" or (frame[:1] == b"*" and self._pubsub):
            words = arguments(frame)
            word = words[0] if words else b""
            if word in _SUBSCRIBING + _UNSUBSCRIBING:
                return self._confirmed(word, words[1])
            if frame[:1] == b">" or word in _MESSAGES:
                return None
        return self._waiting.popleft() if self._waiting else None

    def _confirmed(self, word: bytes, channel: bytes) -> Request | None:
        request = self._waiting[0] if self._waiting else None
        channels = self._channels[word.replace(b"un", b"", 1)]
        if request is not None and request.name == word and request.expected == 0:
            request.expected = max(1, len(channels))
        if word in _SUBSCRIBING:
            channels.add(channel)
        else:
            channels.discard(channel)
        if request is None or request.name != word:
            return None  # the server ends sharded subscriptions by itself when a slot moves away
        request.expected -= 1
        if request.expected == 0:
            self._waiting.popleft()
        return request


def arguments(frame: bytes) -> tuple[bytes, ...]:
    """Return a request's words, or the flat elements of an array or push (numbers and nulls as text)."""
    if frame[:1] not in (b"*", b">"):
        return tuple(frame.split())
    reader = hiredis.Reader()
    reader.feed(frame)
    elements = reader.gets()
    return tuple(item if isinstance(item, bytes) else str(item).encode() for item in elements or ())
