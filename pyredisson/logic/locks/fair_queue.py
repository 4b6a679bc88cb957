"""The waiters of one client in the queue of a fair lock: their tickets, and the heartbeats that keep their places."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redis.exceptions import RedisError, TryAgainError

from pyredisson._core import AcquireCall
from pyredisson._protocol.replies import NoReply
from pyredisson.logic import retry
from pyredisson.logic.channels import Channel
from pyredisson.logic.locks.queued_wait import LockWaiter
from pyredisson.logic.owners import Owner
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.waiting import UNCONFIRMED_WAIT

if TYPE_CHECKING:
    from pyredisson.logic.locks.fair_lock import FairLockCommands, FairLockLogic

HEARTBEAT_INTERVAL = 0.4
"""Seconds between two heartbeats of a client. Its waiters lose their places after 1.5 s without one."""
WHILE_KEYS_MOVE = 0.1
"""Seconds between two heartbeats while a part of the keys is on each of two nodes of a cluster."""
MOST_NAMED = 16
"""How many waiters a heartbeat names, to learn which of them are not in the queue any more. The first ones are enough:
Redisson removes waiters from the head of the queue."""


class TicketChannel(Channel):
    """The channel of one ticket.

    It counts all reasons for an attempt: each message, and what wakes all waiters (the confirmation, the refusal or the
    loss of the subscription, and closing). A wakeup alone is no such reason: it may mean that a heartbeat is due.
    """

    __slots__ = ("attempt_reasons",)

    def __init__(self) -> None:
        super().__init__()
        self.attempt_reasons = 0

    def wake(self, supply: int) -> None:
        self.attempt_reasons += 1
        super().wake(supply)

    def wake_all(self) -> None:
        self.attempt_reasons += 1
        super().wake_all()


@dataclass(eq=False, slots=True)
class QueueTicket:
    """The place of one acquire in the queue on the server.

    The place is found by its name. The name stays the same when the owner begins a new epoch, or the place would be
    lost; it changes only after a grant that had to be undone.
    """

    owner: Owner
    name: bytes
    channel: TicketChannel | None = None
    channel_name: bytes = b""
    """The channel of the name, if it was computed already."""
    attempt_reasons_before: int = 0
    """How many reasons for an attempt the channel had counted when the acquire was sent."""
    waiter: LockWaiter | None = None
    """None until the call waits."""
    needs_attempt: bool = False
    """Whether to make an attempt, even if nothing was published."""
    may_be_queued: bool = False
    """Whether an acquire was sent that may have put the name into the queue."""
    entry_in_doubt: bool = False
    """Whether a hand-over was given up that may have entered the name as the holder's."""
    withdrawn: bool = False
    """Whether the command was sent that takes the name out of the queue."""

    def request_attempt(self) -> None:
        self.needs_attempt = True
        if self.waiter is not None:
            self.waiter.wakeup.set()


class FairAcquireCall(AcquireCall):
    __slots__ = ("ticket",)

    ticket: QueueTicket


