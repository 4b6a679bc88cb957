"""A round trip over a socket, and waiting for what a server sends unasked: the data, the errors, other threads."""

import contextlib
import errno
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from pyredisson._core import Exchange, IdleCheck, Unsent

IDLE = 0.02
"""Seconds after which a socket counts as idle, with the tick of the coarse clock."""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def ours(pair: tuple[socket.socket, socket.socket]) -> socket.socket:
    return pair[0]


@pytest.fixture
def theirs(pair: tuple[socket.socket, socket.socket]) -> socket.socket:
    """The other side's."""
    return pair[1]


def exchange(ours: socket.socket, payload: bytes, buffer: bytearray, timeout: float = 60) -> int:
    """One round trip."""
    return Exchange(ours.fileno(), buffer, timeout).call(payload)


def limit(ours: socket.socket, option: int, seconds: float) -> None:
    ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, int(seconds * 1e6)))


def fill(ours: socket.socket) -> None:
    """Until nothing more fits in."""
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            ours.send(bytes(65536))
    ours.setblocking(True)


@contextlib.contextmanager
def answered(theirs: socket.socket, request: bytes, answer: bytes) -> Iterator[None]:
    """The other side receives the request in there, and then answers it. Data before it would belong to no request."""
    heard: list[bytes] = []

    def run() -> None:
        heard.append(theirs.recv(16))
        theirs.sendall(answer)

    other = threading.Thread(target=run)
    other.start()
    yield
    other.join()
    assert heard == [request]


def test_an_answer(ours: socket.socket, theirs: socket.socket) -> None:
    """No more than there is room for."""
    buffer = bytearray(4)
    trips = Exchange(ours.fileno(), buffer, 60)
    with answered(theirs, b"PING", b"+\r\n"):
        assert trips.call(b"PING") == 3
    assert buffer == b"+\r\n\0"
    with answered(theirs, b"x", b"abcdef"):
        assert trips.call(b"x") == 4
    assert trips.receive(60) == 2
    assert buffer == b"efcd"


def test_more_than_goes_at_once(ours: socket.socket, theirs: socket.socket) -> None:
    """Others run meanwhile: else nobody would read it."""
    payload = os.urandom(5_000_000)
    heard = bytearray()

    def answer() -> None:
        while len(heard) < len(payload):
            heard.extend(theirs.recv(65536))
        theirs.sendall(b"+")

    other = threading.Thread(target=answer)
    other.start()
    assert exchange(ours, payload, bytearray(1)) == 1
    other.join()
    assert heard == payload


def test_the_other_side_has_closed(ours: socket.socket, theirs: socket.socket) -> None:
    theirs.shutdown(socket.SHUT_WR)
    assert exchange(ours, b"x", bytearray(16)) == 0
    theirs.close()
    with pytest.raises(Unsent) as raised:
        exchange(ours, b"x", bytearray(16))
    assert isinstance(raised.value.args[0], BrokenPipeError)


def test_a_socket_that_is_used_no_more(ours: socket.socket, theirs: socket.socket) -> None:
    """Its number may be that of another one by now."""
    with pytest.raises(Unsent) as raised:
        Exchange(-1, bytearray(16), 1).call(b"x")
    assert raised.value.args[0].errno == errno.EBADF
    trips = Exchange(ours.fileno(), bytearray(16), 1)
    trips.detach()
    with pytest.raises(Unsent):
        trips.call(b"x")
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)


@pytest.mark.parametrize(
    ("payload", "buffer"),
    [*((wrong, bytearray(16)) for wrong in ("x", bytearray(b"x"), None)), (b"x", b"x"), (b"x", None)],
)
def test_what_is_no_payload_or_no_buffer(ours: socket.socket, payload: Any, buffer: Any) -> None:
    with pytest.raises(TypeError):
        exchange(ours, payload, buffer)


