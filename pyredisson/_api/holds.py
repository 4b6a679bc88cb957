"""What a client holds, as it knows without asking the server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from pyredisson._diagnostics import readable
from pyredisson.holder import Hold
from pyredisson.logic import holds
from pyredisson.logic.holds import HELD, LOST
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner
from pyredisson.logic.session import Session


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
