"""The lock that is waited for by asking again and again, without a channel."""

from __future__ import annotations

from pyredisson._core import AcquireCall
from pyredisson.backoff import Backoff
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.session import Session

LONGEST_SLEEP = 0.25
"""Seconds after which a waiter sees that its client was closed, however long it pauses between two tries."""


class SpinLockLogic(LockLogic):
    """The hash of a lock; nothing is published, and nobody listens."""

    __slots__ = ("_backoff",)

    def __init__(self, session: Session, key: bytes, backoff: Backoff) -> None:
        super().__init__(session, key)
        self._channel = b""
        self._backoff = backoff

    async def _wait(self, call: AcquireCall, busy: float) -> bool:
        session, deadline = self.session, call.deadline
        for delay in self._backoff.delays(session.runtime.jitter):
            now = session.clock()
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
        session = self.session
        while (left := until - session.clock()) > 0:
            session.check_open()
            await session.runtime.sleep(min(left, LONGEST_SLEEP))
