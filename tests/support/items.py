"""Which tests await."""

from __future__ import annotations

import inspect

import pytest


def awaits(item: pytest.Item) -> bool:
    """Whether the test runs on the asyncio backend."""
    fixtures: list[str] = getattr(item, "fixturenames", [])
    awaited = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj)
    return awaited and "threads" not in fixtures and "[threads" not in item.name
