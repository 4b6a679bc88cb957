"""A clock that stands still while a program computes, and an event loop that moves it to its next timer."""

import asyncio
import random
import selectors
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

import greenlet

START = 1000.0
"""The first reading."""
LATE = 0.000_001
"""Virtual seconds by which a timer rings late, as any timer does."""
STEP = 0.001
"""Virtual seconds between two looks at what a blocking call waits for."""
LONGEST = 3600.0
"""Virtual seconds after which a test has failed: it waits for something that never happens."""


class VirtualClock:
    """Seconds, for everything in a process: leases, timers and the server's time."""

    def __init__(self) -> None:
        self.now = START
        self.random = random.Random(0)
        """For latencies and the ids of clients: the same ones every time."""
        self._beside: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def __call__(self) -> float:
        return self.now

    def restart(self) -> None:
        self.now = START
        self.random.seed(0)
        self._beside.clear()

    def sleep(self, seconds: float) -> None:
        """Blocks the event loop, or a call beside it."""
        current = greenlet.getcurrent()
        if current.parent is None:
            end = self.now + seconds
            while self.happen(end):
                pass
            self.now = end
        else:
            asyncio.get_running_loop().call_later(seconds, current.switch)
            current.parent.switch()

    def call_beside(self, when: float, happen: Callable[[], None]) -> None:
        """Has something happen beside the event loop, even while that is blocked: in the network, or in a server."""
        heappush(self._beside, (when, next(self._order), happen))

    def happen(self, until: float) -> bool:
        """Moves to what happens next beside the event loop, unless it is later; returns whether there was anything."""
        if not self._beside or self._beside[0][0] > until:
            return False
        when, _, happen = heappop(self._beside)
        self.now = max(self.now, when)
        happen()
        return True

    def wait(self, condition: Callable[[], Any], timeout: float | None = None) -> Any:
        """Looks again and again until the condition holds; returns what it returned at last."""
        end = float("inf") if timeout is None else self.now + timeout
        while not (result := condition()) and self.now < end:
            self.sleep(min(STEP, end - self.now))
        return result


class JumpingSelector(selectors.DefaultSelector):
    """Moves the clock instead of waiting. It raises what must end the test, as nothing on an event loop can."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self._end = clock.now + LONGEST

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # What the loop has written to itself.
        events = super().select(0)
        until = float("inf") if timeout is None else self._clock.now + timeout
        # Only one: it may have set a timer.
        if not self._clock.happen(until) and not events and timeout != 0:
            if timeout is None:
                raise AssertionError("no timer is set, so nothing can happen any more")
            self._clock.now = until + LATE
            if self._clock.now > self._end:
                self._end = self._clock.now + LONGEST
                raise AssertionError(f"the test has not ended after {LONGEST:.0f} virtual seconds")
        return events


Connect = Callable[["VirtualLoop", Callable[[], asyncio.BaseProtocol], str, int], Any]


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a virtual clock, whose connections are made in memory."""

    def __init__(self, clock: VirtualClock, connect: Connect) -> None:
        self.clock, self._connect = clock, connect
        self._jumping = JumpingSelector(clock)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self.clock.now

    def close(self) -> None:
        # What was sent arrives.
        while self.clock.happen(float("inf")):
            pass
        super().close()

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self._connect(self, protocol_factory, host, port)

    def run_in_executor(  # type: ignore[override]
        self, _: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """A call that may block is a greenlet on this thread. It waits in virtual time, as the event loop does."""
        future = self.create_future()

        def work() -> None:
            try:
                outcome, result = future.set_result, func(*args)
            except greenlet.GreenletExit:
                return  # the event loop was closed
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                outcome, result = future.set_exception, error
            if not future.cancelled():
                outcome(result)

        self.call_soon(greenlet.greenlet(work).switch)
        return future
