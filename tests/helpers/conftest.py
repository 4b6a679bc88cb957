"""Fixtures of the tests of helpers: a client of each backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

import pyredisson
import pyredisson.asyncio
from pyredisson.testing import Server


@pytest.fixture
def client(server: Server) -> Iterator[pyredisson.Client]:
    """A client for threads."""
    with pyredisson.connect(server.url) as made:
        yield made


@pytest_asyncio.fixture
async def aclient(server: Server) -> AsyncIterator[pyredisson.asyncio.Client]:
    """A client for asyncio."""
    async with pyredisson.asyncio.connect(server.url) as made:
        yield made


@pytest.fixture
def server_url(server: Server) -> str:
    """Where the server is."""
    return server.url
