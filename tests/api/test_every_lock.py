"""What every kind of lock does: acquire, release, queries, nested holds, waits, blocks, closing; and the spin lock."""

import itertools
import math
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import pyredisson.asyncio
from pyredisson import ClosedError, ConstantBackoff, ExponentialBackoff
from pyredisson.errors import LockAlreadyHeldError, LockLostError, LockNotHeldError, LockTimeoutError
from pyredisson.testing import Proxy
from tests.support.backends import NOWHERE, TIME_LIMIT, WOKEN, Backend, ServerState, fails, finished, in_turn, within
from tests.support.kinds import KINDS, acquired

from .kinds import GROUPS, JAVA, NON_REENTRANT, REENTRANT, WAYS, kinds, left, lock_of, one_waits, rival_of, sleeping

kinds_and_groups = pytest.mark.parametrize("kind", [*KINDS, *GROUPS])


async def asked(lock: Any) -> list[Any]:
    """The answers to all questions but how long it is held."""
    questions = (lock.is_locked, lock.locked, lock.is_held, lock.is_held_by_current_thread, lock.get_hold_count)
    return [await question() for question in questions]


IN_VAIN: list[Callable[[Any], Awaitable[Any]]] = [
    *(lambda lock: lock.try_lock(), lambda lock: lock.try_lock(wait_time=0.02)),
    *(lambda lock: lock.acquire(blocking=False), lambda lock: lock.acquire(False), lambda lock: lock.acquire(True, 0)),
]
"""Ways that return False while another owner holds it."""
ENDLESS: list[Callable[[Any], Awaitable[Any]]] = [
    *(lambda lock: lock.lock(), lambda lock: lock.try_lock(wait_time=math.inf)),
    *(lambda lock: lock.acquire(), lambda lock: lock.acquire(True, -1)),
    *(lambda lock: lock.hold(None).__aenter__(), lambda lock: lock.hold(math.inf).__aenter__()),
]
"""Ways that wait for as long as it takes."""


@kinds
async def test_acquire_and_release(backend: Backend, state: ServerState, proxy: Proxy, kind: str) -> None:
    lock = lock_of(backend.connect(proxy.url), kind)
    for acquire, release in ((lock.try_lock, lock.unlock), (lock.acquire, lock.release)):
        assert await acquire() is True
        assert 29_000 < state.redis.pttl("orders") <= 30_000
        assert "1" in state.holds("orders").values()
        assert (await release(), left(state.redis)) == (None, set())
    proxy.forget()
    await in_turn([lock.lock, lock.unlock] * 2)
    assert [words[0] for words in proxy.commands] == [b"EVALSHA"] * 4
    await fails(LockNotHeldError, lock.unlock, match="is free")
    await fails(RuntimeError, lock.release, match="is free")


@kinds
async def test_questions(backend: Backend, client: Any, kind: str) -> None:
    lock = lock_of(client, kind, owner=1)
    free = [False, False, False, False, 0]
    assert (await asked(lock), await lock.remain_time_to_live()) == (free, None)
    await lock.lock(timedelta(seconds=60, milliseconds=1))
    assert await asked(lock) == await asked(lock_of(client, kind, owner=1)) == [True, True, True, True, 1]
    remaining = await lock.remain_time_to_live()
    assert (type(remaining), round(remaining * 1000)) == (float, pytest.approx(remaining * 1000))
    assert 50 < remaining <= 60.001
    # Another owner; and the same number in another client, which is another owner, too.
    for other in (lock_of(client, kind, owner=2), lock_of(backend.connect(), kind, owner=1)):
        assert await asked(other) == [True, True, False, False, 0]
    assert [await lock_of(client, kind).is_held_by(owner) for owner in (1, 2)] == [True, False]
    assert await lock_of(backend.connect(), kind).is_held_by(1) is False
    await lock.unlock()
    assert await asked(lock) == free


@kinds
async def test_another_owner_does_not_get_it(client: Any, other: Any, state: ServerState, kind: str) -> None:
    await lock_of(client, rival_of(kind), owner=1).lock()
    before = state.holds("orders")
    for lock in (lock_of(client, kind), lock_of(client, kind, owner=2), lock_of(other, kind, owner=1)):
        for way in IN_VAIN:
            assert await way(lock) is False
    lock = lock_of(other, kind, owner=2)
    await fails(LockTimeoutError, lock.hold(wait_time=0.05).__aenter__, match=f"'orders'.*{other.id}:2")
    refused = await fails(LockNotHeldError, lock.unlock)
    for text in ("orders", f"{other.id}:2", f"{client.id}, thread 1"):
        assert text in str(refused)
    assert state.holds("orders") == before


