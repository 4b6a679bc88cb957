"""The watchdog of each side beside that of the other, and holders that are killed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.backends import Backend
from tests.support.children import CHILD_LIMIT, Child

from .jvm import JavaClient, Jvm, now
from .targets import OVERSLEEPS, REENTRANT, WOKEN, Target, acquired, against, python_lock

pytestmark = pytest.mark.asyncio

TIMEOUT = 2.0
"""Seconds of `lock_watchdog_timeout`, and of Redisson's lockWatchdogTimeout."""
HOLDS = """
import sys, time, pyredisson
from tests.interop.targets import python_lock
client = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=float(sys.argv[2]))
for kind in sys.argv[3:]:
    python_lock(client, kind, kind).lock()
print("held")
time.sleep(60)
"""
"""A Python process that holds a lock of each of these kinds."""


async def test_all_kinds_beside_each_other(
    backend: Backend, connect_java: Callable[..., JavaClient], target: Target
) -> None:
    """Each side holds a lock of each kind for much longer than the lease, and both read under one lock.

    Java's renewal sets the lease of the whole lock to its own, which is the shorter one.
    """
    java, client = connect_java(lockWatchdogTimeout=int(TIMEOUT * 1000)), backend.connect(lock_watchdog_timeout=TIMEOUT)
    theirs = [java.get(kind, f"java {kind}") for kind in REENTRANT]
    ours = [python_lock(client, kind, f"python {kind}") for kind in REENTRANT]
    held = {*(f"java {kind}" for kind in REENTRANT), *(f"python {kind}" for kind in REENTRANT)}
    reads_in_java = java.get("ReadLock", "both")
    reads = python_lock(backend.connect(lock_watchdog_timeout=2 * TIMEOUT), "ReadLock", "both")
    writer = python_lock(backend.connect(), "WriteLock", "both")
    for lock in [*ours, reads]:
        await lock.lock()
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


KILLED = ("Lock", "FairLock", "ReadLock", "WriteLock")


class TestKilledHolders:
    """Nothing is published; the leases end."""

    async def test_of_java(self, backend: Backend, own_jvm: Jvm, target: Target) -> None:
        client = own_jvm.connect(target.yaml(lockWatchdogTimeout=int(TIMEOUT * 1000)))
        thread, ours = own_jvm.thread(), backend.connect()
        for kind in KILLED:
            thread.call(client.get(kind, kind), "lock")
        waiters = [backend.spawn(acquired(python_lock(ours, against(kind), kind))) for kind in KILLED]
        for kind in KILLED:
            await backend.until(target.waiting(against(kind), kind))
        await backend.sleep(TIMEOUT)
        assert not any(waiter.done() for waiter in waiters)
        own_jvm.kill()
        killed = now()
        for waiter in waiters:
            assert killed < await waiter.result() < killed + TIMEOUT + WOKEN

    async def test_of_python(
        self, backend: Backend, java: JavaClient, jvm: Jvm, target: Target, child: Callable[..., Child], version: str
    ) -> None:
        holder = child(HOLDS, target.url, TIMEOUT, *KILLED)
        assert holder.receive(CHILD_LIMIT) == "held"
        kinds = [kind for kind in KILLED if (kind, version) not in OVERSLEEPS]
        waiters = [jvm.thread().begin(java.get(against(kind), kind), "lock") for kind in kinds]
        for kind in kinds:
            await backend.until(target.waiting(against(kind), kind))
        await backend.sleep(TIMEOUT)
        assert not any(waiter.done() for waiter in waiters)
        holder.close()
        killed = now()
        for waiter in waiters:
            assert killed < waiter.answer().ended < killed + TIMEOUT + WOKEN

    async def test_of_a_fair_lock_for_which_both_wait(
        self, backend: Backend, java: JavaClient, target: Target, child: Callable[..., Child]
    ) -> None:
        """A waiter in Python sees to it that one of Java which oversleeps is woken."""
        holder = child(HOLDS, target.url, TIMEOUT, "FairLock")
        assert holder.receive(CHILD_LIMIT) == "held"
        in_java = java.ann.begin(java.get("FairLock", "FairLock"), "lock")
        java.ann.begin(java.get("FairLock", "FairLock"), "unlock")
        await backend.until(target.waiting("FairLock", "FairLock"))
        in_python = backend.spawn(acquired(backend.connect().get_fair_lock("FairLock")))
        await backend.until(target.waiting("FairLock", "FairLock", 2))
        await backend.sleep(TIMEOUT)
        holder.close()
        killed = now()
        await backend.until(in_java.done)
        ended = in_java.answer().ended
        assert killed < ended < killed + TIMEOUT + 1 + WOKEN
        assert ended < await in_python.result() < ended + WOKEN
