"""Owners of locks in one client, and the names under which the server knows them."""

from __future__ import annotations

import itertools
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]
from collections.abc import Callable, Hashable
from copy import copy
from weakref import KeyedRef

from pyredisson._core import CallQueues, OwnerCall
from pyredisson._diagnostics import readable
from pyredisson.logic.ports import Runtime
from pyredisson.owners import FIRST_AUTOMATIC_ID

TURN_CHECK = 1.0
"""Seconds after which a call checks whether it has the turn, even if its wakeup wasn't set."""
SHORTEST_WAIT = 3.0
"""Seconds for which a call waits for its turn at least, even if its deadline is earlier: as long as for a reply."""


class OwnerCalls:
    """What the calls of one owner must know of each other.

    All calls of an owner use its name on the server, and state how many levels it holds. So each call must know what
    became of the call before it. They take turns for each lock, in the order in which they came.
    """

    __slots__ = ("ended", "in_flight", "in_group", "is_stranded", "queued_names")

    def __init__(self) -> None:
        self.in_flight = CallQueues()
        """For each lock, the call whose command is on its way, and the calls that wait for their turn."""
        self.queued_names: dict[bytes, OwnerCall] = {}
        """The names under which this owner waits in queues of fair locks, each by one call."""
        self.in_group = False
        """Whether it waits for a member of a group, for a while: then the group releases its other members."""
        self.ended = False
        """Whether the thread or task that is the owner has come to its end."""
        self.is_stranded: Callable[[], bool] | None = None
        """Whether it never goes on, without an end, as the event loop of a task was closed. None: it is a thread."""

    @property
    def have_ended(self) -> bool:
        """Whether the owner makes no further call."""
        return self.ended or (self.is_stranded is not None and self.is_stranded())

    async def wait_for_turn(
        self, runtime: Runtime, key: Hashable, call: OwnerCall, lock_key: bytes, deadline: float | None
    ) -> bool:
        """Waits until no earlier call of this owner has a command for this lock on its way.

        False: not until `deadline` (None: without limit), or `SHORTEST_WAIT` seconds if that is later.
        """
        clock, in_flight = runtime.clock, self.in_flight
        wakeup = runtime.wakeup()
        if in_flight.wait(key, call, wakeup):
            return True
        if runtime.blocking and in_flight.is_on_this_thread(key):
            # A finalizer or a signal handler on this thread has interrupted the call that has the turn.
            raise RuntimeError(
                f"lock {readable(lock_key)!r} was asked for in the middle of a call for it on this thread"
            )
        if deadline is not None:
            deadline = max(deadline, clock() + SHORTEST_WAIT)
        while not in_flight.enter(key, call):
            remaining = TURN_CHECK if deadline is None else min(TURN_CHECK, deadline - clock())
            if remaining <= 0:
                return False
            await runtime.wait(wakeup, remaining)
            wakeup.clear()
        return True


# --- Owners


_name_numbers = itertools.count(1)
"""Of names that must not be used twice, whichever threads make them."""


class Owner:
    """A thread, a task or an explicit id, and the name under which the server knows it.

    The id never changes. The name belongs to an epoch: a new epoch begins as soon as a command of this owner may run
    late. A late copy then names an owner that acquires nothing any more, and can't touch a later hold.
    """

    __slots__ = ("__weakref__", "_prefix", "_registry", "calls", "id", "name", "renewed_name")

    def __init__(self, client_id: str, owner_id: int, registry: OwnerRegistry | None = None) -> None:
        """`registry` is for explicit owners, which may be forgotten and made again with the same id."""
        self.id = owner_id
        self._registry = registry
        self.begin(client_id)

    def begin(self, client_id: str) -> None:
        """Starts as an owner without holds; called again after `fork`, where the client has a new id."""
        self._prefix = f"{client_id}:{self.id}"
        self.name = self._prefix.encode()
        self.renewed_name = b""
        """The name that it had at the latest renewal of a lease, which may still be on its way."""
        if self._registry is not None and self._registry.has_epochs:
            # An owner of the same id may have had epochs before it was forgotten. Its names must not be used again.
            self.new_epoch()
        self.calls = OwnerCalls()

    def new_epoch(self) -> None:
        """Makes this owner acquire locks under a new name from now on; its present holds keep their name."""
        if self._registry is not None:
            self._registry.has_epochs = True
        self.name = f"{self._prefix}:{next(_name_numbers)}".encode()

    def for_one_call(self) -> Owner:
        """The same owner under names that no other call uses, so that the server can tell the calls apart."""
        other = copy(self)
        other._registry = None
        other._prefix = f"{self._prefix}.{next(_name_numbers)}"
        other.name = other._prefix.encode()
        return other


class OwnerRegistry:
    def __init__(self) -> None:
        self.has_epochs = False
        """Whether any explicit owner has begun a new epoch."""
        self._explicit: dict[int, KeyedRef[int, Owner]] = {}
        """Explicit owners to which a handle, or a call in flight, refers."""

    def begin(self, client_id: str) -> None:
        """Makes owners of this client from now on."""
        self._client_id = client_id
        self._automatic_ids = itertools.count(FIRST_AUTOMATIC_ID)
        # Explicit owners that were made before `fork` become owners of the new client: handles refer to them.
        for reference in list(self._explicit.values()):
            if (owner := reference()) is not None:
                owner.begin(client_id)

    def new(self) -> Owner:
        """An owner for a thread or a task. Its id has never been used before."""
        return Owner(self._client_id, next(self._automatic_ids))

    def explicit(self, owner_id: int) -> Owner:
        """The owner with an id that the user chose. It exists for as long as something refers to it."""
        known = self._explicit
        while True:
            new = Owner(self._client_id, owner_id, self)
            reference = known.setdefault(owner_id, KeyedRef(new, self._forget, owner_id))
            owner = reference()
            if owner is not None:
                return owner
            self._forget(reference)

    def _forget(self, dead: KeyedRef[int, Owner]) -> None:
        # One step, as in `WeakValueDictionary`: another thread may have registered the same owner anew.
        _remove_dead_weakref(self._explicit, dead.key)


def owner_id(name: bytes) -> int:
    """The id of the owner that has, or once had, this name."""
    return int(name.split(b":", 2)[1].partition(b".")[0])
