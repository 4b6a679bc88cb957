"""A round trip over a socket, and waiting for what a server sends unasked: the data, the errors, other threads."""

import errno
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pyredisson._core import Exchange, IdleCheck, Unsent

IDLE = 0.02
"""Seconds after which a socket counts as idle, with the tick of the coarse clock."""
LONG = 30.0
STOPPED, TIME_OVER = -2, -1


class Line:
    """A connection to `theirs`, the other side's socket. A byte to `stopper` ends a wait for what is sent unasked."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.stop, self.stopper = socket.socketpair()
        self.buffer = bytearray(16)
        self.exchange = Exchange(self.ours.fileno(), self.buffer, LONG)
        self.call, self.send, self.receive = self.exchange.call, self.exchange.send, self.exchange.receive

    def wait(self, seconds: float = LONG) -> int:
        return self.exchange.receive_or_stop(self.stop.fileno(), seconds)

    def call_within(self, seconds: float, payload: bytes) -> int:
        return Exchange(self.ours.fileno(), self.buffer, seconds).call(payload)

    def limit(self, seconds: float) -> None:
        """The kernel's own timeouts."""
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, int(seconds * 1e6)))

    def fill(self) -> None:
        """Until nothing more fits in."""
        self.ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                self.ours.send(bytes(65536))
        self.ours.setblocking(True)

    @contextmanager
    def answered(self, request: bytes, answer: bytes) -> Iterator[None]:
        """The other side receives the request in there, and answers it. Data before it would belong to no request."""
        heard = bytearray()

        def run() -> None:
            while len(heard) < len(request):
                heard.extend(self.theirs.recv(65536))
            self.theirs.sendall(answer)

        other = threading.Thread(target=run)
        other.start()
        yield
        other.join()
        assert heard == request

    def nothing_was_sent(self) -> None:
        self.theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            self.theirs.recv(1)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    with made.ours, made.theirs, made.stop, made.stopper:
        yield made


def test_an_answer(line: Line) -> None:
    """No more than there is room for. Others run while a long request is sent: else nobody would read it."""
    payload = os.urandom(5_000_000)
    with line.answered(payload, b"+"):
        assert line.call(payload) == 1
    buffer = bytearray(4)
    trips = Exchange(line.ours.fileno(), buffer, LONG)
    with line.answered(b"PING", b"+\r\n"):
        assert trips.call(b"PING") == 3
    assert buffer == b"+\r\n\0"
    with line.answered(b"x", b"abcdef"):
        assert trips.call(b"x") == 4
    assert trips.receive(LONG) == 2
    assert buffer == b"efcd"


def test_the_other_side_has_closed(line: Line) -> None:
    line.theirs.shutdown(socket.SHUT_WR)
    assert line.call_within(LONG, b"x") == 0
    line.theirs.close()
    with pytest.raises(Unsent) as raised:
        line.call_within(LONG, b"x")
    assert isinstance(raised.value.args[0], BrokenPipeError)


def test_a_socket_that_is_used_no_more(line: Line) -> None:
    """Its number may be that of another one by now."""
    with pytest.raises(Unsent) as raised:
        Exchange(-1, bytearray(16), 1).call(b"x")
    assert raised.value.args[0].errno == errno.EBADF
    line.exchange.detach()
    with pytest.raises(Unsent):
        line.call(b"x")
    line.nothing_was_sent()


@pytest.mark.parametrize(
    ("payload", "buffer"),
    [*((wrong, bytearray(16)) for wrong in ("x", bytearray(b"x"), None)), (b"x", b"x"), (b"x", None)],
)
def test_what_is_no_payload_or_no_buffer(line: Line, payload: Any, buffer: Any) -> None:
    with pytest.raises(TypeError):
        Exchange(line.ours.fileno(), buffer, LONG).call(payload)


def test_an_answer_after_some_waits(line: Line) -> None:
    """What was sent isn't sent again."""
    line.limit(0.02)
    late = threading.Timer(0.1, line.theirs.sendall, (b"+",))
    late.start()
    assert line.call(b"x") == 1
    assert line.theirs.recv(16) == b"x"
    late.join()


@pytest.mark.parametrize("wait", [0.02, 0.1])
def test_no_answer_in_time(line: Line, wait: float) -> None:
    """In one wait, and in several."""
    line.limit(wait)
    begun = time.monotonic()
    with pytest.raises(BlockingIOError):
        line.call_within(0.1, b"x")
    assert time.monotonic() - begun > 0.08
    assert line.theirs.recv(16) == b"x"


@pytest.mark.parametrize("full", [True, False])
def test_nobody_takes_all_of_it_in_time(line: Line, full: bool) -> None:
    """Part of a command is no command; of several, the first may be whole."""
    if full:
        line.fill()
    line.limit(0.05)
    with pytest.raises(Unsent) as raised:
        line.call_within(0.05, b"x" if full else bytes(5_000_000))
    assert isinstance(raised.value.args[0], BlockingIOError)


