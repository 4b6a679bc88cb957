"""What a client holds, and what a debugger shows of it."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from tests.support.backends import NOWHERE, Backend

pytestmark = pytest.mark.asyncio


def own(client: Any) -> Any:
    return getattr(client, "_target", client)


async def test_all_kinds(backend: Backend) -> None:
    client = backend.connect()
    assert client.holds() == []
    before = datetime.now(UTC)
    lock = client.get_lock("a", owner=7)
    await lock.lock()
    await lock.lock(10)
    await client.get_fair_lock("b").lock(20)
    token = await client.get_fenced_lock("c").lock_and_get_token()
    sides = client.get_read_write_lock("d")
    await sides.write_lock().lock()
    await sides.read_lock().lock()
    await client.get_spin_lock("e").lock()
    semaphore = client.get_permit_expirable_semaphore("f")
    await semaphore.set_permits(1)
    permit = await semaphore.acquire(renew=True)
    found = client.holds()
    assert [(hold.name, hold.kind, hold.levels, hold.renewed) for hold in found] == [
        ("a", "lock", 2, True),
        ("b", "fair", 1, False),
        ("c", "fenced", 1, True),
        ("d", "write", 1, True),
        ("d", "read", 1, True),
        ("e", "spin", 1, True),
        ("f", "permit", 1, True),
    ]
    assert [hold.token for hold in found] == [None, None, token, None, None, None, None]
    assert (found[0].owner_id, found[-1].owner_id) == (7, None)
    for hold in found:
        assert isinstance(hold, pyredisson.Hold)
        assert before - timedelta(seconds=0.1) < hold.since < datetime.now(UTC) + timedelta(seconds=0.1)
        assert 0 < hold.valid_for <= 30
        assert not hold.lost
    await lock.unlock()
    assert client.holds()[0].levels == 1
    await semaphore.release(permit)
    await client.close()
    assert client.holds() == []


async def test_what_is_lost_and_not_released(backend: Backend) -> None:
    client = backend.connect()
    lock = client.get_lock("a")
    await lock.lock()
    await lock.force_unlock()
    [hold] = client.holds()
    assert (hold.lost, hold.valid_for) == (True, 0.0)
    await lock.lock()
    assert sorted(hold.lost for hold in client.holds()) == [False, True]
    await lock.unlock()
    with pytest.raises(pyredisson.LockLostError):
        await lock.unlock()
    assert client.holds() == []


async def test_a_lease_that_has_ended(backend: Backend) -> None:
    client = backend.connect()
    await client.get_lock("a").lock(0.05)
    await backend.until(lambda: client.holds()[0].lost)


async def test_what_a_debugger_shows(backend: Backend) -> None:
    client = backend.connect()
    lock, other = client.get_lock("orders"), client.get_lock("orders", owner=7)
    package, caller = type(own(lock)).__module__, "thread" if backend.name == "threads" else "task"
    prefix = "<pyredisson.asyncio.Lock 'orders'" if ".aio." in package else "<pyredisson.Lock 'orders'"
    assert repr(lock) == repr(other) == f"{prefix}>"
    await lock.lock()
    assert re.fullmatch(rf"{prefix}: held by this {caller} for \d+\.\d s>", repr(lock))
    assert repr(other) == f"{prefix}>"
    [hold] = own(client)._session.holds.table.values()
    assert repr(hold) == f"<Hold of lock 'orders' by {hold.owner.decode()}: held, 1 level>"
    await lock.force_unlock()
    assert repr(lock) == f"{prefix}: lost>"
    await other.lock()
    assert repr(other).startswith(f"{prefix}: held by owner 7 for ")


async def test_outside_of_any_task() -> None:
    """A repr asks nobody, makes no owner, and raises nothing."""
    client = pyredisson.asyncio.connect(NOWHERE)
    lock = client.get_lock("a")
    assert await asyncio.to_thread(repr, lock) == "<pyredisson.asyncio.Lock 'a'>"
    assert not client._callers.owners
    assert repr(client.get_read_write_lock("a")) == "<pyredisson.asyncio.ReadWriteLock 'a'>"
    await client.close()
