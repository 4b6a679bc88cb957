"""Servers that reply otherwise: with other versions, which are refused at once, or with replies that never end."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError, TimeoutError

import pyredisson
from pyredisson.errors import ConfigError
from pyredisson.testing import Server
from tests.support.raw_backends import RawBackend

from .stub import Stub, bulk, hello, shake


def five(words: list[bytes]) -> bytes:
    """Redis 5 knows neither HELLO nor CLIENT INFO."""
    if words[0].upper() == b"INFO":
        return bulk("# Server\r\nredis_version:5.0.14\r\nredis_mode:standalone\r\n")
    return b"-ERR unknown command `%b`\r\n" % words[0]


def six(words: list[bytes]) -> bytes:
    return shake(words, "6.0.16")


def sentinel(words: list[bytes]) -> bytes:
    return hello("7.0.15", "sentinel") if words[0].upper() == b"HELLO" else shake(words)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (five, r"version 5\.0\.14; Redis 6\.2"),
        (six, r"version 6\.0\.16; Redis 6\.2"),
        (sentinel, r"redis\+sentinel://"),
    ],
)
async def test_a_server_that_cannot_be_served(
    backend: RawBackend, answer: Callable[[list[bytes]], bytes], text: str
) -> None:
    before = set(threading.enumerate())
    with Stub(answer) as stub:
        client = backend.connect(stub.url)
        for call in (client.get_lock("a").lock, client.get_semaphore("s").acquire, client.get_lock("a").is_locked):
            with pytest.raises(ConfigError, match=text):
                await backend.do(call())
        # Once for each call; nothing continues in the background.
        assert stub.connections == 3
        assert "pyredisson-renew" not in {thread.name for thread in threading.enumerate() if thread not in before}


@pytest.mark.asyncio
async def test_a_node_of_a_cluster(backend: RawBackend) -> None:
    with Server(config={"cluster-enabled": "yes"}) as server:
        lock = backend.connect(server.url).get_lock("a")
        with pytest.raises(ConfigError, match=rf"{server.port} is a node of a cluster.*redis\+cluster://"):
            await backend.do(lock.lock())


@pytest.mark.asyncio
async def test_a_server_without_hello(backend: RawBackend) -> None:
    """HELLO is renamed, as some providers do: INFO returns the version, too."""
    with Server(config={"rename-command": "HELLO ''"}) as server:
        lock = backend.connect(server.url).get_lock("a")
        await backend.do(lock.lock())
        await backend.do(lock.unlock())


@pytest.mark.asyncio
async def test_a_server_without_an_identity(backend: RawBackend) -> None:
    """Neither HELLO nor INFO is allowed: it is taken for one that can be served."""
    with Server(users=("app on >secret ~* &* +@all -info -hello",)) as server:
        lock = backend.connect(server.url, username="app", password="secret").get_lock("a")
        await backend.do(lock.lock())
        await backend.do(lock.unlock())


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["redis://h1:7000,h2:7001", "redis://u:p@h1:7000,h2", "rediss://h1,h2:1/0"])
async def test_several_hosts_in_a_plain_url(url: str) -> None:
    with pytest.raises(ConfigError, match=r"one host.*redis\+cluster://.*redis\+sentinel://") as raised:
        pyredisson.connect(url)
    assert "p@" not in str(raised.value)


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
def fails_in(seconds: float) -> Iterator[None]:
    """What runs in there fails, takes no longer, and not less than half of it."""
    begun = time.monotonic()
    with pytest.raises((TimeoutError, ConnectionError)):
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
            with fails_in(1):
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
        with fails_in(1):
            semaphore.available_permits()


@pytest.mark.asyncio
@pytest.mark.parametrize(("timeout", "connect_timeout"), [(2, 0.5), (0.5, 5)])
async def test_a_handshake_that_drips_in_is_bounded_as_a_whole(
    backend: RawBackend, timeout: float, connect_timeout: float
) -> None:
    """It has no more time than a reply, either."""
    with Stub(shake, drip=DRIP) as stub:
        fields = {"timeout": timeout, "connect_timeout": connect_timeout, "retry_attempts": 0}
        lock = backend.connect(stub.url, **fields).get_lock("a")
        with fails_in(0.5):
            await backend.do(lock.is_locked())


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address that neither accepts nor refuses connections."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield listener.getsockname()


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
    with fails_in(0.6):
        await backend.do(lock.is_locked())


def test_several_silent_addresses_share_the_time(silent: tuple[str, int], resolve: Callable[..., None]) -> None:
    resolve(silent, silent, silent, silent)
    with pyredisson.connect("redis://several.test", connect_timeout=0.8, retry_attempts=0) as client:
        lock = client.get_lock("a")
        with fails_in(0.8):
            lock.is_locked()


def test_a_silent_address_leaves_time_for_the_next(
    server: Server, silent: tuple[str, int], resolve: Callable[..., None]
) -> None:
    resolve(silent, (server.host, server.port))
    with pyredisson.connect("redis://several.test", connect_timeout=2, retry_attempts=0) as client:
        assert not client.get_lock("a").is_locked()
