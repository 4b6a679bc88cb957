"""The calls of one client that wait for permits of the same semaphore: their channel and their queue."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyredisson._core import InOrder
from pyredisson.logic.exactly_once import REMEMBERED
from pyredisson.logic.locks.queued_wait import LOOK, LockChannel
from pyredisson.logic.permits.commands import NOT_LISTED, Listing
from pyredisson.logic.waiting import LOOKING, WAITING, WaitingQueue

if TYPE_CHECKING:
    from pyredisson.logic.permits.permit_wait import PermitWait

MOST_DIGITS = 19
"""The digits of a number in a message. No semaphore has as many permits as a longer number says."""


class PermitChannel(LockChannel):
    """The waiters of a semaphore. The need of a waiter is the number of permits that it wants."""

    __slots__ = ("near", "queue")

    def __init__(self) -> None:
        super().__init__()
        self.near = False
        """Whether this client may be one of the first two in the list: these react to Redisson's messages."""
        self.queue: PermitQueue | None = None
        """The queue of the waiters."""

    def on_message(self, payload: bytes) -> None:
        """`look:MS`, or what wakes this client, see `permit_waiters.lua`; or `0`: the list is lost."""
        member, _, permits = payload.rpartition(b" ")
        if payload.startswith(LOOK):
            self.near = True
            self.look(payload, None)
        elif payload == b"0":
            self.wake(1)
        elif b" " in payload and is_number(permits):
            if member and self.queue is not None:
                # The next attempt removes that name, also if it was entered late, or the reply to that is on its way.
                self.queue.names[member] = None
            if not self.wake_for(int(permits)) and member:
                self.on_unused[b""](member)

    def on_relayed(self, payload: bytes) -> None:
        """From Redisson: the number of free permits. Of several released at once it may count only these."""
        if self.near and is_number(payload) and int(payload):
            self.wake_for(int(payload))

    def wake(self, supply: int) -> None:
        """The first waiter makes an attempt: messages may have been lost."""
        self.wake_for(0)

    def on_leave(self, need: int) -> None:
        """A waiter left with a wakeup that it did not use."""
        self.wake_for(need)

    def wake_for(self, free: int) -> bool:
        """Wakes whom so many free permits are enough for, else the first waiter. False: nobody waits."""
        return self.on_free(free) or self._wake_first()

    def on_free(self, free: int) -> bool:
        """Wakes the first waiters whose needs fit into the number of free permits. False: there is none."""
        # An attempt is due at once, as in `LockChannel.wake`.
        self.look_in = None
        # Waiters that are awake and have not made their attempts yet are among them. Otherwise the messages of releases
        # in a row would wake more waiters than there are permits.
        queue, found = self.queue, False
        if queue is not None and free < queue.floor:
            return False
        claimant = None if queue is None else queue.claimant
        waiters = dict.fromkeys(() if claimant is None else (claimant.wakeup,)) | self.waiters
        for wakeup in waiters:
            need = self.waiters.get(wakeup, 0)
            if not 0 < need <= free or not wakeup.alive:
                continue
            if not wakeup.is_set():
                wakeup.set()
                if wakeup not in self.waiters:
                    # A finalizer ran in this loop, and the waiter has left.
                    continue
            free -= need
            found = True
            if not free:
                break
        return found

    def _wake_first(self) -> bool:
        """Makes sure that the first waiter is awake, and so has its attempt before it. False: there is none."""
        for wakeup in list(self.waiters):
            if self.waiters.get(wakeup, 0) > 0 and wakeup.alive:
                wakeup.set()
                if wakeup in self.waiters:
                    return True
        return False


def is_number(payload: bytes) -> bool:
    """Whether a message may be a number of permits. Somebody else may publish, too."""
    return payload.isdigit() and len(payload) <= MOST_DIGITS


# --- The queue


OTHERS_COME = -math.inf
"""In place of the end of a series of hand-overs: it is over, and other clients come first."""
LONGEST_QUESTION = 0.05
"""Seconds. If the reply takes longer, releases are for all clients until it comes."""
MOST_NAMES = 64
"""Under so many names at most a client is known to be in a list, perhaps."""
MOST_IDLE_QUEUES = 64
"""From so many queues on, a power of two, the ones that nobody needs are looked for."""


