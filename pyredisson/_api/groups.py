"""What groups of locks have in common for threads and asyncio: their members, their owner, and what they can't do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NoReturn, Protocol, TypeVar

from pyredisson._api.arguments import package_of
from pyredisson.logic.groups.group import GroupOwner
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner
from pyredisson.owners import AnyOwner


class Member(Protocol):
    """What a group needs of each of its locks."""

    @property
    def _logic(self) -> LockLogic: ...
    def _owner(self) -> Owner: ...


AnyMember = TypeVar("AnyMember", bound=Member)


class Group:
    """Several locks as one: the owner of its calls, and the methods that make no sense for a group."""

    __slots__ = ()

    _locks: Sequence[Member]
    _group_owner: GroupOwner | None
    """The owner of every call of this object; None: the members' owners for the calling thread or task."""

    @property
    def name(self) -> NoReturn:
        """A group has no name; its members have. Raises `NotImplementedError`."""
        raise NotImplementedError("a group of locks has no name: ask its members")

    def is_locked(self) -> NoReturn:
        """Not for a group, of which some members may be locked and others not. Raises `NotImplementedError`."""
        raise NotImplementedError("a group may be locked in part: ask its members")

    def locked(self) -> NoReturn:
        """Not for a group, as `is_locked`. Raises `NotImplementedError`."""
        self.is_locked()

    def is_held_by(self, owner_id: AnyOwner) -> NoReturn:
        """Not for a group: an owner has another id in each member's client. Raises `NotImplementedError`."""
        raise NotImplementedError("an owner has another id in each member's client: ask the members")

    def get_hold_count(self) -> NoReturn:
        """Not for a group: its members may have more holds, of other calls. Raises `NotImplementedError`."""
        raise NotImplementedError("a group's members may be held by other calls too: ask its members")

    def remain_time_to_live(self) -> NoReturn:
        """Not for a group: each member has its own lease. Raises `NotImplementedError`."""
        raise NotImplementedError("each member of a group has a lease of its own: ask its members")

    def holder(self) -> NoReturn:
        """Not for a group: its members may be held by different owners. Raises `NotImplementedError`."""
        raise NotImplementedError("a group's members may be held by different owners: ask its members")

    def waiters(self) -> NoReturn:
        """Not for a group, as `holder`. Raises `NotImplementedError`."""
        raise NotImplementedError("a group's members are waited for one by one: ask its members")

    def hand_off(self) -> NoReturn:
        """Not for a group: its members may be on several servers. Raises `NotImplementedError`."""
        raise NotImplementedError("a group of locks can't be handed off")

    def force_unlock(self) -> NoReturn:
        """Not for a group: its members may be held by different owners. Raises `NotImplementedError`."""
        raise NotImplementedError("a group's members may be held by different owners: force each member that must go")

    def delete(self) -> NoReturn:
        """Not for a group, as `force_unlock`. Raises `NotImplementedError`."""
        self.force_unlock()

    def _owner(self) -> GroupOwner:
        return self._group_owner or GroupOwner([lock._owner() for lock in self._locks])

    def __repr__(self) -> str:
        return f"<{package_of(type(self))}.{type(self).__name__} of {', '.join(map(repr, self._locks))}>"


def members_of(locks: Sequence[AnyMember], kind: type[AnyMember]) -> list[AnyMember]:
    """The members of a group, in the order in which every program acquires them.

    `TypeError` for a member that is no lock of the same package (`kind`); `ValueError` if there is no member, or if one
    is there twice.
    """
    if not locks:
        raise ValueError("a group needs at least one lock")
    for lock in locks:
        if not isinstance(lock, kind):
            raise TypeError(f"a member must be a lock of {package_of(kind)}, not {lock!r}")
    if any(_are_same(one._logic, other._logic) for one, other in combinations(locks, 2)):
        raise ValueError("the same lock stands twice in a group: it would wait for itself")
    return sorted(locks, key=lambda lock: (lock._logic.session.server, lock._logic.key, lock._logic.order_in_group))


def _are_same(one: LockLogic, other: LockLogic) -> bool:
    if one.identity != other.identity:
        return False
    return one.session is other.session or one.session.config.names_same_data(other.session.config)
