"""`tests.faults.stub.Stub` in memory."""

from __future__ import annotations

from functools import partial
from typing import Self

import hiredis

from tests.faults.stub import Answer

from .network import PORTS, SERVERS, Close, Send
from .time import VirtualClock


class MemoryStub:
    """Answers each command with `answer`'s bytes: one by one if `drip` is above 0."""

    clock: VirtualClock

    def __init__(self, answer: Answer, drip: float = 0.0) -> None:
        self.answer = answer
        self.drip = drip
        self.connections = 0
        self.port = next(PORTS)
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        SERVERS["127.0.0.1", self.port] = self
        return self

    def __exit__(self, *_: object) -> None:
        del SERVERS["127.0.0.1", self.port]

    def open_session(self, send: Send, _: Close) -> StubSession:
        self.connections += 1
        return StubSession(self, send)


class StubSession:
    """One connection of a stub."""

    def __init__(self, stub: MemoryStub, send: Send) -> None:
        self._stub = stub
        self._send = send
        self._reader = hiredis.Reader()

    def receive(self, data: bytes) -> None:
        self._reader.feed(data)
        while (words := self._reader.gets()) is not False:
            reply = self._stub.answer(words)
            if not self._stub.drip:
                self._send(reply)
                continue
            for number, byte in enumerate(reply):
                when = self._stub.clock() + number * self._stub.drip
                self._stub.clock.call_beside(when, partial(self._send, bytes([byte])))

    def left(self) -> None:
        pass
