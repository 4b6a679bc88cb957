"""Waiting for something on the server: an attempt after each wakeup, until one succeeds.

These wake a waiter:
- a message: the holder has released. Another waiter that leaves may pass it on;
- the confirmation of the subscription, because messages published before it are lost, or its refusal;
- the loss of the subscription, because messages are lost until it is confirmed again;
- the closing of the client;
- its own timer. For a lock it is set to 1 ms after the end of the holder's lease, or to `lock_watchdog_timeout` if that
  is earlier. Only the timer wakes the waiters of a holder that was killed, because such a holder publishes nothing.

The fair lock waits in its own way, with heartbeats; see `locks.fair_queue`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from pyredisson._core import InOrder, ReleaseCall, WaiterFields
from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replies import copy_error
from pyredisson.logic.channels import Channel
from pyredisson.logic.owners import SHORTEST_WAIT, TURN_CHECK
from pyredisson.logic.ports import Runtime, Wakeup
from pyredisson.logic.session import Session


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


# --- A call that makes attempts


UNCONFIRMED_WAIT = 1.0
"""Seconds between two attempts while the subscription isn't confirmed: messages may be lost meanwhile."""

Attempt = Callable[[], Awaitable[float | None]]
"""One attempt. Returns None on success, else the longest time in seconds to wait for the next attempt."""


async def until(
    session: Session,
    channel_name: bytes,
    attempt: Attempt,
    longest_wait: float,
    deadline: float | None,
    *,
    channel_class: type[Channel] = Channel,
    need: int = 1,
    wakeup: Wakeup | None = None,
) -> bool:
    """Waits for a successful attempt until `deadline` (None: without limit). Returns False after the deadline.

    The caller has made one attempt, which returned `longest_wait`. `wakeup` is for a caller that registers its
    waiter's wakeup elsewhere, too; `channel_class` and `need` are as for `ChannelRegistry.join`.

    Leaving the channel never suspends. If an attempt was interrupted, the attempt or the caller undoes it.
    """
    if wakeup is None:
        wakeup = session.runtime.wakeup()
    try:
        return await _until(session, channel_name, attempt, longest_wait, deadline, wakeup, channel_class, need)
    except BaseException:
        # An interrupt may have prevented the `leave` in `_until`.
        session.channels.leave(channel_name, wakeup)
        raise


async def _until(
    session: Session,
    channel_name: bytes,
    attempt: Attempt,
    longest_wait: float,
    deadline: float | None,
    wakeup: Wakeup,
    channel_class: type[Channel],
    need: int,
) -> bool:
    runtime, began = session.runtime, session.begin_waiting()
    try:
        channel = session.channels.join(channel_name, wakeup, channel_class, need)
        while True:
            if channel.error is not None:
                raise copy_error(channel.error)
            seconds = longest_wait if channel.confirmed else min(longest_wait, UNCONFIRMED_WAIT)
            if deadline is not None:
                remaining = deadline - session.clock()
                if remaining <= 0:
                    return False
                seconds = min(seconds, remaining)
            tracing.look()
            if tracing.debug:
                logger.debug("waiting on channel %r for %.3f s at most", readable(channel_name), seconds)
            await runtime.wait(wakeup, seconds)
            if tracing.debug:
                logger.debug("%s on channel %r", "woken" if wakeup.is_set() else "no message", readable(channel_name))
            wakeup.clear()
            # A wakeup is only a hint: it may be late, or meant for another waiter. Only a script's reply counts.
            again = await attempt()
            if again is None:
                return True
            longest_wait = again
    except BaseException:
        # The wakeup may have been consumed by an attempt that did not finish: `leave` passes it on.
        wakeup.set()
        raise
    finally:
        session.channels.leave(channel_name, wakeup)
        session.end_waiting(began)