def test_an_answer_after_some_waits(ours: socket.socket, theirs: socket.socket) -> None:
    """What was sent isn't sent again."""
    limit(ours, socket.SO_RCVTIMEO, 0.02)
    late = threading.Timer(0.1, theirs.sendall, (b"+",))
    late.start()
    assert exchange(ours, b"x", bytearray(16)) == 1
    assert theirs.recv(16) == b"x"
    late.join()


@pytest.mark.parametrize("wait", [0.02, 0.1])
def test_no_answer_in_time(ours: socket.socket, theirs: socket.socket, wait: float) -> None:
    """In one wait, and in several."""
    limit(ours, socket.SO_RCVTIMEO, wait)
    begun = time.monotonic()
    with pytest.raises(BlockingIOError):
        exchange(ours, b"x", bytearray(16), 0.1)
    assert time.monotonic() - begun > 0.08
    assert theirs.recv(16) == b"x"


def test_a_signal_that_came_before_the_wait(ours: socket.socket, theirs: socket.socket, interrupted_after: Any) -> None:
    limit(ours, socket.SO_RCVTIMEO, 0.02)
    with interrupted_after(lambda: theirs.recv(16)):
        exchange(ours, b"x", bytearray(16))


@pytest.mark.parametrize("full", [True, False])
def test_nobody_takes_all_of_it_in_time(ours: socket.socket, full: bool) -> None:
    """Part of a command is no command; of several, the first may be whole."""
    if full:
        fill(ours)
    limit(ours, socket.SO_SNDTIMEO, 0.05)
    with pytest.raises(Unsent) as raised:
        exchange(ours, b"x" if full else bytes(5_000_000), bytearray(16), 0.05)
    assert isinstance(raised.value.args[0], BlockingIOError)


def test_nobody_takes_all_of_several_commands_in_time(ours: socket.socket) -> None:
    limit(ours, socket.SO_SNDTIMEO, 0.05)
    trips = Exchange(ours.fileno(), bytearray(16), 1)
    with pytest.raises(BlockingIOError):
        trips.send(bytes(5_000_000), 0.05)
    with pytest.raises(Unsent):
        trips.send(b"x", 0.05)


@pytest.mark.parametrize("said", [b"", b"+"])
def test_what_happened_while_it_was_idle(ours: socket.socket, theirs: socket.socket, said: bytes) -> None:
    """Nothing is sent where the other side has gone, or has said something that nobody asked for."""
    trips = Exchange(ours.fileno(), bytearray(16), 1)
    with answered(theirs, b"x", b"+"):
        assert trips.call(b"x") == 1
    if said:
        theirs.sendall(said)
    else:
        theirs.shutdown(socket.SHUT_WR)
    time.sleep(IDLE)
    with pytest.raises(Unsent):
        trips.call(b"x")
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(16)


def test_a_socket_knows_when_the_other_side_has_closed_it(ours: socket.socket, theirs: socket.socket) -> None:
    idle = IdleCheck(ours.fileno())
    assert not idle.closed()
    time.sleep(IDLE)
    assert not idle.closed()
    # What can still be read doesn't hide it.
    theirs.sendall(b"+")
    theirs.close()
    time.sleep(IDLE)
    assert idle.closed()
    assert idle.closed()


@pytest.mark.parametrize("way", ["receive", "call", "send"])
def test_signals_do_not_stretch_the_time(ours: socket.socket, on_alarm: Any, way: str) -> None:
    """Each starts the kernel's own timeout anew."""
    if way == "send":
        fill(ours)
    limit(ours, socket.SO_RCVTIMEO, 0.1)
    limit(ours, socket.SO_SNDTIMEO, 0.1)
    trips = Exchange(ours.fileno(), bytearray(16), 0.3)
    calls: dict[str, Callable[[], object]] = {
        "receive": lambda: trips.receive(0.3),
        "call": lambda: trips.call(b"x"),
        "send": lambda: trips.send(b"x", 0.3),
    }
    on_alarm(lambda: None)
    begun = time.monotonic()
    with pytest.raises(Unsent if way == "send" else BlockingIOError):
        calls[way]()
    assert 0.28 < time.monotonic() - begun < 5


