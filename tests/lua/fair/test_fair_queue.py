"""A fair lock: who holds it, waits and is notified; waiters of Redisson in its queue; the bounds of its scripts."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import pytest

from tests.lua.locks import CHANNEL, WAIT
from tests.lua.scripted import ANYTHING, About

from .scripts import CLIENTS, COFFEE, JAVA, LOCK, ME, NEVER, PLACES, QUEUE, SCORES, WAITERS, YOU, A, B, C, D, Fair, Java

SCRIPTS = Fair
E = f"{ME}:3"
HELD = About(30_000)


class Flow(NamedTuple):
    line: Sequence[str]
    """The first one holds the lock, the others wait."""
    steps: Sequence[tuple[Any, ...]]
    """Each a reply, a method of `Fair` and its arguments."""
    end: tuple[dict[str, int], list[str], list[str]]
    """The levels of the holder, the queue, and who was notified meanwhile."""


LINE, LEAVERS = [A, C, B, E], (B, C, D)
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
    "lost": Flow([A, B], [(None, "expire"), *[(B, "wake_waiters")] * 2], ({}, [B], [B, B])),
    "lost, held": Flow([A, B], [*[("", "wake_waiters")] * 2], ({A: 1}, [B], [])),
    "delete, the stated number is notified": Flow([A, B, C, D], [(1, "delete", 2)], ({}, [], [B, C])),
    "delete, a free lock": Flow([A, B], [(None, "expire"), (0, "delete")], ({}, [], [B])),
    "without doubt a hold stays": Flow([A], [(0, "leave", A)], ({A: 1}, [], [])),
    # An owner that is named before the owners ahead of it is not left in the queue as its head.
    **{
        f"{leave}: {number}": Flow([A, *LEAVERS, JAVA], [(3, leave, *order), (0, leave, *order)], ({A: 1}, [JAVA], []))
        for leave in ("leave", "leave_in_doubt")
        for number, order in enumerate(permutations(LEAVERS))
    },
    **{
        f"free: {number}": Flow([A, *LEAVERS, JAVA], [(1, "release", A), (3, "leave", *order)], ({}, [JAVA], [B, JAVA]))
        for number, order in enumerate(permutations(LEAVERS))
    },
    "a copy keeps the levels": Flow(
        LINE, [([0], "hand_over", A, C), (None, "acquire", C, 3), ([0], "hand_over", A, C)], ({C: 3}, [B, E], [])
    ),
    # If more than 32 leave at once, some places stay until they come to the head.
    "a hand-over to one that has left": Flow(
        LINE, [(0, "command", "HSET", WAITERS, C, 0), (1, "hand_over", A, C)], ({}, [B, E], [B])
    ),
    "another one leaves behind a head that has left": Flow(
        LINE, [(0, "command", "HSET", WAITERS, C, 0), (None, "expire"), (0, "leave", D)], ({}, [B, E], [B])
    ),
    "a waiter enters where there are scores without a queue": Flow(
        [A, B],
        [
            *((ANYTHING, "heartbeat", YOU), (1, "command", "DEL", QUEUE), (HELD, "acquire", C)),
            *(((HELD, 0, ""), "heartbeat", YOU), (HELD, "acquire", B)),
        ],
        ({A: 1}, [C, B], []),
    ),
    "an offer in vain": Flow(
        [A, B, C],
        [
            *((1, "release", A), (None, "advance_time", 1_000), ((-2, 0, B), "heartbeat", YOU, B)),
            *((None, "advance_time", 1_000), ((-2, 0, C), "heartbeat", ME, C)),
        ],
        ({}, [C], [B, B, C]),
    ),
    "a head of pyredisson without a score enters again": Flow(
        [A, B, C], [(1, "command", "ZREM", SCORES, B), (1, "release", A)], ({}, [C], [B, C])
    ),
}
"""What `tests/properties/test_fairness.py` doesn't do, in no order. Nor does it lose keys, or set the clock back."""


