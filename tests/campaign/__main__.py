"""A campaign: owners in several processes contend for locks while all kinds of faults occur, in rounds.

Each round has servers of its own, and its history is judged. The seed gives the same faults and the same choices of
all owners again, at times that are never the same.
"""

import argparse
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from time import monotonic

from .history import BUILD
from .rounds import KINDS, SERVERS, finds, run
from .wrong_locks import WRONG


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign")
    parser.add_argument("--servers", choices=SERVERS, default="single")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--round", type=float, default=60.0, metavar="SECONDS", help="of each round")
    parser.add_argument("--kinds", default=" ".join(KINDS), help="of locks")
    parser.add_argument(
        "--faults",
        default="",
        metavar="TEXT",
        help="whose names contain it; none: turns are compared; harmless: by them no hold is lost",
    )
    parser.add_argument("--java", action="store_true", help="beside Redisson, on one server or a cluster")
    parser.add_argument("--tls", action="store_true", help="without faults that need a proxy, or redis-cli")
    parser.add_argument("--wrong", help="a planted bug of tests/campaign/wrong_locks.py, or all, one after the other")
    options = parser.parse_args()
    if options.wrong == "all":
        return find_all()
    if options.java and (options.tls or options.servers not in ("single", "cluster")):
        parser.error("--java goes with one server and a cluster, without TLS")
    print(f"{options.servers}: seed {options.seed}", flush=True)
    how = {"kinds": options.kinds.split(), "faults": options.faults, "wrong": options.wrong, "java": options.java}
    end, counts, number = monotonic() + 60 * options.minutes, Counter[str](), 0
    while monotonic() < end:
        BUILD.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="journals-", dir=BUILD))
        seconds = min(options.round, end - monotonic())
        try:
            load, faults = run(options.servers, f"{options.seed}/{number}", directory, seconds, tls=options.tls, **how)
        except Exception as error:  # noqa: BLE001 - whatever ends a round is a finding
            shown = error if isinstance(error, AssertionError) else traceback.format_exc()
            print(f"round {number}: {shown}\nThe journals are in {directory}.", flush=True)
            return 1
        counts.update(faults)
        print(f"round {number}: {load}; {sum(faults.values())} faults", flush=True)
        shutil.rmtree(directory)
        number += 1
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 0


def find_all() -> int:
    """The planted bugs that are not found, each within a minute."""
    missed = []
    for bug in WRONG:
        begun = monotonic()
        with tempfile.TemporaryDirectory(prefix="pyredisson-campaign-") as directory:
            found = finds(bug, Path(directory))
        print(f"{'found' if found else 'MISSED'} in {monotonic() - begun:.0f} s: {bug}", flush=True)
        missed += [] if found else [bug]
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
