"""Fixtures of the fault tests: both worlds, child processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from pyredisson.testing import Server

from .support import SCRIPTS, Child, World

if TYPE_CHECKING:
    from tests.conftest import Timed


@pytest.fixture(autouse=True)
def known_scripts(server: Server) -> None:
    """A fault strikes the request that runs the script, and not one that is answered with NOSCRIPT."""
    with server.redis() as client:
        for each in SCRIPTS.values():
            client.script_load(each.text)


@pytest_asyncio.fixture(params=["threads", "asyncio"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """The test runs once in each world."""
    each = World(request.param)
    yield each
    await each.close()


@pytest.fixture
def child(timed: Timed) -> Iterator[Callable[..., Child]]:
    """Starts child processes, and ends them with the test."""
    children: list[Child] = []

    def start(program: str, *args: object) -> Child:
        timed.begin()
        children.append(Child(program, *args))
        return children[-1]

    yield start
    for each in children:
        each.close()