@pytest.mark.parametrize("case", FLOWS.values(), ids=FLOWS)
def test_a_flow(scripts: Fair, case: Flow) -> None:
    scripts.line(*case.line)
    for reply, method, *args in case.steps:
        assert getattr(scripts, method)(*args) == reply, (method, args)
    holds = {owner: int(levels) for owner, levels in scripts.holds().items()}
    assert (holds, scripts.queue(), scripts.notified()) == case.end
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
    assert [scripts.leave(A, doubt=True) for _ in range(2)] == [0, 0]
    assert [scripts.acquire(A), scripts.acquire(A, queue=False), scripts.acquire(B)] == [2_000, 2_000, None]
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


def test_waiting_raises_a_score(scripts: Fair) -> None:
    """Behind the first places, each acquire restores the remaining time that the score had at the last one."""
    scripts.line(A, *(f"{YOU}:{100 + number}" for number in range(PLACES)), B)
    before = scripts.score(B)
    assert 629 < before <= 630
    # A clock that was set back lowers no score.
    scripts.redis.hincrby(WAITERS, B, 3_600_000)
    scripts.acquire(B)
    assert before - 1 < scripts.score(B) <= before
    assert int(scripts.redis.hget(WAITERS, B)) <= scripts.now()
    scripts.redis.hincrby(WAITERS, B, -60_000)
    for _ in range(2):
        scripts.acquire(B)
        assert before + 59 < scripts.score(B) < before + 61


@pytest.mark.parametrize("lost", [(QUEUE,), (QUEUE, WAITERS), (QUEUE, SCORES, WAITERS, CLIENTS)])
def test_no_place_is_left_when_the_queue_was_deleted(scripts: Fair, lost: tuple[str, ...]) -> None:
    """Whatever else is left of its keys: nothing of it may stay for ever."""
    scripts.line(A, B, D)
    scripts.redis.delete(*lost)
    *_, without_place = scripts.fair("fair_heartbeat", CHANNEL, YOU, WAIT, B, D)
    assert without_place == [B.encode(), D.encode()]
    assert [key for key in (LOCK, WAITERS, CLIENTS) if scripts.redis.pttl(key) == -1] == []


@pytest.mark.parametrize("cursor", ["", "x", "-1", "9" * 20])
def test_a_cursor_that_somebody_else_has_written(scripts: Fair, cursor: str) -> None:
    scripts.line(A, B)
    scripts.redis.hset(WAITERS, ":cursor", cursor)
    assert scripts.heartbeat(YOU, B) == (HELD, 0, "")
    assert not scripts.redis.hexists(WAITERS, ":cursor")


def test_dead_clients_are_forgotten(scripts: Fair) -> None:
    """And all of them when nobody waits."""
    scripts.redis.zadd(CLIENTS, {ME: scripts.now() + 1_000})
    assert [scripts.heartbeat(ME) for _ in range(2)] == [(-2, 1, ""), (-2, 0, "")]
    assert scripts.keys() == set()
    scripts.line(A, B)
    scripts.redis.zadd(CLIENTS, {"dead": scripts.now() - 1, "living": scripts.now() + 1_000})
    scripts.heartbeat(YOU)
    assert scripts.redis.zrange(CLIENTS, 0, -1) == [b"living", YOU.encode()]


def test_an_outdated_offer(scripts: Fair) -> None:
    """One from before the clock was set back, or before another owner acquired the lock, doesn't count.

    A head may acquire the lock after its offer has ended.
    """
    scripts.line(A, B, C)
    scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 60_000} {B}")
    scripts.heartbeat(YOU)
    scripts.expire()
    assert scripts.heartbeat(YOU)[2] == B
    scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() + 60_000} {B}")
    assert scripts.heartbeat(YOU)[2] == B
    assert int(scripts.redis.hget(WAITERS, ":offered").split()[0]) <= scripts.now()
    assert scripts.queue() == [B, C]
    scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 60_000} {B}")
    scripts.asked_long_ago(B)
    assert scripts.acquire(B) is None
    assert scripts.queue() == [C]


