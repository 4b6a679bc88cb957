"""Which waiters for permits a message wakes."""

from __future__ import annotations

from pyredisson.logic.channels import Channel
from pyredisson.logic.permits.permit_commands import MOST_AT_ONCE

MOST_DIGITS = 19
"""The digits of a number in a message. No semaphore has as many permits as a longer number says."""
PASSED_ON = b"+"
"""Before the number in a message that one waiter of this client passes on to others, which need fewer permits."""


class PermitChannel(Channel):
    """The waiters of a semaphore. The need of a waiter is the number of permits that it wants."""

    __slots__ = ()

    def on_message(self, payload: bytes) -> None:
        """The number of permits that are free, as Redisson publishes it. Any other payload is ignored."""
        if payload.isdigit() and len(payload) <= MOST_DIGITS:
            self.wake(int(payload))

    def wake_next_leader(self) -> None:
        """Only a waiter that wants several permits may be the leader."""
        for wakeup in list(self.waiters):
            if self.waiters.get(wakeup, 0) > 1:
                wakeup.set()
                return


class ExpirablePermitChannel(PermitChannel):
    """The waiters of a semaphore whose permits have ids."""

    __slots__ = ()

    def on_message(self, payload: bytes) -> None:
        """The number of free permits. Redisson publishes only the released ones when it releases several at once."""
        super().on_message(payload.removeprefix(PASSED_ON))
        if payload.isdigit() and len(payload) <= len(b"%d" % MOST_AT_ONCE):
            supply = int(payload)
            for wakeup in list(self.waiters):
                if 0 < supply < self.waiters.get(wakeup, 0):
                    # More permits may be free than the message says: the first waiter that wants more asks the server.
                    wakeup.set()
                    return
