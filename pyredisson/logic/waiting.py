"""Waiting for something on the server: an attempt after each wakeup, until one succeeds.

These wake a waiter:
- a message: the holder has released. Another waiter that leaves may pass it on;
- the confirmation of the subscription, because messages published before it are lost, or its refusal;
- the loss of the subscription, because messages are lost until it is confirmed again;
- the closing of the client;
- a release of this client, which has acquired for it what it waits for, see `hand_over`. Then it makes no attempt;
- its own timer. For a lock it is set to 1 ms after the end of the holder's lease, or to `lock_watchdog_timeout` if that
  is earlier. Only the timer wakes the waiters of a holder that was killed, because such a holder publishes nothing.

Each kind of primitive has a subclass of `Waiter`: `locks.queued_wait` (locks), `locks.side_wait` (read-write locks),
`locks.fair_queue` (fair locks, with heartbeats), `permits.permit_wait` (semaphores), `permits.count_down_latch`.
"""

from abc import abstractmethod
from enum import Enum
from typing import Any

from pyredisson._core import InOrder, QueueFields, ReleaseCall, WaiterFields
from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replies import copy_error
from pyredisson.logic.channels import Channel
from pyredisson.logic.holds import HELD, LOST
from pyredisson.logic.owners import SHORTEST_WAIT, TURN_CHECK
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.session import Session
from pyredisson.logic.waits import Subject

UNCONFIRMED_WAIT = 1.0
"""Seconds between two attempts while the subscription isn't confirmed: messages may be lost meanwhile."""
UNKNOWN_WAIT = 1.0
"""Seconds after which a waiter makes an attempt if it doesn't know when the lease of the holder ends."""
LONGEST_SLEEP = 1e9
"""Seconds. A waiter that makes no attempt sleeps until something happens."""
LATER = 0.1
"""Seconds. So much later than a lease has ended a waiter may make its attempt."""
OTHERS_FIRST = 0.001
"""Seconds that the waiters of this client leave to clients of Redisson that have heard of a release: the waiters here
hear of it first, and would win nearly always."""


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


class WaitingQueue(QueueFields):
    """The waiters for one lock or semaphore in one client, in the order in which they came.

    Waiters join and leave with the mutex of the channels held, or by a step of the core while others wait here. What is
    read without the mutex is a single value.

    Other clients must not starve. The first hand-over begins a series, in which releases of this client are handed on
    for a limited time. After that a release wakes the first clients of the list on the server, which may be this one.
    """

    __slots__ = ()

    series_ends: float
    """Until when releases are handed on without a message. Infinite: no series of hand-overs has begun."""
    others_first_until: float
    """Until when the waiters of this client make no attempt."""

    def __init__(self) -> None:
        super().__init__(HELD, LOST, WAITING, OFFERED, UNKNOWN_WAIT)

    def may_hand_over(self, now: float, limit: float) -> bool:
        """Whether a release may be handed on once more: for `limit` seconds from the first time on."""
        return bool(limit and self.waiters) and now < self.series_ends

    def on_handed_over(self, now: float, limit: float) -> None:
        """A release is handed on. The first time begins a series."""
        self.series_ends = min(self.series_ends, now + limit)

    def put_off_until(self) -> float:
        return self.others_first_until

    @abstractmethod
    def leave_command(self, waiter: Any) -> bytes:
        """The command that takes the client out of its list; empty: it isn't there. `waiter`: any one that waits."""

    def wake_first(self) -> None:
        """Has the first waiter that sleeps make an attempt."""
        for waiter in InOrder(self.waiters):
            if waiter.state is WAITING and waiter.wakeup.alive:
                waiter.wake()
                # Otherwise it has left since the look at its state, and has passed nothing on.
                if waiter in self.waiters:
                    return


