"""Fixtures of the fault tests: both backends, child processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from pyredisson.testing import Server
from tests.support.faults import SCRIPTS
from tests.support.raw_backends import RawBackend


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
