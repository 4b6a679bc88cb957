"""The lock whose waiters make attempts again and again, without a channel."""

from pyredisson._core import AcquireCall
from pyredisson.backoff import Backoff
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.session import Session
from pyredisson.logic.waits import SpinWait

LONGEST_SLEEP = 0.25
"""Seconds after which a waiter notices that its client was closed, however long its pause between two attempts is."""


class SpinLockCommands(LockCommands):
    """The commands of a re-entrant lock that publishes nothing."""

    __slots__ = ()

    kind = "spin"
    has_list = False
    channel_prefix = b""


class SpinLockLogic(LockLogic):
    """A re-entrant lock whose waiters subscribe to no channel."""

    __slots__ = ("_backoff",)

    is_handed_on = False
    commands_type = SpinLockCommands

    def __init__(self, session: Session, key: bytes, backoff: Backoff) -> None:
        super().__init__(session, key)
        self._backoff = backoff

    async def _wait(self, call: AcquireCall, wait: float | None) -> bool:
        session, deadline, waiting = self.session, call.deadline, SpinWait(call, self)
        try:
            session.begin_waiting(waiting)
            for delay in self._backoff.delays(session.runtime.jitter):
                now = session.clock()
                if deadline is not None and now >= deadline:
                    break
                assert wait is not None
                # The next attempt is made at the end of the holder's lease at the latest, the last one at the deadline.
                until = now + min(delay, wait)
                await self._sleep(until if deadline is None else min(until, deadline))
                wait = await self._attempt(call)
                if wait is None:
                    return True
            return False
        finally:
            session.end_waiting(waiting)

    async def _sleep(self, until: float) -> None:
        session = self.session
        while (remaining := until - session.clock()) > 0:
            session.check_open()
            await session.runtime.sleep(min(remaining, LONGEST_SLEEP))
