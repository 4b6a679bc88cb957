"""Every kind of lock, held on one side, asked for on the other; names, which both map to the same keys; watchdogs."""

from collections.abc import Callable
from typing import Any

import pytest

import pyredisson
from pyredisson import LockTimeoutError
from tests.support.backends import Asyncio, Backend, fails, in_turn
from tests.support.children import CHILD_LIMIT, Child
from tests.support.inspecting import listed

from .conftest import Connect
from .jvm import JavaClient, JavaError, Jvm, now
from .targets import ALL, OVERSLEEPS, REENTRANT, WOKEN, Target, acquired, against, kinds_of, python_lock, wakes

SHOWN_AS = {"FencedLock": "fenced", "ReadLock": "read-write", "WriteLock": "read-write"}
"""What the inspection says of a kind. A fair lock without waiters and a spin lock can't be told from a lock."""
UNEVEN = "x}y"
"""Java and Redis find no hash tag in it. With the braces that a companion key adds, the tag is `x`."""
NAMES = ("a b", "{tag}orders", "orders{tag}:1", "größe", UNEVEN, "a:b:{c}", 'say "yes"')
ONE_BACKEND = pytest.mark.parametrize("backend", [Asyncio], indirect=True, ids=["asyncio"])
"""For what doesn't depend on the backend: the mapping of names; renewals, which come from threads in both."""
UNMAPPED_QUEUES = {("FairLock", "3.27.2")}
"""Such a version maps the name of the lock, but not the names of its queue. See docs/redisson.md."""
TIMEOUT = 2.0
"""Seconds of `lock_watchdog_timeout`, and of Redisson's lockWatchdogTimeout."""
HOLDS = """
import sys, time, pyredisson
from tests.interop.targets import python_lock
client = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=float(sys.argv[2]))
for name in sys.argv[3:]:
    python_lock(client, name.partition(" ")[0], name).lock()
print("held")
time.sleep(60)
"""
"""A Python process that holds locks of these names, each of the kind that is its first word."""


async def hand_over(
    backend: Backend,
    java: JavaClient,
    target: Target,
    kind: str,
    *,
    name: str = "orders",
    client: Any = None,
    waits: Any = None,
    prefix: str = "",
    forced: bool = False,
) -> None:
    """Java waits for a holder in Python, and then Python for one in Java. Each release wakes the other side at once.

    `waits`: the client that waits in Python, if it isn't the one that holds the lock. `prefix`: what both sides put
    before the name. `forced`: the lock is released by force.
    """
    client, key, other = client or backend.connect(), prefix + name, against(kind)
    ours, theirs = python_lock(client, kind, name), java.get(other, name)
    await ours.lock()
    assert key in target.all_keys()
    waiter = java.ann.begin(theirs, "lock")
    await target.until_java_waits(backend, other, key, threads=[java.ann])
    assert not waiter.done()
    await wakes(waiter, ours.force_unlock if forced else ours.unlock)
    java.ann.call(theirs, "unlock")
    ours, theirs = python_lock(waits or client, other, name), java.get(kind, name)
    java.ann.call(theirs, "lock")
    waiting = backend.spawn(acquired(ours))
    await backend.until(target.waiting(other, key))
    assert not waiting.done()
    released = (java.bob.begin(theirs, "forceUnlock") if forced else java.ann.begin(theirs, "unlock")).answer()
    assert released.began < await waiting.result() < released.ended + WOKEN
    assert not target.holds(key)
    assert not prefix or name not in target.all_keys()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("forced", [False, True], ids=["unlock", "force_unlock"])
async def test_each_side_waits(kind: str, forced: bool, backend: Backend, java: JavaClient, target: Target) -> None:
    await hand_over(backend, java, target, kind, forced=forced)


