"""Waiting for a lock that is handed on inside a client: sleep, and make an attempt only where that may help.

As in `logic.waiting`, a wakeup is a hint to make an attempt. In addition a release of this client may enter the waiter
on the server, see `hand_over`. Then the waiter has the lock without any attempt of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING

from pyredisson._core import AcquireCall, InOrder, LockQueueFields, LockWaiterFields
from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replies import copy_error
from pyredisson.logic.channels import Channel, ChannelRegistry, RelayedChannel
from pyredisson.logic.holds import HELD, LOST, Hold, HoldKey
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import GIVEN, LEFT, LOOKING, OFFERED, UNCONFIRMED_WAIT, WAITING, HandedWaiter

if TYPE_CHECKING:
    from pyredisson.logic.locks.rlock import LockLogic

OTHERS_FIRST = 0.001
"""Seconds that the waiters of this client leave to other clients after a series of hand-overs: the waiters here hear of
the release first, and would win nearly always."""
LATER = 0.1
"""Seconds. So much later than a lease has ended a waiter may make its attempt."""
LOOK = b"look:"
"""The beginning of the message that tells a client when the lock may be free, although nobody wakes it."""
UNKNOWN_WAIT = 1.0
"""Seconds after which a waiter makes an attempt if it doesn't know when the lease of the holder ends."""


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
        """`look:MS` is meant for the first waiter, unless it is awake and makes an attempt anyway.

        `need`: of the waiters with that need; None: with any.
        """
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
                elif self.look_in is not None and self.look_for is wakeup:
                    self.look_in = min(self.look_in, seconds)
                return

    def wake(self, supply: int) -> None:
        # An attempt is due at once. A waiter that is awake, and has not learnt yet that it may wait, makes it.
        self.look_in = None
        super().wake(supply)


class LockWaiter(LockWaiterFields, HandedWaiter):
    """One call that waits for a lock. Its state is a `WaiterState`; only methods of it and its queue change it."""

    __slots__ = ()

    lock: LockLogic
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

    def __init__(
        self, lock: LockLogic, hold_key: HoldKey, call: AcquireCall, wakeup: Wakeup, channel_name: bytes
    ) -> None:
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

    waiters: dict[LockWaiter, None]
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


# --- The wait


LISTENING = 2
"""So many of the clients that wait listen to Redisson's messages while one of its clients holds the lock."""
LONGEST_SLEEP = 1e9
"""Seconds. A waiter that makes no attempt sleeps until something happens."""


def joins_at_once(lock: LockLogic, call: AcquireCall) -> bool:
    """Whether a call waits behind others of its client before it makes any attempt.

    Not if it has no time to wait, and not if its owner has a hold, which may only need another level.
    """
    session = lock.session
    queue = session.lock_queues.get(lock.identity)
    if queue is None or not session.local_hand_over_time or not (queue.waiters or queue.is_held):
        return False
    if call.deadline is not None and call.deadline <= session.clock():
        return False
    hold = session.holds.table.get((lock.identity, call.owner.id))
    return hold is None or hold.state is LOST


