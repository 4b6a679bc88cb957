"""Who holds a fair lock, who waits and who is notified after calls in a row; the keys after acquires and heartbeats."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import pytest

from tests.lua.scripted import ANYTHING, About

from .scripts import CLIENTS, JAVA, LOCK, ME, PLACES, QUEUE, SCORES, WAITERS, YOU, A, B, C, D, Fair, Java

SCRIPTS = Fair
E, F = f"{ME}:3", f"{ME}:4"
HELD = About(30_000)


class Flow(NamedTuple):
    line: Sequence[str]
    """The first one holds the lock, the others wait."""
    steps: Sequence[tuple[Any, ...]]
    """Each a reply, a method of `Fair` and its arguments."""
    end: tuple[dict[str, int], list[str], list[str]]
    """The levels of the holder, the queue, and who was notified meanwhile."""


LINE = [A, C, B, E]
FLOWS = {
    "in order": Flow(
        [A, B, C],
        [
            *((None, "expire"), (2_000, "acquire", D), (2_000, "acquire", C)),
            *((None, "acquire", B), (None, "acquire", B), (1, "release", B), (2_000, "acquire", D)),
            *((None, "acquire", C), (None, "acquire", C), (1, "release", C), (None, "acquire", D)),
        ],
        ({D: 1}, [], [C, D]),
    ),
    "lost": Flow([A, B], [(None, "expire"), *[(1, "wake_waiters")] * 2], ({}, [B], [B, B])),
    "lost, held": Flow([A, B], [*[(0, "wake_waiters")] * 2], ({A: 1}, [B], [])),
    "delete, the stated number is notified": Flow([A, B, C, D], [(1, "delete", 2)], ({}, [], [B, C])),
    "delete, a free lock": Flow([A, B], [(None, "expire"), (0, "delete")], ({}, [], [B])),
    "without doubt a hold stays": Flow([A], [(0, "leave", A)], ({A: 1}, [], [])),
    # An owner that is named before the owners ahead of it is not left in the queue as its head.
    **{
        f"{method}: {number}": Flow(
            [A, B, C, D, JAVA], [(3, method, *order), (0, method, *order)], ({A: 1}, [JAVA], [])
        )
        for method in ("leave", "leave_in_doubt")
        for number, order in enumerate(permutations((B, C, D)))
    },
    **{
        f"leave a free lock: {number}": Flow(
            [A, B, C, D, JAVA], [(1, "release", A), (3, "leave", *order)], ({}, [JAVA], [B, JAVA])
        )
        for number, order in enumerate(permutations((B, C, D)))
    },
    "a copy keeps the levels": Flow(
        LINE, [([0], "hand_over", A, C), (None, "acquire", C, 3), ([0], "hand_over", A, C)], ({C: 3}, [B, E], [])
    ),
    # Its place stays until it comes to the head.
    "who has left the middle": Flow(
        [*LINE, F],
        [
            *((1, "leave", E), (1, "command", "LREM", QUEUE, 1, C), (1, "command", "LREM", QUEUE, 1, B)),
            *((2, "command", "ZREM", SCORES, B, C), (1, "hand_over", A, E)),
        ],
        ({}, [F], [F]),
    ),
    "a waiter enters where there are scores without a queue": Flow(
        [A, B],
        [
            *((ANYTHING, "heartbeat", YOU), (1, "command", "DEL", QUEUE), (HELD, "acquire", C)),
            *(((HELD, 0, ""), "heartbeat", YOU), (HELD, "acquire", B)),
        ],
        ({A: 1}, [C, B], []),
    ),
    "a head of pyredisson without a score enters again": Flow(
        [A, B, C], [(1, "command", "ZREM", SCORES, B), (1, "release", A)], ({}, [C], [B, C])
    ),
}
"""What `tests/properties/test_fairness.py` doesn't do, in no order."""


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_a_flow(scripts: Fair, flow: Flow) -> None:
    scripts.line(*flow.line)
    for reply, method, *args in flow.steps:
        assert getattr(scripts, method)(*args) == reply, (method, args)
    holds = {owner: int(levels) for owner, levels in scripts.holds().items()}
    assert (holds, scripts.queue(), scripts.notified()) == flow.end
    assert not holds or scripts.left() == HELD
    if not scripts.queue():
        assert scripts.keys() - {CLIENTS} == ({LOCK} if holds else set())


def test_the_next_waiter_is_offered_the_lock(scripts: Fair) -> None:
    scripts.line(A, B, C)
    assert [scripts.release(A), scripts.release(A)] == [1, None]
    assert (scripts.queue(), scripts.notified()) == ([B, C], [B])
    # If it doesn't acquire the lock, Redisson drops it soon.
    assert all(7 < scripts.score(owner) <= 8 for owner in (B, C))
    assert scripts.acquire(B) is None
    assert scripts.hand_over(B, D) == 1
    # It counts as dead if it doesn't acquire the lock in time.
    assert b":offered" in scripts.redis.hkeys(WAITERS)


def test_the_memory_of_an_eviction_stays(scripts: Fair) -> None:
    scripts.line(A, C)
    scripts.redis.hset(WAITERS, ":margin", f"32000 {scripts.now()}")
    assert scripts.hand_over(A, C) == [0]
    assert scripts.redis.hkeys(WAITERS) == [b":margin"]
    assert 0 < scripts.redis.pttl(WAITERS) <= 3_600_000


