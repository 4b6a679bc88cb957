"""The holds of one client, their states, and until when each may be relied on.

A hold goes through the states of `HoldState`. Each transition is a method of `HoldTable`, some by a single step of
`_core`; nothing else changes a state.

Here a hold is all that one owner has of one lock. It counts levels: one for each acquire that was not released. In the
public documentation, as in Redisson's, each level is called a hold.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import Enum
from typing import Protocol

from pyredisson._core import AcquireCall, HoldFields, HoldTableFields, ReleaseCall, Wheel, remove_hold, replace_hold
from pyredisson._diagnostics import logger, readable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.logic.losses import UnreleasedLosses
from pyredisson.logic.owners import Owner

GONE = "its key expired or was taken away on the server"
FORGOTTEN = "the server has closed its connections, perhaps as it was restarted, and doesn't know it any more"
NOT_TAKEN_OVER = "another server serves it now, which doesn't know it"
LEASE_ENDED = "its lease ended without a confirmed renewal"
AT_MOST = "it was held for as long as at_most allows"
HANDED_OFF = "was handed off"
HAND_OFF_FAILED = "was released by a hand_off() that has failed,"
MOST_HANDED_OFF = 10_000
"""So many holds that were handed off are remembered, for the error that `unlock` raises, and for leaving blocks."""


class HoldState(Enum):
    """The state of a hold. `docs/architecture.md` has the drawing, and says why each transition is allowed."""

    HELD = "held"
    """Acquired, and not known to be lost. After `valid_until` the hold must not be relied on any more."""
    RELEASING = "releasing"
    """The release of the last level is about to be sent, or was sent: a renewal that doesn't find the hold on the
    server must not report a loss."""
    RELEASED = "released"
    """Released for this client. The server may not know it yet: then a command in the background is on its way."""
    LOST = "lost"
    """Its lease has ended, or the server doesn't know it any more. A lost hold stays in the table until its owner
    releases it: that release raises `LockLostError`."""


HELD, RELEASING, RELEASED, LOST = HoldState.HELD, HoldState.RELEASING, HoldState.RELEASED, HoldState.LOST

HoldKey = tuple[Hashable, int]
"""The identity of the lock (its key; for a side of a read-write lock, also the side) and the id of the owner."""

Renewal = Callable[[ScriptSet, "Sequence[Hold]", int], bytes]
"""Makes the command that extends the leases of many holds, in ms (0: it only asks). Its reply has a 1 for each held."""


class RenewedLease(int):
    """The lease of one level, in ms, that the watchdog renews in another way than usual: as often as `renewed` ms need,
    and for `at_most` ms from the acquire on. As a number it is the lease with which the level begins.
    """

    renewed: int
    """In ms: what each renewal sets."""
    at_most: int | None
    """In ms. None: without limit."""
    ends: float
    """The reading of the clock beyond which nothing is renewed."""

    def __new__(cls, renewed: int, at_most: int | None = None, ends: float = math.inf) -> RenewedLease:
        lease = super().__new__(cls, renewed if at_most is None else min(renewed, at_most))
        lease.renewed, lease.at_most, lease.ends = renewed, at_most, ends
        return lease

    def begin(self, sent_at: float) -> RenewedLease:
        """The lease of a level that was acquired by a command sent at that time."""
        return RenewedLease(
            self.renewed, self.at_most, math.inf if self.at_most is None else sent_at + self.at_most / 1000
        )

    def rest(self, now: float) -> RenewedLease:
        """The lease of a level that begins now, and ends when this one does."""
        return self if self.at_most is None else RenewedLease(self.renewed, max(1, int((self.ends - now) * 1000)))

    def left(self, now: float, valid_until: float) -> int:
        """The lease in ms for a renewal at `now`. 0: a hold that is valid until `valid_until` can't last for longer."""
        if valid_until > self.ends - LEAST_RENEWAL:
            return 0
        return int(min(self.renewed, max(0.0, (self.ends - now) * 1000)))


LEAST_RENEWAL = 0.002
"""Seconds. By less than that no lease is extended: a lease is a number of ms on the server."""


