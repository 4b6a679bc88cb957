"""An acquire is confirmed by replicas, or it fails and is undone: on a cluster, with Sentinels, and without."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyredisson.errors import NotReplicatedError
from pyredisson.testing import Cluster, Replicated, Sentinels
from tests.support.backends import Backend
from tests.support.kinds import LOCKS
from tests.support.replicated_master import ReplicatedMaster

from .conftest import NO_FAILOVER

pytestmark = pytest.mark.asyncio

SHORT = 0.9
"""`replicas_sync_timeout` where replicas don't answer."""
REPLICAS = 2
USERS = [f"{name} on >secret ~* &* +@all -{name[3:]}" for name in ("no-info", "no-wait")]
TOPOLOGIES: dict[str, Callable[..., Any]] = {
    "cluster": lambda **options: Cluster(masters=1, **options),
    "sentinels": Sentinels,
    "replicated": Replicated,
}
Master = ReplicatedMaster[Any]
on_a_cluster = pytest.mark.parametrize("shared_master", ["cluster"], indirect=True)


@pytest.fixture(scope="module", params=TOPOLOGIES)
def shared_master(request: pytest.FixtureRequest) -> Iterator[Cluster | Sentinels | Replicated]:
    with TOPOLOGIES[request.param](replicas=REPLICAS, users=USERS) as running:
        if isinstance(running, Cluster):
            running.set_node_timeout(NO_FAILOVER)
        yield running


@pytest.mark.parametrize(
    ("shared_master", "kind"),
    [*(("cluster", kind) for kind in LOCKS)]
    + [(topology, kind) for topology in ("sentinels", "replicated") for kind in ("lock", "fair", "write")],
    indirect=["shared_master"],
)
async def test_a_lock_is_on_a_replica_or_it_is_not_acquired(master: Master, backend: Backend, kind: str) -> None:
    # The first call of a script is sent twice.
    await LOCKS[kind](backend.connect(check_lock_synced_replicas=False), "a").lock()
    master.node.ask("FLUSHALL")
    assert not master.waits()
    await LOCKS[kind](backend.connect(), "a").lock()
    assert master.waits() == 1
    assert any(replica.ask("DBSIZE") for replica in master.replicas)
    client = backend.connect(replicas_sync_timeout=SHORT)
    lock = LOCKS[kind](client, "b")
    acquire = lock.lock_and_get_token if kind == "fenced" else lock.lock
    master.freeze()
    with pytest.raises(NotReplicatedError) as raised:
        await acquire()
    text = str(raised.value)
    assert "lock 'b' of owner " in text
    assert f"0 of 1 replica confirmed it within {SHORT} s (2 conn" in text
    await backend.until(lambda: not master.exists("b"))
    assert not client._session.holds.table
    master.restore()
    await acquire()


async def test_so_many_must_confirm_as_the_user_wants(master: Master, backend: Backend) -> None:
    """But no more than are connected."""
    one, all_, more = (
        backend.connect(replicas_sync_timeout=SHORT, min_synced_replicas=count) for count in (1, REPLICAS, REPLICAS + 5)
    )
    for client in (all_, more):
        assert await client.get_lock("a").try_lock()
        await client.get_lock("a").unlock()
    master.freeze(1)
    assert await one.get_lock("a").try_lock()
    with pytest.raises(NotReplicatedError, match="1 of 2 replicas confirmed"):
        await all_.get_lock("b").lock()
    await backend.until(lambda: not master.exists("b"))


async def test_users_without_rights(master: Master, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Without the right to INFO the topology tells the replicas. Without the right to WAIT nothing is confirmed."""
    client = backend.connect(username="no-info", password="secret", replicas_sync_timeout=SHORT)
    await client.get_lock("a").lock()
    assert master.waits()
    master.freeze()
    with pytest.raises(NotReplicatedError, match="0 of 1"):
        await client.get_lock("b").lock()
    client = backend.connect(username="no-wait", password="secret")
    with caplog.at_level(logging.WARNING, "pyredisson"):
        for name in "cde":
            await client.get_lock(name).lock()
    assert sum("doesn't run WAIT" in record.getMessage() for record in caplog.records) == 1


@on_a_cluster
async def test_what_needs_no_confirmation_does_not_wait_for_one(master: Master, backend: Backend) -> None:
    """Refused attempts, releases beside an acquire that waits, and all calls of a client without the check."""
    one, unchecked = backend.connect(), backend.connect(check_lock_synced_replicas=False)
    # Replicas may take longer than a reply.
    other = backend.connect(timeout=1.0, replicas_sync_timeout=2.0, retry_attempts=0)
    held = other.get_lock("held")
    await held.lock()
    assert await one.get_lock("a").try_lock()
    for each in (one.get_semaphore("s"), one.get_permit_expirable_semaphore("e")):
        await each.try_set_permits(0)
    master.freeze()
    waits = master.waits()
    assert await unchecked.get_lock("b").try_lock()
    assert await unchecked.get_semaphore("t").try_set_permits(1)
    assert await unchecked.get_semaphore("t").try_acquire()
    assert master.waits() == waits
    assert not await other.get_lock("a").try_lock()
    assert not await other.get_lock("a").try_lock(wait_time=0.1)
    assert not await other.get_semaphore("s").try_acquire()
    assert await other.get_permit_expirable_semaphore("e").try_acquire() is None
    attempt = backend.spawn(other.get_lock("c").lock)
    await backend.until(lambda: master.exists("c"))
    await held.unlock()
    assert not attempt.done()
    with pytest.raises(NotReplicatedError, match="within 2 s"):
        await attempt.result()