@pytest.mark.parametrize("kind", REENTRANT)
async def test_its_holder_may_acquire_another_hold(backend: Backend, state: ServerState, kind: str) -> None:
    lock = lock_of(backend.connect(), kind)
    for count, way in enumerate(WAYS, start=1):
        await way(lock)
        assert (str(count) in state.holds("orders").values(), await lock.get_hold_count()) == (True, count)
    assert await backend.as_another_owner(lock_of(backend.connect(), rival_of(kind)).try_lock) is False
    for count in reversed(range(len(WAYS))):
        assert await lock.is_held()
        await lock.unlock()
        assert await lock.get_hold_count() == count
    assert left(state.redis) == set()
    async with lock, lock, lock.hold():
        assert await lock.get_hold_count() == 3
    assert not await lock.is_locked()


@pytest.mark.parametrize("kind", NON_REENTRANT)
async def test_its_holder_may_not(lock: Any, state: ServerState, kind: str) -> None:
    """It is refused before anything is sent, and keeps its hold."""
    async with lock:
        before, commands = state.holds("orders"), state.commands()
        [owner] = before
        for way in WAYS:
            await fails(LockAlreadyHeldError, way, lock, match=f"'orders'.*{owner}")
        assert (state.commands(), state.holds("orders"), await lock.get_hold_count()) == (commands, before, 1)
    assert left(state.redis) == set()


@kinds_and_groups
async def test_a_wait_ends_in_time(backend: Backend, client: Any, state: ServerState, kind: str) -> None:
    await lock_of(client, rival_of(kind), owner=1).lock()
    lock = lock_of(client, kind)
    for attempt in (partial(lock.try_lock, timedelta(milliseconds=100)), partial(lock.acquire, timeout=0.1)):
        with within(WOKEN, least=0.1):
            assert await attempt() is False
    await lock_of(client, rival_of(kind), owner=1).unlock()
    await backend.until(lambda: left(state.redis) == set())
    assert await lock.try_lock()


@kinds
async def test_waits_without_an_end(backend: Backend, client: Any, state: ServerState, kind: str) -> None:
    """The release lets in one after the other, in whatever way each waits."""
    holder = await acquired(lock_of(client, rival_of(kind), owner=100))

    async def take(way: Callable[[Any], Awaitable[Any]], owner: int) -> None:
        lock = lock_of(client, kind, owner=owner)
        assert await way(lock) is not False
        assert await lock.is_held()
        await lock.unlock()

    others = [backend.spawn(partial(take, way, owner)) for owner, way in enumerate(ENDLESS)]
    await backend.until(lambda: kind == "spin" or sleeping(client, kind) == len(ENDLESS))
    assert not any(other.done() for other in others)
    await holder.unlock()
    await finished(others)
    await backend.until(lambda: left(state.redis) <= {"pyredisson_fair_waiters:{orders}"})


@kinds
@pytest.mark.parametrize("way", ["unlock", "force_unlock", "delete"])
async def test_what_lets_in_another_client(backend: Backend, state: ServerState, kind: str, way: str) -> None:
    client, another = backend.connect(), backend.connect()
    holder, waiter, other = await one_waits(backend, client, kind, another)
    if kind not in NON_REENTRANT:
        await holder.lock()
        await holder.unlock()
        await backend.sleep(0.02)
        assert not other.done()
    with within(WOKEN):
        await getattr(holder, way)()
        await other.result()
    assert any(owner.startswith(f"{another.id}:2") for owner in state.holds("orders"))
    assert await waiter.is_held()


@kinds
async def test_handles_of_a_name_are_one_lock(backend: Backend, client: Any, lock: Any, redis: Any, kind: str) -> None:
    holder, other = lock_of(client, kind, owner=5), lock_of(client, kind, b"orders", owner=5)  # type: ignore[arg-type]
    await holder.lock()
    assert await other.is_held()
    # Whichever thread or task calls it.
    await backend.as_another_owner(other.unlock)
    assert not await other.is_locked()
    for way in ("force_unlock", "delete"):
        # The tokens of a fenced lock remain.
        assert await getattr(lock, way)() is ((kind, way) == ("fenced", "delete"))
        await holder.lock()
        if kind not in NON_REENTRANT:
            await holder.lock()
        assert await getattr(lock, way)() is True
        assert not redis.exists("orders")
        assert (kind, way) != ("fenced", "force_unlock") or redis.exists("redisson_lock_token:{orders}")
        assert await getattr(lock, way)() is False
    assert [await each.try_lock() for each in (lock_of(client, kind, "stock"), lock)] == [True, True]


