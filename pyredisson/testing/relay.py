"""One connection through the proxy: two sockets, the frames between them, and the faults that strike them."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from redis.exceptions import InvalidResponse

from pyredisson._protocol.replies import reader

_END = b""  # as an element of a queue: the sender has closed its side
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on with no time: closing sends RST
_SIZED = b"$=!"
_CHILDREN = {b"*"[0]: 1, b"~"[0]: 1, b">"[0]: 1, b"%"[0]: 2, b"|"[0]: 2}
_SUBSCRIBING = (b"subscribe", b"psubscribe", b"ssubscribe")
_UNSUBSCRIBING = (b"unsubscribe", b"punsubscribe", b"sunsubscribe")
_MESSAGES = (b"message", b"pmessage", b"smessage")
Action = Literal["drop_reply", "cut_reply", "hold_reply", "cut_request", "hold_request"]


class Fault:
    """Strikes the next `times` requests that contain `match`; `happened` is set by the first of them."""

    def __init__(self, action: Action, match: bytes, times: int = 1) -> None:
        if times < 1:
            raise ValueError(f"times must be at least 1, not {times}")
        self.action = action
        self.match = match
        self.left = times
        self.happened = threading.Event()


class Hold(Fault):
    """Keeps one request or reply back, and everything behind it on that connection in that direction.

    `delivered` is set once the server has answered the request, or once the reply was sent on to the client.
    """

    def __init__(self, action: Action, match: bytes, release: Callable[[Hold], None]) -> None:
        super().__init__(action, match)
        self.delivered = threading.Event()
        self._release = release

    @property
    def held(self) -> threading.Event:
        """Set once a request or reply is being held."""
        return self.happened

    def deliver(self, timeout: float = 5.0) -> None:
        """Send on what is held, even if the client is gone by now, and wait for `delivered`.

        `RuntimeError`: nothing has been held yet. `ConnectionError`: the server closed the connection while the request
        was held. `TimeoutError`: the server has not answered within `timeout` seconds.
        """
        if not self.held.is_set():
            raise RuntimeError(f"nothing containing {self.match!r} has been held yet")
        self._release(self)
        if not self.delivered.wait(timeout):
            raise TimeoutError(f"what was held for {self.match!r} was not answered within {timeout:g} s")


class Conditions:
    """What all connections of one proxy share: the pending faults, how bytes are passed on, and what has arrived."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.requests: list[bytes] = []
        self.stalled = False
        self.latency = 0.0

    def choose(self, request: bytes) -> Fault | None:
        """Return the oldest fault that matches, and count it as used once. At most one fault applies to a request."""
        for fault in self.faults:
            if fault.match in request:
                fault.left -= 1
                if fault.left == 0:
                    self.faults.remove(fault)
                return fault
        return None


class Side:
    """One of the two sockets, the frames that came from it, and the bytes that wait to be sent to it."""

    def __init__(
        self,
        sock: socket.socket,
        selector: selectors.BaseSelector,
        relay: Relay | Tunnel,
        split: Callable[[bytes], list[bytes]],
    ) -> None:
        """`split` makes frames of what arrives."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.open = True
        self.relay = relay
        self._sock = sock
        self._selector = selector
        self._split = split
        self._out = bytearray()
        self._last = False
        selector.register(sock, selectors.EVENT_READ, self.ready)

    def ready(self, events: int) -> None:
        """Send, receive, or both, as the selector says that the socket can."""
        if self.open and events & selectors.EVENT_WRITE:
            self.flush()
        if self.open and events & selectors.EVENT_READ:
            self.relay.arrived(self, self.receive(), time.monotonic())

    def receive(self) -> list[bytes]:
        """Read what has arrived. The end of the connection, or data that isn't RESP, adds the end marker and closes."""
        try:
            data = self._sock.recv(1 << 16)
            frames = self._split(data) if data else [_END]
        except BlockingIOError:
            return []
        except (ConnectionError, ValueError):
            frames = [_END]
        if frames == [_END]:
            self.close()
        return frames

    def send(self, data: bytes, last: bool = False) -> None:
        """Send in the background; after `last` comes FIN."""
        if not self.open:
            return
        self._out += data
        self._last = self._last or last
        self.flush()

    def flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._out.clear()  # the peer has gone; the next receive() reports that
        else:
            if self._last:
                self._last = False
                self._shut(socket.SHUT_WR)
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        if self._selector.get_key(self._sock).events != wanted:
            self._selector.modify(self._sock, wanted, self.ready)

    def close(self, reset: bool = False) -> None:
        if not self.open:
            return
        self.open = False
        self._selector.unregister(self._sock)
        if reset:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        else:
            # A process that was forked meanwhile has a copy of the socket, so that close() alone would send nothing.
            self._shut(socket.SHUT_RDWR)
        self._sock.close()

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):  # the peer has closed it first
            self._sock.shutdown(how)


