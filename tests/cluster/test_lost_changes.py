"""A master fails with a release, or another change of a number, that its replica hasn't got."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyredisson.testing import Proxy, Replicated, ReplicatedNode
from tests.support.backends import Backend
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio

SHORT = 0.5
"""`replicas_sync_timeout` where no replica confirms."""
LEASE = 1.0


class Link:
    """What a master sends to its replica goes through a proxy, which can keep it."""

    def __init__(self, servers: Replicated, proxy: Proxy) -> None:
        self.master, (self.replica,) = servers.master(), servers.replicas()
        self._proxy = proxy
        self.replica.ask("REPLICAOF", proxy.host, proxy.port)
        eventually(lambda: self.replica.ask("ROLE")[3] == "connected")

    def stall(self) -> None:
        """The replica gets nothing from now on, and stays connected."""
        assert self.master.ask("WAIT", 1, 10_000) == 1
        self._proxy.stall()

    def fail_over(self) -> ReplicatedNode:
        """The master dies, and the replica takes over. Returns the replica."""
        self.master.kill()
        self.replica.ask("REPLICAOF", "NO", "ONE")
        return self.replica


@pytest.fixture
def link(replicated: Replicated) -> Iterator[Link]:
    master = replicated.master()
    with Proxy(master.host, master.internal_port) as proxy:
        yield Link(replicated, proxy)


async def test_it_is_repeated_at_the_replica_that_takes_over(
    link: Link, replicated: Replicated, backend_kind: type[Backend]
) -> None:
    backend = backend_kind(replicated.url)
    # Each call has a client of its own: the connection on which one WAIT waits executes nothing else.
    one, two, three = (backend.connect(replicas_sync_timeout=30, timeout=30) for _ in range(3))
    semaphore, latch, made = one.get_semaphore("s"), two.get_count_down_latch("l"), three.get_semaphore("made")
    await semaphore.try_set_permits(2)
    await latch.try_set_count(3)
    # The server knows the scripts from now on.
    await latch.count_down()
    await semaphore.acquire(2)
    await semaphore.release()
    link.stall()
    calls = [backend.spawn(call) for call in (semaphore.release, latch.count_down, lambda: made.try_set_permits(5))]
    await backend.until(lambda: link.master.ask("MGET", "s", "l", "made") == ["2", "1", "5"])
    promoted = link.fail_over()
    for call in calls:
        await call.result()
    assert promoted.ask("MGET", "s", "l", "made") == ["2", "1", "5"]
    await backend.close()


async def test_what_no_replica_confirms_is_lost_unless_permits_have_leases(
    link: Link, replicated: Replicated, backend_kind: type[Backend]
) -> None:
    backend = backend_kind(replicated.url)
    client = backend.connect(replicas_sync_timeout=SHORT)
    semaphore, leased = client.get_semaphore("s"), client.get_permit_expirable_semaphore("e")
    for each in (semaphore, leased):
        await each.try_set_permits(2)
    await semaphore.acquire()
    permit = await leased.acquire(lease_time=LEASE)
    link.stall()
    await semaphore.release()
    await leased.try_release(permit)
    promoted = link.fail_over()
    assert await semaphore.available_permits() == 1
    assert promoted.ask("GET", "s") == "1"
    assert len(await leased.try_acquire_many(2, wait_time=30)) == 2
    await backend.close()