@pytest.mark.parametrize("kind", ALL)
async def test_a_hold_of_java(kind: str, backend: Backend, java: JavaClient, target: Target) -> None:
    """Of its holder the ids are known, and for how long the lock lasts. Python doesn't release it, but removes it."""
    client = backend.connect()
    theirs, ours = java.get(kind, "orders"), python_lock(client, kind, "orders")
    levels = 3 if kind in REENTRANT else 1
    for level in range(levels):
        java.ann.call(theirs, "lock")
        assert kind not in REENTRANT or java.ann.call(theirs, "getHoldCount") == level + 1
    field = f"{java.id}:{java.ann.id}" + (":write" if kind == "WriteLock" else "")
    assert target.holds("orders") == {field: levels}
    state = (await listed(client))["orders"]
    [owner] = state.owners
    assert (state.kind, state.held) == (SHOWN_AS.get(kind, "lock"), True)
    assert (owner.raw, owner.levels, owner.holder.host) == (field, levels, None)
    assert 20 < (owner.holder.time_to_live or 0) <= 30 * levels
    holder = await ours.holder()
    assert (holder.client_id, holder.owner_id, holder.foreign) == (java.id, java.ann.id, True)
    assert (holder.client_name, holder.host, holder.pid, holder.since) == (None,) * 4
    # Redisson adds a lease for each level of a writer.
    assert 0 < await ours.remain_time_to_live() <= holder.time_to_live <= 30 * levels
    said = rf"is held by .*a client of Redisson \({java.id}, thread {java.ann.id}\)"
    excluded = python_lock(client, against(kind), "orders")
    await fails(LockTimeoutError, excluded.hold(wait_time=0.02).__aenter__, match=said)
    named: Any = (await fails(pyredisson.LockNotHeldError, ours.unlock)).holder
    assert (named.client_id, named.owner_id) == (java.id, java.ann.id)
    assert (await ours.is_locked(), await ours.is_held()) == (True, False)
    assert kind not in REENTRANT or await ours.get_hold_count() == 0
    for _ in range(levels):
        assert not await excluded.try_lock()
        java.ann.call(theirs, "unlock")
    assert not await ours.is_locked()
    assert await ours.holder() is None
    java.ann.call(theirs, "lock")
    assert await ours.force_unlock()
    assert not await ours.force_unlock()
    assert not target.holds("orders")
    await ours.lock()
    assert not java.ann.call(theirs, "isHeldByCurrentThread")
    assert not java.bob.call(java.get(against(kind), "orders"), "tryLock")


@pytest.mark.parametrize("kind", ALL)
async def test_a_hold_of_python(kind: str, backend: Backend, java: JavaClient, target: Target) -> None:
    """Java doesn't release it, but removes it."""
    ours, theirs = python_lock(backend.connect(), kind, "orders"), java.get(kind, "orders")
    levels = 3 if kind in REENTRANT else 1
    for level in range(levels):
        await ours.lock()
        assert kind not in REENTRANT or await ours.get_hold_count() == level + 1
    assert list(target.holds("orders").values()) == [levels]
    assert 0 < java.ann.call(theirs, "remainTimeToLive") <= 30_000
    before = target.holds("orders")
    with pytest.raises(JavaError, match=r"^IllegalMonitorStateException: "):
        java.ann.call(theirs, "unlock")
    assert target.holds("orders") == before
    assert java.ann.call(theirs, "isLocked")
    assert not java.ann.call(theirs, "isHeldByCurrentThread")
    assert kind not in REENTRANT or java.ann.call(theirs, "getHoldCount") == 0
    for _ in range(levels):
        assert not java.ann.call(java.get(against(kind), "orders"), "tryLock")
        await ours.unlock()
    assert not java.ann.call(theirs, "isLocked")
    await ours.lock()
    assert java.ann.call(theirs, "forceUnlock")
    assert not java.ann.call(theirs, "forceUnlock")
    await fails(pyredisson.LockLostError, ours.unlock)
    assert not target.holds("orders")


def names_on(target: Target, *, of_latches: bool = False) -> list[str]:
    if target.name == "single":
        return list(NAMES)
    # Python refuses a name whose keys would be on different slots. In Java the channel of such a latch is elsewhere.
    return [name for name in NAMES if name != UNEVEN and not (of_latches and "{" in name)]


