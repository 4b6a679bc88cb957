"""A process that notices when the machine stands still.

Asked with stretches of time, it tells the length of the longest standstill that overlaps one of them.
It has one thread on each core that does nothing but sleep a moment and look how late it wakes. It is a process of its
own, so that no code under test can be what keeps it waiting; it ends with whoever started it.
"""

from __future__ import annotations

import os
import sys
import threading
import time

MOMENT = 0.01
"""Seconds between two looks at the clock."""
STANDSTILL = 0.15
"""Seconds of lateness from which on it counts; the tests' leases and deadlines bear twice that."""


def watch(core: int, seen: list[tuple[float, float]]) -> None:
    """Notes the begin and the end of each standstill of that core."""
    os.sched_setaffinity(0, {core})  # of this thread
    then = time.monotonic()
    while True:
        time.sleep(MOMENT)
        now = time.monotonic()
        if now - then > STANDSTILL:
            seen.append((then, now))
        then = now


def overlaps(begin: float, end: float, stretches: list[tuple[float, float]]) -> bool:
    # For the first moment it slept because it wanted to.
    return any(begin + MOMENT < to and end > since for since, to in stretches)


def main() -> None:
    seen: list[tuple[float, float]] = []
    for core in os.sched_getaffinity(0):
        threading.Thread(target=watch, args=(core, seen), daemon=True).start()
    for line in sys.stdin:
        # One that has just ended is seen at the next look.
        time.sleep(5 * MOMENT)
        times = [float(word) for word in line.split()]
        stretches = list(zip(times[::2], times[1::2], strict=True))
        print(max((end - begin for begin, end in seen if overlaps(begin, end, stretches)), default=0.0), flush=True)


if __name__ == "__main__":
    main()