def delay_of(place: int, lease: float) -> float:
    """How many seconds later than the first client one looks whether the holder's lease has ended.

    The first one finds that out, the second one if the first is dead. The others are woken by a release, and look only
    to stay in the list.
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
    """The wait of one call."""

    __slots__ = ()

    channel_class: type[Channel] = LockChannel
    queue_class: type[LocalQueue] = LocalQueue
    joins_quietly = True
    """Whether it may wait behind others of its queue without a look at anything else."""

    def __init__(self, lock: LockLogic, call: AcquireCall) -> None:
        wakeup = lock.session.runtime.wakeup()
        self.begin(LOOKING, lock, (lock.identity, call.owner.id), call, wakeup, lock.commands.waiting_channel)

    async def run(self, wait: float | None) -> bool:
        session, wakeup = self.lock.session, self.wakeup
        runtime, began = session.runtime, session.begin_waiting()
        try:
            must_attempt = self._join(wait)
            while True:
                if must_attempt and await self._attempt():
                    return True
                if self.channel.error is not None:
                    raise copy_error(self.channel.error)
                # Before the look at who is the contender: one that leaves wakes the next waiter that sleeps.
                self.sleep()
                asks = self.is_contender(self.queue.waiters)
                seconds = self.seconds_to_sleep(session.clock(), UNCONFIRMED_WAIT if asks else LONGEST_SLEEP)
                if seconds <= 0:
                    if self.wake_up():
                        return False
                    seconds = 0.0
                if tracing.debug:
                    logger.debug("waiting on channel %r for %.3f s at most", readable(self.channel_name), seconds)
                await runtime.wait(wakeup, seconds)
                if self.state is GIVEN and self.error is None:
                    return True
                if tracing.debug:
                    said = "woken" if wakeup.is_set() else "no message"
                    logger.debug("%s on channel %r", said, readable(self.channel_name))
                if self.wake_up():
                    must_attempt = self._is_due()
                elif await self.outcome(runtime):
                    return True
                elif self.state is LEFT:
                    return False
                else:
                    must_attempt = True
        except BaseException:
            # The wakeup may have been consumed by an attempt that did not finish: the next waiter gets it.
            self.owes_attempt = True
            raise
        finally:
            self.end()
            session.end_waiting(began)

    def _join(self, wait: float | None) -> bool:
        """Takes the last place among the waiters of this client. Returns whether to make an attempt at once."""
        lock, name, call = self.lock, self.channel_name, self.call
        session, identity, commands = lock.session, lock.identity, lock.commands
        channels, queues = session.channels, session.lock_queues
        if wait is None and self.joins_quietly:
            queue = queues.get(identity)
            if queue is not None and channels.join_quietly(
                queue, self, self.need, session.clock(), session.lease_ms / 1000
            ):
                return False
        with channels.mutex:
            queue = queues.get(identity)
            if queue is None:
                queue = queues[identity] = self.queue_class(session.list_member(identity))
            self.queue = queue
            if call.member == queue.member:
                # From now on the queue leaves the list, when nobody waits in it any more.
                queue.listed = True
            alone = True
            for waiter in InOrder(queue.waiters):
                if waiter.wakeup.alive:
                    alone = False
                    break
            queue.waiters[self] = None
            # A waiter that has made no attempt can't have missed anything since then.
            events = call.events if wait is not None else channels.events(name)
            queue.channel = self.channel = channels.join(name, self.wakeup, self.channel_class, self.need, events)
            if isinstance(self.channel, LockChannel):
                leave = partial(leave_unused, weakref.ref(session), identity, type(commands), commands.key)
                self.channel.on_unused[commands.member_suffix] = leave
        if call.member and call.member != queue.member:
            # Under that name the client may have left the list since.
            session.leave_list(commands.leave_list(call.member))
            return True
        if wait is not None:
            tracing.look()
            self._refused(session.clock(), wait, joined=True)
            return False
        return self._starts_with_attempt(alone=alone)

    def _starts_with_attempt(self, *, alone: bool) -> bool:
        """Goes to sleep without an attempt, unless nobody else is seen to wait (`alone`) or to hold the lock."""
        session, queue = self.lock.session, self.queue
        now = session.clock()
        # No waiter sleeps longer than `lock_watchdog_timeout`: the next holder may have a shorter lease.
        self.look_at = min(queue.next_look(now, queue.is_held), now + session.lease_ms / 1000)
        # Before the look at the holder: so its release finds this waiter, or this waiter finds the release.
        self.sleep()
        return alone and not queue.is_held and self.wake_up()

    def _is_due(self) -> bool:
        """Whether to make an attempt after a sleep. An attempt that other clients come before is put off."""
        session, queue = self.lock.session, self.queue
        now, deadline, put_off = session.clock(), self.call.deadline, queue.put_off_until()
        woken = self.wakeup.is_set()
        if woken:
            self.wakeup.clear()
            channel = self.channel
            if isinstance(channel, LockChannel) and channel.look_in is not None and channel.look_for is self.wakeup:
                self.look_at = min(self.look_at, now + channel.look_in + LATER)
                channel.look_in, woken = None, False
        # After the wakeup was cleared: a contender that leaves sets it again.
        if not self.is_contender(queue.waiters, stuck=now >= self.look_at):
            # The contender makes an attempt for all. If it has just acquired the lock, the next attempt is due at the
            # end of that lease.
            held, longest = queue.is_held, now + session.lease_ms / 1000
            if held or now >= self.look_at:
                self.look_at = min(queue.next_look(now, held), longest) if held else longest
            return False
        if woken:
            self.owes_attempt = True
            if now < put_off:
                self.look_at = put_off
        over = deadline is not None and now >= deadline
        due = now >= self.look_at or (self.owes_attempt and now >= put_off)
        return over or due or not self.channel.confirmed

    async def _attempt(self) -> bool:
        # A wakeup is only a hint: it may be late, or meant for another waiter. Only a script's reply counts.
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
        # Here and not before the attempt, which another process may wait for.
        tracing.look()
        self._refused(self.lock.session.clock(), wait)
        return False

    def _refused(self, now: float, wait: float, *, joined: bool = False) -> None:
        """Sets when to look again. `joined`: this waiter has joined the channel after the attempt."""
        session, call = self.lock.session, self.call
        if call.place >= 0:
            self.queue.listed = True
            wait += delay_of(call.place, session.lease_ms / 1000)
            if call.foreign and call.place < LISTENING:
                assert isinstance(self.channel, LockChannel)
                if session.channels.relay(self.lock.commands.channel, self.channel, anew=joined):
                    self.wakeup.set()
        elif self.lock.commands.has_list:
            # The list was left out while the slot is being moved, so no release wakes this client for sure.
            wait = min(wait, UNCONFIRMED_WAIT)
        self.look_at = self.queue.busy_until = now + wait

    def end(self) -> None:
        """Leaves the queue and the channel. Never suspends. Idempotent, also if an earlier call was interrupted."""
        session, queue = self.lock.session, self.queue
        self.stop()
        if self.owes_attempt:
            self.wakeup.set()
        if queue is not None and session.channels.leave_quietly(queue, self):
            self.call.member = b""
            return
        with session.channels.mutex:
            if queue is not None:
                self._leave_queue(queue)
            session.channels.leave(self.channel_name, self.wakeup)

    def _leave_queue(self, queue: LocalQueue) -> None:
        """The caller holds the mutex. What the queue owes the list is the call's after its last waiter."""
        session, call = self.lock.session, self.call
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