def test_scores_without_any_other_key(scripts: Fair) -> None:
    """The score of a waiter that is in no queue is removed, though nobody waits any more."""
    scripts.line(A, B)
    scripts.redis.delete(WAITERS, QUEUE)
    scripts.expire()
    assert scripts.acquire(B) is None
    assert scripts.redis.pttl(WAITERS) > 0


def test_a_score_far_ahead_is_cut(scripts: Fair) -> None:
    java = Java(scripts, JAVA)
    scripts.line(A, B)
    scripts.redis.zadd(SCORES, {B: NEVER})
    java.acquire()
    scripts.release(A)
    scripts.serve(B)
    assert 299 < scripts.score(JAVA) <= 300
    scripts.redis.zadd(SCORES, {JAVA: scripts.now() + 10_000})
    scripts.heartbeat(ME)
    assert 9 < scripts.score(JAVA) <= 10


def test_java_behind_pyredisson(scripts: Fair) -> None:
    java = Java(scripts, JAVA)
    scripts.line(A, B, C, D)
    scripts.heartbeat(ME)
    java.acquire()
    assert 307 < scripts.score(JAVA) <= 308
    for owner, after in ((A, B), (B, C), (C, D), (D, None)):
        assert scripts.release(owner) == 1
        assert after is None or scripts.acquire(after) is None
    assert scripts.score(JAVA) > 200
    assert java.acquire() is None
    # Java doesn't know this key, so it expires by itself.
    assert scripts.keys() == {LOCK, CLIENTS}
    assert 0 < scripts.redis.pttl(CLIENTS) <= 7_200_000


@pytest.mark.parametrize("leave", [False, True])
def test_far_behind_java(scripts: Fair, leave: bool) -> None:
    """Each waiter of Java that acquires the lock subtracts its waiting time, though no heartbeat comes meanwhile. If
    more leave than one call searches the queue for, nobody waits for the others when Java has been served."""
    *ahead, last = (Java(scripts, f"{JAVA}{number}") for number in range(PLACES + 2))
    owners = [f"{YOU}:{100 + number}" for number in range(40)]
    scripts.line(A, *ahead, *owners, last)
    if leave:
        assert scripts.leave(*owners) == 40
        assert scripts.queue()[PLACES + 1 : -1] == owners[32:]
    scripts.release(A)
    scripts.serve(*ahead)
    assert (last.acquire() is None) == leave
    assert scripts.queue()[:40] == ([] if leave else owners)


def test_java_drops_a_waiter_that_has_an_offer(scripts: Fair) -> None:
    """The waiter enters the queue again, and must get the full time of a new offer."""
    java = Java(scripts, JAVA)
    scripts.line(A, B, java)
    scripts.release(A)
    scripts.redis.hset(WAITERS, ":offered", f"{scripts.now() - 5_000} {B}")
    scripts.redis.zincrby(SCORES, -8_000, B)
    assert java.acquire() is None
    scripts.acquire(B)
    java.release()
    assert scripts.acquire(C) == 2_000
    assert scripts.queue() == [B, C]


def test_a_waiter_that_died_far_from_the_head(scripts: Fair) -> None:
    """It entered a long queue, and died before it was among the first places."""
    owners = [f"{ME}:{100 + number}" for number in range(20)]
    scripts.line(A, *owners)
    first, last = Java(scripts, JAVA), Java(scripts, COFFEE)
    scripts.line(first, B, last)
    for held, owner in zip([A, *owners], owners, strict=False):
        assert scripts.release(held) == 1
        assert scripts.acquire(owner) is None
    assert scripts.release(owners[-1]) == 1
    scripts.serve(first)
    assert scripts.queue() == [B, COFFEE]
    assert scripts.score(B) <= 8


def test_java_with_a_very_long_waiting_time(scripts: Fair) -> None:
    """It subtracts more from the scores than other clients do."""
    java = Java(scripts, JAVA)
    scripts.acquire(A)
    java.acquire(wait=3_600_000)
    scripts.acquire(B)
    scripts.heartbeat(YOU, B)
    scripts.release(A)
    assert java.acquire(wait=3_600_000) is None
    java.release()
    assert scripts.queue() == [B]


