"""The thread world: every coroutine of the logic runs to its end on the caller's own thread."""

from __future__ import annotations

import random
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine
from typing import Any

from pyredisson._backends.clock import clock
from pyredisson._backends.threads.callers import Callers
from pyredisson._backends.threads.listener import ThreadListener
from pyredisson._backends.threads.operations import run, start
from pyredisson._backends.threads.pool import Pool
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._protocol.node import Node
from pyredisson.logic.ports import Wakeup


class ThreadRuntime(Pool):
    """A `Runtime` over a pool of blocking connections."""

    clock = staticmethod(clock)
    blocking = True

    def __init__(self, node: Node, post: Callable[[bytes], None], size: int) -> None:
        super().__init__(node, size)
        self.post = post
        self.listener: ThreadListener | None = None
        """Who waits for a message lends it a hand."""
        self.callers: Callers | None = None
        """Who is warned of waiting on the thread of an event loop."""
        self.scripts = node.scripts
        self.on_command_failed, self.on_command_served = node.on_command_failed, node.on_command_served
        self._asleep: dict[ThreadWakeup, None] = {}

    @property
    def connected(self) -> bool:
        """Whether there is a connection that is not closed."""
        return bool(self._all)

    def drop(self) -> None:
        """Closes all connections, which nobody uses any more; on any thread, with no lock and no wait."""
        run(self.close)

    async def wait(self, signal: Wakeup, seconds: float) -> None:
        assert isinstance(signal, ThreadWakeup)
        if self.callers is not None and _get_running_loop() is not None:
            self.callers.warn_of_loop()
        if self.listener is not None:
            self.listener.wait(signal, seconds)
        else:
            signal.wait(seconds)

    def spawn(self, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        start(operation, "pyredisson-beside")

    async def sleep(self, seconds: float) -> None:
        alarm = ThreadWakeup()
        try:
            self._asleep[alarm] = None
            if not self._closed:
                alarm.wait(seconds)
        finally:
            self._asleep.pop(alarm, None)

    async def close(self) -> None:
        await super().close()
        for alarm in list(self._asleep):
            alarm.set()

    @property
    def calls_in_flight(self) -> int:
        """How many calls have a connection, wait for one, or pause before they are sent again."""
        return self.in_use + len(self._asleep)

    def wakeup(self) -> ThreadWakeup:
        return ThreadWakeup()

    def jitter(self) -> float:
        return random.random()
