"""`pyredisson.testing.Proxy` in memory, with its own relays and faults; and `tests.faults.stub.Stub`."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any, Self, cast

import hiredis

from pyredisson.testing.proxy import Proxy
from pyredisson.testing.relay import Relay
from tests.faults.stub import Answer

from .network import PORTS, SERVERS, Close, Connection, Send
from .time import VirtualClock


class MemoryProxy(Proxy):
    """What is sent between it and its server arrives at once."""

    clock: VirtualClock

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._busy = False
        self._due = float("inf")

    def start(self) -> Self:
        self.port = next(PORTS)
        self._ends = Ends()
        self._selector = cast(selectors.DefaultSelector, self._ends)
        self._running = True
        SERVERS[self.host, self.port] = self
        return self

    def close(self) -> None:
        if self._running:
            self._running = False
            del SERVERS[self.host, self.port]
            for relay in self._relays:
                relay.close()

    def open_session(self, send: Send, close: Close) -> Connection:
        """A client connects."""
        server = SERVERS.get(self._server)
        client = End(self, send, close)
        if self._refusing or server is None:
            client.close()
            return client
        behind = End(self)
        behind.peer = server.open_session(behind.receive, behind.left)
        sockets: list[Any] = [client, behind]
        self._relays.append(Relay(sockets[0], sockets[1], self._ends, self._conditions))
        return client

    def pass_on(self) -> None:
        """Does what the thread of a real proxy does, until it would wait."""
        if self._busy or not self._running:
            return
        self._busy = True
        try:
            self._round()
            while self._ends.select():
                self._round()
        finally:
            self._busy = False
        due = min((relay.next_due() for relay in self._relays), default=self._due)
        if due < self._due:
            self._due = due
            self.clock.call_beside(due, self._pass_on_what_is_due)

    def _pass_on_what_is_due(self) -> None:
        self._due = float("inf")
        self.pass_on()

    def _call(self, action: Callable[[], object]) -> None:
        if not self._running:
            raise RuntimeError("the proxy is not running")
        done: Future[None] = Future()
        self._calls.append((action, done))
        self.pass_on()
        done.result(0)


class End:
    """An end of a connection at the proxy: what a relay needs of a socket."""

    def __init__(self, proxy: MemoryProxy, send: Send | None = None, close: Close | None = None) -> None:
        self._proxy = proxy
        self._send, self._close = send, close
        self.peer: Connection | None = None
        """The server, if this is the end of a connection to it."""
        self._arrived = bytearray()
        self._ended = self._closed = self._reset = False

    @property
    def readable(self) -> bool:
        return self._ended or bool(self._arrived)

    def receive(self, data: bytes) -> None:
        """Something arrives from the other end."""
        self._arrived += data
        self._proxy.pass_on()

    def left(self, _: bool = False) -> None:
        """The other end was closed, by the client or the server."""
        self._ended = True
        self._proxy.pass_on()

    def recv(self, size: int) -> bytes:
        if not self.readable:
            raise BlockingIOError
        part = bytes(self._arrived[:size])
        del self._arrived[:size]
        return part

    def send(self, data: bytearray) -> int:
        if self.peer is not None:
            self.peer.receive(bytes(data))
        elif self._send is not None:
            self._send(bytes(data))
        return len(data)

    def shutdown(self, how: int) -> None:
        self.close()
        # A server closes its end, too.
        self._ended = self._ended or how == socket.SHUT_WR

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.peer is not None:
            self.peer.left()
        elif self._close is not None:
            self._close(self._reset)

    def setblocking(self, _: bool) -> None: ...

    def setsockopt(self, _: int, option: int, __: object) -> None:
        self._reset = self._reset or option == socket.SO_LINGER


class Ends(selectors.BaseSelector):
    """The ends at one proxy. It never waits."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self._keys[fileobj] = key = selectors.SelectorKey(fileobj, -1, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, _: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return [(key, selectors.EVENT_READ) for end, key in self._keys.items() if end.readable]


class MemoryStub:
    """Answers each command with `answer`'s bytes: one by one if `drip` is above 0."""

    clock: VirtualClock

    def __init__(self, answer: Answer, drip: float = 0.0) -> None:
        self.answer, self.drip = answer, drip
        self.connections = 0
        self.port = next(PORTS)
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        SERVERS["127.0.0.1", self.port] = self
        return self

    def __exit__(self, *_: object) -> None:
        del SERVERS["127.0.0.1", self.port]

    def open_session(self, send: Send, _: Close) -> Connection:
        self.connections += 1
        reader = hiredis.Reader()

        def receive(data: bytes) -> None:
            reader.feed(data)
            while (words := reader.gets()) is not False:
                reply = self.answer(words)
                if not self.drip:
                    send(reply)
                    continue
                for number, byte in enumerate(reply):
                    self.clock.call_beside(self.clock() + number * self.drip, partial(send, bytes([byte])))

        return cast(Connection, SimpleNamespace(receive=receive, left=lambda: None))
