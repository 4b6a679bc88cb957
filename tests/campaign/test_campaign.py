"""The short form of the campaign, what its judge says of some histories, and wrong locks that it must find."""

from pathlib import Path

import pytest

from .history import History, Period, passed_over, starved
from .rounds import NO_FAULTS, SERVERS, finds, run
from .wrong_locks import WRONG, changes


@pytest.mark.parametrize(("servers", "faults"), [*((kind, "") for kind in SERVERS), ("single", NO_FAULTS)])
def test_nothing_is_found(tmp_path: Path, servers: str, faults: str) -> None:
    run(servers, "1", tmp_path, 15.0, faults=faults)


@pytest.mark.parametrize("bug", ["a permit too many", "a release checks no owner", "a latch counts twice"])
def test_a_wrong_lock_is_found(tmp_path: Path, bug: str) -> None:
    assert finds(bug, tmp_path)


@pytest.mark.parametrize("bug", WRONG)
def test_each_bug_can_be_planted(bug: str) -> None:
    """So that `python -m tests.campaign --wrong all` looks for bugs that are there."""
    assert list(changes(bug))


ALONE = ["hold a 1 lock x exclusive 1 1", "released a 2"]
LATER = ["hold b 2 lock x exclusive 2 2", "released b 3"]
WITHIN_IT = ["hold b 2 lock x exclusive 1 1.5", "still b 1.6"]
NESTED = ["hold b 1 lock x exclusive 1.5 1.6", "released b 1.7"]
READER = ["hold a 1 read x shared 1 1", "still a 2"]
READER_WITHIN = ["hold b 2 read x shared 1.5 1.5", "still b 3"]
OTHER = ["hold b 2 lock y exclusive 1 1", "still b 2"]
PERMITS = [line for who in "abc" for line in (f"hold {who} 1 permit x 2 1 1", f"still {who} {9 if who == 'a' else 2}")]
SEMAPHORE = [line.replace("permit", "semaphore").replace("9", "2") for line in PERMITS]
RELEASED_AFTER = ["hold a 1 lock x exclusive 1 1", "released a 7"]
AFTER_A_RESET = ["hold b 2 lock x exclusive 6 6.1", "still b 8"]
LATCH = ["latch a x set3 1", "result a True 2", "latch b x down 3", "result b None 4"]
LATCH += ["latch c x down 5", "result c None 6"]


@pytest.mark.parametrize(
    ("lines", "forgotten", "expected"),
    [
        (ALONE + LATER, [], []),
        (ALONE + OTHER, [], []),
        (ALONE + NESTED, [], []),
        (ALONE + WITHIN_IT, [], ["no history of a lock"]),
        (WITHIN_IT + ALONE, [], ["no history of a lock"]),
        (READER + READER_WITHIN, [], []),
        (READER + WITHIN_IT, [], ["no history of a lock"]),
        (PERMITS[:4], [], []),
        (PERMITS, [], ["no history of a lock"]),
        (SEMAPHORE, [(4, 5)], ["no history of a lock"]),
        (SEMAPHORE, [(0, 0.5)], []),
        ([*ALONE, "token a 7", *LATER, "token b 8"], [], []),
        ([*ALONE, "token a 7", *LATER, "token b 7"], [], ["no history of a lock"]),
        (["error lock 'Traceback'"], [], ["unexpected: lock 'Traceback'"]),
        (RELEASED_AFTER + AFTER_A_RESET, [], ["no history of a lock"]),
        (RELEASED_AFTER + AFTER_A_RESET, [(4, 5)], ["said to be released by a server that never had it"]),
        ([*ALONE[:1], "still a 7", "lost a 7", *AFTER_A_RESET], [(4, 5)], []),
        ([*LATCH, "latch d x wait 7", "result d False 8", "latch e x count 9", "result e 1 10"], [], []),
        ([*LATCH, "latch d x wait 7", "result d True 8"], [], ["no history of a lock"]),
        ([*LATCH, "latch d x down 7", "latch e x wait 9", "result e True 10"], [], []),
    ],
)
def test_the_judge(tmp_path: Path, lines: list[str], forgotten: list[Period], expected: list[str]) -> None:
    history = History(tmp_path, forgotten=forgotten)
    history.add(lines)
    found = history.violations()
    assert [line.startswith(start) for line, start in zip(found, expected, strict=True)] == [True] * len(expected)


def test_turns_and_starvation() -> None:
    history = History()
    history.add([f"hold {i} 1 lock x exclusive {i} {i}.1" for i in range(6)])
    history.add(["hold far 2 lock x exclusive 0.5 5.5", "hold late 3 fair y exclusive 2 2.1"])
    assert not starved(history, 0, 2, {("lock", "x"), ("fair", "y")})
    history.add(["hold early 4 fair y exclusive 1 3", "refused lock z 1 2", "refused lock z 2.1 4"])
    assert [line.partition(" [")[0] for line in passed_over(history)] == ["lock 'x' far", "fair 'y' late"]
    assert starved(history, 0, 2, {("lock", "z")}) == ["nobody acquired lock 'z' for 3.00 s"]
    assert not starved(history, 0, 2, {("lock", "x")})  # of the others no permits are left, say
