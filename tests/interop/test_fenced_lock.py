"""Fencing tokens of both sides rise in one sequence."""

from __future__ import annotations

import pytest

from tests.support.backends import Backend

from .jvm import JavaClient, JavaThread
from .targets import Target

pytestmark = pytest.mark.asyncio


async def test_tokens_rise(backend: Backend, java: JavaClient, ann: JavaThread) -> None:
    ours, theirs = backend.connect().get_fenced_lock("orders"), java.get("FencedLock", "orders")
    tokens = []
    for _ in range(3):
        tokens.append(ann.call(theirs, "lockAndGetToken"))
        assert await ours.get_token() == tokens[-1]
        assert ann.call(theirs, "tryLockAndGetToken", 0, "SECONDS") > tokens[-1]  # nested
        tokens.append(ann.call(theirs, "getToken"))
        assert await ours.try_lock_and_get_token() is None
        ann.call(theirs, "unlock")
        ann.call(theirs, "unlock")

        tokens.append(await ours.lock_and_get_token())
        assert ann.call(theirs, "getToken") == tokens[-1]
        tokens.append(await ours.lock_and_get_token())  # nested
        assert not ann.call(theirs, "tryLock")
        await ours.unlock()
        await ours.unlock()
    assert tokens == sorted(set(tokens))


async def test_tokens_of_waiters(
    backend: Backend, java: JavaClient, ann: JavaThread, bob: JavaThread, target: Target
) -> None:
    client = backend.connect()
    theirs = java.get("FencedLock", "orders")
    first = ann.call(theirs, "lockAndGetToken")

    async def waits() -> int:
        lock = client.get_fenced_lock("orders")
        token = await lock.lock_and_get_token()
        await lock.unlock()
        return token

    waiter = backend.spawn(waits)
    await backend.until(target.waiting("FencedLock", "orders"))
    ann.call(theirs, "unlock")
    second = await waiter.result()
    assert bob.call(theirs, "tryLockAndGetToken", 5, "SECONDS") > second > first


async def test_tokens_rise_after_java_deleted_them(backend: Backend, java: JavaClient, ann: JavaThread) -> None:
    """Java's delete() removes the token, so its own next one is 1. Python continues with the time."""
    ours, theirs = backend.connect().get_fenced_lock("orders"), java.get("FencedLock", "orders")
    before = await ours.lock_and_get_token()
    await ours.unlock()
    assert ann.call(theirs, "delete")
    after = await ours.lock_and_get_token()
    await ours.unlock()
    assert ann.call(theirs, "lockAndGetToken") > after > before
