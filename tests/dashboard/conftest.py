"""Fixtures of the tests of the dashboard."""

from collections.abc import Callable, Iterator

import pytest

from pyredisson.testing import Server
from tests.dashboard.running import Dashboard

Start = Callable[..., Dashboard]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a dashboard of the test's own: `start(server.url, "--allow-unlock")`."""
    running: list[Dashboard] = []

    def start(*arguments: str, port: int = 0) -> Dashboard:
        running.append(Dashboard(*arguments, port=port))
        return running[-1]

    yield start
    for each in running:
        each.stop()


@pytest.fixture(scope="module")
def shared_dashboard(server: Server) -> Iterator[Dashboard]:
    """One dashboard for the tests of a module, which may release holds. Not to be stopped."""
    running = Dashboard(server.url, "--allow-unlock")
    yield running
    running.stop()


@pytest.fixture
def dashboard(shared_dashboard: Dashboard, empty_server: None) -> Dashboard:
    """The dashboard of an empty server: what earlier tests have held is gone from it."""
    shared_dashboard.until(lambda: not any(shared_dashboard.rows(view) for view in ("locks", "semaphores", "latches")))
    return shared_dashboard
