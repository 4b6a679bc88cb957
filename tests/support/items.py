"""Which tests await, and which depend on real time."""

import inspect
import re

import pytest

REAL = {"proxy", "proxies", "own_server", "child", "tls_server", "servers", "redises"}
"""Fixtures with processes and sockets of their own, beside the server of all tests."""
TIMES = re.compile(
    r"\d\.\d|\d_000|sleep\(|monotonic|watchdog_timeout|timedelta|ttl\(|time_to_live|TIME_LIMIT|WORK_LIMIT|WOKEN|within\(|BY_TIME"
)
"""What a test's text contains that depends on real time: fractions of seconds, milliseconds, pauses, clocks, bounds."""


def awaits(item: pytest.Item) -> bool:
    """Whether the test runs on the asyncio backend."""
    fixtures: list[str] = getattr(item, "fixturenames", [])
    awaited = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj)
    return awaited and "threads" not in fixtures and "threads" not in re.split(r"[\[\]-]", item.name)


def depends_on_time(item: pytest.Item) -> bool:
    """Whether the test names a time, or runs processes and networks of its own."""
    fixtures: list[str] = getattr(item, "fixturenames", [])
    if not REAL.isdisjoint(fixtures) or not isinstance(item, pytest.Function):
        return True
    return TIMES.search(inspect.getsource(item.function)) is not None
