"""What the inspection says of objects that Java has made, holds and waits for."""

from __future__ import annotations

import pytest

from pyredisson.inspection.unlocking import release_shown
from tests.support.backends import Backend
from tests.support.inspecting import listed, session_of, state_of

from .jvm import JavaClient, JavaThread
from .kinds import NON_REENTRANT, REENTRANT, against
from .targets import Target

pytestmark = pytest.mark.asyncio

KIND_OF = {"FencedLock": "fenced", "ReadLock": "read-write", "WriteLock": "read-write"}


@pytest.mark.parametrize("kind", [*REENTRANT, *NON_REENTRANT])
async def test_a_lock_that_java_holds_and_waits_for(
    kind: str, backend: Backend, java: JavaClient, ann: JavaThread, bob: JavaThread, target: Target
) -> None:
    client = backend.connect()
    ann.call(java.get(kind, "orders"), "lock")
    state = (await listed(client))["orders"]
    assert (state.kind, state.held) == (KIND_OF.get(kind, "lock"), True)
    [owner] = state.owners
    owner_id = int(java.owner(ann).rpartition(":")[2])
    assert (owner.holder.client_id, owner.holder.owner_id) == (java.owner(ann).partition(":")[0], owner_id)
    assert 20 < (owner.holder.time_to_live or 0) <= 30
    assert owner.holder.host is None
    if kind == "SpinLock":
        ann.call(java.get(kind, "orders"), "unlock")
        return

    waiting = java.owner(bob)
    waiter = bob.begin(java.get(against(kind), "orders"), "lock")
    await target.until_java_waits(backend, against(kind), "orders", threads=[bob])
    state = (await listed(client))["orders"]
    if "Fair" in kind:
        assert (state.kind, state.certain, state.waiter_count) == ("fair", True, 1)
        [place] = state.waiters
        assert (place.owner.raw, place.alive, place.place) == (waiting, None, 1)
        assert place.place_lasts is not None
        assert 100 < place.place_lasts < 400
    else:
        assert state.waiting_clients == 1
    # Java's waiter is woken by the release of what was shown.
    assert await release_shown(session_of(client), state, owner)
    waiter.result()
    state = await state_of(client, "orders")
    [owner] = state.owners
    assert owner.holder.owner_id == int(waiting.rpartition(":")[2])
    bob.call(java.get(against(kind), "orders"), "unlock")


async def test_permits_of_java(backend: Backend, java: JavaClient, ann: JavaThread) -> None:
    theirs = java.get("PermitExpirableSemaphore", "seats")
    ann.call(theirs, "trySetPermits", 3)
    permit = ann.call(theirs, "acquire", 20, "SECONDS")
    client = backend.connect()
    state = (await listed(client))["seats"]
    assert (state.kind, state.certain, state.free, state.permits) == ("permits", True, 2, 3)
    [owner] = state.owners
    assert owner.raw == permit
    assert 15 < (owner.holder.time_to_live or 0) <= 20


async def test_a_latch_and_a_semaphore_that_java_waits_for(
    backend: Backend, java: JavaClient, ann: JavaThread, bob: JavaThread, target: Target
) -> None:
    """Nothing but their subscriptions says what these numbers are."""
    client = backend.connect()
    latch, semaphore = java.get("CountDownLatch", "done"), java.get("Semaphore", "stock")
    ann.call(latch, "trySetCount", 1)
    ann.call(semaphore, "trySetPermits", 0)
    assert (await state_of(client, "done")).kind == (await state_of(client, "stock")).kind == "unknown"
    waiters = [ann.begin(latch, "await"), bob.begin(semaphore, "acquire")]
    await target.until_java_waits(backend, "CountDownLatch", "done")
    await target.until_java_waits(backend, "Semaphore", "stock")
    state = await state_of(client, "done")
    assert (state.kind, state.certain, state.count, state.waiting_clients) == ("latch", False, 1, 1)
    state = await state_of(client, "stock")
    assert (state.kind, state.certain, state.free, state.waiting_clients) == ("semaphore", False, 0, 1)
    await client.get_count_down_latch("done").count_down()
    await client.get_semaphore("stock").release()
    for waiter in waiters:
        waiter.result()
