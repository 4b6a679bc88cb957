"""The calls of one client that wait for permits of the same semaphore, and whether a release hands permits on to one.

The permits have no owners, so there is
no holder to rely on: a waiter relies on messages, and on what the latest attempt of this client was told.
"""

from __future__ import annotations

from typing import Any

from pyredisson.logic.channels import Channel
from pyredisson.logic.handed_waiter import GIVEN, LOOKING, OFFERED, WAITING, HandedWaiter
from pyredisson.logic.locks.local_queue import OTHERS_FIRST
from pyredisson.logic.ports import Wakeup

KNOWN_FOR = 1.0
"""Seconds for which other calls rely on a refusal. Permits may become free without a message."""
MOST_IDLE_QUEUES = 64
"""From so many queues on, the ones that nobody needs are looked for."""


class PermitWaiter(HandedWaiter):
    """One call that waits for permits. Its state is a `WaiterState`; only the methods below change it."""

    __slots__ = ("owes_attempt", "permits")

    def __init__(self, permits: int, deadline: float | None, wakeup: Wakeup) -> None:
        super().__init__(deadline, wakeup)
        self.permits = permits
        self.owes_attempt = False
        """Whether it has got a wakeup, for permits that are free, without having made its attempt."""

    def give(self) -> bool:
        """The server has acquired its permits. False: it has left meanwhile."""
        return self.change_state(OFFERED, GIVEN)

    def refuse(self) -> bool:
        """Its permits were not acquired: it makes an attempt. False: it has left meanwhile."""
        return self.change_state(OFFERED, LOOKING)


class PermitQueue:
    """The waiters for one semaphore in one client, in the order in which they came. It exists while they contend.

    It is changed with the mutex of the channels held; what is read without it is a single value.

    Other clients must not starve. The first hand-over begins a series, in which permits are handed on for a limited
    time. The next release is published. If another client listens, the turn of the others follows, for as long: each
    release is published, and the waiters of this client make their attempts a millisecond later.
    """

    __slots__ = (
        "batch",
        "channel",
        "checked_until",
        "in_flight",
        "others_first_until",
        "others_turn_ends",
        "series_ends",
        "waiters",
    )

    def __init__(self) -> None:
        self.waiters: dict[PermitWaiter, None] = {}
        self.channel: Channel | None = None
        """The channel of the semaphore, as the waiter that came last has joined it."""
        self.batch: Any = None
        """The `HandOverBatch` that will be sent next. None: no hand-over waits for that."""
        self.in_flight = 0
        """In an event loop: how many hand-overs are on their way."""
        self.checked_until = 0.0
        """Until when other calls rely on what the latest attempt was told."""
        self.series_ends: float | None = None
        """Until when permits are handed on without a message. None: no series of hand-overs has begun."""
        self.others_turn_ends = 0.0
        """Until when each release is published."""
        self.others_first_until = 0.0
        """Until when the waiters of this client make no attempt."""

    def wants(self, free: int) -> bool:
        """Whether so many waiters want one permit that they will take all these free ones."""
        if not free:
            return True
        # The first ones are waiters that a release has chosen: they get other permits.
        for waiter in reversed(list(self.waiters)):
            if waiter.permits == 1 and waiter.state in (LOOKING, WAITING):
                free -= 1
                if not free:
                    return True
        return False

    def may_hand_over(self, now: float, limit: float) -> bool:
        """Whether a release may hand its permits on. At the end of a series one may not, and begins the next series."""
        if not limit or not self.waiters or now < self.others_turn_ends:
            return False
        if self.series_ends is None or now < self.series_ends:
            return True
        self.series_ends = now + limit
        self.others_first_until = now + OTHERS_FIRST
        return False

    def on_handed_over(self, now: float, limit: float) -> None:
        """Permits are handed on. The first time begins a series."""
        if self.series_ends is None:
            self.series_ends = now + limit

    def on_publish(self, now: float) -> None:
        """A release is about to be published."""
        if now < self.others_turn_ends:
            self.others_first_until = now + OTHERS_FIRST

    def on_published(self, now: float, limit: float, *, others_listen: bool) -> None:
        """A release was published. Another client that listens gets its turn after a series."""
        if not others_listen:
            self.others_turn_ends = self.others_first_until = 0.0
        elif self.series_ends is not None:
            self.series_ends = None
            self.others_turn_ends = now + limit
            self.others_first_until = now + OTHERS_FIRST
        elif now < self.others_turn_ends:
            self.others_first_until = now + OTHERS_FIRST

    def is_idle(self, now: float) -> bool:
        """Whether nobody waits, and no series would have to be ended."""
        ends = self.others_turn_ends if self.series_ends is None else self.series_ends
        return not self.waiters and now >= ends


class PermitQueues(dict[bytes, PermitQueue]):
    """The queues of one client, by the keys of their semaphores. It is changed with the mutex of the channels held."""

    def queue_of(self, key: bytes, now: float) -> PermitQueue:
        """The queue of a semaphore, which is made if there is none."""
        queue = self.get(key)
        if queue is None:
            if len(self) >= MOST_IDLE_QUEUES:
                for other in list(self):
                    self.forget_if_idle(other, now)
            queue = self[key] = PermitQueue()
        return queue

    def forget_if_idle(self, key: bytes, now: float) -> None:
        queue = self.get(key)
        if queue is not None and queue.is_idle(now):
            self.pop(key, None)
