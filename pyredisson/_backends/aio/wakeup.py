"""How one task wakes another, and when waits without a wakeup are over: one timer of the loop for all of them."""

import asyncio
import math
from _thread import get_ident
from heapq import heapify, heappop
from time import monotonic

from pyredisson._core import SleepsFields, TaskFuture, TaskWakeup

FEW = 64
"""So many entries of waits that are over are never looked for."""
NEVER = math.inf
"""When a wait ends that has no end."""


class Sleeps(SleepsFields):
    """The waits of one event loop, each by the wakeup that its task awaits.

    Nearly all waits end early, by a wakeup. So an end is only forgotten, and neither is it taken out of the heap, nor
    the timer cancelled. A timer of the loop for each wait costs ten times as much. The garbage collector looks into a
    heap, but not into a wheel of the core: an event loop may be dropped together with its tasks.
    """

    __slots__ = ("_timer",)

    _heap: list[tuple[float, int, TaskWakeup]]
    """The ends in their order; an end that differs from `ends_at` is forgotten."""
    _limit: int
    """At this size of the heap the forgotten ends are taken out."""
    _rings_at: float
    """The time for which the loop's timer is set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = get_ident()
        self._heap = []
        self._limit = FEW
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = NEVER

    def stop(self) -> None:
        """No wait goes on here."""
        if self._timer is not None:
            self._timer.cancel()

    def _drop_forgotten(self) -> None:
        heap = self._heap
        heap[:] = [entry for entry in heap if entry[2].ends_at == entry[0]]
        heapify(heap)
        self._limit = 2 * len(heap) + FEW

    def _set_timer(self, end: float) -> None:
        # First: after an exception in here no timer would ring for the waits to come.
        timer = self.loop.call_later(end - monotonic(), self.ring)
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = timer, end

    def _ring(self) -> None:
        """Ends the waits that are over. The loop's timer may be early: uvloop rounds to milliseconds."""
        self._timer = None
        self._rings_at = NEVER
        heap, now = self._heap, monotonic()
        while heap and (heap[0][0] <= now or heap[0][2].ends_at != heap[0][0]):
            end, _, sleep = heap[0]
            if sleep.ends_at == end:
                sleep.on_end()
            heappop(heap)
        if heap:
            self._set_timer(heap[0][0])


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
