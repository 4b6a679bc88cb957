"""Fixtures of the tests of the inspection: each server program, and clients of both backends."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import cast

import pytest

from pyredisson.testing import Server
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.programs import PROGRAMS, embedded

PROGRAM_OF: dict[str, Callable[[], str]] = {
    "embedded": embedded,
    **{str(each.id): cast(Callable[[], str], each.values[0]) for each in PROGRAMS},
}
"""The server programs, by the names of the tests' parameters."""


Place = tuple[str, type[Backend]]
"""Where a test runs: on a server of that program, with clients of that backend."""
USUAL: list[Place] = [("redis", Threads), ("redis", Asyncio)]
OTHERS = [(program, (Threads, Asyncio)[at % 2]) for at, program in enumerate(PROGRAM_OF) if program != "redis"]


def name_of(place: Place) -> str:
    return f"{place[0]}-{place[1].name}"


on_every_server = pytest.mark.parametrize("place", [*USUAL, *OTHERS], indirect=True, ids=name_of)
"""For what the version of the server may change. The backends differ in the same way on each: one of them will do."""


@pytest.fixture(scope="session")
def every_server() -> Iterator[Callable[[str], Server]]:
    """The running server of a program, or skips the test. Not to be stopped or paused."""
    with ExitStack() as running:
        yield cache(lambda program: running.enter_context(Server(executable=PROGRAM_OF[program]())))


@pytest.fixture(params=USUAL, ids=name_of)
def place(request: pytest.FixtureRequest) -> Place:
    """The usual server with each of the backends. A test with `@on_every_server` also runs on the other programs."""
    return cast(Place, request.param)


@pytest.fixture
def server(place: Place, every_server: Callable[[str], Server]) -> Server:
    """Instead of the usual `server`: that of the place; empty at the start of each test, too."""
    return every_server(place[0])


@pytest.fixture
async def backend(place: Place, server: Server) -> AsyncIterator[Backend]:
    made = place[1](server.url)
    yield made
    await made.close()
