"""Ready-made observers: metrics for Prometheus, and spans for OpenTelemetry. Each needs an extra of the package."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pyredisson._diagnostics import naming_extra

if TYPE_CHECKING:
    from pyredisson.observe.opentelemetry import OpenTelemetryObserver
    from pyredisson.observe.prometheus import PrometheusObserver

__all__ = ["OpenTelemetryObserver", "PrometheusObserver"]

_EXTRAS = {"OpenTelemetryObserver": "opentelemetry", "PrometheusObserver": "prometheus"}
"""The extra of each class, which is also the name of its module."""


def __getattr__(name: str) -> Any:
    """Imports a class and its library when it is asked for."""
    extra = _EXTRAS.get(name)
    if extra is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with naming_extra(name, extra):
        return getattr(importlib.import_module(f"{__name__}.{extra}"), name)
