"""A round trip over a socket: the data, the errors, and that other threads run meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from pyredisson._core import Exchange, IdleCheck, Unsent

IDLE = 0.02
"""Seconds after which a socket counts as idle, with the tick of the coarse clock."""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours and the other side's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def on_alarm() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Has a function called by a signal's handler, every 20 ms."""

    def call(function: Callable[[], object]) -> None:
        def handle(number: int, frame: FrameType | None) -> None:
            function()

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)

    before = signal.getsignal(signal.SIGALRM)
    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


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


def test_an_answer(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    buffer = bytearray(16)
    with answered(theirs, b"PING", b"+OK\r\n"):
        assert exchange(ours, b"PING", buffer) == 5
    assert buffer == b"+OK\r\n" + bytes(11)


def test_no_more_than_there_is_room_for(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    buffer = bytearray(4)
    trips = Exchange(ours.fileno(), buffer, 60)
    with answered(theirs, b"x", b"abcdef"):
        assert trips.call(b"x") == 4
    assert trips.receive(60) == 2
    assert buffer == b"efcd"


def test_more_than_goes_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    """Others run meanwhile: else nobody would read it."""
    ours, theirs = pair
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


def test_the_other_side_has_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.shutdown(socket.SHUT_WR)
    assert exchange(ours, b"x", bytearray(16)) == 0
    theirs.close()
    with pytest.raises(Unsent) as raised:
        exchange(ours, b"x", bytearray(16))
    assert isinstance(raised.value.args[0], BrokenPipeError)


def test_no_socket() -> None:
    with pytest.raises(Unsent) as raised:
        Exchange(-1, bytearray(16), 1).call(b"x")
    assert raised.value.args[0].errno == errno.EBADF


def test_a_socket_that_is_used_no_more(pair: tuple[socket.socket, socket.socket]) -> None:
    """Its number may be that of another one by now."""
    ours, theirs = pair
    trips = Exchange(ours.fileno(), bytearray(16), 1)
    trips.detach()
    with pytest.raises(Unsent):
        trips.call(b"x")
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)


@pytest.mark.parametrize("payload", ["x", bytearray(b"x"), None])
def test_what_is_no_payload(pair: tuple[socket.socket, socket.socket], payload: object) -> None:
    with pytest.raises(TypeError):
        exchange(pair[0], payload, bytearray(16))  # type: ignore[arg-type]


@pytest.mark.parametrize("buffer", [b"x", None])
def test_what_is_no_buffer(pair: tuple[socket.socket, socket.socket], buffer: object) -> None:
    with pytest.raises(TypeError):
        exchange(pair[0], b"x", buffer)  # type: ignore[arg-type]


def test_no_answer_in_time(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    limit(ours, socket.SO_RCVTIMEO, 0.05)
    with pytest.raises(BlockingIOError):
        exchange(ours, b"x", bytearray(16), 0.05)


def test_an_answer_after_some_waits(pair: tuple[socket.socket, socket.socket]) -> None:
    """What was sent isn't sent again."""
    ours, theirs = pair
    limit(ours, socket.SO_RCVTIMEO, 0.02)
    late = threading.Timer(0.1, theirs.sendall, (b"+",))
    late.start()
    assert exchange(ours, b"x", bytearray(16)) == 1
    assert theirs.recv(16) == b"x"
    late.join()


def test_no_answer_in_as_many_waits(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    limit(ours, socket.SO_RCVTIMEO, 0.02)
    begun = time.monotonic()
    with pytest.raises(BlockingIOError):
        exchange(ours, b"x", bytearray(16), 0.1)
    assert time.monotonic() - begun > 0.08
    assert theirs.recv(16) == b"x"


def test_a_signal_that_came_before_the_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    """It interrupts no system call: as if it had come just before `recv` was entered."""
    ours, theirs = pair
    limit(ours, socket.SO_RCVTIMEO, 0.02)
    others = {signal.SIGUSR1}
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)

    def strike() -> None:
        # The kernel gives it to this thread, for the main one has it blocked: that one's call goes on.
        assert theirs.recv(16) == b"x"
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    other = threading.Thread(target=strike)
    other.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, others)
    try:
        with pytest.raises(KeyboardInterrupt):
            exchange(ours, b"x", bytearray(16))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, others)
        signal.signal(signal.SIGUSR1, before)
        other.join()


