"""How a lock is renewed: with a lease of its own (`watchdog_timeout`), and not beyond a limit (`at_most`)."""

import time
from datetime import timedelta
from typing import Any

import pytest

from pyredisson import LockLostError
from pyredisson.testing import Proxy
from tests.support.backends import Backend, fails
from tests.support.faults import RENEW
from tests.support.kinds import KINDS, acquired

from .kinds import GROUPS, left, lock_of, one_waits, use

LEASE = 3.0
AT_MOST = 4.0


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
    for lock in locks:
        await lock.lock()
    assert redis.pttl("usual") > 20_000
    assert await kept(backend, redis, names, 1.5 * LEASE) >= 1.5 * LEASE
    assert (fault.happened.is_set(), redis.pttl("usual") > 20_000) == (True, True)
    for lock in locks:
        await lock.unlock()
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
        await lock.lock(at_most=outer)
        await lock.lock(at_most=inner)
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
    for lock in locks:
        await lock.lock(at_most=AT_MOST)
    assert all(1000 * (AT_MOST - 1) < redis.pttl(name) <= 1000 * AT_MOST for name in ("orders", "stock"))
    for lock in locks:
        await backend.until(lock.lost.is_set)
    assert not proxy.seen(RENEW)


async def test_an_extension_that_comes_after_the_lease(backend: Backend, redis: Any, proxy: Proxy) -> None:
    """It is no hold any more, and must not keep others out for the new lease."""
    client = backend.connect(proxy.url, timeout=20)
    lock = await acquired(client.get_lock("orders", owner=1), 1)
    late = proxy.hold_reply(RENEW)
    call = await backend.begin(lambda: lock.extend(60), late.held.is_set)
    await backend.until(lock.lost.is_set)
    late.deliver()
    await fails(LockLostError, call.result)
    await backend.until(lambda: not redis.exists("orders"))


async def test_an_extension_ends_at_the_limit(client: Any, lock: Any, redis: Any) -> None:
    await lock.lock(at_most=10)
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
