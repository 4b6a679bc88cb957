"""Metrics and spans are tested with the real libraries."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from pyredisson.observe import PrometheusObserver


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> PrometheusObserver:
    return PrometheusObserver(registry)