class PermitQueue(WaitingQueue):
    """The waiters for one semaphore in one client. It exists while they contend.

    The first release after a series of hand-overs finds out whether other clients wait. If none does, the next series
    begins; else it begins when a waiter has acquired its permits by an attempt of its own.
    """

    __slots__ = ("asks_until", "batch", "claimant", "floor", "in_flight", "latest", "member", "members", "names")

    waiters: dict[PermitWait, None]
    channel: PermitChannel | None
    """The channel of the client, as the waiter that came last has joined it."""

    def __init__(self, members: Iterator[bytes]) -> None:
        """`members`: see `Session`."""
        super().__init__()
        self.batch: Any = None
        """The `HandOverBatch` that will be sent next. None: no hand-over waits for that."""
        self.asks_until = 0.0
        """Until when releases are handed on, as one is on its way that finds out whether other clients wait."""
        self.in_flight = 0
        """In an event loop: how many hand-overs are on their way."""
        self.claimant: PermitWait | None = None
        """The waiter that claims permits. It is woken before the others, if there are enough for it."""
        self.floor: float = 0
        """No waiter wants less. Where one wants that much, it isn't looked for among thousands."""
        self.members, self.member = members, next(members)
        """The client, and a number: its names in the list begin with that. After each command that takes it out of the
        list it has another number, also if that command may run late."""
        self.names: dict[bytes, None] = {}
        """The names under which the client may be in the list, also if an attempt is on its way that enters it; but not
        former names that an attempt on its way removes."""
        self.latest = NOT_LISTED
        """What the attempt that was sent last says about the list."""

    def add(self, waiter: PermitWait) -> None:
        """It waits from now on. With the mutex of the channels held."""
        self.floor = min(self.floor, waiter.permits) if self.waiters else waiter.permits
        self.waiters[waiter] = None

    @property
    def has_claimant(self) -> bool:
        """Whether a waiter claims permits. One whose event loop was closed never does so again, nor does it leave."""
        return self.claimant is not None and self.claimant.wakeup.alive

    def remove(self, waiter: PermitWait) -> None:
        """It waits no longer. After a claimant the next waiter may claim that wants several permits."""
        self.waiters.pop(waiter, None)
        if self.claimant is waiter:
            for each in InOrder(self.waiters):
                # Not one to which a release hands over: it makes no attempt, so its wakeup would be lost.
                if each.permits > 1 and each.state in (LOOKING, WAITING):
                    each.wake()
                    break
            # At the end: the repetition of an interrupted call wakes the next one, too.
            self.claimant = None

    # The list on the server

    def least(self, besides: PermitWait | None = None) -> int:
        """The smallest number of permits that one of the waiters wants; 0: there is none. It ignores `besides`.

        With the mutex of the channels held.
        """
        found, floor = 0, math.inf
        for each in InOrder(self.waiters):
            floor = min(floor, each.permits)
            if each is not besides and each.state in (LOOKING, WAITING) and (not found or each.permits < found):
                found = each.permits
                if found == self.floor:
                    return found
        self.floor = floor
        return found

    def name(self, need: int) -> bytes:
        """The name of the client in the list if so many permits are enough for one of its callers."""
        return b"%b:%d" % (self.member, need)

    def is_outdated(self, entry: bytes) -> bool:
        """Whether the client may not be in the list as an attempt has entered it, or needs less by now.

        A call with a smaller need may have come since. If its attempt has overtaken this one, this one has removed its
        entry: an earlier call had the same name.
        """
        member, _, need = entry.rpartition(b":")
        return member != self.member or int(need) > self.least()

    def listing(self, waiter: PermitWait, claimant: bytes, *, waits: bool) -> Listing:
        """What the attempt of a waiter that is about to be sent says about the list. `waits`: also if it is refused."""
        others = self.least(besides=waiter)
        entry = self.name(min(waiter.permits, others or waiter.permits)) if waits else b""
        names = [name for name in list(self.names) if name != entry]
        if entry:
            # No attempt enters the client under a former name again. Each of a thousand first attempts has left one.
            for name in names:
                if not name.startswith(self.member + b":"):
                    self.names.pop(name, None)
            self.names[entry] = None
        self.latest = Listing(b" ".join(names), entry, self.name(others) if others else b"", claimant)
        return self.latest

    def on_acquired(self, listing: Listing) -> int:
        """An attempt has acquired permits. Returns how many a waiter wants that isn't in the list; 0: there is none."""
        self.series_ends = math.inf
        if self.latest is listing:
            # A later attempt may have entered the client again under the same names, and have had its reply before.
            for name in (listing.entry, *listing.names.split()):
                self.names.pop(name, None)
        least = self.least()
        if not listing.following:
            self.member = next(self.members)
            return least
        self.names[listing.following] = None
        # A call that wants less may have come since.
        return least if least < int(listing.following.rpartition(b":")[2]) else 0

    def on_failed(self, listing: Listing) -> None:
        """An attempt has failed or was interrupted. It may have run, or may run late."""
        self.member = next(self.members)
        self.names.update(dict.fromkeys((*listing.names.split(), *filter(None, (listing.entry, listing.following)))))
        for name in list(self.names)[:-MOST_NAMES]:
            # In a long outage. What may be left costs others 250 ms, once.
            self.names.pop(name, None)

    def take_names(self, successors: Collection[PermitWait] = ()) -> bytes:
        """The names that leave the list, as nobody waits but those who are about to get permits. Empty: others wait."""
        states = (LOOKING, WAITING)
        if any(each.state in states and each not in successors for each in list(self.waiters)):
            return b""
        names = b" ".join(self.names)
        self.names.clear()
        self.member = next(self.members)
        return names

    def leave_command(self, waiter: PermitWait) -> bytes:
        # Another thread may change them meanwhile.
        names = b" ".join(list(self.names))
        return waiter.call.pool.commands.leave(names) if names else b""

    # Series of hand-overs

    def may_hand_over(self, now: float, limit: float) -> bool:
        return super().may_hand_over(now, limit) or (now < self.asks_until and bool(limit and self.waiters))

    def begins_to_ask(self, now: float) -> bool:
        """A release is sent that is not handed on. Returns whether it has to find out whether other clients wait."""
        if now < self.asks_until or not OTHERS_COME < self.series_ends <= now:
            return False
        self.asks_until = now + LONGEST_QUESTION
        return True

    def on_released(self, *, others_wait: bool, now: float) -> None:
        """A release was not handed on. `now`: when it was sent."""
        if not others_wait:
            self.series_ends = math.inf
        elif self.series_ends <= now:
            self.series_ends = OTHERS_COME

    def is_idle(self, now: float) -> bool:
        """Whether nobody waits, and no series would have to be ended."""
        return not self.waiters and not now < self.series_ends < math.inf


