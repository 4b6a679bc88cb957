"""Schedules in which servers restart empty: a hold that was lost with the server doesn't count as released."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyredisson.logic.groups.recovery import MemberRecovery

from .simulator import KINDS, Violation, run
from .simulator.kinds import RED_RESTARTS

SCHEDULES = 150
RED_SCHEDULES = 5


def test_a_client_without_either_check_is_detected() -> None:
    """It believes that its release was sent over a connection that was closed before."""
    logic = replace(KINDS["restarts"], checked=False, identified=False)
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
