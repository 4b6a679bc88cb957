"""Kinds of locks, and ways to enter a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

KINDS: dict[str, Callable[[Any], Any]] = {
    "lock": lambda client: client.get_lock("orders"),
    "fair": lambda client: client.get_fair_lock("orders"),
    "read": lambda client: client.get_read_write_lock("orders").read_lock(),
    "write": lambda client: client.get_read_write_lock("orders").write_lock(),
    "fenced": lambda client: client.get_fenced_lock("orders"),
    "spin": lambda client: client.get_spin_lock("orders"),
    "non-reentrant": lambda client: client.get_non_reentrant_lock("orders"),
    "multi": lambda client: client.get_multi_lock(client.get_lock("orders"), client.get_lock("stock")),
    "red": lambda client: client.get_red_lock(client.get_lock("orders")),
    "partly explicit": lambda client: client.get_multi_lock(
        client.get_lock("orders", owner=1), client.get_lock("stock")
    ),
}
HELD = ("orders", "stock")
kinds = pytest.mark.parametrize("kind", KINDS)
entered_by = pytest.mark.parametrize(
    "enter", [lambda lock: lock, lambda lock: lock.hold(wait_time=5)], ids=["with", "hold"]
)
