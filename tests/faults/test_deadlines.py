"""The deadlines of a reply and of a connection hold, whatever arrives meanwhile: signals, bytes, or nothing."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError, TimeoutError

import pyredisson
from pyredisson.testing import Server
from tests.support.raw_backends import RawBackend

from .stub import Stub, shake

LATE = 1.5
"""Seconds that a deadline of less than a second may be late, on a busy machine."""
DRIP = 0.05


@pytest.fixture
def signals() -> Iterator[None]:
    """A signal every 20 ms, whose handler does nothing."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """What runs in there takes no longer, and not less than half of it."""
    begun = time.monotonic()
    yield
    assert seconds / 2 < time.monotonic() - begun < seconds + LATE


@pytest.mark.usefixtures("signals")
def test_signals_do_not_stretch_the_deadline_of_a_reply(own_server: Server) -> None:
    with pyredisson.connect(own_server.url, timeout=0.5, connect_timeout=0.5, retry_attempts=0) as client:
        lock = client.get_lock("a")
        lock.is_locked()
        own_server.pause()
        try:
            # The command, and one look at what became of it.
            with bounded(1), pytest.raises((TimeoutError, ConnectionError)):
                lock.is_locked()
        finally:
            own_server.resume()


@pytest.mark.usefixtures("signals")
def test_signals_do_not_stretch_the_rest_of_a_reply() -> None:
    def answer(words: list[bytes]) -> bytes:
        return b"$100\r\nthat is all" if words[0] == b"GET" else shake(words)

    with (
        Stub(answer) as stub,
        pyredisson.connect(stub.url, timeout=0.5, connect_timeout=0.5, retry_attempts=0) as client,
    ):
        semaphore = client.get_semaphore("s")
        with bounded(1), pytest.raises((TimeoutError, ConnectionError)):
            semaphore.available_permits()


@pytest.mark.asyncio
async def test_a_handshake_that_drips_in_is_bounded_as_a_whole(backend: RawBackend) -> None:
    with Stub(shake, drip=DRIP) as stub:
        lock = backend.connect(stub.url, timeout=2, connect_timeout=0.5, retry_attempts=0).get_lock("a")
        with bounded(0.5), pytest.raises((TimeoutError, ConnectionError)):
            await backend.do(lock.is_locked())


@pytest.mark.asyncio
async def test_a_handshake_has_no_more_time_than_a_reply(backend: RawBackend) -> None:
    with Stub(shake, drip=DRIP) as stub:
        lock = backend.connect(stub.url, timeout=0.5, connect_timeout=5, retry_attempts=0).get_lock("a")
        with bounded(0.5), pytest.raises((TimeoutError, ConnectionError)):
            await backend.do(lock.is_locked())


class Silent:
    """An address that neither accepts nor refuses connections."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._waiting = [socket.socket() for _ in range(4)]
        for connection in self._waiting:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(self.address)

    def close(self) -> None:
        for connection in (*self._waiting, self._listener):
            connection.close()


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """The address of one."""
    made = Silent()
    yield made.address
    made.close()


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the name `several.test` stand for so many addresses."""
    real = socket.getaddrinfo

    def to(*addresses: tuple[str, int]) -> None:
        def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
            if host != "several.test":
                return real(host, *args, **kwargs)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return to


@pytest.mark.asyncio
async def test_a_silent_address(backend: RawBackend, silent: tuple[str, int]) -> None:
    host, port = silent
    lock = backend.connect(f"redis://{host}:{port}", connect_timeout=0.6, retry_attempts=0).get_lock("a")
    with bounded(0.6), pytest.raises((TimeoutError, ConnectionError)):
        await backend.do(lock.is_locked())


def test_several_silent_addresses_share_the_time(silent: tuple[str, int], resolve: Callable[..., None]) -> None:
    resolve(silent, silent, silent, silent)
    with pyredisson.connect("redis://several.test", connect_timeout=0.8, retry_attempts=0) as client:
        lock = client.get_lock("a")
        with bounded(0.8), pytest.raises((TimeoutError, ConnectionError)):
            lock.is_locked()


def test_a_silent_address_leaves_time_for_the_next(
    server: Server, silent: tuple[str, int], resolve: Callable[..., None]
) -> None:
    resolve(silent, (server.host, server.port))
    with pyredisson.connect("redis://several.test", connect_timeout=2, retry_attempts=0) as client:
        assert not client.get_lock("a").is_locked()
