"""Replays: `python -m tests.logic.simulator KIND SEED` shows one, `KIND FIRST LAST` looks for those that fail."""

from __future__ import annotations

import sys
from functools import partial

from .schedule import KINDS, Violation, run
from .shards import run_with_shards


def main() -> None:
    """Prints the events of a schedule, and what was wrong with it."""
    kind = sys.argv[1]
    play = run_with_shards if kind == "shards" else partial(run, logic=KINDS[kind])
    first, *last = map(int, sys.argv[2:])
    if last:
        for seed in range(first, last[0]):
            try:
                play(seed)
            except Violation as error:
                print(f"{seed}: {error!r}")
        return
    trace: list[str] = []
    try:
        print(play(first, trace=trace))
    finally:
        print("\n".join(trace))


main()
