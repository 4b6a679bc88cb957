"""Garbage collection that finds only what the test itself has created."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def collector() -> Iterator[Callable[[], object]]:
    """`gc.collect`, with all that was there before the test set aside."""
    gc.freeze()
    try:
        yield gc.collect
    finally:
        gc.unfreeze()
