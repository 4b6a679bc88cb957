"""Who holds what in this client: owners, their holds, and until when each hold may be believed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from enum import Enum
from typing import Generic, Protocol, TypeVar

from pyredisson._core import CallQueues, HoldFields
from pyredisson._diagnostics import logger, readable
from pyredisson._protocol.scripts import ScriptSet

MOST_LOST = 10_000
"""Lost holds that nobody gave back are remembered up to this number, for the error that `unlock` raises."""


GONE = "its key expired or was taken away on the server"
"""Why a hold is lost that the server doesn't know any more."""
ENDED = "its lease ended without a proven renewal"
"""Why a hold is lost by the local clock."""


class State(Enum):
    """What has become of a hold."""

    HELD = "held"
    GIVEN_BACK = "given back"
    LOST = "lost"


HELD, GIVEN_BACK, LOST = State.HELD, State.GIVEN_BACK, State.LOST


class OwnerCalls:
    """What calls of one owner that are under way at the same time must know of each other."""

    __slots__ = ("background_releases", "ended", "in_flight", "queued_names")

    def __init__(self) -> None:
        self.in_flight = CallQueues()
        """Which call's command is on its way, for each lock, and which call is next."""
        self.queued_names: set[bytes] = set()
        """The names under which it stands in line for fair locks."""
        self.background_releases = 0
        """How often what the owner had, or may have got, was given back in the background."""
        self.ended = False
        """Whether the thread or task that is the owner has ended."""


class Renames:
    """Numbers the new names of all explicit owners of a client, so that none is used twice."""

    __slots__ = ("_numbers", "begun")

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.begun = False
        """Whether any of them was renamed."""

    def next(self, prefix: str) -> bytes:
        """A name that no owner had before."""
        self.begun = True
        return f"{prefix}:{next(self._numbers)}".encode()


class Owner:
    """A thread, a task or an explicit id, and the name under which the server knows it.

    The id is for life. The name changes as soon as some command of this owner may run late: a copy that
    arrives after everything is settled names an owner that exists no more, and can't touch a later hold.
    """

    __slots__ = ("__weakref__", "_prefix", "_renames", "calls", "epoch", "id", "name")

    def __init__(self, client_id: str, owner_id: int, renames: Renames | None = None) -> None:
        """`renames` is for explicit owners, which are forgotten and made again."""
        self.id = owner_id
        self._renames = renames
        self.begin(client_id)

    def begin(self, client_id: str) -> None:
        """As an owner of that client that has done nothing yet; also after `fork`, where the client is a new one."""
        self._prefix = f"{client_id}:{self.id}"
        self.epoch = 0
        """How often it was renamed."""
        self.name = self._prefix.encode()
        if self._renames is not None and self._renames.begun:
            # An owner of the same id may have been renamed, and forgotten: its names must not be used again.
            self.name = self._renames.next(self._prefix)
        self.calls = OwnerCalls()

    def new_epoch(self) -> None:
        """From now on this owner takes locks under a new name; holds that it has keep theirs."""
        self.epoch += 1
        if self._renames is not None:
            self.name = self._renames.next(self._prefix)
        else:
            self.name = f"{self._prefix}:{self.epoch}".encode()

    def follow(self) -> None:
        """Has this call go on under the owner's present name."""

    @property
    def stem(self) -> bytes:
        """What the names of all its holds begin with that have a suffix."""
        return f"{self._prefix}:".encode()

    def apart(self) -> Owner:
        """The same owner under names that no other call has, so that the server tells this call from others."""
        other = copy(self)
        other.epoch = 0
        other._renames = None
        other._prefix = f"{self._prefix}.{next(_calls)}"
        other.name = other._prefix.encode()
        return other


_calls = itertools.count(1)


def owner_id(name: bytes) -> int:
    """The id of the owner that has, or once had, this name."""
    return int(name.split(b":", 2)[1].partition(b".")[0])


class Hold(HoldFields):
    """One owner's hold of one lock, from the first acquire to the last release.

    As a timer it stands in the watchdog's wheel: for its renewal, or for the end of its lease.
    """

    __slots__ = ()

    lock: Held
    owner: bytes
    """The owner's name on the server, as it was when the lock was taken."""
    leases: int | list[int | None] | None
    """The lease of each nested hold in ms, innermost last (None: renewed); bare while there is one."""
    valid_until: float
    """The clock's reading from which on this hold can't be proven any more; once lost, since when."""
    state: State
    listeners: list[Listener] | None
    """Called when the hold is lost or given back."""
    token: int
    """The fencing token of the latest acquire; 0 for a lock that has none."""
    lost_below: Hold | None
    """A lost hold of the same owner that has not been given back yet."""
    taken_by: Owner | None
    """Who took it, where the watchdog is to tell of an owner that has ended."""

    @property
    def renewed(self) -> bool:
        """Whether any of the nested holds asked for the watchdog."""
        return None in self.leases if isinstance(self.leases, list) else self.leases is None

    @property
    def needs_renewal(self) -> bool:
        """Whether the watchdog goes to the server for it before its lease ends."""
        return self.lock.renew_fixed_leases or self.renewed

    def end(self, state: State) -> None:
        """Becomes given back or lost, and tells those who listen."""
        self.state = state
        if self.listeners is not None:
            with _listening:
                listeners, self.listeners = self.listeners, None
            for listener in listeners or ():
                _guarded(listener, self)

    def listen(self, listener: Listener) -> None:
        """Has `listener` called when the hold ends; at once, and perhaps once more, if it has ended."""
        with _listening:
            while True:
                before = self.listeners
                after = [*(before or ()), listener]
                if self.listeners is before:
                    # Else a finalizer that ran in here has changed them meanwhile.
                    self.listeners = after
                    break
        if self.state is not HELD:
            listener(self)

    def unlisten(self, listener: Listener) -> None:
        """Takes a listener back."""
        with _listening:
            while True:
                before = self.listeners
                after = [other for other in before or () if other != listener] or None
                if self.listeners is before:
                    self.listeners = after
                    return


