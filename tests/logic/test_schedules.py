"""Thousands of random schedules: exclusion, no lost wake-up, no leaked hold, nobody stuck."""

from __future__ import annotations

import pytest

from .simulator import Violation, run

CHUNK = 500
CHUNKS = 42


def explained(seed: int) -> str:
    """The end of a failed schedule, and how to see all of it."""
    trace: list[str] = []
    with pytest.raises(Violation) as caught:
        run(seed, trace=trace)
    events = "\n".join(trace[-40:])
    return f"seed {seed}: {caught.value}\n{events}\nreplay: python -m tests.logic.simulator {seed}"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_schedules(chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        try:
            run(seed)
        except Violation:
            pytest.fail(explained(seed), pytrace=False)


def test_schedules_are_worth_something() -> None:
    """Locks are taken in calm and in stormy weather; a simulator in which nothing happens finds nothing."""
    reports = [run(seed) for seed in range(100)]
    calm = [report.acquired for report in reports if report.calm]
    stormy = [report.acquired for report in reports if not report.calm]
    assert sum(calm) / len(calm) > 5
    assert sum(stormy) / len(stormy) > 5
    assert sum(report.waits for report in reports) > 100
    assert sum(report.lost for report in reports) > 10


def test_a_seed_is_one_schedule() -> None:
    first: list[str] = []
    second: list[str] = []
    run(3, trace=first)
    run(3, trace=second)
    assert first == second
    assert len(first) > 10
