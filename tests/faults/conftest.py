"""Fixtures of the fault tests: both backends, child processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from pyredisson.testing import Server
from tests.support.children import Child
from tests.support.faults import SCRIPTS
from tests.support.raw_backends import RawBackend

if TYPE_CHECKING:
    from tests.support.timing import Timed


@pytest.fixture(autouse=True)
def known_scripts(server: Server) -> None:
    """A fault strikes the request that runs the script, and not one that is answered with NOSCRIPT."""
    with server.redis() as client:
        for each in SCRIPTS.values():
            client.script_load(each.text)


@pytest_asyncio.fixture(params=["threads", "asyncio"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[RawBackend]:
    """The test runs once in each backend."""
    each = RawBackend(request.param)
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