class Relay:
    """Passes whole requests and replies between a client and the server, and applies the faults to them."""

    def __init__(
        self, client: socket.socket, server: socket.socket, selector: selectors.BaseSelector, conditions: Conditions
    ) -> None:
        self.client = Side(client, selector, self, Frames().feed)
        self.server = Side(server, selector, self, Frames().feed)
        self._conditions = conditions
        self._ledger = Ledger()
        self._dark = False
        self._mute = False
        self._held_request: tuple[Hold, bytes] | None = None
        self._held_reply: tuple[Hold, bytes] | None = None

    @property
    def finished(self) -> bool:
        # What is still held waits for its `deliver`, which has to find out that a side is gone.
        held = self._held_request or self._held_reply
        return not self.client.open and not self.server.open and held is None

    def arrived(self, side: Side, frames: list[bytes], now: float) -> None:
        side.waiting.extend((now + self._conditions.latency, frame) for frame in frames)
        if side is self.client:
            self._conditions.requests.extend(frame for frame in frames if frame != _END)

    def pump(self, now: float) -> None:
        """Pass on everything that is not held, stalled or delayed."""
        while self._next(self.client, self._held_request) <= now:
            self._pass_request(self.client.waiting.popleft()[1])
        while self._next(self.server, self._held_reply) <= now:
            self._pass_reply(self.server.waiting.popleft()[1])

    def next_due(self) -> float:
        """When `pump` has something to do next if nothing arrives; infinity: never."""
        return min(self._next(self.client, self._held_request), self._next(self.server, self._held_reply))

    def blackhole(self) -> None:
        self._dark = True

    def cut(self, reset: bool = False) -> None:
        """Close both sides. With a held request the server's side stays open: the request may still be delivered."""
        self.client.close(reset)
        if self._held_request is None:
            self.server.close(reset)
        else:
            self.client.waiting.append((0.0, _END))

    def close(self) -> None:
        self.client.close()
        self.server.close()

    def deliver(self, hold: Hold) -> None:
        """Pass on what `hold` keeps, if that is on this connection."""
        if self._held_request is not None and self._held_request[0] is hold:
            frame = self._held_request[1]
            self._held_request = None
            if not self.server.open:
                raise ConnectionError("the server closed the connection before the held request was delivered")
            self._forward(frame, hold)
        elif self._held_reply is not None and self._held_reply[0] is hold:
            self._to_client(self._held_reply[1])
            self._held_reply = None
            hold.delivered.set()

    def _next(self, side: Side, held: object) -> float:
        if self._conditions.stalled or held is not None or not side.waiting:
            return float("inf")
        return side.waiting[0][0]

    def _pass_request(self, frame: bytes) -> None:
        if self._dark:
            return
        if frame == _END:
            self.server.send(b"", last=True)
            return
        fault = self._conditions.choose(frame)
        if fault is not None and fault.action == "cut_request":
            fault.happened.set()  # before the connection is cut: a test that sees its end may check this
            self.close()
            self.client.waiting.clear()
        elif isinstance(fault, Hold) and fault.action == "hold_request":
            self._held_request = fault, frame
            fault.held.set()
        else:
            self._forward(frame, fault)

    def _forward(self, frame: bytes, fault: Fault | None) -> None:
        self._ledger.sent(Request(frame, fault))
        self.server.send(frame)

    def _pass_reply(self, frame: bytes) -> None:
        if frame == _END:
            if not self._dark and not self._mute:
                self.client.close()
            return
        request = self._ledger.answered(frame)
        fault = None if request is None else request.fault
        if isinstance(fault, Hold) and fault.action == "hold_request":
            fault.delivered.set()
        if self._dark:
            return
        if fault is None or fault.action == "hold_request":
            self._to_client(frame)
        elif isinstance(fault, Hold):
            self._held_reply = fault, frame
            fault.held.set()
        else:
            fault.happened.set()
            if fault.action == "cut_reply":
                self.close()
                self.server.waiting.clear()
            else:
                self._mute = True

    def _to_client(self, frame: bytes) -> None:
        # TCP delivers in order: after a lost reply, nothing that follows it arrives either.
        if not self._mute:
            self.client.send(frame)


