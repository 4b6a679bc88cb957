"""A clock that stands still while a program computes, and an event loop that moves it to its next timer."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable
from typing import Any

START = 1000.0
"""The first reading."""
LATE = 0.000_001
"""Virtual seconds by which a timer rings late, as any timer does."""
LONGEST = 3600.0
"""Virtual seconds after which a test has failed: it waits for something that never happens."""


class VirtualClock:
    """Seconds, for everything in a process: leases, timers and the server's time."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """What blocks an event loop."""
        self.now += seconds


class JumpingSelector(selectors.DefaultSelector):
    """Moves the clock instead of waiting. It raises what must end the test, as nothing on an event loop can."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self._end = clock.now + LONGEST
        self.failure: Exception | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        # What the loop has written to itself.
        events = super().select(0)
        if not events and timeout != 0:
            if timeout is None:
                raise AssertionError("no timer is set, so nothing can happen any more")
            self._clock.now += timeout + LATE
            if self._clock.now > self._end:
                self._end = self._clock.now + LONGEST
                raise AssertionError(f"the test has not ended after {LONGEST:.0f} virtual seconds")
        return events


Connect = Callable[["VirtualLoop", Callable[[], asyncio.BaseProtocol], str, int], Any]


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a virtual clock, whose connections are made in memory."""

    def __init__(self, clock: VirtualClock, connect: Connect) -> None:
        self._virtual_clock = clock
        self._connect = connect
        self._jumping = JumpingSelector(clock)
        self.random = random.Random(0)
        """For latencies: each test has the same ones every time."""
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._virtual_clock.now

    def fail(self, failure: Exception) -> None:
        """Ends the test: the server in memory has raised something, which no reply tells."""
        self._jumping.failure = failure

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self._connect(self, protocol_factory, host, port)
