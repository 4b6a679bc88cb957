"""`python -m benchmarks [NAME...] [--quick]`: runs the benchmarks and shows the table."""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import Row, report
from benchmarks.measure import in_fresh_process

NAMES = (
    "sync",
    "aio",
    "handoff",
    "contended",
    "watchdog",
    "core",
    "footprint",
    "primitives",
    "observer",
    "fair",
    "clients",
    "cluster",
    "redisson",
    "free_threading",
)
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Writes the results of full runs only: their figures belong together."""
    options = _options()
    rows: list[Row] = []
    for name in options.names or NAMES:
        began = time.monotonic()
        print(f"{name} ...", end=" ", flush=True)
        # Each benchmark has its own process: threads, connections and memory of one must not slow the next.
        measure: Callable[..., list[Row]] = importlib.import_module(f"benchmarks.{name}").rows
        rows += in_fresh_process(measure, quick=options.quick)
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    print()
    print(report.table(rows))
    if not options.names and not options.quick:
        RESULTS.mkdir(exist_ok=True)
        report.write_json(rows, RESULTS / "results.json")
        report.draw(rows, RESULTS / "results.png")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all without")
    parser.add_argument("--quick", action="store_true", help="a first look, not a figure to quote")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    return options


if __name__ == "__main__":
    main()
