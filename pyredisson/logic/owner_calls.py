"""The calls of one owner that run at the same time: they take turns."""

from __future__ import annotations

from collections.abc import Hashable

from pyredisson._core import CallQueues, OwnerCall
from pyredisson._diagnostics import readable
from pyredisson.logic.ports import Runtime

TURN_CHECK = 1.0
"""Seconds after which a call checks whether it has the turn, even if its wakeup wasn't set."""
SHORTEST_WAIT = 3.0
"""Seconds for which a call waits for its turn at least, even if its deadline is earlier: as long as for a reply."""


class OwnerCalls:
    """What the calls of one owner must know of each other.

    All calls of an owner use its name on the server, and state how many levels it holds. So each call must know what
    became of the call before it. They take turns for each lock, in the order in which they came.
    """

    __slots__ = ("ended", "in_flight", "queued_names")

    def __init__(self) -> None:
        self.in_flight = CallQueues()
        """For each lock, the call whose command is on its way, and the calls that wait for their turn."""
        self.queued_names: set[bytes] = set()
        """The names under which this owner waits in queues of fair locks."""
        self.ended = False
        """Whether the thread or task that is the owner has ended."""

    async def wait_for_turn(
        self, runtime: Runtime, key: Hashable, call: OwnerCall, lock_key: bytes, deadline: float | None
    ) -> bool:
        """Waits until no earlier call of this owner has a command for this lock on its way.

        False: not until `deadline` (None: without limit), or `SHORTEST_WAIT` seconds if that is later.
        """
        clock, in_flight = runtime.clock, self.in_flight
        wakeup = runtime.wakeup()
        if in_flight.wait(key, call, wakeup):
            return True
        if runtime.blocking and in_flight.is_on_this_thread(key):
            # A finalizer or a signal handler on this thread has interrupted the call that has the turn.
            raise RuntimeError(
                f"lock {readable(lock_key)!r} was asked for in the middle of a call for it on this thread"
            )
        if deadline is not None:
            deadline = max(deadline, clock() + SHORTEST_WAIT)
        while not in_flight.enter(key, call):
            remaining = TURN_CHECK if deadline is None else min(TURN_CHECK, deadline - clock())
            if remaining <= 0:
                return False
            await runtime.wait(wakeup, remaining)
            wakeup.clear()
        return True