HoldKey = tuple[Hashable, int]
"""The lock (its name; for a side of a read-write lock, also which one) and the owner's id."""

Listener = Callable[[Hold], None]

# Re-entrant: a garbage collection on any line may run a `finally` that listens or unlistens on the same thread.
_listening = threading.RLock()


def after_fork() -> None:
    """In the child, where another thread of the parent may have held the lock."""
    global _listening
    _listening = threading.RLock()


Renewal = Callable[[ScriptSet, "Sequence[Hold]", int], bytes]
"""Makes the command that extends the leases of many holds by so many ms; its reply has 1 for each that is held."""


class Held(Protocol):
    """What a hold needs to know of its lock."""

    key: bytes
    """The lock's name on the server."""

    renewal: Renewal
    """Holds of locks with the same one are renewed in the same calls."""

    renew_fixed_leases: bool
    """Whether also a fixed lease has something on the server that must be kept up."""

    def abandon_command(self, hold: Hold) -> bytes:
        """The idempotent command that frees the lock of that hold, when the client is closed."""

    def lost_command(self) -> bytes | None:
        """The idempotent command that wakes waiters, if nobody holds the lock; None: this kind needs none."""


Key = TypeVar("Key", bound=Hashable)


class Holds:
    """The table of a client's holds; every change is one dict operation, so threads need no lock for it."""

    def __init__(self, clock: Callable[[], float], on_lost: Listener) -> None:
        """`on_lost` is called once for each hold that is lost."""
        self._clock = clock
        self._on_lost = on_lost
        self.table: dict[HoldKey, Hold] = {}
        self._remembered = Remembered(self._is_remembered, self._forget)

    def live(self, key: HoldKey) -> Hold | None:
        """The hold if it can still be proven."""
        hold = self.table.get(key)
        return hold if hold is not None and self.proven(hold) else None

    def proven(self, hold: Hold) -> bool:
        """Whether the hold is still ours; it is lost here and now if its lease has ended."""
        if hold.state is HELD and hold.valid_until <= self._clock():
            self.declare_lost(hold, ENDED)
        return hold.state is HELD

    def declare_lost(self, hold: Hold, reason: str, *, given_back: bool = False) -> None:
        """Marks a hold as lost, once; it stays in the table until its owner gives it back.

        `given_back` by its owner, who learns only from the reply that there was nothing left to give back.
        """
        if not hold.change(GIVEN_BACK if given_back else HELD, LOST):
            return
        hold.reason = reason
        hold.valid_until = min(hold.valid_until, self._clock())
        # Before anyone is woken who might end the program: the callbacks are on their way.
        _guarded(self._on_lost, hold)
        hold.end(LOST)
        self._remembered.add(hold.key)
        # Last: a user's logging filter may raise.
        logger.warning("lock %r was lost by owner %s: %s", readable(hold.lock.key), readable(hold.owner), reason)

    def _is_remembered(self, key: HoldKey) -> bool:
        hold = self.table.get(key)
        return hold is not None and (hold.state is LOST or hold.lost_below is not None)

    def _forget(self, key: HoldKey) -> None:
        hold = self.table.get(key)
        if hold is not None:
            hold.lost_below = None
            if hold.state is LOST:
                self.table.pop(key, None)


class Remembered(Generic[Key]):
    """The keys of what was lost and not released yet, the latest last: at most `MOST_LOST`.

    Entries of what was released since go first. A tenth of them goes at once, so that the search for such entries
    costs little for each loss.
    """

    def __init__(self, is_lost: Callable[[Key], bool], forget: Callable[[Key], object]) -> None:
        """`forget` is called for each of the oldest, where there are too many that are still lost."""
        self._is_lost = is_lost
        self._forget = forget
        self._keys: dict[Key, None] = {}

    def add(self, key: Key) -> None:
        """Remembers the loss."""
        self._keys.pop(key, None)
        self._keys[key] = None
        if len(self._keys) > MOST_LOST:
            self._make_room()

    def _make_room(self) -> None:
        keys = list(self._keys)
        lost = [key for key in keys if self._is_lost(key)]
        spare = MOST_LOST - MOST_LOST // 10
        for key in set(keys).difference(lost):
            self._keys.pop(key, None)
        for key in lost[: max(0, len(lost) - spare)]:
            self._keys.pop(key, None)
            self._forget(key)


def _guarded(listener: Listener, hold: Hold) -> None:
    try:
        listener(hold)
    except Exception:  # noqa: BLE001
        # An event loop that was just closed, a thread that can't start: the next listener must be told all the same.
        logger.exception("telling of the end of a hold failed")


def merge_lost(hold: Hold) -> Hold | None:
    """What to keep below a fresh hold, of what is in its place: the lost ones of the same owner, as one."""
    lost_below: Hold | None = hold.lost_below
    if hold.state is not LOST or not hold.count:
        return lost_below
    if lost_below is not None:
        hold.count += lost_below.count
        hold.lost_below = None
    return hold
