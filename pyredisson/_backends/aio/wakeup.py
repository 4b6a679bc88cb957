"""How one task wakes another."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from pyredisson._backends.aio.sleeps import NEVER, Sleep, Sleeps
from pyredisson._core import TaskFuture


class AioWakeup(Sleep):
    """A flag that one task waits for. It is set on the event loop's thread only."""

    __slots__ = ("_future", "_set", "_sleeps")

    def __init__(self, sleeps: Sleeps | None = None) -> None:
        """`sleeps`: those of the running event loop, which many waits share. None: this wait has a timer of its own."""
        self.ends_at = NEVER
        self._set = False
        self._future: TaskFuture | None = None
        self._sleeps = sleeps

    @property
    def alive(self) -> bool:
        # Also if its task doesn't sleep here: in a loop that is closed it goes on nowhere.
        return self._sleeps is None or not self._sleeps.loop.is_closed()

    def set(self) -> None:
        self._set = True
        if self._future is not None:
            self.on_end()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    async def wait(self, seconds: float | None) -> bool:
        """Waits until the wakeup is set, or the time is over; returns whether it is set. It stays set."""
        if self._set:
            return True
        sleeps = self._sleeps or Sleeps(asyncio.get_running_loop())
        future = self._future = TaskFuture(sleeps.loop)
        try:
            if seconds is not None:
                sleeps.begin(self, seconds)
            await future
        finally:
            self._future = None
            self.ends_at = NEVER
            if self._sleeps is None:
                sleeps.stop()
        return self._set

    def on_end(self) -> None:
        future = self._future
        if future is not None and not future.done():
            # Its event loop is closed, and has not ended the task.
            with suppress(RuntimeError):
                future.set_result(None)
