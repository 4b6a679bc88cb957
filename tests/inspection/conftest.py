"""Fixtures of the tests of the inspection: each server program, and clients of both backends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from redis import Redis

from pyredisson.testing import Server
from tests.support.backends import Asyncio, Backend, Threads

from .servers import Place, Servers


@pytest.fixture(scope="session")
def every_server() -> Iterator[Servers]:
    running = Servers()
    yield running
    running.stop()


@pytest.fixture(params=[Place("redis", Threads), Place("redis", Asyncio)], ids=str)
def place(request: pytest.FixtureRequest) -> Place:
    """The usual server with each of the backends. A test with `@on_every_server` also runs on the other programs."""
    chosen: Place = request.param
    return chosen


@pytest.fixture
def server(place: Place, every_server: Servers) -> Server:
    """Instead of the usual `server`: that of the place; empty at the start of each test, too."""
    return every_server.get(place.program)


@pytest_asyncio.fixture
async def backend(place: Place, server: Server) -> AsyncIterator[Backend]:
    made = place.backend(server.url)
    yield made
    await made.close()


@pytest.fixture
def redis(admin: Redis) -> Any:
    """A plain client of the server, without types."""
    return admin
