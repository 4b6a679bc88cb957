"""Replays: `python -m tests.logic.simulator KIND SEED` shows one, `KIND FIRST LAST` looks for those that fail, on all
processors; `all FIRST LAST` does in all kinds."""

import itertools
import multiprocessing
import sys

from . import KINDS, Violation, run


def failing(job: tuple[str, range]) -> list[str]:
    (kind, seeds), found = job, []
    for seed in seeds:
        try:
            run(seed, KINDS[kind])
        except Violation as error:
            found.append(f"{kind} {seed}: {error!r}")
    return found


if __name__ == "__main__":
    chosen, (first, *last) = sys.argv[1], map(int, sys.argv[2:])
    if last:
        seeds = [range(begin, min(begin + 100, last[0])) for begin in range(first, last[0], 100)]
        with multiprocessing.Pool() as pool:
            for found in pool.imap_unordered(failing, itertools.product(KINDS if chosen == "all" else [chosen], seeds)):
                print("".join(f"{each}\n" for each in found), end="", flush=True)
    else:
        trace: list[str] = []
        try:
            print(run(first, KINDS[chosen], trace))
        finally:
            print("\n".join(trace))