def test_an_eviction_raises_the_margin(scripts: Fair) -> None:
    """A Java client whose clock is ahead drops living waiters."""
    java = Java(scripts, JAVA, ahead=25_000)
    scripts.line(A, B, java)
    assert scripts.queue() == [JAVA]
    scripts.acquire(B)
    assert scripts.queue() == [JAVA, B]
    java.give_up()
    for _ in range(10):
        scripts.advance_time(400)
        scripts.heartbeat(YOU, B)
        java.acquire()
        assert scripts.queue() == [B, JAVA]
    assert scripts.score(B) <= 32
    # Until no waiter has been evicted for an hour.
    scripts.redis.pexpire(LOCK, 7_200_000)
    scripts.advance_time(3_600_000)
    scripts.acquire(B)
    scripts.heartbeat(YOU, B)
    assert scripts.score(B) <= 8


def test_evictions_at_one_time_raise_the_margin_once(scripts: Fair) -> None:
    java = Java(scripts, JAVA, ahead=3_600_000)
    scripts.line(A, B, C, D, java)
    assert scripts.queue() == [JAVA]
    scripts.line(B, C, D)
    java.give_up()
    scripts.heartbeat(YOU, B, D)
    assert 31 < scripts.score(B) <= 32


def test_the_key_of_waiters_was_lost(scripts: Fair) -> None:
    scripts.line(A, B, C, D)
    scripts.heartbeat(ME, C)
    scripts.heartbeat(YOU, B, D)
    scripts.redis.delete(WAITERS)
    # The reply -1 makes all of the client's waiters ask again, since the command doesn't name all of them.
    assert (scripts.heartbeat(YOU, B, D)[1], scripts.heartbeat(ME, C)[1]) == (-1, -1)
    for _ in range(25):
        scripts.advance_time(400)
        assert (scripts.heartbeat(YOU, B, D)[1], scripts.heartbeat(ME, C)[1]) == (1, 1)
    assert scripts.release(A) == 1
    assert scripts.queue() == [B, C, D]
    assert scripts.redis.pttl(WAITERS) > 0


@pytest.mark.parametrize("first", ["heartbeat", "acquire", "leave"])
def test_the_clock_steps_forward(scripts: Fair, first: str) -> None:
    scripts.line(A, B, C, D)
    scripts.heartbeat(ME, C)
    scripts.heartbeat(YOU, B, D)
    scripts.advance_time(3_600_000)
    newcomer = f"{YOU}:99"
    if first == "heartbeat":
        scripts.heartbeat(YOU, B, D)
    elif first == "acquire":
        assert scripts.acquire(newcomer) == 2_000
    else:
        scripts.leave(newcomer)
    scripts.heartbeat(YOU, B, D)
    scripts.heartbeat(ME, C)
    assert scripts.queue()[:3] == [B, C, D]
    scripts.serve(B, C, D)
    assert scripts.queue() == [newcomer][: first == "acquire"]


def test_silent_waiters_count_as_dead_after_the_grace_period(scripts: Fair) -> None:
    scripts.line(A, B, C)
    scripts.heartbeat(YOU, B)
    scripts.expire()
    for ms, reply in ((10_000, 2_000), (1_000, 2_000), (501, None)):
        scripts.advance_time(ms)
        assert scripts.acquire(D, queue=False) == reply


def test_a_grace_period_from_before_the_clock_was_set_back(scripts: Fair) -> None:
    scripts.line(A, B)
    scripts.asked_long_ago(B)
    scripts.redis.hset(WAITERS, ":grace", scripts.now() + 60_000)
    scripts.expire()
    assert scripts.acquire(C) is None


def test_a_waiter_that_was_evicted_and_died_is_forgotten(scripts: Fair) -> None:
    scripts.line(A, B, D)
    scripts.redis.lrem(QUEUE, 0, D)
    scripts.redis.zrem(SCORES, D)
    scripts.redis.pexpire(LOCK, 7_200_000)
    scripts.advance_time(601_000)
    scripts.acquire(B)
    scripts.heartbeat(YOU, B)
    assert not scripts.redis.hexists(WAITERS, D)
    assert scripts.queue() == [B]