@ONE_BACKEND
@pytest.mark.parametrize("prefix", ["", "shop:", "{shop}:"])
@pytest.mark.parametrize("kind", ["Lock", "FairLock", "WriteLock"])
async def test_names_of_locks(
    kind: str, prefix: str, version: str, backend: Backend, connect_java: Connect, target: Target
) -> None:
    """What both sides map to one name is one lock. Nothing has the name that isn't mapped."""
    if prefix and (kind, version) in UNMAPPED_QUEUES:
        pytest.skip("its queue has the name that isn't mapped")
    java, client = connect_java(prefix=prefix), backend.connect(name_mapper=lambda name: prefix + name)
    for name in ["orders"] if prefix else names_on(target):
        await hand_over(backend, java, target, kind, name=name, client=client, prefix=prefix)
    async with python_lock(client, kind, "orders"):
        plain = python_lock(backend.connect(), kind, f"{prefix}orders")
        assert not await backend.as_another_owner(plain.try_lock)


@ONE_BACKEND
@pytest.mark.parametrize("prefix", ["", "shop:"])
async def test_names_of_counts(prefix: str, backend: Backend, connect_java: Connect, target: Target) -> None:
    """Each side waits for the other, also under names that both sides map. Nothing has the name that isn't mapped."""
    java, client = connect_java(prefix=prefix), backend.connect(name_mapper=lambda name: prefix + name)
    for name in ["orders"] if prefix else names_on(target):
        await hand_over_permits(backend, java, target, client.get_semaphore(name), "Semaphore", name, prefix)
        name = f"{name} permits"
        ours = client.get_permit_expirable_semaphore(name)
        await hand_over_permits(backend, java, target, ours, "PermitExpirableSemaphore", name, prefix)
    for name in ["orders"] if prefix else names_on(target, of_latches=True):
        latch = client.get_count_down_latch(f"{name} latch")
        assert await latch.try_set_count(1)
        waiter = java.ann.begin(java.get("CountDownLatch", f"{name} latch"), "await")
        await target.until_java_waits(backend, "CountDownLatch", f"{prefix}{name} latch")
        await wakes(waiter, latch.count_down)
    assert not prefix or not [key for key in target.all_keys() if key.startswith(("orders", "{orders"))]


async def hand_over_permits(
    backend: Backend, java: JavaClient, target: Target, ours: Any, kind: str, name: str, prefix: str
) -> None:
    """Java waits for the only permit, which Python has, and then Python for it. Each release wakes at once."""
    theirs, ids = java.get(kind, name), kind == "PermitExpirableSemaphore"
    assert await ours.try_set_permits(1)
    permit = await ours.acquire()
    waiter = java.ann.begin(theirs, "acquire")
    await target.until_java_waits(backend, kind, prefix + name)
    permit = await wakes(waiter, lambda: ours.release(permit) if ids else ours.release())

    async def acquire() -> tuple[Any, float]:
        return await ours.acquire(), now()

    waiting = await backend.begin(acquire, target.waiting(kind, prefix + name))
    assert not waiting.done()
    released = java.ann.begin(theirs, "release", *([permit] if ids else [])).answer()
    permit, then = await waiting.result()
    assert released.began < then < released.ended + WOKEN
    await (ours.release(permit) if ids else ours.release())


