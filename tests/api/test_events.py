"""What an observer is told of each kind of object, and what the log has of it at DEBUG."""

import asyncio
import contextvars
import gc
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from pyredisson._diagnostics import tracing
from pyredisson.errors import ClosedError, LockAlreadyHeldError
from pyredisson.events import Event
from pyredisson.testing import Proxy
from tests.support.backends import Backend, cancel_after, fails, finished, in_turn, permit_waiters
from tests.support.inspecting import Recorder, check_pairs, everything_told, session_of, told, whats
from tests.support.kinds import KINDS, acquired

from .kinds import LONG, NON_REENTRANT, Permits, assert_lost, kinds, lock_of, rival_of, sleeping, use

Said = Callable[[], list[str]]
LABELS = dict.fromkeys(KINDS, "lock 'a'") | {"read": "read lock 'a'", "write": "write lock 'a'"}


def told_kind(kind: str) -> str:
    """One that isn't reentrant is told of as one that is."""
    return {"non-reentrant": "lock", "non-reentrant fair": "fair"}.get(kind, kind)


def without(lines: list[str], line: str) -> list[str]:
    """All but this one, which may come before or after that of a waiter."""
    lines.remove(line)
    return lines


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Said]:
    """The lines about calls; those about channels and wakeups are details of a wait."""

    def lines() -> list[str]:
        texts = [record.getMessage() for record in caplog.get_records("call") if record.levelno == logging.DEBUG]
        return [text for text in texts if not any(word in text for word in ("channel", "queue", "woken"))]

    caplog.set_level(logging.DEBUG, "pyredisson")
    tracing.look()
    yield lines
    caplog.set_level(logging.WARNING, "pyredisson")
    tracing.look()


@pytest.fixture
def client(backend: Backend) -> Any:
    """Its observer is told of everything."""
    return backend.connect(observer=Recorder(), local_hand_over_time=LONG)


def all_told(client: Any, *expected: str) -> list[Event]:
    """All that it was told, which is this in this order."""
    events = told(client)
    assert whats(events) == [*expected]
    check_pairs(events)
    return events


def is_wait(begin: Event, end: Event) -> None:
    """The second event ends the wait that the first one has begun."""
    assert (begin.what, begin.wait_id) == ("waiting", end.wait_id)
    assert (end.waited or 0) > 0


@kinds
async def test_an_uncontended_pair(client: Any, kind: str) -> None:
    """Further levels are not told; a lock that isn't re-entrant refuses them."""
    lock = lock_of(client, kind, "a", 7)
    await use(lock)
    async with lock:
        if kind in NON_REENTRANT:
            await fails(LockAlreadyHeldError, lock.lock)
        else:
            await use(lock, 2)
    refused = ["failed"] if kind in NON_REENTRANT else []
    events = all_told(client, "acquired", "released", "acquired", *refused, "released")
    assert events[0].hold_id != events[2].hold_id
    for event in events:
        said = (event.name, event.kind, event.owner_id, event.client_id, bool(event.token))
        assert said == ("a", told_kind(kind), 7, client.id, kind == "fenced")
    begin, end = events[:2]
    assert (begin.waited, begin.wait_id, begin.held, end.waited) == (0, None, None, None)
    assert 0 < (end.held or 0) <= (end.time_ns - begin.time_ns) / 1e9 + 1
    # A loss, and nothing when its owner is told of it: its end was told.
    await lock.lock()
    assert await lock_of(client, kind, "a", 2).force_unlock()
    *_, begin, end = told(client)
    assert (begin.what, end.what, "force_unlock()" in (end.reason or "")) == ("acquired", "lost", True)
    await assert_lost(lock)
    all_told(client, *whats(events), "acquired", "lost")


