"""Replays schedules: `python -m tests.logic.simulator SEED` shows one, `FIRST LAST` looks for one that fails."""

from __future__ import annotations

import sys

from .schedule import Violation, run


def main() -> None:
    """Prints the events of a schedule, and what was wrong with it."""
    first, *last = map(int, sys.argv[1:])
    if last:
        for seed in range(first, last[0]):
            try:
                run(seed)
            except Violation as error:
                print(f"{seed}: {error!r}")
        return
    trace: list[str] = []
    try:
        print(run(first, trace=trace))
    finally:
        print("\n".join(trace))


main()
