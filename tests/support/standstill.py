"""A process that notices when the machine stands still.

Each line on its input is a list of periods; it replies with the length of the longest standstill that overlaps one of
them. One thread on each core sleeps for a moment again and again, and measures how late it wakes up. This is a process
of its own, so that code under test can't delay it. It ends with the process that started it.
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