def test_nobody_takes_all_of_several_commands_in_time(line: Line) -> None:
    line.limit(0.05)
    with pytest.raises(BlockingIOError):
        line.send(bytes(5_000_000), 0.05)


@pytest.mark.parametrize("said", [b"", b"+"])
def test_what_happened_while_it_was_idle(line: Line, said: bytes) -> None:
    """Nothing is sent where the other side has gone, or has said something that nobody asked for."""
    with line.answered(b"x", b"+"):
        assert line.call(b"x") == 1
    if said:
        line.theirs.sendall(said)
    else:
        line.theirs.shutdown(socket.SHUT_WR)
    time.sleep(IDLE)
    with pytest.raises(Unsent):
        line.call(b"x")
    line.nothing_was_sent()


def test_a_socket_knows_when_the_other_side_has_closed_it(line: Line) -> None:
    idle = IdleCheck(line.ours.fileno())
    assert not idle.closed()
    time.sleep(IDLE)
    assert not idle.closed()
    # What can still be read doesn't hide it.
    line.theirs.sendall(b"+")
    line.theirs.close()
    time.sleep(IDLE)
    assert [idle.closed(), idle.closed()] == [True, True]


@pytest.mark.parametrize("way", ["receive", "call", "send"])
def test_signals_do_not_stretch_the_time(line: Line, on_alarm: Any, way: str) -> None:
    """Each starts the kernel's own timeout anew."""
    if way == "send":
        line.fill()
    line.limit(0.1)
    calls: dict[str, Callable[[], object]] = {
        "receive": lambda: line.receive(0.3),
        "call": lambda: line.call_within(0.3, b"x"),
        "send": lambda: line.send(b"x", 0.3),
    }
    on_alarm(lambda: None)
    begun = time.monotonic()
    with pytest.raises(Unsent if way == "send" else BlockingIOError):
        calls[way]()
    assert 0.28 < time.monotonic() - begun < 5


@pytest.mark.parametrize("full", [False, True])
def test_a_signal_whose_handler_raises(line: Line, on_alarm: Any, full: bool) -> None:
    if full:
        line.fill()

    def strike() -> None:
        # Once: a second one would strike outside of this test.
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_alarm(strike)
        line.call(b"x")


def test_a_signal_whose_handler_returns(line: Line, on_alarm: Any) -> None:
    """What was sent isn't sent again."""
    strikes: list[None] = []

    def strike() -> None:
        strikes.append(None)
        if len(strikes) == 3:
            line.theirs.sendall(b"+")

    on_alarm(strike)
    assert line.call(b"x") == 1
    assert len(strikes) >= 3
    line.theirs.setblocking(False)
    assert line.theirs.recv(16) == b"x"


@pytest.mark.parametrize("unasked", [False, True])
def test_a_signal_that_came_before_the_wait(line: Line, unasked: bool) -> None:
    """It interrupts no system call: as if it had come just before that was entered."""
    line.limit(0.02)
    blocked = threading.Event()
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)

    def strike() -> None:
        # The kernel gives it to this thread, for the main one has it blocked: that one's call goes on.
        assert blocked.wait(LONG) if unasked else line.theirs.recv(16)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    other = threading.Thread(target=strike)
    other.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with pytest.raises(KeyboardInterrupt):
            blocked.set()
            line.wait() if unasked else line.call(b"x")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        signal.signal(signal.SIGUSR1, before)
        other.join()


class TestReceiveOrStop:
    """What is sent unasked: what ends the wait, and that nothing is read from another connection."""

    def test_what_comes_counts_before_the_stop_by_another_thread(self, line: Line) -> None:
        threading.Timer(0.02, line.stopper.send, [b"\0"]).start()
        assert line.wait() == STOPPED
        line.theirs.sendall(b"message")
        assert line.wait() == 7
        assert line.buffer.startswith(b"message")
        # Nobody has read the byte of the stop.
        assert line.wait() == STOPPED

    @pytest.mark.parametrize("signals", [False, True])
    @pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.0001, 0.15])
    def test_the_time_is_over(self, line: Line, on_alarm: Any, seconds: float, signals: bool) -> None:
        """A signal whose handler returns doesn't end the wait."""
        strikes: list[None] = []
        if signals:
            on_alarm(lambda: strikes.append(None))
        assert line.wait(seconds) == TIME_OVER
        assert bool(strikes) is (signals and seconds > 0.1)

    def test_a_connection_that_is_closed_already(self, line: Line) -> None:
        """By the other side, and by this one."""
        line.theirs.close()
        assert line.wait() == 0
        line.exchange.detach()
        with pytest.raises(OSError, match="Bad file descriptor") as raised:
            line.wait()
        assert raised.value.errno == errno.EBADF

    def test_nothing_is_read_after_the_connection_was_closed(self, line: Line) -> None:
        """The number of the descriptor may be that of another connection by then."""

        def close() -> None:
            line.exchange.detach()
            line.theirs.sendall(b"for another connection")

        closing = threading.Timer(0.02, close)
        closing.start()
        with pytest.raises(OSError, match="Bad file descriptor"):
            line.wait()
        closing.join()
        assert line.buffer == bytes(16)
