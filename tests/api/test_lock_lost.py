"""Leases that are renewed, as a lock or a limit says; and lost locks: `lost`, the release, how many are remembered."""

import asyncio
import contextlib
import logging
import re
import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from pyredisson import ClosedError, LockLostError, LockNotHeldError
from pyredisson.asyncio import Client, Lock
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, WOKEN, Backend, ServerState, fails, in_turn, within
from tests.support.faults import RENEW
from tests.support.kinds import KINDS, acquired

from .kinds import GROUPS, REENTRANT, assert_lost, left, lock_of, one_waits, use

LEASE = 3.0
AT_MOST = 4.0
singly_and_in_groups = pytest.mark.parametrize("kind", ["lock", *GROUPS])


@pytest.fixture
def client(backend: Backend) -> Client:
    """Its watchdog looks soon."""
    return backend.connect(lock_watchdog_timeout=0.9)


async def lose(lock: Any) -> None:
    await lock.lock(60)
    await lock.force_unlock()


class TestEvent:
    @singly_and_in_groups
    async def test_the_end_of_the_lease(self, backend: Backend, state: ServerState, kind: str) -> None:
        lock = lock_of(backend.connect(), kind)
        waits = [await lock.lost.wait(), await lock.lost.wait(timedelta(seconds=1))]
        assert [lock.lost.is_set(), *waits] == [False] * 3
        async with lock.hold(lease_time=60):
            with within(WOKEN, least=0.1):
                assert (await lock.lost.wait(0.1), lock.lost.is_set()) == (False, False)
        await lock.lock(0.5)
        lost = lock.lost
        assert not lost.is_set()
        # Any owner may wait for it, and has a hold of its own.
        waiting = backend.spawn(lambda: lost.wait(TIME_LIMIT))
        found = [await lost.wait(TIME_LIMIT), await waiting.result(), lost.is_set(), await lock.is_held()]
        assert found == [True, True, True, False]
        assert await backend.as_another_owner(lambda: lock.lost.wait(0)) is False
        assert kind in GROUPS or await lock.get_hold_count() == 0
        await backend.until(lambda: not state.redis.exists("orders"))
        await lock_of(backend.connect(), kind).lock(0.1)
        assert lost.is_set()
        # No later than the server's end, and by the clock alone: the event loop is blocked, too, so no other code can
        # have reported the loss.
        lock = await acquired(backend.connect().get_lock("stock"), 0.1)
        # Not PTTL: it says 0 in the key's last millisecond, in which the key is still there.
        while state.redis.exists("stock"):
            time.sleep(0.001)
        assert lock.lost.is_set()

    @singly_and_in_groups
    async def test_what_ends_the_wait_without_a_loss(self, backend: Backend, client: Any, kind: str) -> None:
        lock = lock_of(client, kind, owner=1)
        for end in (lock.unlock, client.close):
            await lock.lock()
            lost, waiting = lock.lost, backend.flag()

            async def work() -> Any:
                waiting.set()  # noqa: B023
                return await lost.wait()  # noqa: B023

            other = backend.spawn(work)
            await waiting.wait()
            await end()
            # Closing gave it back; that the client is closed is no wrong answer, either.
            with contextlib.suppress(ClosedError):
                assert await other.result() is False
            assert lost.is_set() is False


