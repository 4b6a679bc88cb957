"""Every kind of lock, held on one side and asked for on the other."""

from __future__ import annotations

import pytest

import pyredisson
from pyredisson import LockTimeoutError
from tests.support.backends import Backend

from .jvm import JavaClient, JavaError, JavaThread, Jvm, now
from .kinds import NON_REENTRANT, OVERSLEEPS, REENTRANT, WOKEN, acquired, against, field_of, kinds_of, python_lock
from .targets import Target

pytestmark = pytest.mark.asyncio

ALL = (*REENTRANT, *NON_REENTRANT)


@pytest.mark.parametrize("kind", ALL)
class TestWaiting:
    async def test_python_waits_for_java(
        self, kind: str, backend: Backend, java: JavaClient, ann: JavaThread, target: Target
    ) -> None:
        theirs, ours = java.get(kind, "orders"), python_lock(backend.connect(), against(kind), "orders")
        ann.call(theirs, "lock")
        waiter = backend.spawn(acquired(ours))
        await backend.until(target.waiting(against(kind), "orders"))
        assert not waiter.done()
        released = ann.begin(theirs, "unlock").answer()
        assert released.began < await waiter.result() < released.ended + WOKEN
        assert not target.holds("orders")

    async def test_java_waits_for_python(
        self, kind: str, backend: Backend, java: JavaClient, ann: JavaThread, target: Target
    ) -> None:
        ours, theirs = python_lock(backend.connect(), kind, "orders"), java.get(against(kind), "orders")
        await ours.lock()
        waiter = ann.begin(theirs, "lock")
        await target.until_java_waits(backend, against(kind), "orders", threads=[ann])
        assert not waiter.done()
        began = now()
        await ours.unlock()
        assert began < waiter.answer().ended < now() + WOKEN
        ann.call(theirs, "unlock")
        assert not target.holds("orders")

    async def test_a_time_limit(
        self, kind: str, backend: Backend, java: JavaClient, ann: JavaThread, bob: JavaThread
    ) -> None:
        client = backend.connect()
        ann.call(java.get(kind, "orders"), "lock")
        began = now()
        assert not await python_lock(client, against(kind), "orders").try_lock(wait_time=0.2)
        assert 0.199 < now() - began < 0.2 + WOKEN
        ann.call(java.get(kind, "orders"), "unlock")

        await python_lock(client, kind, "orders").lock()
        refused = bob.begin(java.get(against(kind), "orders"), "tryLock", 200, "MILLISECONDS").answer()
        assert refused.result is False
        assert 0.199 < refused.ended - refused.began < 0.2 + WOKEN
        assert not bob.call(java.get(against(kind), "orders"), "tryLock")


@pytest.mark.parametrize("kind", REENTRANT)
async def test_the_holder(kind: str, backend: Backend, java: JavaClient, ann: JavaThread) -> None:
    """Of Java's holders the ids are known, and for how long the lock lasts."""
    client_id, _, thread = java.owner(ann).partition(":")
    client = backend.connect()
    ann.call(java.get(kind, "orders"), "lock")
    holder = await python_lock(client, kind, "orders").holder()
    assert (holder.client_id, holder.owner_id, holder.foreign) == (client_id, int(thread), True)
    assert (holder.client_name, holder.host, holder.pid, holder.since) == (None,) * 4
    assert 0 < holder.time_to_live <= 30
    said = rf"is held by .*a client of Redisson \({client_id}, thread {thread}\)"
    with pytest.raises(LockTimeoutError, match=said):
        await python_lock(client, against(kind), "orders").hold(wait_time=0.02).__aenter__()
    ann.call(java.get(kind, "orders"), "unlock")
    assert await python_lock(client, kind, "orders").holder() is None


@pytest.mark.parametrize("kind", REENTRANT)
class TestNested:
    async def test_levels_in_java(
        self, kind: str, backend: Backend, java: JavaClient, ann: JavaThread, target: Target
    ) -> None:
        theirs, ours = java.get(kind, "orders"), python_lock(backend.connect(), against(kind), "orders")
        for levels in (1, 2, 3):
            ann.call(theirs, "lock")
            assert ann.call(theirs, "getHoldCount") == levels
        assert target.holds("orders") == {field_of(kind, java.owner(ann)): 3}
        assert await ours.get_hold_count() == 0
        for _ in range(3):
            assert not await ours.try_lock()
            ann.call(theirs, "unlock")
        assert await ours.try_lock()

    async def test_levels_in_python(
        self, kind: str, backend: Backend, java: JavaClient, ann: JavaThread, target: Target
    ) -> None:
        ours, theirs = python_lock(backend.connect(), kind, "orders"), java.get(against(kind), "orders")
        for levels in (1, 2, 3):
            await ours.lock()
            assert await ours.get_hold_count() == levels
        assert list(target.holds("orders").values()) == [3]
        assert ann.call(theirs, "getHoldCount") == 0
        for _ in range(3):
            assert not ann.call(theirs, "tryLock")
            await ours.unlock()
        assert ann.call(theirs, "tryLock")


