"""Thousands of random schedules: exclusion, no lost wakeup, no leaked hold, no waiter that waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .simulator import KINDS, Violation, run
from .simulator.owner import Owner

CHUNK = 500
SCHEDULES = {
    "plain": 4_000,
    "fenced": 500,
    "spin": 500,
    "non_reentrant": 500,
    "fair": 1000,
    "non_reentrant_fair": 500,
    "read_write": 1000,
    "semaphore": 1000,
    "crowded_semaphore": 1000,
    "permits": 1000,
    "latch": 500,
    "multi": 250,
    "red": 250,
    **{kind: 80 for kind in KINDS if kind.startswith("moving_")},
    **{kind: 300 for kind in KINDS if kind.endswith("restarts")},
}
"""How many schedules each kind of primitive goes through."""


def explained(kind: str, seed: int) -> str:
    """The end of a failed schedule, and how to see all of it."""
    trace: list[str] = []
    with pytest.raises(Violation) as caught:
        run(seed, KINDS[kind], trace)
    events = "\n".join(trace[-40:])
    return f"seed {seed}: {caught.value}\n{events}\nreplay: python -m tests.logic.simulator {kind} {seed}"


def chunks() -> Iterator[Any]:
    """A seed is the same schedule on every interpreter, so the first ones do for all but one of them."""
    for kind in KINDS:
        for first in range(0, SCHEDULES[kind], CHUNK):
            yield pytest.param(kind, first, marks=[pytest.mark.slow] if first else [])


@pytest.mark.parametrize(("kind", "first"), list(chunks()))
def test_schedules(kind: str, first: int) -> None:
    for seed in range(first, min(first + CHUNK, SCHEDULES[kind])):
        try:
            run(seed, KINDS[kind])
        except Violation:
            pytest.fail(explained(kind, seed), pytrace=False)


@pytest.mark.parametrize("kind", KINDS)
def test_schedules_are_worth_something(kind: str) -> None:
    """Locks are acquired with and without planned faults: a simulator in which nothing happens finds nothing."""
    reports = [run(seed, KINDS[kind]) for seed in range(50)]
    calm = [report.acquired for report in reports if report.calm]
    stormy = [report.acquired for report in reports if not report.calm]
    assert not calm or sum(calm) / len(calm) > 2
    assert sum(stormy) / len(stormy) > 2
    assert bool(calm) is (KINDS[kind].restarts == 0)
    assert sum(report.waits for report in reports) > 50
    if KINDS[kind].user is Owner:
        assert sum(report.lost for report in reports) > 5


def test_commands_are_refused_for_each_reason_while_slots_move() -> None:
    trace: list[str] = []
    for seed in range(50):
        run(seed, KINDS["moving_plain"], trace)
        run(seed, KINDS["moving_semaphore"], trace)
    for refusal in ("MOVED", "ASK", "TRYAGAIN"):
        assert sum(f"-> {refusal}" in line for line in trace) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_one_schedule(kind: str) -> None:
    first: list[str] = []
    second: list[str] = []
    run(3, KINDS[kind], first)
    run(3, KINDS[kind], second)
    assert first == second
    assert len(first) > 10
