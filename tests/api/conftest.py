"""The worlds in which a test of the contract runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from redis import Redis

from pyredisson.testing import Server

from .worlds import Asyncio, Behind, Threads, World


@pytest_asyncio.fixture(params=[Threads, Asyncio], ids=lambda kind: str(kind.name))
async def world(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[World]:
    """First one world, then the other."""
    made: World = request.param(server.url)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def threads(server: Server) -> AsyncIterator[World]:
    """The thread world only."""
    made = Threads(server.url)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def tasks(server: Server) -> AsyncIterator[World]:
    """The asyncio world only."""
    made = Asyncio(server.url)
    yield made
    await made.close()


@pytest.fixture
def behind(admin: Redis) -> Behind:
    """A look behind the curtain."""
    return Behind(admin)
