"""Owners of locks in one client, and the names under which the server knows them."""

from __future__ import annotations

import itertools
from copy import copy
from weakref import KeyedRef

from pyredisson.logic.owner_calls import OwnerCalls
from pyredisson.owners import FIRST_AUTOMATIC_ID

_call_numbers = itertools.count(1)


class EpochNumbers:
    """Numbers the epochs of all explicit owners of a client, so that no name is used twice."""

    __slots__ = ("_numbers", "used")

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.used = False
        """Whether any explicit owner has begun a new epoch."""

    def next_name(self, prefix: str) -> bytes:
        """A name that no owner had before."""
        self.used = True
        return f"{prefix}:{next(self._numbers)}".encode()


class Owner:
    """A thread, a task or an explicit id, and the name under which the server knows it.

    The id never changes. The name belongs to an epoch: a new epoch begins as soon as a command of this owner may run
    late. A late copy then names an owner that acquires nothing any more, and can't touch a later hold.
    """

    __slots__ = ("__weakref__", "_epoch_numbers", "_prefix", "calls", "epoch", "id", "name")

    def __init__(self, client_id: str, owner_id: int, epoch_numbers: EpochNumbers | None = None) -> None:
        """`epoch_numbers` is for explicit owners, which may be forgotten and made again with the same id."""
        self.id = owner_id
        self._epoch_numbers = epoch_numbers
        self.begin(client_id)

    def begin(self, client_id: str) -> None:
        """Starts as an owner without holds; called again after `fork`, where the client has a new id."""
        self._prefix = f"{client_id}:{self.id}"
        self.epoch = 0
        self.name = self._prefix.encode()
        if self._epoch_numbers is not None and self._epoch_numbers.used:
            # An owner of the same id may have had epochs before it was forgotten. Its names must not be used again.
            self.name = self._epoch_numbers.next_name(self._prefix)
        self.calls = OwnerCalls()

    def new_epoch(self) -> None:
        """Makes this owner acquire locks under a new name from now on; its present holds keep their name."""
        self.epoch += 1
        if self._epoch_numbers is not None:
            self.name = self._epoch_numbers.next_name(self._prefix)
        else:
            self.name = f"{self._prefix}:{self.epoch}".encode()

    @property
    def name_prefix(self) -> bytes:
        """The common beginning of all names of this owner that have a suffix."""
        return f"{self._prefix}:".encode()

    def for_one_call(self) -> Owner:
        """The same owner under names that no other call uses, so that the server can tell the calls apart."""
        other = copy(self)
        other.epoch = 0
        other._epoch_numbers = None
        other._prefix = f"{self._prefix}.{next(_call_numbers)}"
        other.name = other._prefix.encode()
        return other


class OwnerRegistry:
    """Makes the owners of one client."""

    def __init__(self) -> None:
        self._client_id = ""
        self._automatic_ids = itertools.count(FIRST_AUTOMATIC_ID)
        self._epoch_numbers = EpochNumbers()
        self._explicit: dict[int, KeyedRef[int, Owner]] = {}
        """Explicit owners to which a handle, or a call in flight, refers."""

    def begin(self, client_id: str) -> None:
        """Makes owners of this client from now on.

        Explicit owners that were made before `fork` become owners of the new client: handles refer to them.
        """
        self._client_id = client_id
        self._automatic_ids = itertools.count(FIRST_AUTOMATIC_ID)
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
            new = Owner(self._client_id, owner_id, self._epoch_numbers)
            reference = known.setdefault(owner_id, KeyedRef(new, self._forget, owner_id))
            owner = reference()
            if owner is not None:
                return owner
            self._forget(reference)

    def _forget(self, dead: KeyedRef[int, Owner]) -> None:
        known, owner_id = self._explicit, dead.key
        # No function is called between the test and `del`: another thread could run there, and register the same owner
        # anew, whose reference must stay.
        if owner_id in known and known[owner_id] is dead:
            del known[owner_id]


def owner_id(name: bytes) -> int:
    """The id of the owner that has, or once had, this name."""
    return int(name.split(b":", 2)[1].partition(b".")[0])
