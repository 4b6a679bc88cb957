"""Every kind of lock, held on one side and asked for on the other; and names, from which both derive the same keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import pyredisson
from pyredisson import LockTimeoutError
from tests.support.backends import Backend

from .jvm import JavaClient, JavaError, Jvm, now
from .targets import (
    NON_REENTRANT,
    OVERSLEEPS,
    REENTRANT,
    WOKEN,
    Target,
    acquired,
    against,
    field_of,
    kinds_of,
    python_lock,
    wakes,
)

pytestmark = pytest.mark.asyncio

ALL = (*REENTRANT, *NON_REENTRANT)


@pytest.mark.parametrize("kind", ALL)
class TestWaiting:
    @pytest.mark.parametrize("method", ["unlock", "forceUnlock"])
    async def test_python_waits_for_java(
        self, kind: str, method: str, backend: Backend, java: JavaClient, target: Target
    ) -> None:
        theirs, ours = java.get(kind, "orders"), python_lock(backend.connect(), against(kind), "orders")
        java.ann.call(theirs, "lock")
        waiter = backend.spawn(acquired(ours))
        await backend.until(target.waiting(against(kind), "orders"))
        assert not waiter.done()
        released = (java.ann if method == "unlock" else java.bob).begin(theirs, method).answer()
        assert released.began < await waiter.result() < released.ended + WOKEN
        assert not target.holds("orders")

    @pytest.mark.parametrize("method", ["unlock", "force_unlock"])
    async def test_java_waits_for_python(
        self, kind: str, method: str, backend: Backend, java: JavaClient, target: Target
    ) -> None:
        ours, theirs = python_lock(backend.connect(), kind, "orders"), java.get(against(kind), "orders")
        await ours.lock()
        waiter = java.ann.begin(theirs, "lock")
        await target.until_java_waits(backend, against(kind), "orders", threads=[java.ann])
        assert not waiter.done()
        await wakes(waiter, getattr(ours, method))
        java.ann.call(theirs, "unlock")
        assert not target.holds("orders")

    async def test_a_time_limit(self, kind: str, backend: Backend, java: JavaClient) -> None:
        client = backend.connect()
        java.ann.call(java.get(kind, "orders"), "lock")
        began = now()
        assert not await python_lock(client, against(kind), "orders").try_lock(wait_time=0.2)
        assert 0.199 < now() - began < 0.2 + WOKEN
        java.ann.call(java.get(kind, "orders"), "unlock")

        await python_lock(client, kind, "orders").lock()
        refused = java.bob.begin(java.get(against(kind), "orders"), "tryLock", 200, "MILLISECONDS").answer()
        assert refused.result is False
        assert 0.199 < refused.ended - refused.began < 0.2 + WOKEN
        assert not java.bob.call(java.get(against(kind), "orders"), "tryLock")


@pytest.mark.parametrize("kind", ALL)
async def test_a_hold_of_java(kind: str, backend: Backend, java: JavaClient, target: Target) -> None:
    """Of its holder the ids are known, and for how long the lock lasts. Python doesn't release it, but removes it."""
    client = backend.connect()
    theirs, ours = java.get(kind, "orders"), python_lock(client, kind, "orders")
    levels = 3 if kind in REENTRANT else 1
    for level in range(levels):
        java.ann.call(theirs, "lock")
        assert kind not in REENTRANT or java.ann.call(theirs, "getHoldCount") == level + 1
    assert target.holds("orders") == {field_of(kind, java.owner(java.ann)): levels}
    holder = await ours.holder()
    assert (holder.client_id, holder.owner_id, holder.foreign) == (java.id, java.ann.id, True)
    assert (holder.client_name, holder.host, holder.pid, holder.since) == (None,) * 4
    # Redisson adds a lease for each level of a writer.
    assert 0 < holder.time_to_live <= 30 * levels
    said = rf"is held by .*a client of Redisson \({java.id}, thread {java.ann.id}\)"
    with pytest.raises(LockTimeoutError, match=said):
        await python_lock(client, against(kind), "orders").hold(wait_time=0.02).__aenter__()
    with pytest.raises(pyredisson.LockNotHeldError) as refused:
        await ours.unlock()
    said_by_error = refused.value.holder
    assert said_by_error is not None
    assert (said_by_error.client_id, said_by_error.owner_id) == (java.id, java.ann.id)
    assert (await ours.is_locked(), await ours.is_held()) == (True, False)
    assert kind not in REENTRANT or await ours.get_hold_count() == 0
    for _ in range(levels):
        assert not await python_lock(client, against(kind), "orders").try_lock()
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
    before = target.holds("orders")
    with pytest.raises(JavaError) as refused:
        java.ann.call(theirs, "unlock")
    assert refused.value.name == "IllegalMonitorStateException"
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
    with pytest.raises(pyredisson.LockLostError):
        await ours.unlock()
    assert not target.holds("orders")