@kinds
async def test_a_wait_for_another_client(backend: Backend, client: Any, other: Any, said: Said, kind: str) -> None:
    holder = await acquired(lock_of(other, rival_of(kind), "a", 1))
    waiting = await backend.begin(lock_of(client, kind, "a", 2).lock, lambda: whats(told(client)) == ["waiting"])
    await holder.unlock()
    await waiting.result()
    await lock_of(client, kind, "a", 2).unlock()
    events = all_told(client, "waiting", "acquired", "released")
    assert {(event.name, event.kind, event.owner_id) for event in events} == {("a", told_kind(kind), 2)}
    is_wait(*events[:2])
    label, of_holder, first, second = LABELS[kind], LABELS[rival_of(kind)], f"{other.id}:1", f"{client.id}:2"
    assert without(said(), f"{of_holder} of owner {first} is released: 0 holds remain") == [
        f"{of_holder} of owner {first} is acquired",
        f"owner {second} waits for {label}",
        f"{label} of owner {second} is acquired",
        f"{label} of owner {second} is released: 0 holds remain",
    ]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "spin"])
async def test_a_hand_over_inside_a_client(backend: Backend, client: Any, kind: str) -> None:
    """The waiter is told of, in its own context, although the release of another owner has entered it."""
    name = contextvars.ContextVar("name", default="nobody")

    async def work(owner: int) -> None:
        name.set(f"owner {owner}")
        await lock_of(client, kind, "a", owner).lock()
        await lock_of(client, kind, "a", owner).unlock()

    holder = await acquired(lock_of(client, rival_of(kind), "a", 1))
    others = list[Any]()
    for owner in (2, 3):
        others.append(await backend.begin(partial(work, owner), lambda: sleeping(client, kind, "a") == len(others) + 1))
    await holder.unlock()
    await finished(others)
    check_pairs(events := told(client))
    for owner in (2, 3):
        own: list[Any] = [event for event in events if event.owner_id == owner]
        assert whats(own) == ["waiting", "acquired", "released"]
        is_wait(*own[:2])
        assert [event.context[name] for event in own[:2]] == [f"owner {owner}"] * 2


async def test_a_nested_acquire_that_waited(backend: Backend, client: Any, other: Any) -> None:
    """Two calls of one owner wait. The second one gets another level: its wait has an end, but begins no hold."""
    holder, lock = other.get_lock("a", owner=1), client.get_lock("a", owner=2)
    await holder.lock()
    calls = [backend.spawn(lock.lock) for _ in range(2)]
    await backend.until(lambda: whats(told(client)) == ["waiting"] * 2)
    await holder.unlock()
    # The second call makes its attempt when it is woken by a message.
    await backend.until(lambda: any(call.done() for call in calls))
    await lock.unlock()
    await finished(calls)
    await lock.unlock()
    check_pairs(events := told(client))
    assert whats(events).count("waiting") == 2


@kinds
@pytest.mark.parametrize("wait", [0, 0.4])
async def test_an_acquire_that_times_out(client: Any, other: Any, kind: str, wait: float) -> None:
    await lock_of(other, rival_of(kind), "a", 1).lock()
    # It connects here. That must not use up the time of the first attempt, as a call that makes none doesn't wait.
    await client.get_lock("another").is_locked()
    assert not await lock_of(client, kind, "a", 2).try_lock(wait)
    last: Any = all_told(client, *(["waiting", "timed_out"] if wait else ["timed_out"]))[-1]
    # Some of `wait` may be over when the first attempt begins: another thread may run between.
    assert wait / 2 < last.waited < 60


@kinds
async def test_a_client_that_is_closed(backend: Backend, client: Any, other: Any, said: Said, kind: str) -> None:
    """What it holds is released, and who waits fails."""
    label = LABELS[kind]
    await lock_of(other, rival_of(kind), "a", 1).lock()
    assert not await lock_of(client, kind, "a", 3).try_lock()
    await client.get_lock("b").lock()
    waiting = await backend.begin(lock_of(client, kind, "a", 2).lock, lambda: "waiting" in whats(told(client)))
    await client.close()
    await fails(ClosedError, waiting.result)
    check_pairs(events := told(client))
    assert sorted(whats(events)) == ["acquired", "failed", "released", "timed_out", "waiting"]
    [(error, of_kind)] = [(event.error or "", event.kind) for event in events if event.what == "failed"]
    assert (error.startswith("ClosedError: client"), of_kind) == (True, told_kind(kind))
    *lines, last = [line for line in said()[1:] if "'a'" in line]
    me = f"owner {client.id}"
    assert lines == [f"{label} of {me}:3 is not acquired in time", f"{me}:2 waits for {label}"]
    # The owner's name has another number if an attempt was under way.
    assert last.startswith(f"{label} of {me}:2")
    assert last.endswith(f" is not acquired: ClosedError: client {client.id} is closed")


