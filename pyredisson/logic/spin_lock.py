"""The lock that is waited for by asking again and again, without a channel."""

from __future__ import annotations

from pyredisson._core import Call
from pyredisson.backoff import Backoff
from pyredisson.logic.lock import LockLogic
from pyredisson.logic.shared import Shared

LONGEST_SLEEP = 0.25
"""Seconds after which a waiter sees that its client was closed, however long it pauses between two tries."""


class SpinLockLogic(LockLogic):
    """The hash of a lock; nothing is published, and nobody listens."""

    __slots__ = ("_backoff",)

    def __init__(self, shared: Shared, key: bytes, backoff: Backoff) -> None:
        super().__init__(shared, key)
        self._channel = b""
        self._backoff = backoff

    async def _wait(self, call: Call, busy: float) -> bool:
        shared, deadline = self.shared, call.deadline
        for delay in self._backoff.delays(shared.runtime.jitter):
            now = shared.clock()
            if deadline is not None and now >= deadline:
                break
            # No later than the end of the holder's lease, and once more at the very end of the wait.
            until = now + min(delay, busy)
            await self._sleep(until if deadline is None else min(until, deadline))
            again = await self._try(call)
            if again is None:
                return True
            busy = again
        return False

    async def _sleep(self, until: float) -> None:
        shared = self.shared
        while (left := until - shared.clock()) > 0:
            shared.check_open()
            await shared.runtime.sleep(min(left, LONGEST_SLEEP))