@pytest.mark.parametrize("full", [False, True])
def test_a_signal_whose_handler_raises(ours: socket.socket, on_alarm: Any, full: bool) -> None:
    if full:
        fill(ours)

    def strike() -> None:
        # Once: a second one would strike outside of this test.
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_alarm(strike)
        exchange(ours, b"x", bytearray(16))


def test_a_signal_whose_handler_returns(ours: socket.socket, theirs: socket.socket, on_alarm: Any) -> None:
    """What was sent isn't sent again."""
    strikes: list[None] = []

    def strike() -> None:
        strikes.append(None)
        if len(strikes) == 3:
            theirs.sendall(b"+")

    on_alarm(strike)
    assert exchange(ours, b"x", bytearray(16)) == 1
    assert len(strikes) >= 3
    theirs.setblocking(False)
    assert theirs.recv(16) == b"x"


LONG = 30.0
STOPPED, TIME_OVER = -2, -1


class Sockets(NamedTuple):
    """`theirs` sends to the exchange; a byte to `stopper` ends its waiting."""

    exchange: Exchange
    buffer: bytearray
    theirs: socket.socket
    stop: int
    stopper: socket.socket

    def wait(self, seconds: float = LONG) -> int:
        return self.exchange.receive_or_stop(self.stop, seconds)


@pytest.fixture
def sockets(ours: socket.socket, theirs: socket.socket) -> Iterator[Sockets]:
    stop, stopper = socket.socketpair()
    buffer = bytearray(16)
    with stop, stopper:
        yield Sockets(Exchange(ours.fileno(), buffer, LONG), buffer, theirs, stop.fileno(), stopper)


class TestReceiveOrStop:
    """What is sent unasked: what ends the wait, and that nothing is read from another connection."""

    def test_what_comes_counts_before_the_stop(self, sockets: Sockets) -> None:
        sockets.theirs.sendall(b"message")
        sockets.stopper.send(b"\0")
        assert sockets.wait() == 7
        assert sockets.buffer.startswith(b"message")
        # Nobody has read that byte.
        assert sockets.wait() == STOPPED

    def test_another_thread_stops_it(self, sockets: Sockets) -> None:
        threading.Timer(0.02, sockets.stopper.send, [b"\0"]).start()
        assert sockets.wait() == STOPPED

    @pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.0001, 0.15])
    def test_the_time_is_over(self, sockets: Sockets, seconds: float) -> None:
        assert sockets.wait(seconds) == TIME_OVER

    def test_a_connection_that_is_closed_already(self, sockets: Sockets) -> None:
        """By the other side, and by this one."""
        sockets.theirs.close()
        assert sockets.wait() == 0
        sockets.exchange.detach()
        with pytest.raises(OSError, match="Bad file descriptor") as raised:
            sockets.wait()
        assert raised.value.errno == errno.EBADF

    def test_nothing_is_read_after_the_connection_was_closed(self, sockets: Sockets) -> None:
        """The number of the descriptor may be that of another connection by then."""

        def close() -> None:
            sockets.exchange.detach()
            sockets.theirs.sendall(b"for another connection")

        closing = threading.Timer(0.02, close)
        closing.start()
        with pytest.raises(OSError, match="Bad file descriptor"):
            sockets.wait()
        closing.join()
        assert sockets.buffer == bytes(16)

    def test_a_signal_that_came_before_the_wait(self, sockets: Sockets, interrupted_after: Any) -> None:
        blocked = threading.Event()
        with interrupted_after(lambda: blocked.wait(LONG)):
            blocked.set()
            sockets.wait()

    def test_a_signal_whose_handler_returns_does_not_end_it(self, sockets: Sockets, on_alarm: Any) -> None:
        strikes: list[None] = []
        on_alarm(lambda: strikes.append(None))
        assert sockets.wait(0.2) == TIME_OVER
        assert strikes
