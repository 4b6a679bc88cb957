"""The judge of the scenarios finds what must not be in a history."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyredisson.testing import Cluster

from .history import History, left_behind, starved

FIRST = ["hold a lock x exclusive 1 2", "still a 3", "released a 3"]
SECOND = ["hold b lock x exclusive 2 4", "still b 5", "released b 5"]
WITHIN = ["hold b lock x exclusive 2 2.5", "still b 2.6", "released b 2.6"]
FENCED = ["hold a fenced x exclusive 1 2", "token a 7", "hold b fenced x exclusive 2 4"]
NOTICED = ["hold a lock x exclusive 1 2", "still a 3", "noticed a 4", "lost a 4"]


def history_of(directory: Path, *lines: str, backend: str = "threads") -> History:
    with (directory / f"{backend}.journal").open("a") as file:
        file.writelines(line + "\n" for line in lines)
    history = History(directory=directory)
    history.update()
    return history


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (FIRST + SECOND, []),
        (FIRST + WITHIN, ["overlap of lock 'x' a"]),
        ([*NOTICED, *SECOND], []),
        ([*FENCED, "token b 8"], []),
        ([*FENCED, "token b 7"], ["a later hold has no greater token"]),
        (["error lock 'Traceback'"], ["unexpected: lock"]),
    ],
)
def test_faults(tmp_path: Path, lines: list[str], expected: list[str]) -> None:
    found = history_of(tmp_path, *lines).faults()
    assert [line.startswith(start) for line, start in zip(found, expected, strict=True)] == [True] * len(expected)


def test_owners_of_the_two_backends_exclude_each_other(tmp_path: Path) -> None:
    history_of(tmp_path, *FIRST)
    assert history_of(tmp_path, *WITHIN, backend="asyncio").faults()


def test_each_lock_has_tokens_of_its_own(tmp_path: Path) -> None:
    other = "hold b fenced y exclusive 2 4"
    assert not history_of(tmp_path, *FENCED[:2], other, "token b 1").faults()


def test_a_lock_that_nobody_acquires_after_the_fault(tmp_path: Path) -> None:
    """`a` acquires at 2, `b` at 4, `c` waits from 2 to 9; the fault ends at 3."""
    history = history_of(tmp_path, *FIRST, "hold b lock x exclusive 2 4", "hold c lock x exclusive 2 9")
    assert starved(history, 3, 4) == ["nobody acquired lock 'x' for 5.00 s"]
    assert starved(history, 3, 5.5) == []
    assert starved(history, 5, 3.5) == ["nobody acquired lock 'x' for 4.00 s"]
    assert starved(history, 10, 0) == []


def test_a_lock_that_nobody_wants_is_not_starved(tmp_path: Path) -> None:
    assert starved(history_of(tmp_path, *FIRST, "hold b lock x exclusive 8.5 9"), 3, 1) == []


@pytest.mark.parametrize("end", ["refused lock x 5 8", "failed lock x 5 8 TimeoutError"])
def test_a_lock_that_was_waited_for_in_vain(tmp_path: Path, end: str) -> None:
    assert starved(history_of(tmp_path, *FIRST, end), 3, 2) == ["nobody acquired lock 'x' for 3.00 s"]
    assert starved(history_of(tmp_path, "hold b lock x exclusive 6 6.5"), 3, 2) == []


def test_what_each_backend_has_taken(tmp_path: Path) -> None:
    history_of(tmp_path, *FIRST)
    history = history_of(tmp_path, *SECOND, backend="asyncio")
    assert history.taken_since(0) == {("threads", "lock", "x"), ("asyncio", "lock", "x")}
    assert history.taken_since(3) == {("asyncio", "lock", "x")}


def test_a_journal_is_read_on_from_its_last_whole_line(tmp_path: Path) -> None:
    journal = tmp_path / "threads.journal"
    history = History(directory=tmp_path)
    whole = "\n".join([*FIRST, "failed lock x 5 6 TimeoutError", "refused lock x 6 7", ""])
    for end in (30, 31, 60, len(whole)):
        journal.write_text(whole[:end])
        history.update()
    assert [hold.end for hold in history.holds.values()] == [3]
    assert [(failure.at, failure.error) for failure in history.failures] == [(6, "TimeoutError"), (7, "")]
    assert len(history.disturbances()) == 2
    assert history_of(tmp_path, *NOTICED).disturbances()[0].startswith("lost: lock 'x' a")


def test_what_is_left_behind(cluster: Cluster) -> None:
    for key in ("lock", "semaphore", "redisson_lock_token:fenced"):
        cluster.node_of_key(key).ask("SET", key, "1", "PX", 60_000)
    (left,) = left_behind(cluster.masters(), ["semaphore"])
    assert left.startswith("lock on ")