@dataclass(eq=False, slots=True)
class FairQueue:
    """The waiters of one client for one fair lock. One of them sends heartbeats for all, see `FairLockCommands`."""

    commands: FairLockCommands
    tickets: dict[QueueTicket, None] = field(default_factory=dict)
    """In the order in which the calls began to wait here. The order in the queue on the server may differ.

    A ticket whose place is lost, or that gets another name, goes to the end.
    """
    heartbeat_sender: QueueTicket | None = None
    """The ticket whose waiter sends the heartbeats."""
    heartbeat_at: float = math.inf
    """When the next heartbeat is due, on the clock of the client."""
    seen_before: bool = False
    """Whether the server has had a heartbeat of this client for this lock."""

    def join(self, ticket: QueueTicket, heartbeat_at: float) -> None:
        """Adds a ticket, whose waiter sends the heartbeats from now on. With the mutex of the channels held."""
        self.heartbeat_before(heartbeat_at)
        self.tickets[ticket] = None
        # Not the waiter that is next: the duty would go to another one with every hand-over of the lock.
        self.heartbeat_sender = ticket

    def leave(self, ticket: QueueTicket) -> bool:
        """Removes a ticket; whether the queue is empty after that. With the mutex of the channels held.

        Idempotent, also if an earlier call was interrupted.
        """
        self.tickets.pop(ticket, None)
        if self.heartbeat_sender not in self.tickets:
            for other in reversed(list(self.tickets)):
                # The event loop of a waiter may be closed.
                if (waiter := other.waiter) is not None and waiter.wakeup.alive:
                    self.heartbeat_sender = other
                    waiter.wakeup.set()
                    break
        return not self.tickets

    def first_waiter(self) -> LockWaiter | None:
        """The waiter with the first place of this client, as far as known."""
        for ticket in list(self.tickets):
            waiter = ticket.waiter
            if waiter is not None and waiter.wakeup.alive:
                return waiter
        return None

    def heartbeat_before(self, when: float) -> None:
        """Makes the next heartbeat due at that time at the latest."""
        self.heartbeat_at = min(self.heartbeat_at, when)

    async def heartbeat(self) -> bool:
        """Sends a heartbeat for all tickets. False: it is not known whether the server got it."""
        session = self.commands.session
        self.heartbeat_at = session.clock() + HEARTBEAT_INTERVAL
        with session.channels.mutex:
            named = {ticket.name: ticket for ticket in list(self.tickets)[:MOST_NAMED]}
        payload = self.commands.heartbeat(session.client, named)
        try:
            # Sent once: after a failure the next acquire meets the same trouble, and deals with it.
            reply = await retry.send_once(session.runtime, payload)
        except TryAgainError:
            # An attempt would meet the same, and then pause for so long that the places are lost.
            self.heartbeat_at = session.clock() + WHILE_KEYS_MOVE
            return True
        except (NoReply, RedisError):
            return False
        lease_left, known, notified, unfinished, without_place = reply
        if unfinished:
            self.heartbeat_at = session.clock()
        elif lease_left >= 0:
            # A holder that died publishes nothing.
            self.heartbeat_before(session.clock() + (lease_left + 1) / 1000)
        if notified:
            # The message of the script may not arrive, if the subscription has failed unnoticed. Then the waiter would
            # miss its turn.
            session.channels.deliver(b"%b:%b" % (self.commands.channel, notified), b"0")
        all_named_lost = without_place and len(without_place) == len(named)
        if known < 0 or (not known and self.seen_before) or all_named_lost:
            # The client was paused for too long, or keys were deleted: no place is certain.
            self._rejoin(list(self.tickets))
        elif without_place:
            # Redisson has removed them, by another clock or after a pause.
            self._rejoin([named[name] for name in without_place])
        self.seen_before = True
        return True

    def _rejoin(self, tickets: list[QueueTicket]) -> None:
        """Has these waiters make an attempt, which puts them at the end of the queue if they are not in it."""
        with self.commands.session.channels.mutex:
            for ticket in tickets:
                if ticket in self.tickets:
                    if len(tickets) < len(self.tickets):
                        self.move_to_end(ticket)
                    ticket.request_attempt()

    def move_to_end(self, ticket: QueueTicket) -> None:
        """The ticket gets another place. With the mutex of the channels held."""
        if ticket in self.tickets:
            del self.tickets[ticket]
            self.tickets[ticket] = None


class FairQueues(dict[bytes, FairQueue]):
    """The queues of one client, by the lock's name."""

    def leave_commands(self) -> Iterator[bytes]:
        """The commands that take all waiters of this client out of their queues: the client is being closed.

        Each is made when it is asked for: then no waiter sends a command of its own any more.
        """
        for queue in list(self.values()):
            tickets = list(queue.tickets)
            for ticket in tickets:
                ticket.withdrawn = True
            yield queue.commands.leave([ticket.name for ticket in tickets], in_doubt=True)


# --- The wait


ATTEMPT_INTERVAL = 60.0
"""Seconds, about, after which a waiter makes an attempt even if nothing happened. The attempt renews its score, or else
Redisson would remove it from the queue."""