@pytest.mark.parametrize("kind", [*KINDS, "semaphore"])
async def test_a_task_that_is_cancelled(tasks: Backend, said: Said, kind: str) -> None:
    client, other = tasks.connect(observer=Recorder()), tasks.connect()
    if kind != "semaphore":  # which has no permits
        await lock_of(other, rival_of(kind), "a", 1).lock()
    wanted = client.get_semaphore("a") if kind == "semaphore" else lock_of(client, kind, "a", 2)
    task = asyncio.create_task(wanted.acquire())
    await tasks.until(lambda: whats(told(client)) == ["waiting"])
    assert await cancel_after(0, task)
    assert all_told(client, "waiting", "failed")[1].error == "CancelledError: "
    assert said()[-1].endswith(" not acquired: CancelledError: ")


async def test_the_members_of_a_group(client: Any) -> None:
    await use(client.get_multi_lock(client.get_lock("a"), client.get_fair_lock("b")))
    check_pairs(events := told(client))
    found = sorted((event.what, event.name, event.kind) for event in events)
    assert found == [(what, *each) for what in ("acquired", "released") for each in (("a", "lock"), ("b", "fair"))]


async def test_permits(client: Any, said: Said) -> None:
    shop, pool = client.get_semaphore("s"), client.get_permit_expirable_semaphore("p")
    assert (await shop.release_if_exists(), told(client)) == (False, [])
    await shop.try_set_permits(5)
    await shop.acquire(2)
    assert (await shop.drain_permits(), await shop.try_acquire()) == (3, False)
    assert said()[-1] == "1 permits of semaphore 's' are not acquired in time"
    await shop.release(5)
    await pool.try_set_permits(3)
    ids = await pool.acquire_many(2)
    assert await pool.try_acquire_many(2) == []
    assert said()[-1] == "2 permits of semaphore 'p' are not acquired in time"
    await pool.release(ids)
    events = told(client)
    of_shop, of_pool = ("s", "semaphore", None), ("p", "permit", None)
    expected = [("acquired", 2, of_shop), ("acquired", 3, of_shop), ("timed_out", 1, of_shop), ("released", 5, of_shop)]
    expected += [("acquired", 2, of_pool), ("timed_out", 2, of_pool), ("released", 2, of_pool)]
    assert [(event.what, event.count, (event.name, event.kind, event.owner_id)) for event in events] == expected
    assert events[0].waited == 0
    # From here on the watchdog doesn't renew it. It is released later, once.
    permit = await pool.acquire(renew=True)
    assert await pool.update_lease_time(permit, 30)
    await pool.release(permit)
    assert whats(told(client)[len(events) :]) == ["acquired", "released"]


@pytest.mark.parametrize("kind", ["semaphore", "semaphore of the same client", "permit"])
async def test_a_wait_for_permits(backend: Backend, client: Any, other: Any, said: Said, kind: str) -> None:
    """For a release of this client, which hands the permit on, and for another one's."""
    same = "same" in kind
    mine = Permits(client, kind.split()[0])
    theirs = mine if same else Permits(other, kind)
    await theirs.try_set_permits(1)
    taken = await theirs.acquire()
    waiting = await backend.begin(mine.acquire, lambda: "waiting" in whats(told(client)))
    if kind != "permit":
        await backend.until(lambda: permit_waiters(client, "stock") == 1)
    await theirs.release(taken)
    await mine.release(await waiting.result())
    own = ["waiting", "acquired", "released"]
    events = told(client)
    assert sorted(whats(events)) == sorted([*own, "acquired", "released"] if same else own)
    waits = [event for event in events if event.wait_id]
    assert whats(waits) == ["waiting", "acquired"]
    is_wait(*waits)
    lines = without(said(), "1 permits of semaphore 'stock' are released")
    done = ("acquired", "waited for", "acquired", "released")
    assert same or lines == [f"1 permits of semaphore 'stock' are {each}" for each in done]


