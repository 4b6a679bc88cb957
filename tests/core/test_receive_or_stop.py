"""Waiting for what a server sends unasked: what ends it, and that nothing is read from another connection."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from pyredisson._core import Exchange

LONG = 30.0
STOPPED, TIME_OVER = -2, -1


class Sockets(NamedTuple):
    """`theirs` sends to the exchange; a byte to `stopper` ends its waiting."""

    exchange: Exchange
    buffer: bytearray
    theirs: socket.socket
    stop: int
    stopper: socket.socket


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    ours, theirs = socket.socketpair()
    stop, stopper = socket.socketpair()
    buffer = bytearray(16)
    with ours, theirs, stop, stopper:
        yield Sockets(Exchange(ours.fileno(), buffer, LONG), buffer, theirs, stop.fileno(), stopper)


def test_what_comes_counts_before_the_stop(sockets: Sockets) -> None:
    sockets.theirs.sendall(b"message")
    sockets.stopper.send(b"\0")
    assert sockets.exchange.receive_or_stop(sockets.stop, LONG) == 7
    assert sockets.buffer.startswith(b"message")
    # Nobody has read that byte.
    assert sockets.exchange.receive_or_stop(sockets.stop, LONG) == STOPPED


def test_another_thread_stops_it(sockets: Sockets) -> None:
    threading.Timer(0.02, sockets.stopper.send, [b"\0"]).start()
    assert sockets.exchange.receive_or_stop(sockets.stop, LONG) == STOPPED


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.0001, 0.15])
def test_the_time_is_over(sockets: Sockets, seconds: float) -> None:
    assert sockets.exchange.receive_or_stop(sockets.stop, seconds) == TIME_OVER


def test_a_connection_that_is_closed_already(sockets: Sockets) -> None:
    """By the other side, and by this one."""
    sockets.theirs.close()
    assert sockets.exchange.receive_or_stop(sockets.stop, LONG) == 0
    sockets.exchange.detach()
    with pytest.raises(OSError, match="Bad file descriptor") as raised:
        sockets.exchange.receive_or_stop(sockets.stop, LONG)
    assert raised.value.errno == errno.EBADF


def test_nothing_is_read_after_the_connection_was_closed(sockets: Sockets) -> None:
    """The number of the descriptor may be that of another connection by then."""

    def close() -> None:
        sockets.exchange.detach()
        sockets.theirs.sendall(b"for another connection")

    closing = threading.Timer(0.02, close)
    closing.start()
    with pytest.raises(OSError, match="Bad file descriptor"):
        sockets.exchange.receive_or_stop(sockets.stop, LONG)
    closing.join()
    assert sockets.buffer == bytes(16)


def test_a_signal_that_came_before_the_wait(sockets: Sockets, interrupted_after: Any) -> None:
    blocked = threading.Event()
    with interrupted_after(lambda: blocked.wait(LONG)):
        blocked.set()
        sockets.exchange.receive_or_stop(sockets.stop, LONG)


def test_a_signal_whose_handler_returns_does_not_end_it(sockets: Sockets, on_alarm: Any) -> None:
    strikes: list[None] = []
    on_alarm(lambda: strikes.append(None))
    assert sockets.exchange.receive_or_stop(sockets.stop, 0.2) == TIME_OVER
    assert strikes