class Tunnel:
    """Two sockets; what arrives on one is sent to the other. The end of either closes both."""

    def __init__(self, one: socket.socket, other: socket.socket, selector: selectors.BaseSelector) -> None:
        self._one = Side(one, selector, self, lambda data: [data])
        self._other = Side(other, selector, self, lambda data: [data])

    @property
    def open(self) -> bool:
        return self._one.open

    def arrived(self, side: Side, data: list[bytes], now: float) -> None:
        if data == [_END]:
            self.close()
        for each in data:
            (self._other if side is self._one else self._one).send(each)

    def close(self) -> None:
        self._one.close()
        self._other.close()


class Frames:
    """Collects bytes and returns whole frames of RESP. It reads only the lengths, so a frame stays unchanged."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0  # everything before is scanned
        self._open = 1  # elements still missing in the frame being scanned

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames which `data` completes; ValueError when it isn't RESP."""
        buffer = self._buffer
        buffer += data
        frames = []
        while (line_end := buffer.find(b"\r\n", self._at)) >= 0:
            kind, end = buffer[self._at], line_end + 2
            number = int(buffer[self._at + 1 : line_end]) if kind in _SIZED or kind in _CHILDREN else -1
            if kind in _SIZED and number >= 0:
                end += number + 2
            if len(buffer) < end:
                break
            # An attribute precedes the element that it belongs to, and is no element itself.
            self._open += max(0, number) * _CHILDREN.get(kind, 0) - (kind != b"|"[0])
            self._at = end
            if self._open == 0:
                frames.append(bytes(buffer[:end]))
                del buffer[:end]
                self._at, self._open = 0, 1
        return frames


class Request:
    """A request that was sent to the server, and that the server has not yet answered completely."""

    def __init__(self, frame: bytes, fault: Fault | None) -> None:
        words = arguments(frame)
        self.name = words[0].lower() if words else b""
        self.fault = fault
        # Confirmed once per channel. For an UNSUBSCRIBE of all channels, the ledger knows their number.
        several = self.name in _SUBSCRIBING + _UNSUBSCRIBING
        self.expected = len(words) - 1 if several else 1


class Ledger:
    """The unanswered requests of one connection, in order."""

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
        channels = self._channels[word.replace(b"un", b"", 1)]
        count = len(channels)
        if word in _SUBSCRIBING:
            channels.add(channel)
        else:
            channels.discard(channel)
        request = self._waiting[0] if self._waiting else None
        if request is None or request.name != word:
            return None  # the server ends sharded subscriptions by itself when a slot moves away
        request.expected = (request.expected or max(1, count)) - 1
        if request.expected == 0:
            self._waiting.popleft()
        return request


def arguments(frame: bytes) -> tuple[bytes, ...]:
    """Return a request's words, or the flat elements of an array or push (numbers and nulls as text)."""
    if frame[:1] not in (b"*", b">"):
        return tuple(frame.split())
    parser = reader()
    parser.feed(frame)
    try:
        elements = parser.gets()
    except InvalidResponse:
        return ()  # neither a request nor a message has the other types of version 3
    return tuple(item if isinstance(item, bytes) else str(item).encode() for item in elements or ())
