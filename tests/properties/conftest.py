"""Settings of all property tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def leases_run(all_timed: None) -> None:
    """They use the logic without a client, with leases on a real server."""
