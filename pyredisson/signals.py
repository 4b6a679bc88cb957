"""How one thread, or task, tells another to look again."""

from __future__ import annotations

import _thread
import asyncio
import socket
import threading
from time import monotonic

SHORTEST_REST = 0.001
"""Seconds for which a timer that ended early is set again at least."""


class ThreadSignal:
    """A lock that is free while the signal is set: waiting for it costs no polling, setting it is one call."""

    __slots__ = ("_lock", "ring")

    def __init__(self) -> None:
        self.ring: socket.socket | None = None
        """Where to send a byte when it is set: for one who waits in a poll instead."""
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def set(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            # It was set already.
            return
        ring = self.ring
        if ring is not None:
            try:
                ring.send(b"\0")
            except OSError:
                # Too many bells are ringing for one more to make a difference, or the one who reads has ended.
                return

    def clear(self) -> None:
        self._lock.acquire(blocking=False)

    def is_set(self) -> bool:
        return not self._lock.locked()

    def wait(self, seconds: float) -> bool:
        """Until it is set, or the time is over. It stays set."""
        if self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            self._lock.release()
            return True
        return False


class AioSignal:
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