class HoldCommands(Protocol):
    """What a hold needs of the commands of its lock."""

    key: bytes
    """The name of the lock on the server."""
    kind: str
    """What kind of lock it is, as in `pyredisson.Event.kind`."""
    renew: Renewal
    """Holds whose commands share this function are renewed in the same calls."""
    restore: Renewal
    """As `renew`, but it extends fixed leases, too: another server may lack their latest extension."""
    other_identity: Hashable
    """The identity of the other side of a read-write lock; None: the lock has no sides."""
    renews_fixed_leases: bool
    """Whether the watchdog visits holds with a fixed lease too, because they keep something up on the server."""

    def abandon(self, hold: Hold) -> bytes:
        """The idempotent command that releases the lock of that hold when the client is closed."""

    def wake_waiters(self) -> bytes | None:
        """The idempotent command that wakes waiters if the lock is free; None: the waiters look often enough."""


class Hold(HoldFields):
    """One owner's hold of one lock, from the first acquire to the last release.

    A hold is also a timer of the watchdog's wheel: it is due for its renewal, or at the end of its lease.
    """

    __slots__ = ()

    commands: HoldCommands
    owner: bytes
    """The name of the owner on the server when the lock was acquired."""
    leases: int | list[int | None] | None
    """The lease of each level in ms, the innermost last; None or a `RenewedLease`: renewed by the watchdog. A bare
    value while there is only one level."""
    valid_until: float
    """The reading of the clock after which the hold can't be relied on; for a lost hold, when it was lost."""
    state: HoldState
    listeners: list[Listener] | None
    """Functions to call when the hold is lost or released."""
    token: int
    """The fencing token of the latest acquire; 0 for a lock without tokens."""
    lost_below: Hold | None
    """A lost hold of the same owner and lock that has not been released yet."""
    acquired_by: Owner | None
    """The owner that began the hold, for the check whether its thread or task has ended. None: a permit."""
    begun: float
    """The reading of the clock when the acquire was sent that began the hold."""
    extended: int
    """The longest lease in ms that `extend` has set, or that a level had which was released; 0: none."""
    listed: bool
    """Whether it is part of the client's announcement, or counted there. At first False."""

    @property
    def renewed(self) -> bool:
        """Whether the watchdog extends the lease of any level."""
        return self.leases is None or self.next_lease(1, self.valid_until) > 0

    def next_lease(self, usual: int, now: float) -> int:
        """The lease in ms with which it is renewed at `now`; 0: no level is renewed any more. `usual`: the client's."""
        return max(
            (usual if lease is None else lease.left(now, self.valid_until) for lease in self._renewed_leases), default=0
        )

    def shortest_lease(self, usual: int) -> int:
        """The shortest lease in ms that the watchdog renews; `usual` if there is none."""
        return min((usual if lease is None else lease.renewed for lease in self._renewed_leases), default=usual)

    @property
    def _leases(self) -> list[int | None]:
        """The lease of each level."""
        return found if isinstance(found := self.leases, list) else [found]

    @property
    def _renewed_leases(self) -> list[RenewedLease | None]:
        return [lease for lease in self._leases if lease is None or isinstance(lease, RenewedLease)]

    def confirmed_at(self, usual: int) -> float:
        """When the command was sent that has confirmed it last, or before. `usual`: the client's lease in ms."""
        lengths = [getattr(lease, "renewed", lease) for lease in self._leases if lease is not None]
        return self.valid_until - max([self.extended, usual, *lengths]) / 1000

    @property
    def at_limit(self) -> bool:
        """Whether it lasts no longer because of `at_most`."""
        return self._limit < self.valid_until + LEAST_RENEWAL

    def within_limit(self, lease: int, now: float) -> int:
        """The lease in ms, but not beyond the end of `at_most`, if all levels have that."""
        return lease if self._limit == math.inf else max(1, min(lease, int((self._limit - now) * 1000)))

    @property
    def _limit(self) -> float:
        """The reading of the clock at which the last level ends whose lease is renewed, if all of them have a limit."""
        ends = (lease.ends if isinstance(lease, RenewedLease) else math.inf for lease in self._leases)
        return max(ends, default=math.inf)

    @property
    def needs_renewal(self) -> bool:
        """Whether the watchdog sends a command for this hold before its lease ends."""
        # First what is true of most holds: the watchdog asks this for each of them in every round.
        return self.leases is None or self.commands.renews_fixed_leases or self.renewed

    def __repr__(self) -> str:
        owner, levels = readable(self.owner), f"{self.count} level{'' if self.count == 1 else 's'}"
        return (
            f"<Hold of {self.commands.kind} {readable(self.commands.key)!r} by {owner}: {self.state.value}, {levels}>"
        )

    def listen(self, listener: Listener) -> None:
        """Has `listener` called when the hold is lost or released: at once, and perhaps once more, if it is already."""
        with _listening:
            while True:
                before = self.listeners
                after = [*(before or ()), listener]
                # A finalizer that ran in here may have changed the list: then the change is made again.
                if self.listeners is before:
                    self.listeners = after
                    break
        if self.state is not HELD:
            listener(self)

    def unlisten(self, listener: Listener) -> None:
        with _listening:
            while True:
                before = self.listeners
                after = [other for other in before or () if other != listener] or None
                if self.listeners is before:
                    self.listeners = after
                    return

    def _notify_listeners(self) -> None:
        if self.listeners is None:
            return
        with _listening:
            listeners, self.listeners = self.listeners, None
        interrupt: Exception | None = None
        for listener in listeners or ():
            try:
                listener(self)
            except Exception as error:  # noqa: BLE001
                # If the second call succeeds, the handler of a signal has raised it: it is for the caller.
                if _call_guarded(listener, self):
                    interrupt = error
        if interrupt is not None:
            raise interrupt


