"""Acquires that replicas confirm, where Sentinels or the user name the servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import pyredisson.asyncio
from pyredisson.errors import NotReplicatedError
from pyredisson.testing import Replicated, Sentinels
from tests.support.backends import Backend
from tests.support.replicated_master import ReplicatedMaster

pytestmark = pytest.mark.asyncio

SHORT = 0.9
"""`replicas_sync_timeout` where replicas don't answer."""
REPLICAS = 2
USERS = [f"{name} on >secret ~* &* +@all -{name[3:]}" for name in ("no-info", "no-wait")]

Servers = Sentinels | Replicated
Master = ReplicatedMaster[Any]
Acquire = Callable[[pyredisson.asyncio.Client], Awaitable[Any]]

LOCKS: dict[str, Acquire] = {
    "lock": lambda client: client.get_lock("a").lock(),
    "fair": lambda client: client.get_fair_lock("a").lock(),
    "write": lambda client: client.get_read_write_lock("a").write_lock().lock(),
}


@pytest.fixture(scope="module", params=[Sentinels, Replicated], ids=["sentinel", "replicated"])
def shared_master(request: pytest.FixtureRequest) -> Iterator[Servers]:
    with request.param(replicas=REPLICAS, users=USERS) as running:
        yield running


@pytest.mark.parametrize("kind", LOCKS)
async def test_a_lock_is_on_a_replica_when_it_is_acquired(master: Master, backend: Backend, kind: str) -> None:
    # The first call of a script is sent twice.
    await LOCKS[kind](backend.connect(check_lock_synced_replicas=False))
    master.node.ask("FLUSHALL")
    assert not master.waits()
    await LOCKS[kind](backend.connect())
    assert master.waits() == 1
    assert any(replica.ask("DBSIZE") for replica in master.replicas)


@pytest.mark.parametrize("kind", LOCKS)
async def test_without_a_confirmation_a_lock_is_not_acquired(master: Master, backend: Backend, kind: str) -> None:
    client = backend.connect(replicas_sync_timeout=SHORT)
    master.freeze()
    with pytest.raises(NotReplicatedError) as raised:
        await LOCKS[kind](client)
    assert f"0 of 1 replica confirmed it within {SHORT} s (2 conn" in str(raised.value)
    await backend.until(lambda: not master.exists("a"))
    assert not client._session.holds.table
    master.restore()
    await LOCKS[kind](client)


async def test_permits_without_a_confirmation_are_not_acquired(master: Master, backend: Backend) -> None:
    client = backend.connect(replicas_sync_timeout=SHORT)
    semaphore, expirable = client.get_semaphore("s"), client.get_permit_expirable_semaphore("e")
    for each in (semaphore, expirable):
        await each.try_set_permits(3)
    master.freeze()
    for each in (semaphore, expirable):
        with pytest.raises(NotReplicatedError, match=r"0 of 1 replica"):
            await each.acquire()
    await backend.until(lambda: master.node.ask("MGET", "s", "e") == ["3", "3"])


async def test_so_many_must_confirm_as_the_user_wants(master: Master, backend: Backend) -> None:
    one = backend.connect(replicas_sync_timeout=SHORT)
    all_ = backend.connect(replicas_sync_timeout=SHORT, min_synced_replicas=REPLICAS)
    assert await all_.get_lock("a").try_lock()
    master.freeze(1)
    assert await one.get_lock("b").try_lock()
    with pytest.raises(NotReplicatedError, match="1 of 2 replicas confirmed"):
        await all_.get_lock("c").lock()
    await backend.until(lambda: not master.exists("c"))


async def test_without_the_right_to_wait_nothing_is_confirmed(master: Master, backend: Backend) -> None:
    client = backend.connect(username="no-wait", password="secret")
    master.freeze()
    for name in "ab":
        await client.get_lock(name).lock()


async def test_without_the_right_to_info_the_role_tells_the_replicas(master: Master, backend: Backend) -> None:
    client = backend.connect(username="no-info", password="secret", replicas_sync_timeout=SHORT)
    await client.get_lock("a").lock()
    assert master.waits()
    master.freeze()
    with pytest.raises(NotReplicatedError, match="0 of 1"):
        await client.get_lock("b").lock()


@pytest.mark.parametrize("servers", ["sentinels", "replicated"])
async def test_after_a_failover_the_replicas_of_the_new_master_confirm(
    request: pytest.FixtureRequest, servers: str, backend_kind: type[Backend]
) -> None:
    running: Servers = request.getfixturevalue(servers)
    backend = backend_kind(running.url)
    client = backend.connect(replicas_sync_timeout=SHORT, retry_attempts=10)
    await client.get_lock("a").lock()
    running.fail_over()
    promoted = ReplicatedMaster(running)
    assert promoted.online() == 1
    waits = promoted.waits()
    await client.get_lock("b").lock()
    assert promoted.exists("b")
    assert promoted.waits() > waits
    promoted.freeze()
    with pytest.raises(NotReplicatedError, match="0 of 1"):
        await client.get_lock("c").lock()
    promoted.restore()
    await backend.close()
