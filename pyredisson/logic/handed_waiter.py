"""A call that waits, and to which a release of the same client may hand over what it waits for: a lock or permits."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pyredisson._core import InOrder, ReleaseCall, WaiterFields
from pyredisson.logic.owner_calls import SHORTEST_WAIT, TURN_CHECK
from pyredisson.logic.ports import Runtime, Wakeup


class WaiterState(Enum):
    """The state of a call that waits.

    LOOKING -> WAITING -> LOOKING: the waiter goes to sleep, and wakes up.
    WAITING -> OFFERED: a release of this client has chosen it, and hands over to it.
    OFFERED -> GIVEN: the server has entered it.
    OFFERED -> LOOKING: it was not entered, or what was entered is undone.
    LOOKING, WAITING or OFFERED -> LEFT: it has given up, or has acquired by itself.

    From OFFERED, the release decides between GIVEN and LOOKING. If the waiter has left by then, the release undoes what
    the server has entered. Each transition is a single step of the core, so one of two threads makes it.
    """

    LOOKING = "looking"
    """It makes an attempt, or is about to."""
    WAITING = "waiting"
    """It sleeps. A release may hand over to it."""
    OFFERED = "offered"
    """A release hands over to it, and the outcome isn't known."""
    GIVEN = "given"
    """It has what it waits for."""
    LEFT = "left"
    """It waits no longer."""


LOOKING, WAITING, OFFERED = WaiterState.LOOKING, WaiterState.WAITING, WaiterState.OFFERED
GIVEN, LEFT = WaiterState.GIVEN, WaiterState.LEFT


class HandedWaiter(WaiterFields):
    """Its state is a `WaiterState`; only the methods below and the methods of a subclass change it.

    A subclass adds `give` and `refuse`, which a release calls: from OFFERED to GIVEN, and to LOOKING.
    """

    __slots__ = ()

    state: WaiterState
    wakeup: Wakeup

    longest_sleep = TURN_CHECK
    """Seconds between two calls of `while_offered`, about."""

    def __init__(self, deadline: float | None, wakeup: Wakeup) -> None:
        self.deadline = deadline
        self.wakeup = wakeup
        self.state = LOOKING

    def sleep(self) -> bool:
        """From now on a release may choose it."""
        return self.change_state(LOOKING, WAITING)

    def wake_up(self) -> bool:
        """It makes an attempt. False: a release has chosen it meanwhile."""
        return self.change_state(WAITING, LOOKING)

    def decline(self) -> bool:
        """It doesn't wait for the outcome any more. False: the outcome is known."""
        return self.change_state(OFFERED, LEFT)

    def stop(self) -> None:
        """It waits no longer, whatever its state is."""
        self.leave(GIVEN, LEFT)

    def is_contender(self, waiters: dict[Any, None], *, stuck: bool = False) -> bool:
        """Whether it is the first of these waiters, and so makes attempts for all: what it is told concerns the others.

        `stuck`: one that was woken and hasn't gone on is passed over, as its thread may be doing something else.
        """
        for waiter in InOrder(waiters):
            if waiter is self:
                return True
            if waiter.state is not GIVEN and waiter.wakeup.alive and not (stuck and waiter.wakeup.is_set()):
                return False
        return True

    async def outcome(self, runtime: Runtime) -> bool:
        """Waits for the outcome of the hand-over. True: this waiter has what it waits for.

        As an attempt that is on its way at the deadline, it may take as long as a reply. False: an attempt is due, or
        the deadline has passed long ago.
        """
        wakeup, deadline, clock = self.wakeup, self.deadline, runtime.clock
        if deadline is not None:
            deadline = max(deadline, clock() + SHORTEST_WAIT)
        while self.state is OFFERED:
            wakeup.clear()
            # The state is changed before the wakeup is set.
            if self.state is not OFFERED:
                break
            longest = self.longest_sleep
            seconds = longest if deadline is None else min(longest, deadline - clock())
            if seconds <= 0 and self.decline():
                return False
            await runtime.wait(wakeup, max(seconds, 0.0))
            if self.state is OFFERED:
                await self.while_offered()
        if self.error is not None:
            raise self.error
        return self.state is GIVEN

    async def while_offered(self) -> None:
        """Does what a waiter has to do also while the outcome isn't known."""

    def choose(self, releaser: ReleaseCall) -> bool:
        """The release begins to hand over to it. False: it doesn't sleep."""
        return self.offer(WAITING, OFFERED, releaser)
