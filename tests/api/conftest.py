"""Fixtures of the API tests: the backends, the state of the server, and shorter waits."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from redis import Redis

from pyredisson.logic.groups import multi_lock
from pyredisson.logic.locks import fair_queue
from pyredisson.testing import Server
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.server_state import ServerState

from .fair_queue import Queue


@pytest_asyncio.fixture(params=[Threads, Asyncio], ids=lambda kind: str(kind.name))
async def backend(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Backend]:
    """The test runs on each of the two backends."""
    made: Backend = request.param(server.url)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def threads(server: Server) -> AsyncIterator[Backend]:
    """The test runs on the threads backend only."""
    made = Threads(server.url)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def tasks(server: Server) -> AsyncIterator[Backend]:
    """The test runs on the asyncio backend only."""
    made = Asyncio(server.url)
    yield made
    await made.close()


@pytest.fixture
def server_state(admin: Redis) -> ServerState:
    """What the server knows, read with plain commands."""
    return ServerState(admin)


@pytest.fixture
def frequent_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients send the heartbeat of their waiters so often that a test need not wait for it."""
    monkeypatch.setattr(fair_queue, "HEARTBEAT_INTERVAL", 0.05)


@pytest.fixture
def queue(admin: Redis) -> Queue:
    """The queue of the fair lock "orders"."""
    return Queue(admin)


@pytest.fixture
def short_member_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A multi-lock waits only briefly for a member before it releases the members that it has acquired."""
    monkeypatch.setattr(multi_lock, "MEMBER_WAIT", 0.02)