@kinds_and_groups
async def test_extending_a_lease(client: Any, state: ServerState, kind: str) -> None:
    lock, redis = lock_of(client, kind), state.redis
    await fails(LockNotHeldError, lock.extend, 60)
    await lock.lock(5)
    keys = [key for key in redis.scan_iter() if redis.pttl(key) > 0]
    assert keys
    for lease_time in (timedelta(seconds=60), 1):
        await lock.extend(lease_time)
        assert all(50_000 < redis.pttl(key) <= 60_000 for key in keys)
        assert all(50 < hold.valid_for <= 60 and not hold.renewed for hold in client.holds())
    if kind not in (*NON_REENTRANT, *GROUPS):
        await lock.lock(5)
        await lock.unlock()
    assert await lock.is_held()
    await fails(LockNotHeldError, lock_of(client, kind, owner=7).extend, 60)
    redis.delete(*keys)
    for _ in range(2):
        await fails(LockLostError, lock.extend, 60, match="orders")
    assert lock.lost.is_set()
    await fails(LockLostError, lock.unlock)
    assert left(redis) == set()
    # What is renewed.
    await lock.lock()
    await lock.extend(60)
    assert 50_000 < redis.pttl("orders") <= 60_000
    assert all(50 < hold.valid_for <= 60 and hold.renewed for hold in client.holds())
    await lock.unlock()
    assert left(redis) == set()


@kinds
async def test_blocks(backend: Backend, lock: Any, state: ServerState, kind: str) -> None:
    async with lock as entered:
        assert (entered is lock, await lock.is_held()) == (True, True)
    assert left(state.redis) == set()
    async with lock.hold(wait_time=1, lease_time=timedelta(seconds=60)) as entered:
        assert repr(entered) == repr(lock)
        assert 50_000 < state.redis.pttl("orders") <= 60_000
    assert left(state.redis) == set()
    for lost in (False, True):
        with pytest.raises(KeyError) as caught:
            async with lock:
                if lost:
                    state.redis.delete("orders")
                raise KeyError("mine")
        notes = getattr(caught.value, "__notes__", [])
        assert [bool(re.search("LockLostError.*orders", note)) for note in notes] == [True] * lost
        assert not await lock.is_locked()
    with pytest.raises(LockLostError, match="orders"):
        async with lock:
            state.redis.delete("orders")
    with pytest.raises(LockLostError, match="orders"):
        async with lock.hold(lease_time=0.05):
            await backend.sleep(0.1)


async def test_a_lock_of_another_kind_with_that_name(client: Any, state: ServerState) -> None:
    """Kinds with the same hash exclude each other. Whether a nested hold is refused is for the kind that asks."""
    same = [kind for kind in KINDS if kind not in ("read", "write")]
    for kind in same:
        await lock_of(client, kind, owner=1).lock()
        assert not any([await lock_of(client, other, owner=2).try_lock() for other in same])
        await lock_of(client, "lock", owner=1).lock()
        assert list(state.holds("orders").values()) == ["2"]
        await fails(LockAlreadyHeldError, lock_of(client, "non-reentrant", owner=1).try_lock)
        await lock_of(client, "lock", owner=1).unlock()
        await lock_of(client, kind, owner=1).unlock()
        assert not state.redis.exists("orders")


@kinds
async def test_beside_a_java_client(lock: Any, state: ServerState, kind: str) -> None:
    """Its hold is respected, and named."""
    mode = {"mode": "write"} if kind in ("read", "write") else {}
    java = f"{JAVA}:write" if mode else JAVA
    state.redis.hset("orders", mapping={**mode, java: 2})
    assert mode or await lock.remain_time_to_live() == math.inf
    assert not await lock.try_lock()
    state.redis.pexpire("orders", 30_000)
    before = state.redis.hgetall("orders")
    assert (await lock.is_held(), await lock.try_lock(wait_time=0.02)) == (False, False)
    client_id, _, thread = JAVA.partition(":")
    await fails(RuntimeError, lock.unlock, match=f"{client_id}, thread {thread}")
    assert state.redis.hgetall("orders") == before


