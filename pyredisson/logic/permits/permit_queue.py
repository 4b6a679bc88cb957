"""The calls of one client that wait for permits of the same semaphore: their channel, their queue, and their claims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

from pyredisson.logic.channels import Channel
from pyredisson.logic.exactly_once import REMEMBERED
from pyredisson.logic.locks.queued_wait import OTHERS_FIRST
from pyredisson.logic.permits.commands import MOST_AT_ONCE, PermitPoolCommands
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.waiting import GIVEN, LOOKING, OFFERED, WAITING, HandedWaiter

CLAIM_DELAY = 1.0
"""Seconds for which a waiter waits before it claims."""


class Claimant:
    """A waiter for permits, which claims them when it may.

    Of the waiters for one semaphore in one client, only the leader of the channel claims.
    """

    __slots__ = ("_claims_from", "_commands", "name", "wakeup")

    def __init__(self, commands: PermitPoolCommands, permits: int) -> None:
        session = commands.session
        self.wakeup: Wakeup = session.runtime.wakeup()
        """The wakeup with which the waiter joins the channel."""
        self.name = b""
        """The name of the waiter on the server; empty: it has never claimed."""
        self._commands = commands
        # The first caller gets a single free permit. No other caller overtakes it by wanting less.
        self._claims_from = session.clock() + CLAIM_DELAY if permits > 1 else math.inf

    def name_if_claiming(self) -> bytes:
        """The name for a claim; empty: the waiter must not claim yet, or another waiter is the leader."""
        session = self._commands.session
        if session.clock() < self._claims_from:
            return b""
        if not session.channels.become_leader(self._commands.channel, self.wakeup):
            return b""
        if not self.name:
            self.name = f"{session.id}:{next(session.permits.claim_numbers)}".encode()
        return self.name

    def limit(self, wait: float) -> float:
        """How many of `wait` seconds to wait: not beyond the moment from which the waiter may claim."""
        remaining = self._claims_from - self._commands.session.clock()
        return min(wait, remaining) if remaining > 0 else wait

    def withdraw(self) -> None:
        """Withdraws the claim in the background, so that other waiters need not wait for its end.

        The claim of a closed client expires by itself.
        """
        session = self._commands.session
        if self.name and not session.closed:
            session.runtime.post(self._commands.withdraw_claim(self.name))


# --- Which waiters for permits a message wakes


MOST_DIGITS = 19
"""The digits of a number in a message. No semaphore has as many permits as a longer number says."""
PASSED_ON = b"+"
"""Before the number in a message that one waiter of this client passes on to others, which need fewer permits."""

_attempt_numbers = itertools.count(1)


class PermitChannel(Channel):
    """The waiters of a semaphore. The need of a waiter is the number of permits that it wants."""

    __slots__ = ("_free", "_free_at", "_unchecked_since")

    def __init__(self) -> None:
        super().__init__()
        self._unchecked_since: int | None = None
        """A number. Messages may have been lost, and no attempt with a greater number was refused yet."""
        self._free = self._free_at = 0

    def on_message(self, payload: bytes) -> None:
        """The number of permits that are free, as Redisson publishes it. Any other payload is ignored."""
        if payload.isdigit() and len(payload) <= MOST_DIGITS:
            self._free, self._free_at = int(payload), self.events
            self.on_free(self._free)

    @property
    def free(self) -> int | None:
        """How many permits are free at most, by the latest message or refusal. None: messages may have been lost."""
        return self._free if self._free_at == self.events and self.confirmed else None

    def on_free(self, free: int) -> None:
        """Wakes the first waiters whose needs fit into the number of all free permits.

        Waiters that are awake and have not made their attempts yet are among them. Otherwise the messages of releases
        in a row (1, 2, 3, ...) would wake many more waiters than there are permits.
        """
        leader = self.leader
        waiters = list(self.waiters)
        if leader is not None:
            waiters.sort(key=lambda wakeup: wakeup is not leader)
        for wakeup in waiters:
            need = self.waiters.get(wakeup, 0)
            if not 0 < need <= free or not wakeup.alive:
                continue
            if not wakeup.is_set():
                wakeup.set()
                if wakeup not in self.waiters:
                    # As in `wake`: a finalizer ran in this loop, and the waiter has left.
                    continue
            free -= need
            if not free:
                return

    def on_confirmed(self) -> None:
        """Earlier messages are lost. The waiters make their attempts one after the other, until one is refused."""
        self._unchecked_since = next(_attempt_numbers)
        self._wake_first()

    def on_unconfirmed(self) -> None:
        """The same: more messages may be lost."""
        self.on_confirmed()

    def on_missed(self, wakeup: Wakeup) -> None:
        """The same: one attempt after this moment is enough for all who have come before it."""
        self.on_confirmed()

    def on_leave(self, need: int) -> None:
        """A waiter left with a wakeup that it did not use. The permits may be enough for one that wants more."""
        if self._unchecked_since is not None:
            self._wake_first()
        elif self.free is None:
            self.wake(need)
        else:
            self.on_free(max(need, self._free))

    def wake_next_leader(self) -> None:
        """Only a waiter that wants several permits may be the leader."""
        for wakeup in list(self.waiters):
            if self.waiters.get(wakeup, 0) > 1:
                wakeup.set()
                return

    def begin_attempt(self) -> int:
        """A waiter is about to send an attempt. Returns its number."""
        return next(_attempt_numbers)

    def on_acquired(self, events: int, need: int) -> None:
        """An attempt of a waiter has acquired its permits. `events`: those before the attempt."""
        if events == self._free_at:
            self._free = max(self._free - need, 0)
        if self._unchecked_since is not None:
            self._wake_first()

    def on_refused(self, attempt: int, events: int, free: int) -> None:
        """An attempt of a waiter was refused. `attempt`: its number; 0: the caller didn't wait yet.

        `events`: those before the attempt.
        """
        if self._unchecked_since is not None and attempt > self._unchecked_since:
            self._unchecked_since = None
        if events == self.events:
            self._free, self._free_at = free, events
        if free:
            self.on_free(free)

    def _wake_first(self) -> None:
        """Makes sure that the first waiter is awake, and so has its attempt before it."""
        for wakeup in list(self.waiters):
            if self.waiters.get(wakeup, 0) > 0 and wakeup.alive:
                wakeup.set()
                if wakeup in self.waiters:
                    return


class ExpirablePermitChannel(PermitChannel):
    """The waiters of a semaphore whose permits have ids."""

    __slots__ = ()

    def on_free(self, free: int) -> None:
        """The number may count the released permits only, which waiters that are awake don't take."""
        self.wake(free)

    def on_confirmed(self) -> None:
        self.wake_all()

    def on_unconfirmed(self) -> None:
        self.wake_all()

    def on_missed(self, wakeup: Wakeup) -> None:
        wakeup.set()

    def on_leave(self, need: int) -> None:
        self.wake(need)

    def on_message(self, payload: bytes) -> None:
        """The number of free permits. Redisson publishes only the released ones when it releases several at once."""
        super().on_message(payload.removeprefix(PASSED_ON))
        if payload.isdigit() and len(payload) <= len(b"%d" % MOST_AT_ONCE):
            supply = int(payload)
            for wakeup in list(self.waiters):
                if 0 < supply < self.waiters.get(wakeup, 0):
                    # More permits may be free than the message says: the first waiter that wants more asks the server.
                    wakeup.set()
                    return


