"""How one task wakes another."""

from __future__ import annotations

import asyncio
from time import monotonic

SHORTEST_TIMER = 0.001
"""Seconds, at least, of the next timer after one that ended too early."""


class AioWakeup:
    """A flag that one task waits for. It is set on the event loop's thread only."""

    __slots__ = ("_future", "_set")

    def __init__(self) -> None:
        self._set = False
        self._future: asyncio.Future[None] | None = None

    @property
    def alive(self) -> bool:
        future = self._future
        return future is None or not future.get_loop().is_closed()

    def set(self) -> None:
        self._set = True
        future = self._future
        if future is not None and not future.done() and not future.get_loop().is_closed():
            future.set_result(None)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    async def wait(self, seconds: float | None) -> bool:
        """Waits until the wakeup is set, or the time is over; returns whether it is set. It stays set."""
        end = None
        while not self._set:
            loop = asyncio.get_running_loop()
            future = self._future = loop.create_future()
            timer = None if seconds is None else loop.call_later(seconds, _end_wait, future)
            try:
                if end is None and seconds is not None:
                    end = monotonic() + seconds
                await future
            finally:
                self._future = None
                if timer is not None:
                    timer.cancel()
            if self._set or end is None:
                break
            remaining = end - monotonic()
            if remaining <= 0:
                break
            # uvloop rounds to milliseconds, so its timer may end half a millisecond early. A waiter that looked again
            # then would find nothing changed.
            seconds = max(remaining, SHORTEST_TIMER)
        return self._set


def _end_wait(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