# --- What the semaphores and latches of one client share


class PermitRegistry:
    """The state of one client that its semaphores and latches share."""

    def __init__(self) -> None:
        self.in_doubt: dict[bytes, float] = {}
        """For each acquire that was in doubt, the id of its first permit, and until when a late copy could come. The
        release of that permit keeps late copies of the acquire from running."""
        self._next_purge = 0.0
        self.reported_not_set: set[tuple[str, bytes]] = set()
        """The kind and name of each semaphore and latch for which it was logged that it doesn't exist."""
        self.queues: dict[bytes, PermitQueue] = {}
        """The waiters of each semaphore that is contended in this client, by its key. It is changed with the mutex of
        the channels held."""

    def queue_of(self, key: bytes, members: Iterator[bytes], now: float) -> PermitQueue:
        """The queue of a semaphore, which is made if there is none. `members`: see `Session`."""
        queue = self.queues.get(key)
        if queue is None:
            count = len(self.queues)
            # At powers of two: a look at all of them for each one would take seconds where thousands contend.
            if count >= MOST_IDLE_QUEUES and not count & (count - 1):
                for other in list(self.queues):
                    self.forget_if_idle(other, now)
            queue = self.queues[key] = PermitQueue(members)
        return queue

    def forget_if_idle(self, key: bytes, now: float) -> None:
        queue = self.queues.get(key)
        if queue is not None and queue.is_idle(now):
            self.queues.pop(key, None)

    def note_doubt(self, first: bytes, now: float) -> None:
        """An acquire has ended in doubt. `first`: the id of its first permit."""
        if now >= self._next_purge:
            # Permits may end with their leases, without a release by this client.
            self._next_purge = now + REMEMBERED
            for permit, until in self.in_doubt.copy().items():
                if until <= now:
                    self.in_doubt.pop(permit, None)
        self.in_doubt[first] = now + REMEMBERED

    def forget_doubts(self, permits: Iterable[bytes]) -> None:
        """These permits are released."""
        for permit in permits:
            self.in_doubt.pop(permit, None)
