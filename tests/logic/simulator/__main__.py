"""Replays: `python -m tests.logic.simulator KIND SEED` shows one, `KIND FIRST LAST` looks for those that fail."""

import sys

from . import KINDS, Violation, run

logic = KINDS[sys.argv[1]]
first, *last = map(int, sys.argv[2:])
trace: list[str] = []
if last:
    for seed in range(first, last[0]):
        try:
            run(seed, logic)
        except Violation as error:
            print(f"{seed}: {error!r}")
else:
    try:
        print(run(first, logic, trace))
    finally:
        print("\n".join(trace))
