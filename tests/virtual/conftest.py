"""The fixture of tests that run in a world in virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .install import install
from .world import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The world in which the clients of this test live."""
    made = World()
    install(monkeypatch, made.clock)
    yield made
    made.server.stop()