@ONE_BACKEND
async def test_all_kinds_are_renewed(backend: Backend, connect_java: Connect, target: Target) -> None:
    """Each side holds a lock of each kind for much longer than the lease, and both read under one lock.

    Java's renewal sets the lease of the whole lock to its own, which is the shorter one.
    """
    java, client = connect_java(lockWatchdogTimeout=int(TIMEOUT * 1000)), backend.connect(lock_watchdog_timeout=TIMEOUT)
    theirs = [java.get(kind, f"java {kind}") for kind in REENTRANT]
    ours = [python_lock(client, kind, f"python {kind}") for kind in REENTRANT]
    held = {f"{side} {kind}" for side in ("java", "python") for kind in REENTRANT}
    reads_in_java = java.get("ReadLock", "both")
    reads = python_lock(backend.connect(lock_watchdog_timeout=2 * TIMEOUT), "ReadLock", "both")
    writer = python_lock(backend.connect(), "WriteLock", "both")
    await in_turn(lock.lock for lock in (*ours, reads))
    for each in [*theirs, reads_in_java]:
        java.ann.call(each, "lock")
    end = now() + 2.5 * TIMEOUT
    while now() < end:
        for name in held:
            assert 0 < target.redis.pttl(name) <= TIMEOUT * 1000, name
        assert len(target.holds("both")) == 2
        assert not await writer.try_lock()
        await backend.sleep(0.05)
    for each in [*theirs, reads_in_java]:
        java.ann.call(each, "unlock")
    assert len(target.holds("both")) == 1
    assert not await writer.try_lock()
    for lock in [*ours, reads]:
        assert await lock.is_held()
        await lock.unlock()
    assert not held & target.all_keys()
    assert await writer.try_lock()


async def test_a_killed_holder_in_java(both: list[Backend], own_jvm: Jvm, target: Target) -> None:
    """Nothing is published; the leases end."""
    client = own_jvm.connect(target.yaml(lockWatchdogTimeout=int(TIMEOUT * 1000)))
    thread, clients = own_jvm.thread(), {backend: backend.connect() for backend in both}
    locks = [(backend, kind, f"{kind} {backend.name}") for backend in both for kind in kinds_of(own_jvm.version)]
    for _, kind, name in locks:
        thread.call(client.get(kind, name), "lock")
    waiters = [
        backend.spawn(acquired(python_lock(clients[backend], against(kind), name))) for backend, kind, name in locks
    ]
    for backend, kind, name in locks:
        await backend.until(target.waiting(against(kind), name))
    await both[0].sleep(TIMEOUT)
    assert not any(waiter.done() for waiter in waiters)
    own_jvm.kill()
    killed = now()
    for waiter in waiters:
        assert killed < await waiter.result() < killed + TIMEOUT + WOKEN


async def test_a_killed_holder_in_python(
    both: list[Backend], java: JavaClient, jvm: Jvm, target: Target, child: Callable[..., Child], version: str
) -> None:
    """For some fair locks both sides wait: a waiter in Python sees to it that one of Java which oversleeps is woken."""
    kinds = [kind for kind in kinds_of(version) if (kind, version) not in OVERSLEEPS]
    fair = [f"FairLock {backend.name}" for backend in both]
    holder = child(HOLDS, target.url, TIMEOUT, *kinds, *fair)
    assert holder.receive(CHILD_LIMIT) == "held"
    waiters = [jvm.thread().begin(java.get(against(kind), kind), "lock") for kind in kinds]
    for kind in kinds:
        await both[0].until(target.waiting(against(kind), kind))
    first = []
    for name in fair:
        thread = jvm.thread()
        locked, _ = (thread.begin(java.get("FairLock", name), method) for method in ("lock", "unlock"))
        first.append(locked)
        await both[0].until(target.waiting("FairLock", name))
    second = [
        backend.spawn(acquired(backend.connect().get_fair_lock(name))) for backend, name in zip(both, fair, strict=True)
    ]
    for name in fair:
        await both[0].until(target.waiting("FairLock", name, 2))
    await both[0].sleep(TIMEOUT)
    assert not any(waiter.done() for waiter in (*waiters, *first, *second))
    holder.close()
    killed = now()
    for in_java, in_python in zip(first, second, strict=True):
        await both[0].until(in_java.done)
        ended = in_java.answer().ended
        assert killed < ended < killed + TIMEOUT + 1 + WOKEN
        assert ended < await in_python.result() < ended + WOKEN
    for waiter in waiters:
        assert killed < waiter.answer().ended < killed + TIMEOUT + WOKEN