# --- The queue


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


# --- What the semaphores and latches of one client share


DOUBT_LASTS = REMEMBERED
"""Seconds after the end of an acquire for which a late copy of it could still come."""


class PermitRegistry:
    """The state of one client that its semaphores and latches share."""

    def __init__(self) -> None:
        self.in_doubt: dict[bytes, float] = {}
        """For each acquire that was in doubt, the id of its first permit, and until when a late copy could come. The
        release of that permit keeps late copies of the acquire from running."""
        self._next_purge = 0.0
        self.reported_not_set: set[tuple[str, bytes]] = set()
        """The kind and name of each semaphore and latch for which it was logged that it doesn't exist."""
        self.queues = PermitQueues()
        """The waiters of each semaphore that is contended in this client."""
        self.claim_numbers = itertools.count(1)
        """Makes a name for each waiter that claims permits."""

    def note_doubt(self, first: bytes, now: float) -> None:
        """An acquire has ended that is in doubt. `first`: the id of its first permit."""
        if now >= self._next_purge:
            # Permits may end with their leases, without a release by this client.
            self._next_purge = now + DOUBT_LASTS
            for permit, until in self.in_doubt.copy().items():
                if until <= now:
                    self.in_doubt.pop(permit, None)
        self.in_doubt[first] = now + DOUBT_LASTS

    def forget_doubts(self, permits: Iterable[bytes]) -> None:
        """These permits are released."""
        for permit in permits:
            self.in_doubt.pop(permit, None)
