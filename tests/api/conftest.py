"""Fixtures of the API tests."""

from typing import Any

import pytest
from redis import Redis

from tests.support.backends import Backend, ServerState

from .kinds import PERMITS, Orders, Stock, lock_of


@pytest.fixture
def state(admin: Redis) -> ServerState:
    """What the server knows, read with plain commands."""
    return ServerState(admin)


@pytest.fixture
def client(backend: Backend) -> Any:
    return backend.connect()


@pytest.fixture
def other(backend: Backend) -> Any:
    return backend.connect()


@pytest.fixture
def lock(request: pytest.FixtureRequest, client: Any) -> Any:
    """The lock "orders" of that client: of the kind that is a parameter of the test, otherwise a plain one."""
    return lock_of(client, request.getfixturevalue("kind") if "kind" in request.fixturenames else "lock")


@pytest.fixture
def orders(backend: Backend, state: ServerState) -> Orders:
    """The read-write lock "orders"."""
    return Orders(backend, state)


@pytest.fixture(params=PERMITS)
def stock(request: pytest.FixtureRequest, backend: Backend, state: ServerState) -> Stock:
    """The semaphore "stock", of each kind."""
    return Stock(backend, state, request.param)
