"""Names with braces, blanks and other letters: both sides derive the same keys and channels from them."""

from __future__ import annotations

import pytest

from tests.support.backends import Backend

from .jvm import JavaClient, JavaThread, now
from .kinds import WOKEN, python_lock
from .targets import BEFORE_SLEEP, Target

pytestmark = pytest.mark.asyncio

NAMES = ("a b", "{tag}orders", "orders{tag}:1", "größe", "x}y", "a:b:{c}", 'say "yes"')


@pytest.mark.parametrize("kind", ["Lock", "FairLock", "WriteLock"])
@pytest.mark.parametrize("name", NAMES)
async def test_locks(kind: str, name: str, backend: Backend, java: JavaClient, ann: JavaThread, target: Target) -> None:
    ours, theirs = python_lock(backend.connect(), kind, name), java.get(kind, name)
    before = target.scripts()
    await ours.lock()
    waiter = ann.begin(theirs, "lock")
    # The attempt before the subscription, and the one after it.
    await backend.until(lambda: target.scripts() >= before + 3)
    await backend.sleep(BEFORE_SLEEP)
    assert not waiter.done()
    began = now()
    await ours.unlock()
    assert waiter.answer().ended < began + WOKEN
    ann.call(theirs, "unlock")
    assert not target.all_keys() & {name}


@pytest.mark.parametrize("name", NAMES)
async def test_counts(name: str, backend: Backend, java: JavaClient, ann: JavaThread, target: Target) -> None:
    client = backend.connect()
    permits = client.get_permit_expirable_semaphore(f"{name} permits")
    assert await permits.try_set_permits(1)
    permit = ann.call(java.get("PermitExpirableSemaphore", f"{name} permits"), "acquire")
    await permits.release(permit)

    assert await client.get_semaphore(name).try_set_permits(0)
    waiter = ann.begin(java.get("Semaphore", name), "acquire")
    await backend.until(target.waiting("Semaphore", name))
    began = now()
    await client.get_semaphore(name).release()
    assert waiter.answer().ended < began + WOKEN

    latch = client.get_count_down_latch(f"{name} latch")
    assert await latch.try_set_count(1)
    waiter = ann.begin(java.get("CountDownLatch", f"{name} latch"), "await")
    await backend.until(target.waiting("CountDownLatch", f"{name} latch"))
    began = now()
    await latch.count_down()
    assert waiter.answer().ended < began + WOKEN
