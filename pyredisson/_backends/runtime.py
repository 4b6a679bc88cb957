"""What the runtimes of both backends have in common: the clock, pauses, and reports to the node."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Hashable

from pyredisson._backends.clock import clock
from pyredisson._protocol.node import Node
from pyredisson.logic.ports import Wakeup


class BackendRuntime(ABC):
    """The part of `logic.ports.Runtime` that doesn't depend on the backend."""

    clock = staticmethod(clock)
    sharded = False

    def __init__(self, node: Node) -> None:
        self._node = node
        self.scripts = node.scripts
        self.on_command_failed, self.on_command_served = node.on_command_failed, node.on_command_served
        self._pauses: dict[Wakeup, None] = {}
        self._closed = False

    @abstractmethod
    def wakeup(self) -> Wakeup: ...

    @abstractmethod
    async def wait(self, wakeup: Wakeup, seconds: float) -> None: ...

    async def sleep(self, seconds: float) -> None:
        wakeup = self.wakeup()
        try:
            self._pauses[wakeup] = None
            # Read after the pause is registered, as `_end_pauses` sets it before it reads the pauses: a pause that
            # begins at the same time either isn't begun, or is ended.
            if not self._closed:
                await self.wait(wakeup, seconds)
        finally:
            self._pauses.pop(wakeup, None)

    def _end_pauses(self) -> None:
        """Ends every `sleep`, also one that begins later."""
        self._closed = True
        for wakeup in list(self._pauses):
            wakeup.set()

    def jitter(self) -> float:
        return random.random()

    def slot_of(self, key: bytes) -> int:
        return 0

    def shard_of(self, key: bytes) -> Hashable:
        return self._node

    def shard_of_command(self, payload: bytes) -> Hashable:
        return self._node
