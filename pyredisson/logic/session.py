"""The inside of one client, which all its primitives share: owners, holds, channels, watchdog, background commands."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyredisson._settings.config import Config
from pyredisson._settings.durations import lease_ms, seconds
from pyredisson.errors import ClosedError
from pyredisson.logic import announcement, retry
from pyredisson.logic.announcement import Announcement
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.exactly_once import SessionSlots
from pyredisson.logic.holds import AT_MOST, FORGOTTEN, GONE, LEASE_ENDED, NOT_TAKEN_OVER, Hold, HoldTable
from pyredisson.logic.loops import Loop
from pyredisson.logic.losses import Callback, LostCallbacks
from pyredisson.logic.observing import Observing
from pyredisson.logic.owners import OwnerRegistry
from pyredisson.logic.ports import Runtime
from pyredisson.logic.retry import expirable_permits_granted, lock_granted
from pyredisson.logic.waits import Wait
from pyredisson.logic.watchdog import Watchdog

if TYPE_CHECKING:
    from pyredisson.logic.groups.group import GroupRegistry
    from pyredisson.logic.locks.fair_queue import FairQueues
    from pyredisson.logic.locks.queued_wait import LocalQueue
    from pyredisson.logic.permits.permit_queue import PermitRegistry


class Resources(NamedTuple):
    """What a session works with. A process that was forked needs others."""

    client_id: str
    runtime: Runtime
    watchdog_runtime: Runtime
    """The watchdog has connections of its own: a slow call must not delay a renewal."""
    channels: ChannelRegistry
    fair_queues: FairQueues
    groups: GroupRegistry
    permits: PermitRegistry
    """These three are what the primitives of one kind share. The modules of that kind import this one, not it them."""
    observing: Observing | None = None
    """The events for the observer. None: there is no observer."""


class Host(Protocol):
    """What a session needs from the client around it: whatever depends on the backend, on threads, or on exit."""

    def open(self, post: Callable[[bytes], None]) -> Resources:
        """Makes a client id and unconnected resources. `post` sends an idempotent command in the background."""

    def start_loop(self, loop: Loop) -> None:
        """Runs one of the watchdog's loops on a thread of its own."""

    def run_callback(self, callback: Callback) -> None:
        """Has a function called on another thread, where it delays nothing. May be called from anywhere."""

    def expect_lease(self, lease: int) -> None:
        """A lock is renewed with this lease, in ms. The watchdog notices in time that a reply to a renewal is lost."""

    def send_last(self, payload: bytes, *, releases: bool = True) -> None:
        """Sends an idempotent command although the client is closed; only with others if it `releases` nothing."""