@kinds_and_groups
async def test_its_class_is_exported(threads: Backend, tasks: Backend, kind: str) -> None:
    words = [] if kind == "lock" else re.split(r"\W", kind)
    name = "".join(map(str.title, words)) + "Lock"
    lock, of_threads = lock_of(tasks.connect(), kind), lock_of(threads.connect(), kind)
    assert repr(of_threads).startswith(f"<pyredisson.{name} ")
    assert repr(lock).startswith(f"<pyredisson.asyncio.{name} ")
    assert type(lock) is getattr(pyredisson.asyncio, name)
    assert (hasattr(pyredisson, name), hasattr(lock, "__dict__")) == (True, False)
    # The types for everything that locks.
    assert isinstance(lock, pyredisson.asyncio.Lockable)
    assert isinstance(of_threads._target, pyredisson.Lockable)
    assert not isinstance(tasks.connect().get_semaphore("permits"), pyredisson.asyncio.Lockable)


async def test_nothing_works_in_a_closed_client(backend: Backend, client: Any, lock: Any) -> None:
    group, latch = lock_of(client, "multi", "others"), client.get_count_down_latch("done")
    await in_turn([lock.lock, group.lock])
    assert client.id in repr(client)
    assert client.closed is False
    for _ in range(2):
        await client.close()
        assert client.closed is True
    for call in (
        *(lock.unlock, lock.release, lock.force_unlock, lock.delete, lock.is_locked, lock.locked, lock.is_held),
        *(lock.is_held_by_current_thread, lambda: lock.is_held_by(1), lock.get_hold_count, lock.remain_time_to_live),
        *(partial(way, lock) for way in (*WAYS, *ENDLESS)),
        *(partial(each.extend, 1) for each in (lock, group)),
        *(latch.wait, latch.count_down, latch.get_count, latch.delete),
        *(partial(latch.try_set_count, count) for count in (0, 1)),
    ):
        await fails(ClosedError, call, match=client.id)
    await fails(RuntimeError, client.get_lock("orders").lock)
    # One that never talked.
    async with backend.connect(NOWHERE) as silent:
        pass
    assert silent.closed


async def test_closing_releases_held_locks_and_no_others(backend: Backend, client: Any, state: ServerState) -> None:
    await in_turn(lock_of(client, kind, kind).lock for kind in [*KINDS, *GROUPS, "lock"])
    await client.get_lock("stock", owner=1).lock(60)
    await client.get_lock("taken").lock(60)
    state.redis.delete("taken")
    state.redis.hset("taken", "somebody:1", 1)
    # Waiters of another client are notified.
    waiting = [await one_waits(backend, client, kind, backend.connect(), f"{kind}:2") for kind in ("lock", "fair")]
    await client.close()
    await finished(other for *_, other in waiting)
    assert left(state.redis) == {"lock:2", "fair:2", "taken", "redisson_lock_token:{fenced}"}
    assert state.holds("taken") == {"somebody:1": "1"}