class TestGivingBack:
    """`unlock` and the end of a block, after the loss."""

    async def test_each_nested_hold_is_reported(self, backend: Backend, client: Any, state: ServerState) -> None:
        lock = client.get_lock("orders", owner=1)
        started = time.monotonic()
        await in_turn([partial(lock.lock, 0.5)] * 2)
        assert await lock.lost.wait(TIME_LIMIT)
        await backend.sleep(0.25)
        for _ in range(2):
            caught = await fails(LockLostError, lock.unlock, match=f"orders.*{client.id}:1")
            [ago] = re.findall(r"lost (\d\.\d{3}) s ago", str(caught))
            assert 0.2 < float(ago) < time.monotonic() - started
        # By the server's clock the lease ends a moment later, and what was lost is released in the background.
        await backend.until(lambda: not state.redis.exists("orders"))
        assert not isinstance(await fails(LockNotHeldError, lock.unlock, match="is free"), LockLostError)

    @pytest.mark.parametrize("how", ["deleted", "asked about", "taken", "forced"])
    async def test_deleted_by_somebody(self, backend: Backend, state: ServerState, lock: Lock, how: str) -> None:
        await lock.lock(60)
        if how == "forced":
            await backend.connect().get_lock("orders").force_unlock()
        else:
            state.redis.delete("orders")
        if how == "taken":
            state.redis.hset("orders", "somebody:1", 1)
        if how == "asked about":
            # No watchdog looks after a fixed lease: what the server says in between is news.
            assert (await lock.is_held(), lock.lost.is_set()) == (False, True)
        await assert_lost(lock, "orders")
        assert state.holds("orders") == ({"somebody:1": "1"} if how == "taken" else {})

    @pytest.mark.parametrize("kind", REENTRANT)
    @pytest.mark.parametrize("forced", [False, True])
    async def test_a_hold_above_a_lost_one(self, backend: Backend, state: ServerState, kind: str, forced: bool) -> None:
        """A nested acquire finds the loss. What the holder itself has forced, it knows before."""
        lock = await acquired(lock_of(backend.connect(), kind), 60)
        lost = lock.lost
        if forced:
            await lock.force_unlock()
            assert lost.is_set()
        else:
            state.redis.delete("orders")
        await lock.lock(60)
        assert (lost.is_set(), lock.lost.is_set(), await lock.get_hold_count()) == (True, False, 1)
        assert "1" in state.holds("orders").values()
        await lock.unlock()
        assert not state.redis.exists("orders")
        await assert_lost(lock, "force" if forced else "orders")


