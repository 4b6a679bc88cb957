"""Fixtures of the tests of the inspection: each server program."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from pyredisson.testing import Server
from tests.support.backends import Asyncio, Threads
from tests.support.children import PROGRAMS, embedded

PROGRAM_OF: dict[str, Any] = {"embedded": embedded, **{str(each.id): each.values[0] for each in PROGRAMS}}
"""The server programs, by the names of the tests' parameters."""
OTHERS = [(program, (Threads, Asyncio)[at % 2]) for at, program in enumerate(PROGRAM_OF) if program != "redis"]
on_every_server = pytest.mark.parametrize(
    ("server", "backend"),
    [("redis", Threads), ("redis", Asyncio), *OTHERS],
    indirect=True,
    ids=lambda each: str(getattr(each, "name", each)),
)
"""For what the version of the server may change. The backends differ in the same way on each: one of them will do."""


@pytest.fixture(scope="session")
def every_server() -> Iterator[Callable[[str], Server]]:
    """The running server of a program, or skips the test. Not to be stopped or paused."""
    with ExitStack() as running:
        yield cache(lambda program: running.enter_context(Server(executable=PROGRAM_OF[program]())))


@pytest.fixture
def server(request: pytest.FixtureRequest, every_server: Callable[[str], Server]) -> Server:
    """Instead of the usual `server`: that of the test's program; empty at the start of each test, too."""
    return every_server(getattr(request, "param", "redis"))
