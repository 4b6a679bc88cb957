"""Waiting for a lock that is handed on inside a client: sleep, and make an attempt only where that may help."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING

from pyredisson._core import AcquireCall, InOrder, LockWaiterFields
from pyredisson.logic.channels import Channel, RelayedChannel
from pyredisson.logic.holds import Hold, HoldKey
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import LATER, LOOKING, OTHERS_FIRST, UNCONFIRMED_WAIT, WAITING, Waiter, WaitingQueue

if TYPE_CHECKING:
    from pyredisson.logic.locks.rlock import LockLogic

LOOK = b"look:"
"""The beginning of the message that tells a client when the lock may be free, although nobody wakes it."""


class LockChannel(RelayedChannel):
    """The waiters of a lock that is handed on. One of them is enough to find out whether the lock is free."""

    __slots__ = ("look_for", "look_in", "on_unused")

    def __init__(self) -> None:
        super().__init__()
        self.look_in: float | None = None
        """A waiter was woken only to learn that it has to make an attempt in so many seconds."""
        self.look_for: Wakeup | None = None
        """That waiter."""
        self.on_unused: dict[bytes, Callable[[bytes], None]] = {}
        """By the suffix of the client's name in the list: called with the name if it was woken, and no call waits."""

    def on_message(self, payload: bytes) -> None:
        """`look:MS`, see `waiting_list.lua`; or the client's name in the list: it may acquire the lock."""
        if payload.startswith(LOOK):
            self.look(payload, 1)
        elif b":" not in payload:
            super().on_message(payload)
        elif self.waiters or b"" not in self.on_unused:
            self.wake(1)
        else:
            self.on_unused[b""](payload)

    def look(self, payload: bytes, need: int | None) -> None:
        """`look:MS` is for the first waiter with that need (None: any). If it is awake, it makes an attempt anyway."""
        digits = payload.removeprefix(LOOK)
        if not digits.isdigit():
            # Somebody else may publish on this channel.
            return
        seconds = int(digits) / 1000
        for wakeup in list(self.waiters):
            found = self.waiters.get(wakeup, 0)
            if found > 0 and (need is None or found == need) and wakeup.alive:
                if not wakeup.is_set():
                    self.look_for, self.look_in = wakeup, seconds
                    wakeup.set()
                elif (before := self.look_in) is not None and self.look_for is wakeup:
                    self.look_in = min(before, seconds)
                return

    def wake(self, supply: int) -> None:
        # An attempt is due at once. A waiter that is awake, and has not learnt yet that it may wait, makes it.
        self.look_in = None
        super().wake(supply)

    def take_look(self, wakeup: Wakeup) -> float | None:
        if self.look_in is None or self.look_for is not wakeup:
            return None
        seconds, self.look_in = self.look_in, None
        return seconds


class LockWaiter(LockWaiterFields, Waiter):
    __slots__ = ()

    lock: LockLogic
    call: AcquireCall
    hold_key: HoldKey
    need = 1
    """Its need in the channel."""

    def __init__(self, lock: LockLogic, call: AcquireCall, channel_name: bytes) -> None:
        session = lock.session
        self.begin(LOOKING, session, call, session.runtime.wakeup(), channel_name)
        self.lock = lock
        self.hold_key = (lock.identity, call.owner.id)

    @property
    def subject(self) -> LockLogic:
        return self.lock

    def set_aside(self, *wakeups: Wakeup) -> int | None:
        """Messages go to other waiters than those with these wakeups. Returns the same as `ChannelRegistry.events`."""
        return self.session.channels.set_aside(self.channel_name, *wakeups)

    def take_back(self) -> None:
        """Undoes `set_aside` of its own wakeup."""
        self.session.channels.take_back(self.channel_name, self.wakeup, self.need)


class LocalQueue(WaitingQueue):
    """The waiters of one lock in one client. It exists while the lock is contended."""

    __slots__ = ("listed", "member")

    waiters: dict[LockWaiter, None]
    channel: Channel | None
    """The channel of the lock, as the waiter that came last has joined it."""
    holder: Hold | None
    """The latest hold of this client that a waiter has acquired."""
    holder_events: int | None
    """The events of the channel before the command was sent by which the holder acquired the lock."""
    busy_until: float
    """When the lease of the holder ends, as the latest attempt was told."""

    def __init__(self, member: bytes = b"") -> None:
        super().__init__()
        self.member = member
        """The name of the client in the list of clients that wait for the lock."""
        self.listed = False
        """Whether the client may be in that list, under this name."""

    def leave_command(self, waiter: LockWaiter) -> bytes:
        return waiter.lock.commands.leave_list(self.member) if self.listed else b""

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
                    waiter.wake()
                if waiter in self.waiters:
                    return

    def end_series(self, now: float) -> None:
        """The lock is about to be released with a message. After a series of hand-overs other clients come first."""
        if self.series_ends < math.inf:
            self.series_ends = math.inf
            self.others_first_until = now + OTHERS_FIRST


# --- The wait


LISTENING = 2
"""So many of the clients that wait listen to Redisson's messages while one of its clients holds the lock."""
FIRST_LOOK = 1.0
"""Seconds after which a client behind two others looks first; later after three times as long as it has waited."""


def delay_of(place: int, lease: float) -> float:
    """How many seconds later than the first client one looks whether the holder's lease has ended.

    The first one finds that out, the second one if the first is dead. The others are woken by a release, and look then
    only to stay in the list.
    """
    return 0.05 * place if place < LISTENING else lease / 3 + min(0.05 * place, lease / 3)