class Session:
    """What a client has besides its backend. Handles and logic objects keep a reference to it, also across a fork."""

    def __init__(self, config: Config, host: Host) -> None:
        self.lease_ms = self._shortest_lease = lease_ms(config.lock_watchdog_timeout)
        """Milliseconds: the lease of a lock that the watchdog renews."""
        self.fair_wait = lease_ms(config.fair_lock_wait_timeout)
        """Milliseconds for which Redisson keeps a waiter in the queue of a fair lock."""
        self.local_hand_over_time = config.local_hand_over_time
        """For how many seconds a lock is handed on in this client without a message."""
        self.patience = round(config.local_hand_over_time * 1_000_000)
        """Microseconds for which other clients may come before one that was woken, since it began to wait."""
        self.list_lasts = 2 * self.lease_ms
        """Milliseconds: the TTL of a list of waiting clients. Each client comes again before its end."""
        self.retries = config.retry_attempts
        """How often a command is sent again after a failure, if the call doesn't wait for other owners."""
        self.longest_call = retry.longest(self.retries, seconds(config.timeout, "timeout"))
        """For how many seconds such a call tries at most."""
        self.config = config
        self.server = config.describe()
        """Identifies the server, for groups of locks that are on several."""
        self.closed = False
        self._host = host
        self.run_callback = host.run_callback
        self.lost_callbacks = LostCallbacks(host.run_callback)
        self.owners = OwnerRegistry()
        self.open()

    def open(self) -> None:
        """Sets all that belongs to one client id: owners, holds, waiters, and what is sent with that id.

        Called again in the child after a fork, which becomes a new client. What it had is the parent's.
        """
        resources = self._host.open(self.repair)
        self.id, self.runtime, watchdog_runtime, self.channels = resources[:4]
        self.fair_queues, self.groups, self.permits, self.observing = resources[4:]
        self.clock = self.runtime.clock
        self.client = self.id.encode()
        self.members: Iterator[bytes] = map((self.client + b":%d").__mod__, itertools.count(1))
        """Names for lists of waiting clients. Each is used once."""
        self.new_member()
        self.lock_sender = self.runtime.acquiring(lock_granted)
        self.expirable_permit_sender = self.runtime.acquiring(expirable_permits_granted)
        self.owners.begin(self.id)
        self.holds = HoldTable(self.clock, self._on_hold_lost)
        self.watchdog = Watchdog(self.holds, watchdog_runtime, self.lease_ms, self._host.start_loop)
        self.watchdog.observing = self.observing
        self.watchdog.release_when_owner_ends = self.config.release_when_owner_ends
        self._host.expect_lease(self._shortest_lease)
        self.announcement: Announcement | None = None
        """What tells others who this client is. None: nothing does."""
        if self.config.announce and not math.isinf(announcement.FIRST_AFTER):
            self.announcement = Announcement(self.id, self.config, self.holds, self.watchdog, self.clock)
            self.watchdog.announcer = self.announcement
        self.slots = SessionSlots(self.id, self.runtime, self.retries)
        self.lock_queues: dict[Hashable, LocalQueue] = {}
        """The waiters of each lock that is contended in this client."""

    def expect_lease(self, lease: int) -> None:
        """A lock is going to be renewed with this lease, in ms."""
        if lease < self._shortest_lease:
            self._shortest_lease = lease
            self._host.expect_lease(lease)

    def new_member(self) -> bytes:
        """Takes another name for the lists of waiting clients, see `waiting_list.lua`."""
        self._member = next(self.members)
        return self._member

    def list_member(self, identity: Hashable) -> bytes:
        """The name of this client in the list of clients that wait for a lock."""
        queue = self.lock_queues.get(identity)
        return self._member if queue is None else queue.member

    def listed_member(self, identity: Hashable) -> bytes:
        """The same, if this client may be in the list; else empty."""
        queue = self.lock_queues.get(identity)
        return b"" if queue is None or not queue.listed else queue.member

    def leave_list(self, payload: bytes) -> None:
        """No call of this client waits for a lock any more: it leaves the list, in the background."""
        self.new_member()
        if self.closed:
            self._host.send_last(payload, releases=False)
        else:
            self.runtime.post(payload)

    def leave_commands(self) -> Iterator[bytes]:
        """The commands that take this client out of all lists of clients that wait: it is being closed.

        Calls in flight may enter it once more. They leave the lists when they find the client closed.
        """
        for queue in [*self.lock_queues.values(), *self.permits.queues.values()]:
            yield from filter(None, map(queue.leave_command, list(queue.waiters)[:1]))

    def begin_waiting(self, wait: Wait) -> None:
        if self.announcement is not None:
            if not self.watchdog.started:
                self.watchdog.begin_waiting()
            self.announcement.begin_waiting(wait)

    def end_waiting(self, wait: Wait) -> None:
        """A call has ended its wait, whatever the result is. Idempotent."""
        if self.announcement is not None:
            self.announcement.end_waiting(wait)

    def server_may_know(self, hold: Hold, payload: bytes) -> bool:
        """Whether the server of the command can have had the hold: it wasn't replaced since it confirmed it last."""
        return self.runtime.replaced_at(payload) < hold.confirmed_at(self.lease_ms)

    def repair(self, payload: bytes) -> None:
        """Sends an idempotent command in the background until it has run; once more, if the client is closed."""
        if not self.closed:
            self.watchdog.repair(payload)
        if self.closed:
            self._host.send_last(payload)

    def check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"client {self.id} is closed")

    def close(self) -> Iterator[Hold]:
        """Ends waiting and renewal. Yields the holds that are still to be released on the server. See `release_all`."""
        self.closed = True
        self.channels.wake_all()
        self.watchdog.close()
        return self.holds.release_all()

    def drop(self) -> None:
        """Ends the watchdog of a client that nothing refers to. Takes no mutex: a finalizer calls this."""
        self.closed = True
        self.watchdog.close()

    def _on_hold_lost(self, hold: Hold) -> None:
        if self.announcement is not None:
            self.announcement.lost = next(self.announcement.loss_numbers)
        self.lost_callbacks.run(hold.key[0])
        told_longer = hold.renewed or hold.key[0] in self.lock_queues
        for identity in (hold.key[0], hold.commands.other_identity):
            self.forget_lock_queue(identity)
        # Waiters of other clients sleep until the end of the lease that they have read. If the key disappears before
        # that (it was handed on with a shorter lease, say), nothing is published. No notice is needed after another
        # fixed lease, at whose end the waiters make an attempt anyway, and after a forced release, which publishes.
        if hold.reason in (GONE, FORGOTTEN, NOT_TAKEN_OVER, AT_MOST) or (hold.reason is LEASE_ENDED and told_longer):
            notice = hold.commands.wake_waiters()
            if notice is not None and not self.closed:
                self.watchdog.notify(notice)

    def forget_lock_queue(self, identity: Hashable) -> None:
        """Forgets the queue of a lock that its owner doesn't release any more, if nobody waits: it was lost, say.

        Takes no mutex, as this may run on the thread that keeps the time. A call that joins the queue just now may not
        be found by a release of this client any more, but it is in the channel: a message wakes it.
        """
        queue = self.lock_queues.get(identity)
        if queue is None:
            return
        if queue.waiters:
            # They rely on the release of the holder.
            queue.wake_first()
        elif (removed := self.lock_queues.pop(identity, queue)).waiters:
            self.lock_queues.setdefault(identity, removed)
