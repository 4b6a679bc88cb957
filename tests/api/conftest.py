"""The backends in which a test of the contract runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from redis import Redis

from pyredisson.testing import Server
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.server_state import ServerState


@pytest_asyncio.fixture(params=[Threads, Asyncio], ids=lambda kind: str(kind.name))
async def backend(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Backend]:
    """First one backend, then the other."""
    made: Backend = request.param(server.url)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def threads(server: Server) -> AsyncIterator[Backend]:
    """The thread backend only."""
    made = Threads(server.url)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def tasks(server: Server) -> AsyncIterator[Backend]:
    """The asyncio backend only."""
    made = Asyncio(server.url)
    yield made
    await made.close()


@pytest.fixture
def server_state(admin: Redis) -> ServerState:
    """A look behind the curtain."""
    return ServerState(admin)