def test_behind_waiters_that_left(scripts: Fair) -> None:
    """The score of a new waiter isn't computed from their scores."""
    java = Java(scripts, JAVA)
    scripts.line(A, B, C, java)
    scripts.redis.hset(WAITERS, C, 0)
    scripts.redis.zadd(SCORES, {C: scripts.now()})
    java.give_up()
    assert scripts.queue() == [B, C]
    scripts.acquire(D)
    assert scripts.queue() == [B, D]
    assert 7 < scripts.score(D) <= 8


def test_leave_in_doubt_and_not_in_the_queue(scripts: Fair) -> None:
    for _ in range(2):
        assert scripts.leave(A, doubt=True) == 0
    assert scripts.acquire(A) == 2_000
    assert scripts.acquire(A, queue=False) == 2_000
    assert scripts.acquire(B) is None
    assert scripts.acquire(A) > 29_000
    assert scripts.keys() == {LOCK, WAITERS}
    assert 0 < scripts.redis.pttl(WAITERS) <= 60_000
    assert scripts.notified() == []


def test_leave_in_doubt_and_in_the_queue(scripts: Fair) -> None:
    scripts.line(A, B, C, D)
    for _ in range(2):
        scripts.leave(C, D, B, doubt=True)
        assert scripts.queue() == []
        for owner in (B, C, D):
            assert scripts.acquire(owner) > 29_000
    assert (scripts.queue(), scripts.keys()) == ([], {LOCK, WAITERS})
    assert 30_000 < scripts.redis.pttl(WAITERS) <= 90_000


class TestAcquire:
    def test_waiting_raises_a_score(self, scripts: Fair) -> None:
        """Behind the first places, each acquire restores the remaining time that the score had at the last one."""
        scripts.line(A, *(f"{YOU}:{100 + number}" for number in range(PLACES)), B)
        before = scripts.score(B)
        assert 629 < before <= 630
        scripts.redis.hincrby(WAITERS, B, -60_000)
        for _ in range(2):
            scripts.acquire(B)
            assert before + 59 < scripts.score(B) < before + 61

    def test_a_clock_set_back_lowers_no_score(self, scripts: Fair) -> None:
        scripts.line(A, *(f"{YOU}:{100 + number}" for number in range(PLACES)), B)
        before = scripts.score(B)
        scripts.redis.hincrby(WAITERS, B, 3_600_000)
        scripts.acquire(B)
        assert before - 1 < scripts.score(B) <= before
        assert int(scripts.redis.hget(WAITERS, B)) <= scripts.now()


class TestHeartbeat:
    def test_nobody_waits(self, scripts: Fair) -> None:
        scripts.redis.zadd(CLIENTS, {ME: scripts.now() + 1_000})
        assert scripts.heartbeat(ME) == (-2, 1, "")
        assert scripts.heartbeat(ME) == (-2, 0, "")
        assert scripts.keys() == set()

    @pytest.mark.parametrize("lost", [(QUEUE,), (QUEUE, WAITERS), (QUEUE, SCORES, WAITERS, CLIENTS)])
    def test_no_place_is_left_when_the_queue_was_deleted(self, scripts: Fair, lost: tuple[str, ...]) -> None:
        """Whatever else is left of its keys: nothing of it may stay for ever."""
        scripts.line(A, B, D)
        scripts.redis.delete(*lost)
        assert scripts.without_place(YOU, B, D) == [B, D]
        assert [key for key in (LOCK, WAITERS, CLIENTS) if scripts.redis.pttl(key) == -1] == []

    def test_dead_clients_are_forgotten(self, scripts: Fair) -> None:
        scripts.line(A, B)
        scripts.redis.zadd(CLIENTS, {"dead": scripts.now() - 1, "living": scripts.now() + 1_000})
        scripts.heartbeat(YOU)
        assert scripts.redis.zrange(CLIENTS, 0, -1) == [b"living", YOU.encode()]

    def test_an_outdated_offer(self, scripts: Fair) -> None:
        """An offer from before the clock was set back, or before another owner acquired the lock, doesn't count."""
        scripts.line(A, B)
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 60_000} {B}")
        scripts.heartbeat(YOU)
        scripts.expire()
        assert scripts.heartbeat(YOU)[2] == B
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() + 60_000} {B}")
        assert scripts.heartbeat(YOU)[2] == B
        assert int(scripts.redis.hget(WAITERS, ":offered").split()[0]) <= scripts.now()
        assert scripts.queue() == [B]

    def test_a_head_may_acquire_after_its_offer_has_ended(self, scripts: Fair) -> None:
        scripts.line(A, B, C)
        scripts.release(A)
        scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 60_000} {B}")
        scripts.asked_long_ago(B)
        assert scripts.acquire(B) is None
        assert scripts.queue() == [C]

    def test_scores_without_any_other_key(self, scripts: Fair) -> None:
        """The score of a waiter that is in no queue is removed, though nobody waits any more."""
        scripts.line(A, B)
        scripts.redis.delete(WAITERS, QUEUE)
        scripts.expire()
        assert scripts.acquire(B) is None
        assert scripts.redis.pttl(WAITERS) > 0
