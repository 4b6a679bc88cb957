"""Fixtures of the fault tests: both worlds, child processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from .support import Child, World


@pytest_asyncio.fixture(params=["threads", "asyncio"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """The test runs once in each world."""
    each = World(request.param)
    yield each
    await each.close()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts child processes, and ends them with the test."""
    children: list[Child] = []

    def start(program: str, *args: object) -> Child:
        children.append(Child(program, *args))
        return children[-1]

    yield start
    for each in children:
        each.close()