def test_nobody_takes_it_in_time(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    fill(ours)
    limit(ours, socket.SO_SNDTIMEO, 0.05)
    with pytest.raises(Unsent) as raised:
        exchange(ours, b"x", bytearray(16), 0.05)
    assert isinstance(raised.value.args[0], BlockingIOError)


def test_nobody_takes_all_of_it_in_time(pair: tuple[socket.socket, socket.socket]) -> None:
    """Part of a command is no command; of several, the first may be whole."""
    ours, _ = pair
    limit(ours, socket.SO_SNDTIMEO, 0.05)
    payload = bytes(5_000_000)
    with pytest.raises(Unsent):
        exchange(ours, payload, bytearray(16), 0.05)


def test_nobody_takes_all_of_several_commands_in_time(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    limit(ours, socket.SO_SNDTIMEO, 0.05)
    trips = Exchange(ours.fileno(), bytearray(16), 1)
    with pytest.raises(BlockingIOError):
        trips.send(bytes(5_000_000), 0.05)
    with pytest.raises(Unsent):
        trips.send(b"x", 0.05)


@pytest.mark.parametrize("said", [b"", b"+"])
def test_what_happened_while_it_was_idle(pair: tuple[socket.socket, socket.socket], said: bytes) -> None:
    """Nothing is sent where the other side has gone, or has said something that nobody asked for."""
    ours, theirs = pair
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


def test_a_socket_knows_when_the_other_side_has_closed_it(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
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


@pytest.mark.parametrize("receiving", [True, False])
def test_signals_do_not_stretch_the_time(
    pair: tuple[socket.socket, socket.socket],
    on_alarm: Callable[[Callable[[], object]], None],
    receiving: bool,
) -> None:
    """Each starts the kernel's own timeout anew."""
    ours, _ = pair
    limit(ours, socket.SO_RCVTIMEO, 0.1)
    limit(ours, socket.SO_SNDTIMEO, 0.1)
    trips = Exchange(ours.fileno(), bytearray(16), 0.3)
    on_alarm(lambda: None)
    begun = time.monotonic()
    with pytest.raises(BlockingIOError):
        if receiving:
            trips.receive(0.3)
        else:
            trips.call(b"x")
    assert 0.28 < time.monotonic() - begun < 5


def test_signals_do_not_stretch_the_time_for_sending(
    pair: tuple[socket.socket, socket.socket], on_alarm: Callable[[Callable[[], object]], None]
) -> None:
    ours, _ = pair
    fill(ours)
    limit(ours, socket.SO_SNDTIMEO, 0.1)
    on_alarm(lambda: None)
    begun = time.monotonic()
    with pytest.raises(Unsent):
        Exchange(ours.fileno(), bytearray(16), 1).send(b"x", 0.3)
    assert 0.28 < time.monotonic() - begun < 5


@pytest.mark.parametrize("full", [False, True])
def test_a_signal_whose_handler_raises(
    pair: tuple[socket.socket, socket.socket], on_alarm: Callable[[Callable[[], object]], None], full: bool
) -> None:
    ours, _ = pair
    if full:
        fill(ours)

    def strike() -> None:
        # Once: a second one would strike outside of this test.
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_alarm(strike)
        exchange(ours, b"x", bytearray(16))


def test_a_signal_whose_handler_returns(
    pair: tuple[socket.socket, socket.socket], on_alarm: Callable[[Callable[[], object]], None]
) -> None:
    """What was sent isn't sent again."""
    ours, theirs = pair
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
