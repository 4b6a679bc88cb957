"""An acquire is confirmed by replicas, or it fails and is undone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import pyredisson.asyncio
from pyredisson.errors import NotReplicatedError
from pyredisson.testing import Cluster
from tests.support.backends import Backend
from tests.support.replicated_master import ReplicatedMaster
from tests.support.waiting import fair_waiters, permit_waiters, waiters

from .conftest import NO_FAILOVER

pytestmark = pytest.mark.asyncio

SHORT = 0.9
"""`replicas_sync_timeout` where replicas don't answer."""
REPLICAS = 2

Replicas = ReplicatedMaster[Cluster]
Acquire = Callable[[pyredisson.asyncio.Client], Awaitable[Any]]

LOCKS: dict[str, Acquire] = {
    "lock": lambda client: client.get_lock("a").lock(),
    "fair": lambda client: client.get_fair_lock("a").lock(),
    "fenced": lambda client: client.get_fenced_lock("a").lock_and_get_token(),
    "spin": lambda client: client.get_spin_lock("a").lock(),
    "non-reentrant": lambda client: client.get_non_reentrant_lock("a").lock(),
    "read": lambda client: client.get_read_write_lock("a").read_lock().lock(),
    "write": lambda client: client.get_read_write_lock("a").write_lock().lock(),
}

HANDED_ON = [("get_lock", waiters), ("get_fair_lock", fair_waiters)]
"""Locks that are handed on, and what counts the callers that sleep."""


@pytest.fixture(scope="module")
def shared_master() -> Iterator[Cluster]:
    with Cluster(masters=1, replicas=REPLICAS) as running:
        running.set_node_timeout(NO_FAILOVER)
        yield running


@pytest.mark.parametrize("kind", LOCKS)
async def test_a_lock_is_on_a_replica_when_it_is_acquired(master: Replicas, backend: Backend, kind: str) -> None:
    # The first call of a script is sent twice.
    await LOCKS[kind](backend.connect(check_lock_synced_replicas=False))
    master.node.ask("FLUSHALL")
    assert not master.waits()
    await LOCKS[kind](backend.connect())
    assert master.waits() == 1
    assert any(replica.ask("DBSIZE") for replica in master.replicas)


@pytest.mark.parametrize("kind", LOCKS)
async def test_without_a_confirmation_a_lock_is_not_acquired(master: Replicas, backend: Backend, kind: str) -> None:
    client = backend.connect(replicas_sync_timeout=SHORT)
    master.freeze()
    with pytest.raises(NotReplicatedError) as raised:
        await LOCKS[kind](client)
    text = str(raised.value)
    assert "lock 'a' of owner " in text
    assert f"0 of 1 replica confirmed it within {SHORT} s (2 conn" in text
    await backend.until(lambda: not master.exists("a"))
    assert not client._session.holds.table
    master.restore()
    await LOCKS[kind](client)


async def test_a_nested_acquire_without_a_confirmation_leaves_the_outer_levels(
    master: Replicas, backend: Backend
) -> None:
    lock = backend.connect(replicas_sync_timeout=SHORT).get_lock("a")
    await lock.lock()
    await lock.lock()
    master.freeze()
    with pytest.raises(NotReplicatedError):
        await lock.lock()
    assert await lock.get_hold_count() == 2
    await backend.until(lambda: master.node.ask("HVALS", "a") == ["2"])
    await lock.unlock()
    assert await lock.is_held()
    await lock.unlock()
    assert not master.exists("a")


@pytest.mark.parametrize(("kind", "sleeping"), HANDED_ON)
async def test_a_lock_that_is_handed_on_is_on_a_replica(
    master: Replicas, backend: Backend, kind: str, sleeping: Callable[[Any, str], int]
) -> None:
    client = backend.connect(local_hand_over_time=60)
    holder, waiter = (getattr(client, kind)("a", owner=owner) for owner in (1, 2))
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: sleeping(client, "a") == 1)
    before = master.waits()
    await holder.unlock()
    await other.result()
    # The script is sent once more as EVAL, and each time with a WAIT.
    assert 1 <= master.waits() - before <= 2
    assert master.node.ask("HVALS", "a") == ["1"]
    await waiter.unlock()


