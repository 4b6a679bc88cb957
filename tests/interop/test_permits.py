"""Permits with ids and leases that both sides use."""

from __future__ import annotations

import math

import pytest

import pyredisson
from tests.support.backends import Backend

from .jvm import JavaClient, JavaError, JavaThread, now
from .kinds import WOKEN
from .targets import Target

pytestmark = pytest.mark.asyncio

KIND = "PermitExpirableSemaphore"


async def test_permits_are_released_by_id_on_the_other_side(
    backend: Backend, java: JavaClient, ann: JavaThread, target: Target
) -> None:
    ours, theirs = backend.connect().get_permit_expirable_semaphore("seats"), java.get(KIND, "seats")
    assert await ours.try_set_permits(6)
    assert not ann.call(theirs, "trySetPermits", 2)
    from_java = [ann.call(theirs, "acquire") for _ in range(3)]
    from_python = [await ours.acquire() for _ in range(3)]
    assert ann.call(theirs, "tryAcquire") is None
    assert await ours.try_acquire() is None

    await ours.release(from_java[0])
    assert await ours.try_release(from_java[1:]) == 2
    ann.call(theirs, "release", from_python[0])
    ann.call(theirs, "release", from_python[1:])
    assert await ours.available_permits() == ann.call(theirs, "availablePermits") == 6
    assert target.redis.zcard("{seats}:timeout") == 0

    for permit in (*from_java, *from_python):
        assert not ann.call(theirs, "tryRelease", permit)
        with pytest.raises(pyredisson.PermitNotHeldError):
            await ours.release(permit)
    with pytest.raises(JavaError):
        ann.call(theirs, "release", from_python[0])
    assert await ours.available_permits() == 6


async def test_several_at_once(backend: Backend, java: JavaClient, ann: JavaThread) -> None:
    ours, theirs = backend.connect().get_permit_expirable_semaphore("seats"), java.get(KIND, "seats")
    ann.call(theirs, "trySetPermits", 5)
    three = ann.call(theirs, "acquire", 3)
    assert await ours.try_acquire_many(3) == []
    two = await ours.try_acquire_many(2)
    assert len({*three, *two}) == 5
    assert ann.call(theirs, "tryRelease", [*two, *three]) == 5
    assert await ours.acquired_permits() == ann.call(theirs, "acquiredPermits") == 0
    assert await ours.get_permits() == ann.call(theirs, "getPermits") == 5
    await ours.set_permits(2)
    assert ann.call(theirs, "getPermits") == 2


async def test_leases_are_counted_on_both_sides(
    backend: Backend, java: JavaClient, ann: JavaThread, version: str
) -> None:
    ours, theirs = backend.connect().get_permit_expirable_semaphore("seats"), java.get(KIND, "seats")
    await ours.try_set_permits(2)
    endless, limited = ann.call(theirs, "acquire"), await ours.acquire(lease_time=20)
    assert await ours.get_lease_time(endless) == math.inf
    if version != "3.27.2":  # the method is new in 3.41
        assert ann.call(theirs, "getLeaseTime", endless) == -1
        assert 15_000 < ann.call(theirs, "getLeaseTime", limited) <= 20_000
    assert ann.call(theirs, "updateLeaseTime", limited, 60, "SECONDS")
    assert 50 < await ours.get_lease_time(limited) <= 60
    began = now()
    assert await ours.update_lease_time(endless, 0.3)
    # The lease that Python has set ends, and frees the permit for a waiter of Java.
    assert ann.call(theirs, "tryAcquire", 10, "SECONDS")
    assert 0.299 < now() - began < 0.3 + WOKEN
    with pytest.raises(JavaError):
        ann.call(theirs, "release", endless)


async def test_a_lease_of_java_ends(backend: Backend, java: JavaClient, ann: JavaThread) -> None:
    ours, theirs = backend.connect().get_permit_expirable_semaphore("seats"), java.get(KIND, "seats")
    ann.call(theirs, "trySetPermits", 1)
    began = now()
    permit = ann.call(theirs, "acquire", 500, "MILLISECONDS")
    assert await ours.acquire() != permit
    assert 0.5 <= now() - began < 0.5 + WOKEN


async def test_waiters_are_woken(backend: Backend, java: JavaClient, ann: JavaThread, target: Target) -> None:
    client, theirs = backend.connect(), java.get(KIND, "seats")
    ours = client.get_permit_expirable_semaphore("seats")
    await ours.try_set_permits(1)
    permit = ann.call(theirs, "acquire")

    async def acquire() -> tuple[str, float]:
        return await client.get_permit_expirable_semaphore("seats").acquire(), now()

    in_python = backend.spawn(acquire)
    await backend.until(target.waiting(KIND, "seats"))
    released = ann.begin(theirs, "release", permit).answer()
    permit, acquired = await in_python.result()
    assert released.began < acquired < released.ended + WOKEN

    in_java = ann.begin(theirs, "acquire")
    # Python's client stays subscribed for some seconds.
    await backend.until(target.waiting(KIND, "seats", 2))
    began = now()
    await ours.release(permit)
    answer = in_java.answer()
    assert began < answer.ended < began + WOKEN
    assert await ours.try_release(answer.result)