class TestSpinLock:
    """Without a channel: its waiters poll."""

    async def test_nothing_is_published_and_no_client_subscribes(self, backend: Backend, state: ServerState) -> None:
        client = backend.connect()
        holder, waiter = client.get_spin_lock("orders", owner=1), client.get_spin_lock("orders", owner=2)
        with state.redis.pubsub() as ear:
            ear.psubscribe("*")
            assert ear.get_message(timeout=TIME_LIMIT)["type"] == "psubscribe"
            await holder.lock()
            before = state.scripts()
            other = await backend.begin(waiter.lock, lambda: state.scripts() >= before + 4)
            assert state.redis.pubsub_channels() == []
            await holder.unlock()
            await other.result()
            assert (await holder.force_unlock(), state.redis.keys()) == (True, [])
            state.redis.publish("end", "end")
            assert ear.get_message(timeout=TIME_LIMIT)["data"] == b"end"

    @pytest.mark.parametrize(
        ("options", "least", "most"),
        [
            # At 0, 0.5, 1 and 1.5 s, and at the very end.
            ({"backoff": ConstantBackoff(timedelta(milliseconds=500))}, 3, 5),
            # At 1 ms it would be more than a thousand. Seven until the pause is 128 ms, and then about fifteen.
            ({}, 6, 40),
        ],
    )
    async def test_its_pace(self, client: Any, state: ServerState, options: Any, least: int, most: int) -> None:
        state.redis.hset("orders", "somebody", 1)
        lock = client.get_spin_lock("orders", **options)
        await lock.try_lock()
        before = state.scripts()
        assert not await lock.try_lock(wait_time=1.75)
        assert least <= state.scripts() - before <= most

    async def test_it_asks_once_more_at_the_end_of_the_wait(self, backend: Backend, state: ServerState) -> None:
        state.redis.hset("orders", "somebody", 1)
        client: Any = backend.connect()
        lock = client.get_spin_lock("orders", ConstantBackoff(30))
        before = state.scripts()
        other = await backend.begin(lambda: lock.try_lock(wait_time=1), lambda: state.scripts() == before + 1)
        state.redis.delete("orders")
        assert await other.result() is True
        # A closed client ends the wait.
        other = await backend.begin(lambda: lock.try_lock(60), lambda: state.scripts() == before + 3)
        await client.close()
        await fails(ClosedError, other.result)
        for wrong in (None, 1, "fast", ConstantBackoff):
            with pytest.raises(TypeError, match="backoff"):
                client.get_spin_lock("orders", wrong)

    async def test_it_asks_at_the_end_of_the_holders_lease(self, backend: Backend, state: ServerState) -> None:
        state.redis.hset("orders", "dead", 1)
        before = state.scripts()
        with within(WOKEN, least=0.15):
            state.redis.pexpire("orders", 200)
            await backend.connect().get_spin_lock("orders", ConstantBackoff(30)).lock()
        assert state.scripts() <= before + 3


IMPOSSIBLE = [0, -1, 0.00001, math.nan, math.inf]
DELAYS = ("initial_delay", "max_delay")
HALF = timedelta(seconds=0.5)
DOUBLED = [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.128]


class TestBackoff:
    @pytest.mark.parametrize(
        ("backoff", "random", "pauses"),
        [
            # The largest that chance allows.
            *((ExponentialBackoff(), 1.0, DOUBLED), (ExponentialBackoff(1, 20, 3), 1.0, [1, 3, 9, 20, 20])),
            (ExponentialBackoff(1, 1), 1.0, [1, 1, 1]),
            # They never overflow.
            (ExponentialBackoff(1, 4, 1e308), 1.0, [1] + [4] * 1999),
            *((ExponentialBackoff(1, 4), 0.0, [0.5, 1, 2]), (ExponentialBackoff(1, 4), 0.5, [0.75, 1.5, 3])),
            (ExponentialBackoff(1, 4, jitter="full"), 0.0, [0, 0, 0]),
            (ExponentialBackoff(1, 4, jitter="full"), 0.5, [0.5, 1, 2]),
            *((ConstantBackoff(), 0.3, [0.064] * 3), (ConstantBackoff(2), 0.3, [2, 2])),
            *((ConstantBackoff(HALF), 0.3, [0.5, 0.5]), (ExponentialBackoff(HALF, HALF), 1.0, [0.5, 0.5])),
        ],
    )
    def test_pauses(self, backoff: ExponentialBackoff | ConstantBackoff, random: float, pauses: list[float]) -> None:
        assert list(itertools.islice(backoff.delays(lambda: random), len(pauses))) == pytest.approx(pauses)

    @pytest.mark.parametrize(
        ("kind", "fields", "error"),
        [
            *((ConstantBackoff, {"delay": wrong}, ValueError) for wrong in IMPOSSIBLE),
            *((ExponentialBackoff, {name: wrong}, ValueError) for name in DELAYS for wrong in IMPOSSIBLE),
            (ExponentialBackoff, {"max_delay": 0.5, "initial_delay": 1}, ValueError),
            *((ExponentialBackoff, {"multiplier": wrong}, ValueError) for wrong in (0.5, 0, -2, math.nan)),
            *((ExponentialBackoff, {"multiplier": wrong}, TypeError) for wrong in ("2", True, None)),
            *((ExponentialBackoff, {"jitter": "some"}, ValueError), (ConstantBackoff, {"delay": "1"}, TypeError)),
        ],
    )
    def test_what_cannot_be(self, kind: type[Any], fields: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error, match=next(iter(fields))):
            kind(**fields)
