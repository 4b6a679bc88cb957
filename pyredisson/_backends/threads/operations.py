"""Running an operation of the logic to its end on a thread: the caller's own, or a new one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from pyredisson._backends.thread_start import start_thread
from pyredisson._core import Run

P = ParamSpec("P")
T = TypeVar("T")


def run(operation: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs an operation of the logic on the calling thread. It blocks where asyncio would suspend it."""
    return Run(operation, *args, **kwargs).result


def start(operation: Callable[[], Coroutine[Any, Any, None]], name: str) -> threading.Thread:
    """Runs an operation on a new daemon thread."""
    thread = threading.Thread(target=run, args=(operation,), name=name, daemon=True)
    start_thread(thread)
    return thread
