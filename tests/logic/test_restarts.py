"""Schedules in which servers restart empty: a hold that was lost with the server doesn't count as released."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyredisson.logic.locks.fenced_lock import FencedLockLogic
from pyredisson.logic.locks.rlock import LockLogic

from .simulator import Violation, run
from .simulator.kinds import RESTARTS

SCHEDULES = 150


@pytest.mark.parametrize("kind", [LockLogic, FencedLockLogic])
@pytest.mark.parametrize("checked", [True, False])
def test_no_lost_hold_is_said_to_be_released(kind: type[LockLogic], checked: bool) -> None:
    """Where a connection isn't looked at before it is used, the server's identity is enough."""
    logic = replace(RESTARTS, objects=(kind,), checked=checked)
    lost = 0
    for seed in range(SCHEDULES):
        try:
            lost += run(seed, logic).lost
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}", pytrace=False)
    assert lost > SCHEDULES / 10


def test_a_client_that_neither_looks_nor_asks_is_found_out() -> None:
    """It takes a connection that was closed before for one over which its release was sent."""
    logic = replace(RESTARTS, checked=False, identified=False)
    with pytest.raises(Violation, match="the server knew nothing of it"):
        for seed in range(SCHEDULES):
            run(seed, logic)
