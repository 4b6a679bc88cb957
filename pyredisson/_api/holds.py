"""What the public API asks of the logic of locks, and what a client holds, as it knows without asking the server."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from pyredisson._api.arguments import Name, package_of
from pyredisson._diagnostics import readable
from pyredisson.errors import LockLostError, LockTimeoutError
from pyredisson.holder import Hold
from pyredisson.logic import holds
from pyredisson.logic.holds import HELD, LOST
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner
from pyredisson.logic.session import Session


class Primitive:
    """What is no lock: an object of the server with a name."""

    __slots__ = ("__weakref__", "_logic", "_name")

    def __init__(self, logic: Any, name: Name | None) -> None:
        self._logic = logic
        self._name = name

    @property
    def name(self) -> Name:
        """The name as the client's method got it."""
        name: Name = self._logic.key.decode() if self._name is None else self._name
        return name

    def __repr__(self) -> str:
        return f"<{package_of(type(self))}.{type(self).__name__} {readable(self._logic.key)!r}>"


class Logic(Protocol):
    """The logic of a lock or a group. Owners are `Owner` or `GroupOwner`, holds are `Hold` or `GroupHold`."""

    session: Session
    identity: Hashable

    async def acquire(self, owner: Any, lease: int | None, deadline: float | None) -> bool: ...
    async def release(self, owner: Any, hold: Any) -> None: ...
    def hold_of(self, owner_id: Any) -> Any: ...
    def named(self, owner: Any) -> str: ...
    def loss_of(self, owner: Any, hold: Any) -> LockLostError: ...
    async def timed_out(self, owner: Any, wait: float) -> LockTimeoutError: ...


class HoldChecker(Protocol):
    """What decides by the clock whether a hold is lost."""

    def expire_if_due(self, hold: Any) -> bool:
        """Declares the hold lost if its lease has ended. True: it is not held any more."""


def holds_of(session: Session) -> list[Hold]:
    """All holds of a client, the oldest first; also lost ones that were not released yet."""
    now, wall = session.clock(), datetime.now(UTC)
    found = []
    for hold in _all(session):
        session.holds.expire_if_due(hold)
        lost = hold.state is LOST
        # It may be released by another thread meanwhile.
        if not hold.count:
            continue
        found.append(
            Hold(
                name=readable(hold.commands.key),
                kind=hold.commands.kind,
                owner_id=None if hold.acquired_by is None else hold.key[1],
                since=wall - timedelta(seconds=now - hold.begun),
                levels=hold.count,
                token=hold.token or None,
                valid_for=0.0 if lost else max(0.0, hold.valid_until - now),
                renewed=hold.renewed,
                lost=lost,
            )
        )
    return sorted(found, key=lambda hold: hold.since)


def _all(session: Session) -> Iterator[holds.Hold]:
    for hold in list(session.holds.table.values()):
        yield hold
        if hold.lost_below is not None:
            yield hold.lost_below


def state_of_lock(logic: LockLogic, owner: Owner | None, caller: str) -> str:
    """The end of a lock's repr: what its owner holds. Empty: nothing. Changes nothing and never raises.

    `owner`: None, if the calling thread or task is no owner yet. `caller`: how the repr names the owner.
    """
    hold = None if owner is None else logic.hold_of(owner.id)
    if hold is None:
        return ""
    now = logic.session.clock()
    if hold.state is HELD and hold.valid_until > now:
        return f": held by {caller} for {max(0.0, now - hold.begun):.1f} s"
    return f": {LOST.value if hold.state is HELD else hold.state.value}"
