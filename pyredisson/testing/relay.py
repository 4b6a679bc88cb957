"""One connection through the proxy: two sockets, and the frames between them."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
from collections import deque

from pyredisson.testing.faults import Action, Conditions, Fault, Hold
from pyredisson.testing.frames import Frames, Ledger, Request

__all__ = ["Relay", "Side"]

_END = b""  # as an element of a queue: the sender has closed its side
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on with no time: closing sends RST


class Side:
    """One of the two sockets, the frames that came from it, and the bytes that wait to be sent to it."""

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector, relay: Relay) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.open = True
        self.relay = relay
        self._sock = sock
        self._selector = selector
        self._frames = Frames()
        self._out = bytearray()
        self._last = False
        selector.register(sock, selectors.EVENT_READ, self)

    def receive(self) -> list[bytes]:
        """Read what has arrived. The end of the connection, or data that isn't RESP, adds the end marker and closes."""
        try:
            data = self._sock.recv(1 << 16)
            frames = self._frames.feed(data) if data else [_END]
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
            self._selector.modify(self._sock, wanted, self)

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
        self,
        client: socket.socket,
        server: socket.socket,
        selector: selectors.BaseSelector,
        conditions: Conditions,
    ) -> None:
        self.client = Side(client, selector, self)
        self.server = Side(server, selector, self)
        self._conditions = conditions
        self._ledger = Ledger()
        self._dark = False
        self._mute = False
        self._held_request: tuple[Hold, bytes] | None = None
        self._held_reply: tuple[Hold, bytes] | None = None

    @property
    def finished(self) -> bool:
        # With a request still held, its `deliver` has to find out that the server is gone.
        return not self.client.open and not self.server.open and self._held_request is None

    def arrived(self, side: Side, frames: list[bytes], now: float) -> None:
        side.waiting.extend((now + self._conditions.latency, frame) for frame in frames)

    def pump(self, now: float) -> None:
        """Pass on everything that is not held, stalled or delayed."""
        while self._next_request() <= now:
            self._pass_request(self.client.waiting.popleft()[1])
        while self._next_reply() <= now:
            self._pass_reply(self.server.waiting.popleft()[1])

    def next_due(self) -> float:
        """When `pump` has something to do next if nothing arrives; infinity: never."""
        return min(self._next_request(), self._next_reply())

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

    def _next_request(self) -> float:
        if self._conditions.stalled or self._held_request is not None or not self.client.waiting:
            return float("inf")
        return self.client.waiting[0][0]

    def _next_reply(self) -> float:
        if self._conditions.stalled or self._held_reply is not None or not self.server.waiting:
            return float("inf")
        return self.server.waiting[0][0]

    def _pass_request(self, frame: bytes) -> None:
        if self._dark:
            return
        if frame == _END:
            self.server.send(b"", last=True)
            return
        fault = self._conditions.choose(frame)
        if fault is not None and fault.action is Action.CUT_REQUEST:
            fault.happened.set()  # before the connection is cut: a test that sees its end may check this
            self.close()
            self.client.waiting.clear()
        elif isinstance(fault, Hold) and fault.action is Action.HOLD_REQUEST:
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
        if isinstance(fault, Hold) and fault.action is Action.HOLD_REQUEST:
            fault.delivered.set()
        if self._dark:
            return
        if fault is None or fault.action is Action.HOLD_REQUEST:
            self._to_client(frame)
        elif isinstance(fault, Hold):
            self._held_reply = fault, frame
            fault.held.set()
        else:
            fault.happened.set()
            if fault.action is Action.CUT_REPLY:
                self.close()
                self.server.waiting.clear()
            else:
                self._mute = True

    def _to_client(self, frame: bytes) -> None:
        # TCP delivers in order: after a lost reply, nothing that follows it arrives either.
        if not self._mute:
            self.client.send(frame)