class FairWait(LockWaiter):
    """One call that waits in the queue: it sends an attempt or a heartbeat when that is due, and else sleeps.

    A holder that died publishes nothing. Its waiters are woken by the heartbeat that is due 1 ms after the end of its
    lease. The script of that heartbeat finds the lock free, notifies the head of the queue, and returns its name. If
    that is a waiter of the same client, `FairQueue.heartbeat` wakes it also without a message.
    """

    __slots__ = ("_attempt_interval", "_attempted_at", "_name", "_queue", "_seen_reasons", "_ticket")

    lock: FairLockLogic
    call: FairAcquireCall
    channel: TicketChannel

    longest_sleep = HEARTBEAT_INTERVAL

    def __init__(self, lock: FairLockLogic, call: FairAcquireCall, channel_name: bytes) -> None:
        # Its channel has the name of its ticket, see `_register`.
        super().__init__(lock, call, b"")
        self._ticket = call.ticket
        self._attempted_at = self.session.clock()
        self._attempt_interval = ATTEMPT_INTERVAL * (0.75 + self.session.runtime.jitter() / 2)
        call.ticket.waiter = self

    def join(self, first: float | None) -> bool:
        session, key = self.session, self.lock.key
        with session.channels.mutex:
            queue = session.fair_queues.get(key)
            if queue is None:
                queue = session.fair_queues[key] = FairQueue(self.lock.commands)
            queue.join(self._ticket, self._attempted_at + min(HEARTBEAT_INTERVAL, first or 0.0))
        self._queue = queue
        known = self._ticket.channel
        self._register()
        self._seen_reasons = self.channel.attempt_reasons
        if self.channel.confirmed:
            # -1: an attempt follows now, because a notification may have been missed. Not if notifications were counted
            # since before the acquire was sent.
            self._seen_reasons = self._ticket.attempt_reasons_before if self.channel is known else -1
        return True

    async def ask(self) -> bool:
        """Makes the attempts and sends the heartbeats that are due."""
        # Each function between a message and the next attempt counts, see docs/architecture.md.
        ticket, queue = self._ticket, self._queue
        while True:
            self.wakeup.clear()
            if self.session.closed:
                self.session.check_open()
            if ticket.name != self._name:
                self._follow_name()
            if self.channel.error is not None:
                return False
            now, deadline = self.session.clock(), self.call.deadline
            if deadline is not None and now >= deadline:
                return False
            if self.channel.attempt_reasons != self._seen_reasons or ticket.needs_attempt or now >= self._attempt_at:
                if await self._make_attempt():
                    return True
            elif queue.heartbeat_sender is ticket and now >= queue.heartbeat_at:
                if not await queue.heartbeat():
                    ticket.needs_attempt = True
            else:
                return False

    async def _make_attempt(self) -> bool:
        self._seen_reasons, self._ticket.needs_attempt = self.channel.attempt_reasons, False
        heartbeat_within = await self.lock._attempt(self.call)
        if heartbeat_within is None:
            return True
        self._attempted_at = self.session.clock()
        # After that time the lock may be free without a message. Not each waiter makes an attempt then: one heartbeat
        # finds out whose turn it is.
        self._queue.heartbeat_before(self._attempted_at + heartbeat_within)
        return False

    @property
    def _attempt_at(self) -> float:
        """When to make an attempt even if nothing happened."""
        return self._attempted_at + (self._attempt_interval if self.channel.confirmed else UNCONFIRMED_WAIT)

    def seconds_to_sleep(self) -> float:
        self.look_at = self._attempt_at
        if self._queue.heartbeat_sender is self._ticket:
            self.look_at = min(self.look_at, self._queue.heartbeat_at)
        return self.sleep_seconds(self.session.clock(), UNCONFIRMED_WAIT)

    def is_due(self) -> bool:
        """`ask` finds out what is due. A wakeup alone is no reason for an attempt."""
        return True

    def refuse(self) -> bool:
        """It is not the head of the queue, and its place is as before."""
        if self.call.in_doubt:
            # The reply may be the reply to a second copy, which doesn't tell what the first one has done.
            self._ticket.needs_attempt = True
        return super().refuse()

    async def while_offered(self) -> None:
        """A hand-over that comes late needs the place, which would be lost without heartbeats."""
        if self._queue.heartbeat_sender is self._ticket and self.session.clock() >= self._queue.heartbeat_at:
            await self._queue.heartbeat()

    def end(self) -> None:
        # Another call with the same name may be waiting for the same message, and this waiter may have cleared its
        # wakeup without an attempt.
        self.owes_attempt = True
        super().end()

    def leave_queue(self) -> None:
        queues, ticket = self.session.fair_queues, self._ticket
        queue = queues.get(self.lock.key)
        if queue is not None and queue.leave(ticket):
            del queues[self.lock.key]

    def set_aside(self, *wakeups: Wakeup) -> int | None:
        """Nobody else waits for the messages of this channel, which counts them."""
        return None

    def take_back(self) -> None: ...

    def _register(self) -> None:
        """Registers at the channel of the ticket's name."""
        self._name = self._ticket.name
        self.channel_name = self._ticket.channel_name or self.lock.commands.channel_of(self._ticket)
        channel = self.session.channels.join(self.channel_name, self.wakeup, TicketChannel)
        assert isinstance(channel, TicketChannel)
        self._ticket.channel = self.channel = channel

    def _follow_name(self) -> None:
        """Registers anew: the ticket got another name, with a place at the end of the queue."""
        self.session.channels.leave(self.channel_name, self.wakeup)
        self._ticket.channel_name = b""
        self._register()
        self._seen_reasons = -1
        with self.session.channels.mutex:
            self._queue.move_to_end(self._ticket)
