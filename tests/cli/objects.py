"""Objects on a server, for what shows them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyredisson
from pyredisson.cli.words import moment
from tests.support.commands import Ended
from tests.support.inspecting import FOREIGN, announce

Run = Callable[..., Ended]
"""`cli(...)` of a test."""
JAVA = f"{uuid.UUID(int=5)}"
SINCE = 1_795_167_377_900
"""When the hold of `announced` began, ms."""


@contextmanager
def announced(url: str, redis: Any, name: str, kind: str = "lock") -> Iterator[Any]:
    """A lock that is held by a client which has announced it: on web-3, process 812."""
    with pyredisson.connect(url, announce=False) as client:
        lock = client.get_fair_lock(name) if kind == "fair" else client.get_lock(name)
        lock.lock()
        [field] = redis.hkeys(name)
        announce(redis, client.id, {f"{field.decode().partition(':')[2]} {name}": kind})
        yield lock


def moment_of_announced() -> str:
    """How a table shows when that hold began."""
    return moment(datetime.fromtimestamp(SINCE / 1000, UTC))


def add_foreign_keys(redis: Any) -> None:
    """Keys of other programs, which no command may show."""
    for each in FOREIGN.values():
        redis.execute_command(*each)