async def test_two_releases_of_a_lost_lock(tasks: Backend, redis: Any) -> None:
    """The loss is the outcome of one of them, as the lock was held once."""
    lock = tasks.connect().get_lock("orders", owner=7)
    await lock.lock()
    redis.delete("orders")
    outcomes = await asyncio.gather(lock.unlock(), lock.unlock(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LockLostError, LockNotHeldError]


async def test_many_losses(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses that are remembered are bounded; those that were seen to don't count."""
    monkeypatch.setattr("pyredisson.logic.losses.MOST_LOST", 20)
    fresh, again = client.get_lock("stock"), client.get_lock("orders")
    await lose(fresh)
    for _ in range(26):
        await lose(again)
        await assert_lost(again)
    await assert_lost(fresh)
    # A later loss of the same lock is remembered as well.
    await lose(again)
    await in_turn(partial(lose, client.get_lock(f"other:{number}")) for number in range(15))
    await assert_lost(again)
    # Of those that are never released, the latest ones.
    locks = [client.get_lock(f"orders:{number}") for number in range(50)]
    await in_turn(partial(lose, lock) for lock in locks)
    assert len(client._session.holds.table) <= 20
    await in_turn(partial(assert_lost, lock) for lock in locks[-18:])
    # So it is for groups.
    group = client.get_multi_lock(again, fresh)
    for number in range(25):
        await group.lock(60)
        await again.force_unlock()
        if number < 24:
            await assert_lost(group)
    for number in range(15):
        await client.get_multi_lock(client.get_lock(f"a:{number}")).lock(60)
        await client.get_lock(f"a:{number}").force_unlock()
    await assert_lost(group)


class TestCallback:
    async def test_once_per_loss_with_the_lock(self, backend: Backend, client: Client, redis: Any, lock: Lock) -> None:
        calls: list[tuple[Any, int]] = []

        def callback(lost: Any) -> None:
            calls.append((lost.name, threading.get_ident()))

        assert lock.on_lost(callback) is callback
        await in_turn([lock.lock] * 2)
        redis.delete("orders")
        await backend.until(lambda: bool(calls))
        for _ in range(2):
            await assert_lost(lock)
        # No call for a release.
        await lock.lock(0.5)
        await lock.unlock()
        # Two rounds of the watchdog.
        await backend.sleep(0.7)
        [(name, thread)] = calls
        assert (name, thread == threading.get_ident()) == ("orders", False)
        # Again for the next hold, of whatever owner.
        for number, owner in enumerate((None, 1), start=2):
            await client.get_lock("orders", owner=owner).lock(0.03)
            await backend.until(lambda number=number: len(calls) == number)  # type: ignore[misc]

    async def test_a_failing_one_stops_none(self, backend: Backend, client: Client, lock: Lock, caplog: Any) -> None:
        calls: list[str] = []

        def fails(_: Any) -> None:
            raise KeyError("in the callback")

        lock.on_lost(fails)
        with caplog.at_level(logging.ERROR, "pyredisson"):
            # The next loss is reported as well.
            for each in (lock, client.get_lock("stock")):
                each.on_lost(lambda lost: calls.append(lost.name))
                await each.lock(0.03)
                await backend.until(lambda each=each: each.name in calls)  # type: ignore[misc]
            await backend.until(lambda: "in the callback" in caplog.text)

    async def test_a_slow_one_delays_nobody(self, backend: Backend, client: Client) -> None:
        """Neither other callbacks nor the caller, the watchdog, or closing the client."""
        calls, ended, leave = list[Any](), list[bool](), threading.Event()

        def slow(_: Any) -> None:
            ended.append(leave.wait(TIME_LIMIT))

        for name in ("orders", "stock"):
            lock = client.get_lock(name)
            lock.on_lost(slow)
            lock.on_lost(lambda lost: calls.append(lost.name))
            await lock.lock(0.03)
        await backend.until(lambda: sorted(calls) == ["orders", "stock"])
        for name in ("orders", "stock"):
            assert await (await acquired(client.get_lock(name), 60)).is_held()
        with within(TIME_LIMIT / 2):
            await client.close()
        assert ended == []
        leave.set()
        await backend.until(lambda: ended == [True, True])

    async def test_calls_of_one_callback_come_in_turn(self, backend: Backend, client: Client, lock: Lock) -> None:
        at_work, most = list[int](), list[int]()

        def callback(_: Any) -> None:
            at_work.append(1)
            most.append(len(at_work))
            time.sleep(0.02)
            at_work.pop()

        lock.on_lost(callback)
        for owner in range(4):
            await client.get_lock("orders", owner=owner).lock(60)
            await lock.force_unlock()
        await backend.until(lambda: len(most) == 4)
        assert most == [1] * 4

    async def test_the_number_of_threads_is_bounded(self, backend: Backend, lock: Lock) -> None:
        ended, leave = list[bool](), threading.Event()
        for _ in range(40):
            lock.on_lost(lambda _: ended.append(leave.wait(TIME_LIMIT)))
        # Threads of the test before may end only now.
        before = set(threading.enumerate())

        def started() -> int:
            return sum(each.name == "pyredisson-on-lost" for each in set(threading.enumerate()) - before)

        await lock.lock(0.03)
        await backend.until(lambda: started() >= 16)
        assert started() <= 16
        leave.set()
        await backend.until(lambda: len(ended) == 40)

    @pytest.mark.parametrize("group", [False, True])
    async def test_removing_it(self, backend: Backend, client: Any, lock: Any, *, group: bool) -> None:
        calls, kept = list[Any](), list[Any]()
        if group:
            lock = client.get_multi_lock(lock, client.get_lock("other"))
        again = lock if group else client.get_lock("orders")
        # A bound method is another object each time. It is registered twice.
        for _ in range(2):
            lock.on_lost(calls.append)
        assert client.get_lock("stock").remove_on_lost(calls.append) is False
        # Any handle of the name will do.
        assert again.remove_on_lost(calls.append) is True
        lock.on_lost(kept.append)
        await lock.lock(0.03)
        await backend.until(lambda: bool(kept and calls))
        assert len(calls) == 1
        assert [lock.remove_on_lost(each) for each in (calls.append, calls.append, kept.append)] == [True, False, True]
        assert not client._session.lost_callbacks._registered

    async def test_a_coroutine_function(self, tasks: Backend) -> None:
        lock = tasks.connect().get_lock("orders")
        calls = list[Any]()

        @lock.on_lost
        async def callback(lost: Lock) -> None:
            await asyncio.sleep(0)
            calls.append((lost.name, threading.get_ident()))

        await lock.lock(0.03)
        await tasks.until(lambda: calls == [("orders", threading.get_ident())])


async def kept(backend: Backend, redis: Any, names: list[str], seconds: float) -> float:
    """How long these locks are on the server with the short lease, `seconds` at most."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds and redis.exists(*names) == len(names):
        ttls = [redis.pttl(name) for name in names]
        # -2: it has ended between the two commands.
        assert all(ttl == -2 or 0 <= ttl <= 1000 * LEASE for ttl in ttls)
        await backend.sleep(0.05)
    return passed


@pytest.mark.parametrize("limit", ["at_most", "lease_time"])
async def test_at_most(backend: Backend, redis: Any, limit: str) -> None:
    """The watchdog keeps a lock of every kind until then, and renews no fixed lease."""
    client = backend.connect(lock_watchdog_timeout=LEASE)
    locks = {kind: lock_of(client, kind, kind) for kind in [*KINDS, *GROUPS]}
    seconds = AT_MOST if limit == "at_most" else LEASE - 1
    for number, lock in enumerate(locks.values()):
        if number % 2:
            await lock.lock(**{limit: timedelta(seconds=seconds)})
        else:
            assert await lock.try_lock(1, **{limit: seconds})
    assert seconds - 1 < await kept(backend, redis, list(locks), 10 * AT_MOST) < seconds + 1
    await backend.until(lambda: not redis.exists(*locks))
    for lock in locks.values():
        await backend.until(lock.lost.is_set)
        assert not await lock.is_held()
        await fails(LockLostError, lock.unlock, match="at_most" if limit == "at_most" else None)
        # One that isn't re-entrant doesn't refuse its owner for that.
        await use(lock)
    assert left(redis) == {"redisson_lock_token:{fenced}"}


async def test_a_lease_of_its_own(backend: Backend, redis: Any, proxy: Proxy) -> None:
    client, lease = backend.connect(proxy.url), timedelta(seconds=LEASE)
    # A short lease of a lock leaves time for another renewal, as a short lease of the client does.
    fault = proxy.drop_reply(RENEW)
    read, write = (client.get_read_write_lock(name, watchdog_timeout=LEASE) for name in ("read", "write"))
    kinds = ("lock", "fair_lock", "fenced_lock", "non_reentrant_lock", "non_reentrant_fair_lock")
    locks = [
        *(getattr(client, f"get_{kind}")(kind, watchdog_timeout=LEASE) for kind in kinds),
        *(client.get_spin_lock("spin", watchdog_timeout=lease), read.read_lock(), write.write_lock()),
    ]
    names, usual = [lock.name for lock in locks] + ["red"], client.get_lock("usual")
    locks += [client.get_red_lock(client.get_lock("red", watchdog_timeout=LEASE)), usual]
    await in_turn(lock.lock for lock in locks)
    assert redis.pttl("usual") > 20_000
    assert await kept(backend, redis, names, 1.5 * LEASE) >= 1.5 * LEASE
    assert (fault.happened.is_set(), redis.pttl("usual") > 20_000) == (True, True)
    await in_turn(lock.unlock for lock in locks)
    assert left(redis) <= {"redisson_lock_token:{fenced_lock}"}


async def test_a_lock_that_was_handed_on(backend: Backend, redis: Any) -> None:
    """The lease and the limit of the next owner count."""
    client = backend.connect(lock_watchdog_timeout=60, local_hand_over_time=60)
    holder, _, _ = await one_waits(backend, client)
    waiter = client.get_lock("orders", owner=3, watchdog_timeout=LEASE)
    other = backend.spawn(lambda: waiter.lock(at_most=AT_MOST))
    await holder.unlock()
    await client.get_lock("orders", owner=2).unlock()
    await other.result()
    assert AT_MOST / 2 < await kept(backend, redis, ["orders"], 10 * AT_MOST) < AT_MOST + 1


async def test_nested_levels(tasks: Backend) -> None:
    """As long as any level is renewed without a limit, the hold is."""
    lock = tasks.connect(lock_watchdog_timeout=LEASE).get_lock("orders")
    for outer, inner in ((None, 0.5), (0.5, None)):
        await in_turn(partial(lock.lock, at_most=limit) for limit in (outer, inner))
        await tasks.sleep(LEASE + 1)
        assert await lock.get_hold_count() == 2
        await lock.unlock()
        if outer is None:
            await lock.unlock()
    await tasks.until(lock.lost.is_set)
    await fails(LockLostError, lock.unlock, match="at_most")


async def test_a_limit_below_the_lease_needs_no_renewal(backend: Backend, redis: Any, proxy: Proxy) -> None:
    client = backend.connect(proxy.url, lock_watchdog_timeout=60)
    locks = [client.get_lock("orders"), client.get_read_write_lock("stock").read_lock()]
    await in_turn(partial(lock.lock, at_most=AT_MOST) for lock in locks)
    assert all(1000 * (AT_MOST - 1) < redis.pttl(name) <= 1000 * AT_MOST for name in ("orders", "stock"))
    await backend.until(lambda: all(lock.lost.is_set() for lock in locks))
    assert not proxy.seen(RENEW)


@pytest.mark.parametrize("extends", [True, False])
async def test_a_reply_that_comes_after_the_lease(backend: Backend, redis: Any, proxy: Proxy, extends: bool) -> None:
    """What is extended then must not keep others out for the new lease. Or the server has said that it is held."""
    lock = await acquired(backend.connect(proxy.url, timeout=20).get_lock("orders", owner=1), 1)
    late = proxy.hold_reply(RENEW if extends else b"HGET")
    call = await backend.begin(partial(lock.extend, 60) if extends else lock.get_hold_count, late.held.is_set)
    await backend.until(lock.lost.is_set)
    late.deliver()
    if extends:
        await fails(LockLostError, call.result)
    else:
        assert await call.result() == 0
    await backend.until(lambda: not redis.exists("orders"))


async def test_an_extension_ends_at_the_limit(backend: Backend, redis: Any) -> None:
    client: Any = backend.connect()
    lock = await acquired(client.get_lock("orders", watchdog_timeout=LEASE), at_most=10)
    await lock.extend(60)
    assert 5000 < redis.pttl("orders") <= 10_000
    # Not if the hold may last for longer by another level.
    await lock.lock()
    await lock.extend(60)
    assert redis.pttl("orders") > 50_000
    assert "renewed, at most 90 s" in repr(lock.hold(at_most=timedelta(minutes=1.5)))
    await client.get_lock("stock").lock(at_most=90)
    hold = client.holds()[-1]
    assert (hold.name, hold.renewed, hold.valid_for > 20) == ("stock", True, True)


async def test_a_red_lock_acquires_its_members_again(tasks: Backend, redis: Any) -> None:
    """As long as the limit allows. A fixed lease is extended as long as there is a majority."""
    client = tasks.connect(lock_watchdog_timeout=LEASE)
    red = await acquired(client.get_red_lock(*[client.get_lock(name) for name in "abc"]), 5)
    redis.delete("a")
    await red.extend(60)
    assert [redis.pttl(name) > 50_000 for name in "abc"] == [False, True, True]
    redis.delete("b")
    await fails(LockLostError, red.extend, 60)
    await fails(LockLostError, red.unlock)
    await tasks.until(lambda: not redis.exists("a", "b", "c"))
    await red.lock(at_most=2 * LEASE)
    for name in "ab":
        redis.delete(name)
        await tasks.until(lambda: redis.exists("a", "b", "c") == 3)
    await tasks.until(red.lost.is_set)
    await tasks.until(lambda: not redis.exists("a", "b", "c"))
