"""The judge of the scenarios finds what must not be in a history."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyredisson.testing import Cluster

from .load import History, left_behind, starved

FIRST = ["hold a lock x exclusive 1 2", "still a 3", "released a 3"]
SECOND = ["hold b lock x exclusive 2 4", "still b 5", "released b 5"]
WITHIN = ["hold b lock x exclusive 2 2.5", "still b 2.6", "released b 2.6"]
FENCED = ["hold a fenced x exclusive 1 2", "token a 7", "hold b fenced x exclusive 2 4"]
LOST = ["hold a lock x exclusive 1 2", "still a 3", "lost a 4"]
OTHER_LOCK = [*FENCED[:2], "hold b fenced y exclusive 2 4", "token b 1"]
WAITING = [*FIRST, "hold b lock x exclusive 2 4", "hold c lock x exclusive 2 9"]
"""`a` acquires at 2, `b` at 4, `c` waits from 2 to 9."""


def history_of(directory: Path, *lines: str, backend: str = "threads") -> History:
    with (directory / f"{backend}.journal").open("a") as file:
        file.writelines(line + "\n" for line in lines)
    history = History(directory=directory)
    history.update()
    return history


@pytest.mark.parametrize(
    ("lines", "others", "expected"),
    [
        (FIRST, SECOND, ""),
        (FIRST, WITHIN, "overlap of lock 'x' a"),  # of owners of the two backends
        (FIRST + WITHIN, [], "overlap of lock 'x' a"),
        (LOST, SECOND, ""),
        ([*FENCED, "token b 8"], [], ""),
        ([*FENCED, "token b 7"], [], "a later hold has no greater token"),
        (OTHER_LOCK, [], ""),
        (["error lock 'Traceback'"], [], "unexpected: lock"),
    ],
)
def test_faults(tmp_path: Path, lines: list[str], others: list[str], expected: str) -> None:
    history_of(tmp_path, *others, backend="asyncio")
    found = history_of(tmp_path, *lines).faults()
    assert len(found) == bool(expected)
    assert not found or found[0].startswith(expected)


@pytest.mark.parametrize(
    ("lines", "since", "bound", "expected"),
    [
        (WAITING, 3, 4, "5.00"),
        (WAITING, 3, 5.5, None),
        (WAITING, 5, 3.5, "4.00"),
        (WAITING, 10, 0, None),
        ([*FIRST, "hold b lock x exclusive 8.5 9"], 3, 1, None),  # nobody wants it in between
        ([*FIRST, "refused lock x 5 8"], 3, 2, "3.00"),
        ([*FIRST, "failed lock x 5 8 TimeoutError"], 3, 2, "3.00"),
        ([*FIRST, "failed lock x 5 8 TimeoutError", "hold b lock x exclusive 6 6.5"], 3, 2, None),
    ],
)
def test_locks_that_nobody_acquires(
    tmp_path: Path, lines: list[str], since: float, bound: float, expected: str | None
) -> None:
    found = starved(history_of(tmp_path, *lines), since, bound)
    assert found == ([] if expected is None else [f"nobody acquired lock 'x' for {expected} s"])


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
    assert history_of(tmp_path, *LOST).disturbances()[0].startswith("lost: lock 'x' a")


def test_what_is_left_behind(cluster: Cluster) -> None:
    for key in ("lock", "semaphore", "redisson_lock_token:fenced"):
        cluster.node_of_key(key).ask("SET", key, "1", "PX", 60_000)
    (left,) = left_behind(cluster.masters(), ["semaphore"])
    assert left.startswith("lock on ")