@pytest.mark.parametrize(("kind", "sleeping"), HANDED_ON)
async def test_without_a_confirmation_a_lock_is_not_handed_on(
    master: Replicas, backend: Backend, kind: str, sleeping: Callable[[Any, str], int]
) -> None:
    """The release has happened. Only the next owner needs the confirmation."""
    client = backend.connect(replicas_sync_timeout=SHORT, local_hand_over_time=60)
    holder, waiter = (getattr(client, kind)("a", owner=owner) for owner in (1, 2))
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: sleeping(client, "a") == 1)
    master.freeze()
    await holder.unlock()
    with pytest.raises(NotReplicatedError, match="0 of 1 replica"):
        await other.result()
    await backend.until(lambda: not master.exists("a"))
    assert not client._session.holds.table


async def test_readers_that_a_writer_lets_in_are_on_a_replica(master: Replicas, backend: Backend) -> None:
    client = backend.connect(local_hand_over_time=60)
    write = client.get_read_write_lock("a", owner=1).write_lock()
    readers = [client.get_read_write_lock("a", owner=owner).read_lock() for owner in (2, 3)]
    await write.lock()
    others = [backend.spawn(reader.lock) for reader in readers]
    await backend.until(lambda: waiters(client, "a", "read") == 2)
    before = master.waits()
    await write.unlock()
    for other in others:
        await other.result()
    # One call for both; the script is sent once more as EVAL, and each time with a WAIT.
    assert 1 <= master.waits() - before <= 2
    assert sorted(master.node.ask("HVALS", "a")) == ["1", "1", "read"]
    for reader in readers:
        await reader.unlock()


async def test_without_a_confirmation_a_writer_lets_no_reader_in(master: Replicas, backend: Backend) -> None:
    client = backend.connect(replicas_sync_timeout=SHORT, local_hand_over_time=60)
    write = client.get_read_write_lock("a", owner=1).write_lock()
    await write.lock()
    others = [backend.spawn(client.get_read_write_lock("a", owner=owner).read_lock().lock) for owner in (2, 3)]
    await backend.until(lambda: waiters(client, "a", "read") == 2)
    master.freeze()
    await write.unlock()
    for other in others:
        with pytest.raises(NotReplicatedError, match="0 of 1 replica"):
            await other.result()
    await backend.until(lambda: not master.exists("a"))
    assert not client._session.holds.table


async def test_permits_without_a_confirmation_are_not_acquired(master: Replicas, backend: Backend) -> None:
    client = backend.connect(replicas_sync_timeout=SHORT)
    semaphore = client.get_semaphore("s")
    await semaphore.try_set_permits(3)
    master.freeze()
    for acquire in (semaphore.acquire(2), semaphore.try_acquire(), semaphore.drain_permits()):
        with pytest.raises(NotReplicatedError, match=r"semaphore 's' .* 0 of 1 replica"):
            await acquire
    await backend.until(lambda: master.node.ask("GET", "s") == "3")


async def test_permits_that_are_handed_on_are_on_a_replica(master: Replicas, backend: Backend) -> None:
    client = backend.connect(local_hand_over_time=60)
    semaphore = client.get_semaphore("s")
    await semaphore.try_set_permits(1)
    await semaphore.acquire()
    other = backend.spawn(semaphore.acquire)
    await backend.until(lambda: permit_waiters(client, "s") == 1)
    before = master.waits()
    await semaphore.release()
    await other.result()
    # The script is sent once more as EVAL, and each time with a WAIT.
    assert 1 <= master.waits() - before <= 2
    assert master.node.ask("GET", "s") == "0"