async def test_renewed_permits_are_holds(backend: Backend, admin: Redis) -> None:
    client = backend.connect(observer=Recorder(), lock_watchdog_timeout=1.5)
    pool = client.get_permit_expirable_semaphore("p")
    await pool.try_set_permits(3)
    first = await pool.acquire(renew=True)
    await pool.acquire(renew=True)
    await pool.release(first)
    admin.delete("{p}:timeout")
    await backend.until(lambda: whats(told(client))[-1] == "lost")
    events = all_told(client, "acquired", "acquired", "released", "lost")
    assert {(event.name, event.kind, event.owner_id) for event in events} == {("p", "permit", None)}
    assert 0 < (events[2].held or 0) < 60


async def test_a_latch(backend: Backend, client: Any, said: Said) -> None:
    latch = client.get_count_down_latch("l")
    assert (await latch.wait(), told(client)) == (True, [])
    await latch.try_set_count(1)
    assert not await latch.wait(1)
    waiting = await backend.begin(latch.wait, lambda: whats(told(client)).count("waiting") == 2)
    await latch.count_down()
    assert await waiting.result()
    events = told(client)
    expected = [(what, "l", "latch") for what in ("waiting", "timed_out", "waiting", "acquired")]
    assert [(event.what, event.name, event.kind) for event in events] == expected
    assert events[2].wait_id == events[3].wait_id != events[0].wait_id
    lines = without(said(), "latch 'l' is counted down")
    assert lines[-4:] == [f"latch 'l' is {each}" for each in ("waited for", "not open in time", "waited for", "open")]


async def test_renewals(backend: Backend) -> None:
    client = backend.connect(observer=Recorder(), lock_watchdog_timeout=6)
    await in_turn(client.get_lock(f"a{number}").lock for number in range(3))

    def renewed() -> list[Event]:
        return [event for event in everything_told(client) if event.what == "renewed"]

    # By one command or by several: a lock that was acquired a little later may be due later.
    await backend.until(lambda: sum(event.count for event in renewed()) >= 3)
    # After a third of the lease, or a little earlier. Much later the lease would have ended.
    assert all(event.late is not None and -2 < event.late < 4 for event in renewed())


async def test_an_outage(backend: Backend, proxy: Proxy) -> None:
    client = backend.connect(proxy.url, observer=Recorder(), lock_watchdog_timeout=0.9, retry_attempts=0)
    await client.get_lock("a").lock()
    proxy.refuse(True)
    proxy.cut()
    await fails(RedisConnectionError, client.get_lock("b").is_locked)
    await backend.until(lambda: "lost" in whats(told(client)))
    proxy.refuse(False)
    await client.get_lock("b").is_locked()
    events = told(client)
    check_pairs([event for event in events if not event.server])
    lost, back = [event for event in events if event.server]
    assert lost.server == back.server == proxy.url.split("/")[2]
    assert (lost.what, bool(lost.error), back.what, back.error) == ("disconnected", True, "connected", None)
    failed = [event for event in everything_told(client) if event.what == "renewal_failed"]
    assert {(event.count, bool(event.error)) for event in failed} == {(1, True)}


async def test_other_observers(backend: Backend, client: Any, other: Any) -> None:
    """A client without one is not told of, and an observer has the events that it has methods for."""
    assert tracing.on
    lock, semaphore = other.get_lock("a"), other.get_semaphore("s")
    await in_turn((lock.lock, lock.unlock, semaphore.release, semaphore.acquire))
    assert told(client) == []
    third = backend.connect(observer=Recorder("released"))
    await use(third.get_lock("a"), 2)
    events = told(third)
    assert whats(events) == ["released"] * 2
    # The number of the hold is the same as if all were told.
    assert len({event.hold_id for event in events}) == 2
    # Nothing is kept of what has ended.
    for name in ("a", "b"):
        async with client.get_lock(name):
            assert not await client.get_lock(name, owner=1).try_lock(1)
    gc.collect()
    kept: Any = session_of(client).observing
    assert (len(kept._waits), len(kept._holds)) == (0, 0)
