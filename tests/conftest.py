"""What every test may ask for: servers, a proxy that breaks connections; and the checks around each test."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from redis import Redis

from pyredisson.scripts import NAMES, script
from pyredisson.testing import Proxy, Server, ServerError


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests of this process, empty at the start of each. Not to be stopped or paused."""
    with Server() as running:
        yield running


@pytest.fixture(scope="session")
def tls_server() -> Iterator[Server]:
    """One server with TLS beside `server`, for all tests of this process; not flushed."""
    running = Server(tls=True)
    try:
        running.start()
    except ServerError as error:
        if "built without TLS" not in str(error):
            raise
        pytest.skip(f"{running.executable} was built without TLS")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def two_more() -> Iterator[list[Server]]:
    """Two servers beside `server`, for all tests of this process."""
    with Server() as one, Server() as other:
        yield [one, other]


@pytest.fixture
def servers(server: Server, two_more: list[Server]) -> list[Server]:
    """Three independent servers, empty at the start of each test. Not to be stopped or paused."""
    for each in two_more:
        _empty(each)
    return [server, *two_more]


@pytest.fixture
def redises(servers: list[Server]) -> Iterator[list[Redis]]:
    """Plain clients of `servers`."""
    plain = [each.redis() for each in servers]
    yield plain
    for each in plain:
        each.close()


@pytest.fixture
def proxies(servers: list[Server]) -> Iterator[list[Proxy]]:
    """Proxies of this test's own before `servers`."""
    running = [Proxy(each.host, each.port).start() for each in servers]
    yield running
    for each in running:
        each.close()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server of this test's own, to pause, kill and restart."""
    with Server() as running:
        yield running


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy of this test's own before `server`."""
    with Proxy(server.host, server.port) as running:
        yield running


@pytest.fixture
def admin(server: Server) -> Iterator[Redis]:
    """A plain client of `server`, for looking behind the curtain."""
    with server.redis() as client:
        yield client


@pytest.fixture
def no_scripts(admin: Redis) -> None:
    """The server knows no script yet, as after a restart."""
    admin.script_flush()


@pytest.fixture(autouse=True)
def empty_server(request: pytest.FixtureRequest) -> None:
    """No key, and the scripts that a server at work knows: who counts commands must not depend on who came first."""
    if "server" in request.fixturenames:
        _empty(request.getfixturevalue("server"))


def _empty(server: Server) -> None:
    with server.redis() as client:
        client.flushall()
        for name in NAMES:
            client.script_load(script(name, flags=server.version >= (7,)).text)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """A forgotten non-daemon thread would keep a user's process from ever ending."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    for thread in left:
        thread.join(2.0)
    names = [thread.name for thread in left if thread.is_alive()]
    assert not names, f"threads left behind: {names}"
