"""Which waiters for permits a message wakes."""

from __future__ import annotations

import itertools

from pyredisson.logic.channels import Channel
from pyredisson.logic.permits.permit_commands import MOST_AT_ONCE
from pyredisson.logic.ports import Wakeup

MOST_DIGITS = 19
"""The digits of a number in a message. No semaphore has as many permits as a longer number says."""
PASSED_ON = b"+"
"""Before the number in a message that one waiter of this client passes on to others, which need fewer permits."""

_attempt_numbers = itertools.count(1)


class PermitChannel(Channel):
    """The waiters of a semaphore. The need of a waiter is the number of permits that it wants."""

    __slots__ = ("_free", "_free_at", "_unchecked_since")

    def __init__(self) -> None:
        super().__init__()
        self._unchecked_since: int | None = None
        """A number. Messages may have been lost, and no attempt with a greater number was refused yet."""
        self._free = self._free_at = 0

    def on_message(self, payload: bytes) -> None:
        """The number of permits that are free, as Redisson publishes it. Any other payload is ignored."""
        if payload.isdigit() and len(payload) <= MOST_DIGITS:
            self._free, self._free_at = int(payload), self.events
            self.on_free(self._free)

    @property
    def free(self) -> int | None:
        """How many permits are free at most, by the latest message or refusal. None: messages may have been lost."""
        return self._free if self._free_at == self.events and self.confirmed else None

    def on_free(self, free: int) -> None:
        """Wakes the first waiters whose needs fit into the number of all free permits.

        Waiters that are awake and have not made their attempts yet are among them. Otherwise the messages of releases
        in a row (1, 2, 3, ...) would wake many more waiters than there are permits.
        """
        leader = self.leader
        waiters = list(self.waiters)
        if leader is not None:
            waiters.sort(key=lambda wakeup: wakeup is not leader)
        for wakeup in waiters:
            need = self.waiters.get(wakeup, 0)
            if not 0 < need <= free or not wakeup.alive:
                continue
            if not wakeup.is_set():
                wakeup.set()
                if wakeup not in self.waiters:
                    # As in `wake`: a finalizer ran in this loop, and the waiter has left.
                    continue
            free -= need
            if not free:
                return

    def on_confirmed(self) -> None:
        """Earlier messages are lost. The waiters make their attempts one after the other, until one is refused."""
        self._unchecked_since = next(_attempt_numbers)
        self._wake_first()

    def on_unconfirmed(self) -> None:
        """The same: more messages may be lost."""
        self.on_confirmed()

    def on_missed(self, wakeup: Wakeup) -> None:
        """The same: one attempt after this moment is enough for all who have come before it."""
        self.on_confirmed()

    def on_leave(self, need: int) -> None:
        """A waiter left with a wakeup that it did not use. The permits may be enough for one that wants more."""
        if self._unchecked_since is not None:
            self._wake_first()
        elif self.free is None:
            self.wake(need)
        else:
            self.on_free(max(need, self._free))

    def wake_next_leader(self) -> None:
        """Only a waiter that wants several permits may be the leader."""
        for wakeup in list(self.waiters):
            if self.waiters.get(wakeup, 0) > 1:
                wakeup.set()
                return

    def begin_attempt(self) -> int:
        """A waiter is about to send an attempt. Returns its number."""
        return next(_attempt_numbers)

    def on_acquired(self, events: int, need: int) -> None:
        """An attempt of a waiter has acquired its permits. `events`: those before the attempt."""
        if events == self._free_at:
            self._free = max(self._free - need, 0)
        if self._unchecked_since is not None:
            self._wake_first()

    def on_refused(self, attempt: int, events: int, free: int) -> None:
        """An attempt of a waiter was refused. `attempt`: its number; 0: the caller didn't wait yet.

        `events`: those before the attempt.
        """
        if self._unchecked_since is not None and attempt > self._unchecked_since:
            self._unchecked_since = None
        if events == self.events:
            self._free, self._free_at = free, events
        if free:
            self.on_free(free)

    def _wake_first(self) -> None:
        """Makes sure that the first waiter is awake, and so has its attempt before it."""
        for wakeup in list(self.waiters):
            if self.waiters.get(wakeup, 0) > 0 and wakeup.alive:
                wakeup.set()
                if wakeup in self.waiters:
                    return


class ExpirablePermitChannel(PermitChannel):
    """The waiters of a semaphore whose permits have ids."""

    __slots__ = ()

    def on_free(self, free: int) -> None:
        """The number may count the released permits only, which waiters that are awake don't take."""
        self.wake(free)

    def on_confirmed(self) -> None:
        self.wake_all()

    def on_unconfirmed(self) -> None:
        self.wake_all()

    def on_missed(self, wakeup: Wakeup) -> None:
        wakeup.set()

    def on_leave(self, need: int) -> None:
        self.wake(need)

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
