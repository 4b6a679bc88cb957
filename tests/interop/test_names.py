"""Names with braces, blanks and other letters, and mapped names: both sides derive the same keys and channels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.backends import Backend

from .jvm import JavaClient, JavaThread, now
from .kinds import WOKEN, acquired, python_lock
from .targets import Target

pytestmark = pytest.mark.asyncio

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
async def test_locks(kind: str, backend: Backend, java: JavaClient, target: Target) -> None:
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
        began = now()
        await ours.unlock()
        assert waiter.answer().ended < began + WOKEN
        java.ann.call(theirs, "unlock")
        assert name not in target.all_keys()


async def test_counts(backend: Backend, java: JavaClient, target: Target) -> None:
    client = backend.connect()
    for name in names_on(target):
        permits = client.get_permit_expirable_semaphore(f"{name} permits")
        assert await permits.try_set_permits(1)
        permit = java.ann.call(java.get("PermitExpirableSemaphore", f"{name} permits"), "acquire")
        await permits.release(permit)

        assert await client.get_semaphore(name).try_set_permits(0)
        waiter = java.ann.begin(java.get("Semaphore", name), "acquire")
        await backend.until(target.waiting("Semaphore", name))
        began = now()
        await client.get_semaphore(name).release()
        assert waiter.answer().ended < began + WOKEN
    for name in names_on(target, of_latches=True):
        latch = client.get_count_down_latch(f"{name} latch")
        assert await latch.try_set_count(1)
        waiter = java.ann.begin(java.get("CountDownLatch", f"{name} latch"), "await")
        await backend.until(target.waiting("CountDownLatch", f"{name} latch"))
        began = now()
        await latch.count_down()
        assert waiter.answer().ended < began + WOKEN


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("kind", ["Lock", "FairLock", "WriteLock"])
async def test_mapped_names_of_locks(
    kind: str,
    prefix: str,
    version: str,
    backend: Backend,
    connect_java: Callable[..., JavaClient],
    ann: JavaThread,
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
    waiter = ann.begin(theirs, "lock")
    await target.until_java_waits(backend, kind, mapped, threads=[ann])
    began = now()
    await ours.unlock()
    assert waiter.answer().ended < began + WOKEN

    waiting = backend.spawn(acquired(ours))
    await backend.until(target.waiting(kind, mapped))
    assert "orders" not in target.all_keys()
    released = ann.begin(theirs, "unlock").answer()
    assert await waiting.result() < released.ended + WOKEN


async def test_mapped_names_of_counts(
    backend: Backend, connect_java: Callable[..., JavaClient], ann: JavaThread, target: Target
) -> None:
    prefix = PREFIXES[0]
    java, client = connect_java(prefix=prefix), backend.connect(name_mapper=lambda name: prefix + name)
    assert await client.get_semaphore("seats").try_set_permits(0)
    assert await client.get_count_down_latch("done").try_set_count(1)
    for kind, name, method in (("Semaphore", "seats", "acquire"), ("CountDownLatch", "done", "await")):
        waiter = ann.begin(java.get(kind, name), method)
        await target.until_java_waits(backend, kind, prefix + name)
        began = now()
        if kind == "Semaphore":
            await client.get_semaphore(name).release()
        else:
            await client.get_count_down_latch(name).count_down()
        assert waiter.answer().ended < began + WOKEN
    assert not {"seats", "done"} & target.all_keys()
