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
async def test_locks(kind: str, backend: Backend, java: JavaClient, ann: JavaThread, target: Target) -> None:
    client = backend.connect()
    for name in NAMES:
        ours, theirs = python_lock(client, kind, name), java.get(kind, name)
        before = target.scripts()
        await ours.lock()
        waiter = ann.begin(theirs, "lock")
        # The attempt before the subscription, and the one after it.
        await backend.until(lambda before=before: target.scripts() >= before + 3)  # type: ignore[misc]
        await backend.sleep(BEFORE_SLEEP)
        assert not waiter.done()
        began = now()
        await ours.unlock()
        assert waiter.answer().ended < began + WOKEN
        ann.call(theirs, "unlock")
        assert name not in target.all_keys()


async def test_counts(backend: Backend, java: JavaClient, ann: JavaThread, target: Target) -> None:
    client = backend.connect()
    for name in NAMES:
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
