"""The queue of a fair lock with hundreds of waiters: what each script costs, and what is left of them."""

import random

import pytest

from tests.lua.locks import CHANNEL, WAIT

from .scripts import CLIENTS, JAVA, LOCK, ME, NEVER, PLACES, QUEUE, WAITERS, YOU, A, B, D, Fair, Java

SCRIPTS = Fair


def test_waiters_that_left_do_not_accumulate(scripts: Fair) -> None:
    scripts.line(A, B)
    most = 0
    for number in range(300):
        scripts.acquire(f"{ME}:{100 + number}")
        if number >= 20:
            scripts.leave(f"{ME}:{80 + number}", doubt=number % 2 == 0)
        most = max(most, scripts.redis.llen(QUEUE))
    assert scripts.queue()[0] == B
    assert most < 100
    # The values that late copies must find are stored for a minute.
    scripts.advance_time(61_000)
    for _ in range(100):
        scripts.heartbeat(ME)
        if scripts.redis.hlen(WAITERS) < 100:
            break
    assert scripts.redis.hlen(WAITERS) < 100


@pytest.mark.parametrize(("stay", "first"), [(0, 100), (64, 10**40)], ids=["all leave", "some stay"])
def test_in_any_order(scripts: Fair, stay: int, first: int) -> None:
    """Where any stay, the names are so long that no server stores them in the form that it scans at once."""
    owners = [f"{ME}:{first + number}" for number in range(250)]
    scripts.line(A, B, *owners, D)
    random.Random(1).shuffle(owners)
    for owner in owners[stay:]:
        scripts.leave(owner)
    for _ in range(50):
        scripts.heartbeat(YOU, B, D)
    assert scripts.queue() == [B, *sorted(owners[:stay]), D]
    fields = {field.decode() for field in scripts.redis.hkeys(WAITERS)}
    assert fields - {":cursor"} == {B, *owners[:stay], D}


def test_few_heartbeats_of_many_clients_sweep(scripts: Fair) -> None:
    """Each sweep looks at up to 512 waiters."""
    scripts.line(A, B)
    sweeps = []
    for clients in (1, 1_000):
        scripts.redis.zadd(CLIENTS, {f"client {number}": NEVER for number in range(clients)})
        scripts.redis.config_resetstat()
        for _ in range(400):
            scripts.heartbeat(YOU, B)
        sweeps.append(scripts.redis.info("commandstats").get("cmdstat_hscan", {"calls": 0})["calls"])
    few, many = sweeps
    assert few == 400
    assert many < 40


def dead(scripts: Fair, count: int) -> None:
    owners = [f"{YOU}:{100 + number}" for number in range(count)]
    scripts.line(A, *owners)
    scripts.asked_long_ago(*owners)


def test_an_acquire_behind_many_dead_waiters(scripts: Fair) -> None:
    dead(scripts, 600)
    scripts.expire()
    assert [scripts.counted(scripts.acquire, B, queue=False) for _ in range(3)] == [-3, -3, None]
    assert scripts.keys() == {LOCK}


def test_a_release_before_many_dead_waiters(scripts: Fair) -> None:
    dead(scripts, 500)
    java = Java(scripts, JAVA)
    java.acquire()
    assert [scripts.counted(scripts.release, A), scripts.release(A)] == [2, None]
    assert scripts.notified() == []
    heartbeats = [scripts.fair("fair_heartbeat", CHANNEL, "", WAIT) for _ in range(2)]
    assert [(notified.decode(), more) for _, _, notified, more, _ in heartbeats] == [("", 1), (JAVA, 0)]
    assert scripts.notified() == [JAVA]
    assert scripts.redis.exists(CLIENTS) == 0
    assert java.acquire() is None


def test_a_hand_over_and_heartbeats_before_many_dead_waiters(scripts: Fair) -> None:
    dead(scripts, 300)
    scripts.acquire(B)
    assert [scripts.counted(scripts.hand_over, A, B), scripts.hand_over(A, B)] == [2, 0]
    assert (scripts.holds(), scripts.notified()) == ({}, [])
    assert scripts.fair("fair_heartbeat", CHANNEL, "", WAIT)[2:4] == [B.encode(), 0]
    assert scripts.notified() == [B]
    scripts.redis.flushall()
    dead(scripts, 500)
    scripts.acquire(B)
    assert [scripts.fair("fair_heartbeat", CHANNEL, ME, WAIT, B)[3] for _ in range(3)] == [1, 1, 0]
    assert scripts.queue() == [B]


def test_the_cost_does_not_grow_with_the_queue(scripts: Fair) -> None:
    """The scripts run the same commands however many wait, and none that examines the whole queue."""

    def commands(wait: int) -> dict[str, int]:
        scripts.redis.flushall()
        # However long the test takes to fill the queue.
        scripts.redis.zadd(CLIENTS, {ME: NEVER})
        owners = [f"{ME}:{number}" for number in range(100, 100 + wait)]
        scripts.line(A, *owners)
        scripts.asked_long_ago(*owners)
        scripts.heartbeat(ME)
        scripts.redis.config_resetstat()
        scripts.acquire(D)
        scripts.heartbeat(ME, *owners[:PLACES])
        scripts.release(A)
        scripts.acquire(owners[0])
        scripts.hand_over(owners[0], owners[1])
        scripts.hand_over(owners[1], D)
        scripts.leave(D)
        return {name: entry["calls"] for name, entry in scripts.redis.info("commandstats").items()}

    few, many = commands(200), commands(600)
    # Except the commands that depend on the time since a waiter asked, and on the position of a sweep.
    assert few.keys() == many.keys()
    assert all(abs(few[name] - many[name]) <= 3 for name in few)
    assert not {f"cmdstat_{name}" for name in ("lrem", "hgetall", "lpos")} & few.keys()