def leave_unused(
    session: weakref.ref[Session], identity: Hashable, commands: type[LockCommands], key: bytes, member: bytes
) -> None:
    """The client was woken under this name, and no call of it waits. Called by what reads the messages.

    A weak reference: what reads the messages must not keep a client alive that nobody else refers to.
    """
    client = session()
    if client is None or client.closed:
        return
    # In this order: an attempt that is on its way under that name finds another one when it has been refused.
    another, queue = client.new_member(), client.lock_queues.get(identity)
    if queue is not None and queue.member == member:
        queue.member, queue.listed = another, False
    client.repair(commands(client, key).leave_list(member))


class QueuedWait(LockWaiter):
    __slots__ = ()

    channel_class: type[Channel] = LockChannel
    queue_class: type[LocalQueue] = LocalQueue
    queue: LocalQueue

    def join(self, first: float | None) -> bool:
        lock, name, call = self.lock, self.channel_name, self.call
        session, identity, commands = self.session, lock.identity, lock.commands
        channels, queues = session.channels, session.lock_queues
        if first is None:
            queue, longest = queues.get(identity), session.lease_ms / 1000
            if queue is not None and channels.join_quietly(queue, self, self.need, session.clock(), longest):
                return self._must_ask()
        with channels.mutex:
            queue = queues.get(identity)
            if queue is None:
                queue = queues[identity] = self.queue_class(session.list_member(identity))
            self.queue = queue
            if call.member == queue.member:
                # From now on the queue leaves the list, when nobody waits in it any more.
                queue.listed = True
            alone = not any(waiter.wakeup.alive for waiter in InOrder(queue.waiters))
            queue.waiters[self] = None
            # A waiter that has made no attempt can't have missed anything since then.
            events = call.events if first is not None else channels.events(name)
            queue.channel = self.channel = channels.join(name, self.wakeup, self.channel_class, self.need, events)
            if isinstance(self.channel, LockChannel):
                leave = partial(leave_unused, weakref.ref(session), identity, type(commands), commands.key)
                self.channel.on_unused[commands.member_suffix] = leave
        if call.member and call.member != queue.member:
            # Under that name the client may have left the list since.
            session.leave_list(commands.leave_list(call.member))
            return True
        if first is not None:
            self._refused(session.clock(), first, joined=True)
            return False
        return self._starts_with_attempt(alone=alone)

    def _must_ask(self) -> bool:
        """Whether it makes an attempt at once, though it has joined others of its client that wait."""
        return False

    def _starts_with_attempt(self, *, alone: bool) -> bool:
        """Goes to sleep without an attempt, unless nobody else is seen to wait (`alone`) or to hold the lock."""
        session, queue = self.session, self.queue
        now = session.clock()
        # No waiter sleeps longer than `lock_watchdog_timeout`: the next holder may have a shorter lease.
        self.look_at = min(queue.next_look(now, queue.is_held), now + session.lease_ms / 1000)
        # Before the look at the holder: so its release finds this waiter, or this waiter finds the release.
        self.sleep()
        return alone and not queue.is_held and self.wake_up()

    def rely_on_contender(self, now: float) -> None:
        # If it has just acquired the lock, the next attempt is due at the end of that lease.
        held, longest = self.queue.is_held, now + self.session.lease_ms / 1000
        if held or now >= self.look_at:
            self.look_at = min(self.queue.next_look(now, held), longest) if held else longest

    async def ask(self) -> bool:
        self.wakeup.clear()
        self.call.events = self.channel.events
        self.queue.listed = self.lock.commands.has_list
        self.call.place = -1
        wait = await self.lock._attempt(self.call)
        # An attempt at the deadline isn't entered in the list: if it is refused, the next waiter here has to be.
        self.owes_attempt = wait is not None and self.lock.commands.has_list and self.call.place < 0
        if wait is None:
            self.queue.set_holder(self.call.hold, self.call.events)
            return True
        self._refused(self.session.clock(), wait)
        return False

    def _refused(self, now: float, wait: float, *, joined: bool = False) -> None:
        """Sets when to look again. `joined`: this waiter has joined the channel after the attempt."""
        session, call = self.session, self.call
        if call.place >= 0:
            self.queue.listed = True
            wait += delay_of(call.place, session.lease_ms / 1000)
            if call.place >= LISTENING:
                # If those before it are all frozen, on one host say, nobody wakes it or tells it when to look.
                wait = min(wait, max(FIRST_LOOK, 3 * (now - (call.began or now))))
            if call.foreign and call.place < LISTENING:
                assert isinstance(self.channel, LockChannel)
                if session.channels.relay(self.lock.commands.channel, self.channel, anew=joined):
                    self.wakeup.set()
        elif self.lock.commands.has_list:
            # The list was left out while the slot is being moved, so no release wakes this client for sure.
            wait = min(wait, UNCONFIRMED_WAIT)
        self.look_at = self.queue.busy_until = now + wait

    def end(self) -> None:
        self.stop()
        if self.owes_attempt:
            self.wakeup.set()
        call, queue = self.call, self.queue
        if queue is not None and call.hold is not None and self.session.channels.leave_quietly(queue, self):
            call.member = b""
            return
        super().end()

    def leave_queue(self) -> None:
        """What the queue owes the list is the call's after its last waiter."""
        session, call, queue = self.session, self.call, self.queue
        if queue is None:
            return
        queue.waiters.pop(self, None)
        if self.channel is not None and not self.channel.confirmed:
            # The next contender makes an attempt every second.
            queue.wake_first()
        elif call.hold is None and self.look_at == queue.busy_until:
            # The latest attempt was its own: nobody else knows when the lease ends.
            queue.wake_if_later(self.look_at)
        if queue.waiters:
            call.member = b""
            return
        if queue.listed:
            call.member = queue.member
            queue.member = session.new_member()
            queue.listed = False
        if not queue.is_held and session.lock_queues.get(self.hold_key[0]) is queue:
            session.lock_queues.pop(self.hold_key[0], None)