class TestLeases:
    """All kinds at once, because each test waits until the leases end."""

    async def test_of_java(self, backend: Backend, java: JavaClient, version: str) -> None:
        client = backend.connect()
        waiters = []
        began = now()
        for kind in kinds_of(version):
            java.ann.call(java.get(kind, kind), "lock", 1500, "MILLISECONDS")
            ours = python_lock(client, against(kind), kind)
            assert 0 < await ours.remain_time_to_live() <= 1.5
            waiters.append(backend.spawn(acquired(ours)))
        locked = now()
        for waiter in waiters:
            assert began + 1.5 < await waiter.result() < locked + 1.5 + WOKEN

    async def test_of_python(self, backend: Backend, java: JavaClient, jvm: Jvm, version: str) -> None:
        client = backend.connect()
        kinds = [kind for kind in kinds_of(version) if (kind, version) not in OVERSLEEPS]
        waiters = []
        began = now()
        for kind in kinds:
            thread, theirs = jvm.thread(), java.get(against(kind), kind)
            # Loads the classes before the lease begins.
            thread.call(theirs, "isLocked")
            assert await python_lock(client, kind, kind).try_lock(lease_time=1.5)
            assert 0 < thread.call(theirs, "remainTimeToLive") <= 1500
            waiters.append(thread.begin(theirs, "tryLock", 10, "SECONDS"))
        locked = now()
        for waiter in waiters:
            answer = waiter.answer()
            assert answer.result is True
            assert began + 1.499 < answer.ended < locked + 1.5 + WOKEN


UNEVEN = "x}y"
"""Java and Redis find no hash tag in it. With the braces that a companion key adds, the tag is `x`."""
NAMES = ("a b", "{tag}orders", "orders{tag}:1", "größe", UNEVEN, "a:b:{c}", 'say "yes"')
PREFIXES = ("shop:", "{shop}:")
UNMAPPED_QUEUES = {("FairLock", "3.27.2")}
"""Such a version maps the name of the lock, but not the names of its queue. See docs/redisson.md."""


def names_on(target: Target, *, of_latches: bool = False) -> list[str]:
    """The names that both sides can use there."""
    if target.name == "single":
        return list(NAMES)
    # Python refuses a name whose keys would be on different slots. In Java the channel of such a latch is elsewhere.
    return [name for name in NAMES if name != UNEVEN and not (of_latches and "{" in name)]


async def test_a_name_that_parts_its_keys_on_a_cluster(backend: Backend, java: JavaClient, target: Target) -> None:
    client = backend.connect()
    if target.name == "single":
        async with client.get_lock(UNEVEN):
            assert not java.ann.call(java.get("Lock", UNEVEN), "tryLock")
    else:
        with pytest.raises(ValueError, match="slot"):
            client.get_lock(UNEVEN)


@pytest.mark.parametrize("kind", ["Lock", "FairLock", "WriteLock"])
async def test_names_of_locks(kind: str, backend: Backend, java: JavaClient, target: Target) -> None:
    client = backend.connect()
    for name in names_on(target):
        ours, theirs = python_lock(client, kind, name), java.get(kind, name)
        before = target.scripts()
        await ours.lock()
        waiter = java.ann.begin(theirs, "lock")
        # The attempt before the subscription, and the one after it.
        await backend.until(lambda before=before: target.scripts() >= before + 3)  # type: ignore[misc]
        # See `until_java_waits`.
        await backend.until(java.ann.sleeps)
        assert not waiter.done()
        await wakes(waiter, ours.unlock)
        java.ann.call(theirs, "unlock")
        assert name not in target.all_keys()


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("kind", ["Lock", "FairLock", "WriteLock"])
async def test_mapped_names_of_locks(
    kind: str,
    prefix: str,
    version: str,
    backend: Backend,
    connect_java: Callable[..., JavaClient],
    target: Target,
) -> None:
    """What both sides map to one name is one lock, whichever of them waits. Nothing has the name that isn't mapped."""
    if (kind, version) in UNMAPPED_QUEUES:
        pytest.skip("its queue has the name that isn't mapped")
    java, mapped = connect_java(prefix=prefix), f"{prefix}orders"
    ours = python_lock(backend.connect(name_mapper=lambda name: prefix + name), kind, "orders")
    theirs, plain = java.get(kind, "orders"), python_lock(backend.connect(), kind, mapped)
    await ours.lock()
    assert mapped in target.all_keys()
    assert not await backend.as_another_owner(plain.try_lock)
    waiter = java.ann.begin(theirs, "lock")
    await target.until_java_waits(backend, kind, mapped, threads=[java.ann])
    await wakes(waiter, ours.unlock)

    waiting = backend.spawn(acquired(ours))
    await backend.until(target.waiting(kind, mapped))
    assert "orders" not in target.all_keys()
    released = java.ann.begin(theirs, "unlock").answer()
    assert await waiting.result() < released.ended + WOKEN


@pytest.mark.parametrize("prefix", ["", PREFIXES[0]])
async def test_names_of_counts(
    prefix: str, backend: Backend, connect_java: Callable[..., JavaClient], target: Target
) -> None:
    """Also names that both sides map. Nothing has the name that isn't mapped."""
    java, client = connect_java(prefix=prefix), backend.connect(name_mapper=lambda name: prefix + name)
    for name in ["orders"] if prefix else names_on(target):
        permits = client.get_permit_expirable_semaphore(f"{name} permits")
        assert await permits.try_set_permits(1)
        await permits.release(java.ann.call(java.get("PermitExpirableSemaphore", f"{name} permits"), "acquire"))

        assert await client.get_semaphore(name).try_set_permits(0)
        waiter = java.ann.begin(java.get("Semaphore", name), "acquire")
        await target.until_java_waits(backend, "Semaphore", prefix + name)
        await wakes(waiter, client.get_semaphore(name).release)
    for name in ["orders"] if prefix else names_on(target, of_latches=True):
        latch = client.get_count_down_latch(f"{name} latch")
        assert await latch.try_set_count(1)
        waiter = java.ann.begin(java.get("CountDownLatch", f"{name} latch"), "await")
        await target.until_java_waits(backend, "CountDownLatch", f"{prefix}{name} latch")
        await wakes(waiter, latch.count_down)
    assert not prefix or not [key for key in target.all_keys() if key.startswith(("orders", "{orders"))]
