"""Fixtures of the fault tests: the backends, with nothing between the client and the test."""

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis import Redis

from pyredisson.testing import Proxy, Server
from tests.support.backends import RawBackend
from tests.support.garbage import only_collections_asked_for

from .kinds import NoThread


def on(*names: str) -> Any:
    """A fixture: the test runs on each of these backends."""

    @pytest.fixture(params=names)
    async def backend(request: pytest.FixtureRequest) -> AsyncIterator[RawBackend]:
        async with RawBackend(request.param) as each:
            yield each

    return backend


backend, threads, tasks = on("threads", "asyncio"), on("threads"), on("asyncio")


@pytest.fixture
def root(own_server: Server) -> Iterator[Redis]:
    """A plain client of this test's own server."""
    with own_server.redis() as client:
        yield client


@pytest.fixture
def only_new_garbage() -> Iterator[None]:
    """A collection of all that this process has may take seconds, in which no thread renews a lease."""
    with only_collections_asked_for():
        yield


@pytest.fixture
def silent(proxy: Proxy) -> str:
    """The URL of a server that takes connections and says nothing."""
    proxy.stall()
    return proxy.url


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> NoThread:
    """The next thread of that name doesn't start, or none, as when the system's limit is reached."""
    start = threading.Thread.start

    def fail(name: str, once: bool = True) -> threading.Event:
        happened = threading.Event()

        def start_or_not(thread: threading.Thread) -> None:
            if thread.name == name and not (once and happened.is_set()):
                happened.set()
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_or_not)
        return happened

    return fail
