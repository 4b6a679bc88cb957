"""Replays: `python -m tests.logic.simulator KIND SEED` shows one, `KIND FIRST LAST` looks for those that fail."""

import sys

from . import KINDS, Violation, run


def main() -> None:
    """Prints the events of a schedule, and what was wrong with it."""
    logic = KINDS[sys.argv[1]]
    first, *last = map(int, sys.argv[2:])
    if last:
        for seed in range(first, last[0]):
            try:
                run(seed, logic)
            except Violation as error:
                print(f"{seed}: {error!r}")
        return
    trace: list[str] = []
    try:
        print(run(first, logic, trace))
    finally:
        print("\n".join(trace))


main()