Listener = Callable[[Hold], None]

# Re-entrant: a garbage collection on any line may run a `finally` that listens or unlistens on the same thread.
_listening = threading.RLock()


def after_fork() -> None:
    """Renews the mutex in the child: another thread of the parent may have had it."""
    global _listening
    _listening = threading.RLock()


class HoldTable(HoldTableFields):
    """The holds of one client, and the only place where the state of a hold changes.

    Every change of the table is one dict operation, so threads need no mutex for it. What each acquire and each release
    does is in the core: `begin_attempt`, `begin_hold`, `begin_level_release`, `drop_level`.
    """

    table: dict[HoldKey, Hold]
    """The latest hold of each owner and lock."""
    wheel: Wheel
    """The wheel of the watchdog, once there is one."""

    def __init__(self, clock: Callable[[], float], on_lost: Listener) -> None:
        """`on_lost` is called once for each hold that is lost."""
        super().__init__(clock, Hold, HELD, RELEASING, RELEASED)
        self._on_lost = on_lost
        self._losses = UnreleasedLosses(self._has_loss, self._forget_losses)
        self.handed_off: dict[HoldKey, tuple[str, float]] = {}
        """What has ended by `hand_off`, and how and when, until the owner acquires the lock again."""

    # Queries

    def valid(self, key: HoldKey) -> Hold | None:
        """The hold of this lock and owner that can be relied on now; None: there is none."""
        hold = self.table.get(key)
        return hold if hold is not None and not self.expire_if_due(hold) else None

    # Nothing -> HELD

    def add(self, hold: Hold, call: AcquireCall) -> None:
        """Records what `call` acquired, above a lost hold that has not been released yet."""
        below = self.table.get(hold.key)
        if below is not None:
            hold.lost_below = merge_lost(below)
        # One step of the core: no interrupt strikes between the entry in the table and the note on the call, by which
        # an interrupted acquire is released.
        replace_hold(self.table, hold, call)

    # HELD -> RELEASING

    def begin_release(self, hold: Hold) -> bool:
        """The release of the last level is about to be sent. False: the hold is not held any more."""
        return hold.change_state(HELD, RELEASING)

    # RELEASING -> HELD

    def cancel_release(self, hold: Hold) -> bool:
        """The release did not happen: the server has refused it. False: the hold is in another state."""
        return hold.change_state(RELEASING, HELD)

    # HELD -> RELEASING -> RELEASED, or RELEASING -> RELEASED

    def _drop_level_otherwise(self, hold: Hold, call: ReleaseCall) -> int:
        """See `drop_level`: the last level of a hold with listeners, or a level of a hold in any other case."""
        remaining = hold.drop_level(call, HELD, RELEASING)
        if hold.count:
            return remaining
        if not remove_hold(self.table, hold):
            above = self.table.get(hold.key)
            if above is not None and above.lost_below is hold:
                above.lost_below = hold.lost_below
        self.wheel.discard(hold)
        if hold.change_state(RELEASING, RELEASED):
            hold._notify_listeners()
        return remaining

    def discard(self, hold: Hold) -> None:
        """The hold is released with all its levels, also from `HELD`. Idempotent."""
        self.take_out(hold)
        self.wheel.discard(hold)
        hold.change_state(HELD, RELEASING)
        if hold.change_state(RELEASING, RELEASED):
            hold._notify_listeners()

    def release_all(self) -> Iterator[Hold]:
        """Empties the table when the client is closed; yields the holds that are to be released on the server.

        First all of these: a listener, or the handler of a signal, may raise. Then the next call does the rest.
        """
        holds, now = list(self.table.values()), self._clock()
        yield from (hold for hold in holds if hold.state is HELD and hold.valid_until > now)
        # The garbage collector doesn't look into the wheel.
        self.wheel.close()
        for hold in holds:
            if not self.expire_if_due(hold):
                self.discard(hold)
        self.table.clear()

    def note_end(self, hold: Hold, how: str) -> None:
        """Notes that `hand_off` has ended the hold, for a later release: `HANDED_OFF` or `HAND_OFF_FAILED`."""
        self.handed_off[hold.key] = how, self._clock()
        if len(self.handed_off) > MOST_HANDED_OFF:
            for key in list(self.handed_off)[: MOST_HANDED_OFF // 10]:
                self.handed_off.pop(key, None)

    # HELD -> LOST

    def expire_if_due(self, hold: Hold, margin: float = 0.0) -> bool:
        """Declares the hold lost if its lease has ended, or ends within `margin` seconds. True: it is not held."""
        if hold.state is HELD and hold.valid_until - margin <= self._clock():
            self.declare_lost(hold, AT_MOST if hold.at_limit else LEASE_ENDED)
        return hold.state is not HELD

    def declare_lost(self, hold: Hold, reason: str = GONE) -> None:
        """A held hold is lost. It stays in the table until its owner releases it. Once; else nothing happens."""
        if hold.change_state(HELD, LOST, reason):
            self._report_loss(hold, reason)

    # HELD or RELEASING -> LOST

    def declare_lost_on_release(self, hold: Hold, reason: str = GONE) -> None:
        """The release found out that the hold was lost before: the server didn't know it, or its lease has ended."""
        if hold.change_state(HELD, LOST, reason) or hold.change_state(RELEASING, LOST, reason):
            self._report_loss(hold, reason)

    def _report_loss(self, hold: Hold, reason: str) -> None:
        hold.valid_until = min(hold.valid_until, self._clock())
        self.wheel.discard(hold)
        # Before anyone is woken who might end the program: the callbacks are on their way.
        _call_guarded(self._on_lost, hold)
        hold._notify_listeners()
        self._losses.add(hold.key)
        # Last: a logging filter of the user may raise.
        logger.warning("lock %r was lost by owner %s: %s", readable(hold.commands.key), readable(hold.owner), reason)

    def _has_loss(self, key: HoldKey) -> bool:
        hold = self.table.get(key)
        return hold is not None and (hold.state is LOST or hold.lost_below is not None)

    def _forget_losses(self, key: HoldKey) -> None:
        hold = self.table.get(key)
        if hold is not None:
            hold.lost_below = None
            if hold.state is LOST:
                self.take_out(hold)


def merge_lost(hold: Hold) -> Hold | None:
    """What to keep below a new hold in the place of `hold`: the lost holds of the same owner, counted as one."""
    below: Hold | None = hold.lost_below
    if hold.state is not LOST or not hold.count:
        return below
    if below is not None:
        hold.absorb(below)
    return hold


def _call_guarded(listener: Listener, hold: Hold) -> bool:
    """Whether the listener has not failed."""
    try:
        listener(hold)
    except Exception:  # noqa: BLE001
        # For example an event loop that was just closed, or a thread that can't start. The next listener must be
        # called all the same.
        logger.exception("a listener failed at the end of a hold")
        return False
    return True
