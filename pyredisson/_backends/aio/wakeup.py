"""How one task wakes another."""

from __future__ import annotations

import asyncio

from pyredisson._backends.aio.sleeps import NEVER, Sleeps
from pyredisson._core import TaskFuture, TaskWakeup


class AioWakeup(TaskWakeup):
    """A flag that one task waits for. It is set on the event loop's thread only."""

    __slots__ = ()

    _sleeps: Sleeps | None

    async def wait(self, seconds: float | None) -> bool:
        """Waits until the wakeup is set, or the time is over; returns whether it is set. It stays set."""
        if self.is_set():
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
        return self.is_set()