class TestLeases:
    """All kinds at once, because each test waits until the leases end."""

    async def test_of_java(self, backend: Backend, java: JavaClient, ann: JavaThread, version: str) -> None:
        client = backend.connect()
        waiters = []
        began = now()
        for kind in kinds_of(version):
            ann.call(java.get(kind, kind), "lock", 1500, "MILLISECONDS")
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


@pytest.mark.parametrize("kind", ALL)
class TestForeignHolds:
    async def test_java_does_not_release_a_hold_of_python(
        self, kind: str, backend: Backend, java: JavaClient, ann: JavaThread, target: Target
    ) -> None:
        ours, theirs = python_lock(backend.connect(), kind, "orders"), java.get(kind, "orders")
        await ours.lock()
        before = target.holds("orders")
        with pytest.raises(JavaError) as refused:
            ann.call(theirs, "unlock")
        assert refused.value.name == "IllegalMonitorStateException"
        assert target.holds("orders") == before
        assert ann.call(theirs, "isLocked")
        assert not ann.call(theirs, "isHeldByCurrentThread")
        await ours.unlock()
        assert not ann.call(theirs, "isLocked")

    async def test_python_does_not_release_a_hold_of_java(
        self, kind: str, backend: Backend, java: JavaClient, ann: JavaThread, target: Target
    ) -> None:
        ours, theirs = python_lock(backend.connect(), kind, "orders"), java.get(kind, "orders")
        ann.call(theirs, "lock")
        with pytest.raises(pyredisson.LockNotHeldError) as refused:
            await ours.unlock()
        holder = refused.value.holder
        assert holder is not None
        assert (holder.client_id, holder.owner_id) == (java.id, ann.id)
        assert target.holds("orders") == {field_of(kind, java.owner(ann)): 1}
        assert await ours.is_locked()
        assert not await ours.is_held()
        ann.call(theirs, "unlock")
        assert not await ours.is_locked()

    async def test_java_removes_a_hold_of_python(
        self, kind: str, backend: Backend, java: JavaClient, ann: JavaThread, target: Target
    ) -> None:
        ours, theirs = python_lock(backend.connect(), kind, "orders"), java.get(kind, "orders")
        await ours.lock()
        assert ann.call(theirs, "forceUnlock")
        assert not ann.call(theirs, "forceUnlock")
        with pytest.raises(pyredisson.LockLostError):
            await ours.unlock()
        assert not target.holds("orders")

    async def test_python_removes_a_hold_of_java(
        self, kind: str, backend: Backend, java: JavaClient, ann: JavaThread, target: Target
    ) -> None:
        ours, theirs = python_lock(backend.connect(), kind, "orders"), java.get(kind, "orders")
        ann.call(theirs, "lock")
        assert await ours.force_unlock()
        assert not await ours.force_unlock()
        assert not target.holds("orders")
        await ours.lock()
        assert not ann.call(theirs, "isHeldByCurrentThread")
        assert await ours.get_hold_count() == 1

    async def test_force_unlock_in_java_wakes_python(
        self, kind: str, backend: Backend, java: JavaClient, ann: JavaThread, bob: JavaThread, target: Target
    ) -> None:
        theirs, ours = java.get(kind, "orders"), python_lock(backend.connect(), against(kind), "orders")
        ann.call(theirs, "lock")
        waiter = backend.spawn(acquired(ours))
        await backend.until(target.waiting(against(kind), "orders"))
        removed = bob.begin(theirs, "forceUnlock").answer()
        assert removed.began < await waiter.result() < removed.ended + WOKEN

    async def test_force_unlock_in_python_wakes_java(
        self, kind: str, backend: Backend, java: JavaClient, ann: JavaThread, target: Target
    ) -> None:
        client = backend.connect()
        await python_lock(client, kind, "orders").lock()
        waiter = ann.begin(java.get(against(kind), "orders"), "lock")
        await target.until_java_waits(backend, against(kind), "orders", threads=[ann])
        began = now()
        assert await python_lock(client, kind, "orders").force_unlock()
        assert began < waiter.answer().ended < now() + WOKEN
