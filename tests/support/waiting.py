"""Waiting for what must happen, with a limit after which the test fails."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

TIME_LIMIT = 10.0
"""Seconds after which a test fails that waits for something. Usually it happens at once."""


def eventually(condition: Callable[[], object], seconds: float = TIME_LIMIT) -> None:
    """Returns once the condition holds; fails the test after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {inspect.getsource(condition).strip()}"
        time.sleep(0.005)


async def cancel_after(turns: int, task: asyncio.Task[object]) -> bool:
    """Cancels the task after so many iterations of the event loop; returns whether that ended it."""
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    return isinstance(outcome, asyncio.CancelledError)


def waiters(client: Any, name: str) -> int:
    """How many calls of a client wait for a lock, and will hear of its release."""
    session = getattr(client, "_target", client)._session
    queue = session.lock_queues.get(name.encode())
    return len(queue.waiters) if queue is not None and queue.channel is not None and queue.channel.confirmed else 0