@pytest.mark.parametrize("count", [1, 4])
async def test_without_a_confirmation_permits_are_not_handed_on(master: Replicas, backend: Backend, count: int) -> None:
    """The releases have happened. In an event loop several of them share a command."""
    client = backend.connect(replicas_sync_timeout=SHORT, local_hand_over_time=60)
    semaphore = client.get_semaphore("s")
    await semaphore.try_set_permits(count)
    await semaphore.acquire(count)
    others = [backend.spawn(semaphore.acquire) for _ in range(count)]
    await backend.until(lambda: permit_waiters(client, "s") == count)
    master.freeze()
    releases = [backend.spawn(semaphore.release) for _ in range(count)]
    for release in releases:
        await release.result()
    for other in others:
        with pytest.raises(NotReplicatedError, match=r"semaphore 's' .* 0 of 1 replica"):
            await other.result()
    await backend.until(lambda: master.node.ask("GET", "s") == str(count))
    master.restore()
    await semaphore.acquire(count)


async def test_permits_with_ids_without_a_confirmation_are_not_acquired(master: Replicas, backend: Backend) -> None:
    client = backend.connect(replicas_sync_timeout=SHORT)
    semaphore = client.get_permit_expirable_semaphore("e")
    await semaphore.try_set_permits(3)
    master.freeze()
    with pytest.raises(NotReplicatedError, match=r"semaphore 'e' .* 0 of 1 replica"):
        await semaphore.acquire()
    await backend.until(lambda: master.node.ask("GET", "e") == "3")
    assert not client._session.holds.table


async def test_so_many_must_confirm_as_the_user_wants(master: Replicas, backend: Backend) -> None:
    one = backend.connect(replicas_sync_timeout=SHORT)
    all_ = backend.connect(replicas_sync_timeout=SHORT, min_synced_replicas=REPLICAS)
    assert await all_.get_lock("a").try_lock()
    await all_.get_lock("a").unlock()
    master.freeze(1)
    assert await one.get_lock("a").try_lock()
    with pytest.raises(NotReplicatedError, match="1 of 2 replicas confirmed"):
        await all_.get_lock("b").lock()
    await backend.until(lambda: not master.exists("b"))


async def test_no_more_must_confirm_than_are_connected(master: Replicas, backend: Backend) -> None:
    client = backend.connect(min_synced_replicas=REPLICAS + 5)
    assert await client.get_lock("a").try_lock()
    assert await client.get_lock("a").get_hold_count() == 1


async def test_a_refused_attempt_needs_no_confirmation(master: Replicas, backend: Backend) -> None:
    one, other = backend.connect(), backend.connect(replicas_sync_timeout=SHORT)
    assert await one.get_lock("a").try_lock()
    semaphore = one.get_semaphore("s")
    await semaphore.try_set_permits(0)
    expirable = one.get_permit_expirable_semaphore("e")
    await expirable.try_set_permits(0)
    master.freeze()
    assert not await other.get_lock("a").try_lock()
    assert not await other.get_lock("a").try_lock(wait_time=0.1)
    assert not await other.get_semaphore("s").try_acquire()
    assert await other.get_permit_expirable_semaphore("e").try_acquire() is None


async def test_replicas_may_take_longer_than_a_reply(master: Replicas, backend: Backend) -> None:
    client = backend.connect(timeout=1.0, replicas_sync_timeout=2.0, retry_attempts=0)
    master.freeze()
    with pytest.raises(NotReplicatedError, match="within 2 s"):
        await client.get_lock("a").lock()


async def test_the_check_can_be_switched_off(master: Replicas, backend: Backend) -> None:
    client = backend.connect(check_lock_synced_replicas=False)
    master.freeze()
    assert await client.get_lock("a").try_lock()
    assert await client.get_semaphore("s").try_set_permits(1)
    assert await client.get_semaphore("s").try_acquire()
    assert not master.waits()


async def test_a_frozen_replica_delays_no_release(master: Replicas, backend: Backend) -> None:
    client = backend.connect(replicas_sync_timeout=2)
    held = client.get_lock("held")
    await held.lock()
    master.freeze()

    async def acquire() -> None:
        with pytest.raises(NotReplicatedError):
            await client.get_lock("a").lock()

    waiter = backend.spawn(acquire)
    await backend.until(lambda: master.exists("a"))
    await held.unlock()
    assert not waiter.done()
    await waiter.result()
