"""Metrics and spans are tested with the real libraries."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pyredisson.events import Event
from pyredisson.observe import PrometheusObserver


def tell(observer: Any, *events: str, **fields: Any) -> None:
    """Tells an observer of events of the lock `order:1` as a client does. tests/api/test_events.py says which come."""
    usual: dict[str, Any] = {"client_id": "mine", "time_ns": 1, "name": "order:1", "kind": "lock"}
    for what in events:
        getattr(observer, what)(Event(what=what, **usual | fields))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> PrometheusObserver:
    return PrometheusObserver(registry)
