"""All schedules of two users whose steps come at wrong moments, or of which one meets a fault.

More of it: `python -m tests.logic.simulator.small_world KIND 2 1`.
"""

from dataclasses import replace

import pytest

from .simulator import KINDS, Violation
from .simulator.small_world import walk
from .test_planted_bugs import text_with

SMALL = [kind for kind, logic in KINDS.items() if logic.nodes == 1 and not logic.restarts and logic.users == 1]
LONG = ("multi", "red")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in LONG)) for kind in SMALL])
def test_two_changes_of_turn(kind: str) -> None:
    assert all(walk(kind, users, 0, turns=2, faults=0).schedules > 1 for users in ((1, 1), (2,)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in SMALL if kind not in LONG])
def test_one_fault(kind: str) -> None:
    assert walk(kind, (1, 1), 0, turns=0, faults=1).schedules > 20


@pytest.mark.parametrize(
    "bug", ["plain: a release wakes no client of the list", "handed_off: several adopt it", "latch: it counts twice"]
)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = bug.partition(":")[0]
    monkeypatch.setitem(KINDS, kind, replace(KINDS[kind], patches=text_with(bug)))
    with pytest.raises(Violation):
        for seed in range(3):
            for budget in ((2, 0), (0, 1)):
                walk(kind, (1, 1), seed, *budget)