class Waiter(WaiterFields):
    """One call that waits. Its state is a `WaiterState`; only its methods change it.

    `run` is the wait, for all kinds of primitives. A kind adds what joining, an attempt and leaving are.
    """

    __slots__ = ()

    state: WaiterState
    session: Session
    wakeup: Wakeup
    channel: Channel
    """The channel that it has joined."""
    look_at: float
    """When to make the next attempt, even without a wakeup."""
    owes_attempt: bool
    """Whether this waiter has got a wakeup without having made its attempt. At its end the next waiter gets it."""

    longest_sleep = TURN_CHECK
    """Seconds between two calls of `while_offered`, about."""

    # The wait

    async def run(self, first: Any) -> bool:
        """Waits until it has what it waits for, or until the deadline of the call: False. To be called once.

        `first`: what the first attempt of the caller has returned. None: it has made none. After an exception the
        caller calls `end`: an interrupt may have prevented it in here.
        """
        session, wakeup = self.session, self.wakeup
        runtime = session.runtime
        try:
            session.begin_waiting(self)
            due = self.join(first)
            if first is not None:
                # Not before an attempt, which another process may wait for.
                tracing.look()
            while True:
                if due:
                    if await self.ask():
                        return True
                    tracing.look()
                if self.channel.error is not None:
                    raise copy_error(self.channel.error)
                # Before the look at who is the contender: one that leaves wakes the next waiter that sleeps.
                self.sleep()
                seconds = self.seconds_to_sleep()
                if seconds <= 0:
                    if self.wake_up():
                        return False
                    seconds = 0.0
                if tracing.debug:
                    self._log(f"waiting for {seconds:.3f} s at most")
                await runtime.wait(wakeup, seconds)
                if self.state is GIVEN and self.error is None:
                    return True
                if tracing.debug:
                    self._log("woken" if wakeup.is_set() else "no message")
                if self.wake_up():
                    due = self.is_due()
                elif await self.outcome():
                    return True
                elif self.state is LEFT:
                    return False
                else:
                    due = True
        except BaseException:
            # The wakeup may have been consumed by an attempt that did not finish: the next waiter gets it.
            self.owes_attempt = True
            raise
        finally:
            self.end()

    @property
    @abstractmethod
    def subject(self) -> Subject:
        """What it waits for."""

    def _log(self, what: str) -> None:
        logger.debug("%s on channel %r", what, readable(self.channel_name))

    @abstractmethod
    def join(self, first: Any) -> bool:
        """Takes the last place among the waiters of this client. Returns whether to make an attempt at once."""

    @abstractmethod
    async def ask(self) -> bool:
        """One attempt. A wakeup is only a hint: it may be late, or meant for another waiter. Only a reply counts."""

    @abstractmethod
    def leave_queue(self) -> None:
        """Leaves what `join` has joined, except for the channel. The caller holds the mutex of the channels."""

    def end(self) -> None:
        """Waits no longer. Never suspends. Idempotent, also if an earlier call was interrupted."""
        self.stop()
        if self.owes_attempt:
            self.wakeup.set()
        channels = self.session.channels
        with channels.mutex:
            self.leave_queue()
            channels.leave(self.channel_name, self.wakeup)

    def seconds_to_sleep(self) -> float:
        """For how long to sleep at most. 0 or less: the deadline has passed."""
        unconfirmed = UNCONFIRMED_WAIT if not self.channel.confirmed and self.is_contender() else LONGEST_SLEEP
        return self.sleep_seconds(self.session.clock(), unconfirmed)

    def is_due(self) -> bool:
        """Whether to make an attempt after a sleep. An attempt that other clients come before is put off."""
        now, deadline, woken = self.session.clock(), self.deadline, self.wakeup.is_set()
        if woken:
            self.wakeup.clear()
            told = self.channel.take_look(self.wakeup)
            if told is not None:
                self.look_at, woken = min(self.look_at, now + told + LATER), False
        # After the wakeup was cleared: a contender that leaves sets it again.
        if not self.asks(now, woken=woken):
            self.rely_on_contender(now)
            if woken and (first := next(InOrder(self.queue.waiters), self)).state is WAITING:
                # It sleeps, although it comes first: two that joined at once may stand in another order in the channel.
                first.wake()
            return False
        if woken:
            self.owes_attempt = True
            self.look_at = max(now, self.queue.put_off_until())
        return now >= self.look_at or (deadline is not None and now >= deadline) or not self.channel.confirmed

    def asks(self, now: float, *, woken: bool) -> bool:
        """Whether it makes attempts. `woken`: it was woken for one."""
        return self.is_contender(stuck=now >= self.look_at)

    def is_contender(self, *, stuck: bool = False) -> bool:
        """Whether it is the first of its queue, and so makes attempts for all: what it is told concerns the others.

        `stuck`: one that was woken, or is offered something, and hasn't gone on is passed over: a thread may be busy.
        """
        for waiter in InOrder(self.queue.waiters):
            if waiter is self:
                return True
            if stuck and (waiter.state is OFFERED or waiter.wakeup.is_set()):
                continue
            if waiter.state is not GIVEN and waiter.wakeup.alive:
                return False
        return True

    def rely_on_contender(self, now: float) -> None:
        """Another waiter makes the attempts: sets when to look after it."""

    def wake(self) -> None:
        """Has it make an attempt, also if it was woken only to learn when to look."""
        if self.channel is not None:
            self.channel.take_look(self.wakeup)
        self.wakeup.set()

    # Its state

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
        self.session.end_waiting(self)
        self.leave(GIVEN, LEFT)

    async def outcome(self) -> bool:
        """Waits for the outcome of the hand-over. True: this waiter has what it waits for.

        As an attempt that is on its way at the deadline, it may take as long as a reply. False: an attempt is due, or
        the deadline has passed long ago.
        """
        wakeup, deadline, runtime = self.wakeup, self.deadline, self.session.runtime
        if deadline is not None:
            deadline = max(deadline, runtime.clock() + SHORTEST_WAIT)
        while self.state is OFFERED:
            wakeup.clear()
            # The state is changed before the wakeup is set.
            if self.state is not OFFERED:
                break
            longest = self.longest_sleep
            seconds = longest if deadline is None else min(longest, deadline - runtime.clock())
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

    # By a release

    def choose(self, releaser: ReleaseCall) -> bool:
        """The release begins to hand over to it. False: it doesn't sleep."""
        return self.offer(WAITING, OFFERED, releaser)

    def give(self) -> bool:
        """The server has entered it. False: it has left meanwhile."""
        return self.conclude(OFFERED, GIVEN)

    def refuse(self) -> bool:
        """It was not entered: it makes an attempt. False: it has left meanwhile."""
        if self.conclude(OFFERED, LOOKING):
            return True
        self.releaser = None
        return False
