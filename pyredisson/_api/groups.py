"""What both faces share of several locks as one: how a group is made, and what it can't do."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

from pyredisson._api.arguments import package_of
from pyredisson.errors import LockLostError, LockTimeoutError
from pyredisson.logic.groups.group import GroupOwner
from pyredisson.logic.holds import Owner
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.session import Session
from pyredisson.owners import AnyOwner


class Logic(Protocol):
    """What both faces ask of the logic of a lock, or of several as one."""

    session: Session
    identity: Hashable

    async def acquire(self, owner: Any, lease: int | None, deadline: float | None) -> bool: ...
    async def release(self, owner: Any, hold: Any) -> None: ...
    def hold_of(self, owner_id: Any) -> Any: ...
    def named(self, owner: Any) -> str: ...
    def loss_of(self, owner: Any, hold: Any) -> LockLostError: ...
    async def timed_out(self, owner: Any, wait: float) -> LockTimeoutError: ...


class Prover(Protocol):
    """Who can say whether a hold is still ours."""

    def proven(self, hold: Any) -> bool: ...


class Member(Protocol):
    """What a group asks of the faces of its members."""

    @property
    def _logic(self) -> LockLogic: ...
    def _owner(self) -> Owner: ...


AnyMember = TypeVar("AnyMember", bound=Member)


class Group:
    """Several locks as one, as both faces have it: whose it is, and what it can't do."""

    __slots__ = ()

    _locks: Sequence[Member]
    _party: GroupOwner | None
    """For whom every call is; None: for the members' owners, in the calling thread or task."""

    @property
    def name(self) -> NoReturn:
        """A group has none: its members do."""
        raise NotImplementedError("a group of locks has no name: ask its members")

    def is_locked(self) -> NoReturn:
        """Not for a group."""
        raise NotImplementedError("a group may be locked in part: ask its members")

    def locked(self) -> NoReturn:
        """Not for a group."""
        self.is_locked()

    def is_held_by(self, owner_id: AnyOwner) -> NoReturn:
        """Not for a group."""
        raise NotImplementedError("an owner has another id in each member's client: ask the members")

    def get_hold_count(self) -> NoReturn:
        """Not for a group."""
        raise NotImplementedError("a group's members may be held by other calls too: ask its members")

    def remain_time_to_live(self) -> NoReturn:
        """Not for a group."""
        raise NotImplementedError("each member of a group has a lease of its own: ask its members")

    def force_unlock(self) -> NoReturn:
        """Not for a group."""
        raise NotImplementedError("a group's members may be held by different owners: force each member that must go")

    def delete(self) -> NoReturn:
        """Not for a group."""
        self.force_unlock()

    def _owner(self) -> GroupOwner:
        return self._party or GroupOwner([lock._owner() for lock in self._locks])

    def __repr__(self) -> str:
        return f"<{package_of(type(self))}.{type(self).__name__} of {', '.join(map(repr, self._locks))}>"


def members_of(locks: Sequence[AnyMember], kind: type[AnyMember]) -> list[AnyMember]:
    """The members of a group, in the order in which everybody takes them.

    `TypeError` for what is no lock of this world, `ValueError` if there are none, or the same one twice.
    """
    if not locks:
        raise ValueError("a group needs at least one lock")
    for lock in locks:
        if not isinstance(lock, kind):
            raise TypeError(f"a member must be a lock of {package_of(kind)}, not {lock!r}")
    if len({(lock._logic.session.server, lock._logic.identity) for lock in locks}) < len(locks):
        raise ValueError("the same lock stands twice in a group: it would wait for itself")
    return sorted(locks, key=lambda lock: (lock._logic.session.server, lock._logic.key, lock._logic.rank))
