"""The calls of one client that wait for the same lock: their order, their states, and whom the lock is handed to next.

A release of this client may hand the lock on to one of them (`hand_over`), without a message to other clients. Other
clients must not starve by that: the lock is handed on for a limited time, then it is released with a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pyredisson._core import AcquireCall, InOrder, LockQueueFields, LockWaiterFields
from pyredisson.logic.channels import Channel, ChannelRegistry, RelayedChannel
from pyredisson.logic.handed_waiter import GIVEN, LOOKING, OFFERED, WAITING, HandedWaiter
from pyredisson.logic.holds import HELD, LOST, Hold, HoldKey
from pyredisson.logic.ports import Wakeup

OTHERS_FIRST = 0.001
"""Seconds that the waiters of this client leave to other clients after a series of hand-overs: the waiters here hear of
the release first, and would win nearly always."""
LATER = 0.1
"""Seconds. So much later than a lease has ended a waiter may make its attempt."""
LOOK = b"look:"
"""The beginning of the message that tells a client when the lock may be free, although nobody wakes it."""
UNKNOWN_WAIT = 1.0
"""Seconds after which a waiter makes an attempt if it doesn't know when the lease of the holder ends."""


Lock = TypeVar("Lock")
"""The logic of the lock that a waiter waits for."""


class LockChannel(RelayedChannel):
    """The waiters of a lock that is handed on. One of them is enough to find out whether the lock is free."""

    __slots__ = ("look_in", "on_unused")

    def __init__(self) -> None:
        super().__init__()
        self.look_in: float | None = None
        """The first waiter was woken only to learn that it has to make an attempt in so many seconds."""
        self.on_unused: Callable[[bytes], None] | None = None
        """Called with the client's name in the list if it was woken, and no call of it waits."""

    def on_message(self, payload: bytes) -> None:
        """`look:MS`, see `waiting_list.lua`; or the client's name in the list: it may acquire the lock."""
        if payload.startswith(LOOK):
            self.wake(1)
            self.look_in = int(payload.removeprefix(LOOK)) / 1000
        elif b":" not in payload:
            super().on_message(payload)
        elif self.waiters or self.on_unused is None:
            self.wake(1)
        else:
            self.on_unused(payload)

    def wake(self, supply: int) -> None:
        # An attempt is due at once. A waiter that is awake, and has not learnt yet that it may wait, makes it.
        self.look_in = None
        super().wake(supply)


class LockWaiter(LockWaiterFields, HandedWaiter, Generic[Lock]):
    """One call that waits for a lock. Its state is a `WaiterState`; only methods of it and its queue change it."""

    __slots__ = ()

    lock: Lock
    hold_key: HoldKey
    channel: Channel
    """The channel that it has joined."""
    queue: LocalQueue
    """The queue that it has joined; None: not yet."""
    look_at: float
    """When to make the next attempt, even without a wakeup."""
    owes_attempt: bool
    """Whether this waiter has got a wakeup without having made its attempt."""
    need = 1
    """Its need in the channel."""

    def __init__(self, lock: Lock, hold_key: HoldKey, call: AcquireCall, wakeup: Wakeup, channel_name: bytes) -> None:
        self.begin(LOOKING, lock, hold_key, call, wakeup, channel_name)

    async def run(self, wait: float | None) -> bool:
        """Waits until the lock is acquired, or until the deadline of the call: False. To be called once.

        `wait`: for how long at most, as the first attempt of the caller has returned. None: it has made none. After an
        exception the caller calls `end`: an interrupt may have prevented it in here.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Waits no longer. Never suspends. Idempotent."""
        raise NotImplementedError

    # By a release

    def set_aside(self, channels: ChannelRegistry) -> int | None:
        """Messages go to other waiters meanwhile. Returns the same as `ChannelRegistry.events`."""
        return channels.set_aside(self.channel_name, self.wakeup)

    def take_back(self, channels: ChannelRegistry) -> None:
        """Undoes `set_aside`."""
        channels.take_back(self.channel_name, self.wakeup, self.need)

    def give(self) -> bool:
        """The server has entered it. False: it has left meanwhile."""
        return self.conclude(OFFERED, GIVEN)

    def refuse(self) -> bool:
        """It was not entered: it makes an attempt. False: it has left meanwhile."""
        if self.conclude(OFFERED, LOOKING):
            return True
        self.releaser = None
        return False


class LocalQueue(LockQueueFields):
    """The waiters of one lock in one client, in the order in which they came. It exists while the lock is contended.

    Waiters join and leave with the mutex of the channels held, or by a step of the core while others wait here. What is
    read without the mutex is a single value.
    """

    __slots__ = ("listed", "member")

    waiters: dict[LockWaiter[Any], None]
    channel: Channel | None
    """The channel of the lock, as the waiter that came last has joined it."""
    holder: Hold | None
    """The latest hold of this client that a waiter has acquired."""
    holder_events: int | None
    """The events of the channel before the command was sent by which the holder acquired the lock."""
    busy_until: float
    """When the lease of the holder ends, as the latest attempt was told."""
    series_ends: float | None
    """Until when the lock is handed on without a message. None: no series of hand-overs has begun."""
    others_first_until: float
    """Until when the waiters of this client make no attempt."""

    def __init__(self, member: bytes = b"") -> None:
        super().__init__(HELD, LOST, WAITING, OFFERED, UNKNOWN_WAIT)
        self.member = member
        """The name of the client in the list of clients that wait for the lock."""
        self.listed = False
        """Whether the client may be in that list, under this name."""

    def set_holder(self, hold: Hold, events: int | None) -> None:
        """A waiter has acquired the lock. `events`: the events of the channel before the command was sent."""
        self.holder_events = events
        self.holder = hold
        # The command that has acquired the lock has taken the client out of the list.
        self.listed = False
        if hold.leases is not None:
            self.wake_if_later(hold.valid_until)

    def wake_if_later(self, ends: float) -> None:
        """A lease ends then, perhaps without a message: the first waiter that sleeps must not wait for much longer.

        Perhaps it relies on an earlier holder, whose lease was longer. An attempt tells it when this one ends.
        """
        for waiter in InOrder(self.waiters):
            if waiter.state is WAITING and waiter.wakeup.alive:
                if waiter.look_at > ends + LATER:
                    waiter.wakeup.set()
                return

    def may_hand_over(self, now: float, limit: float) -> bool:
        """Whether the lock may be handed on once more: for `limit` seconds from the first time on."""
        if not limit or not self.waiters:
            return False
        return self.series_ends is None or now < self.series_ends

    def on_handed_over(self, now: float, limit: float) -> None:
        """The lock is handed on. The first time begins a series."""
        if self.series_ends is None:
            self.series_ends = now + limit

    def end_series(self, now: float) -> None:
        """The lock is about to be released with a message. After a series of hand-overs other clients come first."""
        if self.series_ends is not None:
            self.series_ends = None
            self.others_first_until = now + OTHERS_FIRST

    def put_off_until(self) -> float:
        """Until when the waiters of this client make no attempt."""
        return self.others_first_until

    def wake_first(self) -> None:
        """Has the first waiter that sleeps make an attempt."""
        for waiter in InOrder(self.waiters):
            if waiter.state is WAITING:
                waiter.wakeup.set()
                return
