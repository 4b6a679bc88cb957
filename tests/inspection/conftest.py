"""Fixtures of the tests of the inspection: each server program, and clients of both backends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import NamedTuple, cast

import pytest
import pytest_asyncio

from pyredisson.testing import Server
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.programs import PROGRAMS, embedded

PROGRAM_OF: dict[str, Callable[[], str]] = {
    "embedded": embedded,
    **{str(each.id): cast(Callable[[], str], each.values[0]) for each in PROGRAMS},
}
"""The server programs, by the names of the tests' parameters."""


class Place(NamedTuple):
    """Where a test runs: on a server of that program, with clients of that backend."""

    program: str
    backend: type[Backend]

    def __str__(self) -> str:
        return f"{self.program}-{self.backend.name}"


OTHERS = [Place(program, (Threads, Asyncio)[at % 2]) for at, program in enumerate(PROGRAM_OF) if program != "redis"]
on_every_server = pytest.mark.parametrize(
    "place", [Place("redis", Threads), Place("redis", Asyncio), *OTHERS], indirect=True, ids=str
)
"""For what the version of the server may change. The backends differ in the same way on each: one of them will do."""


@pytest.fixture(scope="session")
def every_server() -> Iterator[Callable[[str], Server]]:
    """The running server of a program, or skips the test. Not to be stopped or paused."""
    with ExitStack() as running:
        yield cache(lambda program: running.enter_context(Server(executable=PROGRAM_OF[program]())))


@pytest.fixture(params=[Place("redis", Threads), Place("redis", Asyncio)], ids=str)
def place(request: pytest.FixtureRequest) -> Place:
    """The usual server with each of the backends. A test with `@on_every_server` also runs on the other programs."""
    chosen: Place = request.param
    return chosen


@pytest.fixture
def server(place: Place, every_server: Callable[[str], Server]) -> Server:
    """Instead of the usual `server`: that of the place; empty at the start of each test, too."""
    return every_server(place.program)


@pytest_asyncio.fixture
async def backend(place: Place, server: Server) -> AsyncIterator[Backend]:
    made = place.backend(server.url)
    yield made
    await made.close()
