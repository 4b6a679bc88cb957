"""Ending something in the event loop that it belongs to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Has that event loop call a function, unless the loop is closed. It can be called on any thread."""
    if not loop.is_closed():
        # The loop's own thread may close it meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(function)


def end_in(
    loop: asyncio.AbstractEventLoop, end: Callable[[], object], done: asyncio.Future[Any]
) -> list[asyncio.Future[Any]]:
    """Calls `end` in `loop`, unless that is closed. Returns `done` to wait for, if `loop` is the running loop."""
    if loop.is_closed():
        return []
    if loop is not asyncio.get_running_loop():
        loop.call_soon_threadsafe(end)
        return []
    end()
    return [done]
