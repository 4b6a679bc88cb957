"""How one task tells another to look again."""

from __future__ import annotations

import asyncio
from time import monotonic

SHORTEST_REST = 0.001
"""Seconds for which a timer that ended early is set again at least."""


class AioWakeup:
    """A flag that one task waits for; set on the loop's thread only."""

    __slots__ = ("_future", "_set")

    def __init__(self) -> None:
        self._set = False
        self._future: asyncio.Future[None] | None = None

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
        """Until it is set, or the time is over. It stays set."""
        if seconds is None:
            await self._wait(None)
            return self._set
        end = monotonic() + seconds
        left = seconds
        while not self._set:
            await self._wait(left)
            left = end - monotonic()
            if left <= 0:
                break
            # uvloop rounds to milliseconds: its timer may end half of one early, when it is too soon to look again.
            left = max(left, SHORTEST_REST)
        return self._set

    async def _wait(self, seconds: float | None) -> None:
        """Once, for a timer that may end early."""
        if self._set:
            return
        loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _let_go, future)
        try:
            await future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()


def _let_go(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
