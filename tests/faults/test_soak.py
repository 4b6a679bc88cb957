"""The short form of the soak: no two owners hold the same lock, whatever fails; and tests of its judge."""

import random
from pathlib import Path

import pytest

from pyredisson.testing import Server

from .soak import BACKENDS, Journals, Reset, Soak, judge

SECONDS = 4.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_two_owners_hold_the_same_lock(own_server: Server, tmp_path: Path, backend: str) -> None:
    seed = random.randrange(1_000_000)  # by pytest-randomly's own, so that it comes again with that
    report = Soak(backend, seed, tmp_path).run(own_server, SECONDS)
    assert not report.found, f"python -m tests.faults.soak --gentle --backend {backend} --seed {seed}\n{report}"
    assert len(report.journals.holds) > 10, report


ALONE = ["hold a lock x exclusive 1 1", "still a 2"]
LATER = ["hold b lock x exclusive 2 2", "still b 3"]
WITHIN = ["hold b lock x exclusive 1 1.5", "still b 1.6"]
READER = ["hold a read x shared 1 1", "still a 2"]
READER_WITHIN = ["hold b read x shared 1.5 1.5", "still b 3"]
OTHER = ["hold b lock y exclusive 1 1", "still b 2"]
PERMITS = [line for who in "abc" for line in (f"hold {who} permit x 2 1 1", f"still {who} {9 if who == 'a' else 2}")]
SEMAPHORE = [line.replace("permit", "semaphore").replace("9", "2") for line in PERMITS]
RELEASED_AFTER = ["hold a lock x exclusive 1 1", "released a 7"]
AFTER_A_RESET = ["hold b lock x exclusive 6 6.1", "still b 8"]


@pytest.mark.parametrize(
    ("lines", "resets", "expected"),
    [
        (ALONE + LATER, [], []),
        (ALONE + OTHER, [], []),
        (ALONE + WITHIN, [], ["overlap of lock 'x' a"]),
        (WITHIN + ALONE, [], ["overlap of lock 'x' a"]),
        (READER + READER_WITHIN, [], []),
        (READER + WITHIN, [], ["overlap of read 'x' a"]),
        (PERMITS[:4], [], []),
        (PERMITS, [], ["overlap of permit 'x' a"]),
        (SEMAPHORE, [(4, 5)], ["overlap of semaphore 'x' a"]),
        (SEMAPHORE, [(0, 0.5)], []),
        ([*ALONE, "token a 7", *LATER, "token b 8"], [], []),
        ([*ALONE, "token a 7", *LATER, "token b 7"], [], ["a later hold has no greater token"]),
        (["error lock 'Traceback'"], [], ["unexpected: lock 'Traceback'"]),
        (RELEASED_AFTER + AFTER_A_RESET, [], ["overlap of lock 'x' a"]),
        (RELEASED_AFTER + AFTER_A_RESET, [(4, 5)], ["said to be released by a server that never had it"]),
        ([*ALONE[:1], "still a 7", "lost a 7", *AFTER_A_RESET], [(4, 5)], []),
    ],
)
def test_the_judge(lines: list[str], resets: list[Reset], expected: list[str]) -> None:
    journals = Journals()
    journals.add(lines)
    found = judge(journals, resets)
    assert [line.startswith(start) for line, start in zip(found, expected, strict=True)] == [True] * len(expected)
