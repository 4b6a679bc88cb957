"""Garbage collection that finds only what the test itself has created, and signals."""

import gc
import signal
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def collector() -> Callable[[], object]:
    """`gc.collect`, with all that was there before the test set aside, for good as what was there before all tests."""
    gc.freeze()
    return gc.collect


@pytest.fixture
def on_alarm() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Has a function called by a signal's handler, every 20 ms."""

    def call(function: Callable[[], object]) -> None:
        signal.signal(signal.SIGALRM, lambda *_: function())
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)

    before = signal.getsignal(signal.SIGALRM)
    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
