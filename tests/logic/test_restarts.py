"""Schedules in which servers restart empty: a hold that was lost with the server doesn't count as released."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyredisson.logic.groups.recovery import MemberRecovery
from pyredisson.logic.locks.fenced_lock import FencedLockLogic
from pyredisson.logic.locks.rlock import LockLogic

from .simulator import Violation, run
from .simulator.kinds import RED_RESTARTS, RESTARTS

SCHEDULES = 150
RED_SCHEDULES = 5


@pytest.mark.parametrize("kind", [LockLogic, FencedLockLogic])
@pytest.mark.parametrize("checked", [True, False])
def test_no_lost_hold_counts_as_released(kind: type[LockLogic], checked: bool) -> None:
    """Also without a check of the connection before its use: the server's identity is enough."""
    logic = replace(RESTARTS, objects=(kind,), checked=checked)
    lost = 0
    for seed in range(SCHEDULES):
        try:
            lost += run(seed, logic).lost
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}", pytrace=False)
    assert lost > SCHEDULES / 10


def test_a_client_without_either_check_is_detected() -> None:
    """It believes that its release was sent over a connection that was closed before."""
    logic = replace(RESTARTS, checked=False, identified=False)
    with pytest.raises(Violation, match="the server didn't know the hold"):
        for seed in range(SCHEDULES):
            run(seed, logic)


def test_a_red_lock_outlives_servers_that_restart_one_after_the_other() -> None:
    """Unless it has only just been acquired, of fewer servers than all."""
    reports = [run(seed, RED_RESTARTS) for seed in range(RED_SCHEDULES)]
    assert 20 * sum(report.lost for report in reports) < sum(report.acquired for report in reports)


def test_a_red_lock_that_acquires_no_member_again_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemberRecovery, "begin", lambda _: None)
    reports = [run(seed, RED_RESTARTS) for seed in range(RED_SCHEDULES)]
    assert 20 * sum(report.lost for report in reports) > sum(report.acquired for report in reports)
