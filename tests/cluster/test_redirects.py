"""A slot moves between calls and during them: each call reaches the node that has its keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from redis.exceptions import RedisError, TryAgainError

import pyredisson
from pyredisson import LockTimeoutError
from pyredisson._client.servers import SeveralServers
from pyredisson._client.topology import keeper
from pyredisson.logic.retry import MOST_REDIRECTS
from pyredisson.testing import Cluster
from pyredisson.testing.cluster_node import ClusterNode
from tests.support.backends import Backend
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio

NAME = "orders"


def connect(backend: Backend, **fields: Any) -> pyredisson.asyncio.Client:
    """A client that looks at the topology only when it has a reason."""
    return backend.connect(topology_refresh_interval=600, **fields)


def map_of(client: Any) -> SeveralServers:
    lifecycle = getattr(client, "_target", client)._lifecycle
    assert isinstance(lifecycle.servers, SeveralServers)
    return lifecycle.servers


def wait_for_refreshes(client: Any) -> None:
    """A refresh of the map that is due would find out that a slot moves before any redirect does."""
    keeper = map_of(client).keeper
    eventually(lambda: not (keeper._refreshing or keeper._requested.is_set() or keeper.table.troubled))


def other_than(node: ClusterNode, cluster: Cluster) -> ClusterNode:
    return next(master for master in cluster.masters() if master is not node)


def calls(node: ClusterNode, command: str) -> int:
    """How often a node has executed a command."""
    return int(node.ask("INFO", "commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def redirects(cluster: Cluster) -> int:
    """How often nodes have answered MOVED or ASK."""
    errors = [node.ask("INFO", "errorstats") for node in cluster.nodes]
    return sum(each.get(f"errorstat_{code}", {"count": 0})["count"] for each in errors for code in ("MOVED", "ASK"))


class TestMoved:
    async def test_a_slot_moves_while_its_lock_is_held(self, cluster: Cluster, backend: Backend) -> None:
        client, other = connect(backend), connect(backend)
        lock = client.get_lock(NAME)
        await lock.lock()
        assert not await other.get_lock(NAME).try_lock()
        new = other_than(cluster.node_of_key(NAME), cluster)
        cluster.move_slot(cluster.slot_of_key(NAME), new)
        assert not await other.get_lock(NAME).try_lock()
        await lock.lock()
        assert await lock.get_hold_count() == 2
        await lock.unlock()
        await lock.unlock()
        assert await other.get_lock(NAME).try_lock()
        assert new.ask("EXISTS", NAME) == 1

    async def test_the_map_follows_the_first_redirect(self, cluster: Cluster, backend: Backend) -> None:
        client = connect(backend)
        lock = client.get_lock(NAME)
        await lock.lock()
        wait_for_refreshes(client)
        new = other_than(cluster.node_of_key(NAME), cluster)
        cluster.move_slot(cluster.slot_of_key(NAME), new)
        before = redirects(cluster)
        await lock.lock()
        assert redirects(cluster) == before + 1
        for _ in range(5):
            await lock.lock()
        assert redirects(cluster) == before + 1
        node = map_of(client).table.node_of_key(NAME.encode())
        assert node is not None
        assert node.endpoint.port == new.port

    async def test_many_callers_that_are_redirected_cause_one_refresh(self, cluster: Cluster, backend: Backend) -> None:
        client = connect(backend)
        await client.get_lock(NAME).lock()
        wait_for_refreshes(client)
        new = other_than(cluster.node_of_key(NAME), cluster)
        cluster.move_slot(cluster.slot_of_key(NAME), new)
        before = sum(calls(node, "cluster|slots") for node in cluster.nodes)

        async def attempt() -> bool:
            return await client.get_lock(NAME).try_lock()

        begun = time.monotonic()
        attempts = [backend.spawn(attempt) for _ in range(50)]
        assert not any([await each.result() for each in attempts])
        took = time.monotonic() - begun
        await backend.sleep(0.5)
        # One for the first, one for those during it; and redirects that come late cause one after each pause.
        assert sum(calls(node, "cluster|slots") for node in cluster.nodes) - before <= 2 + took / keeper.PAUSE

    async def test_other_primitives(self, cluster: Cluster, backend: Backend) -> None:
        client = connect(backend)
        semaphore, latch = client.get_semaphore(NAME + "-s"), client.get_count_down_latch(NAME + "-l")
        readers, fair = client.get_read_write_lock(NAME + "-r").read_lock(), client.get_fair_lock(NAME + "-f")
        fenced, permits = client.get_fenced_lock(NAME + "-t"), client.get_permit_expirable_semaphore(NAME + "-p")
        await semaphore.try_set_permits(3)
        await latch.try_set_count(2)
        await permits.try_set_permits(1)
        await semaphore.acquire()
        permit = await permits.acquire()
        for lock in (readers, fair, fenced):
            await lock.lock()
        for suffix in "slrftp":
            name = f"{NAME}-{suffix}"
            cluster.move_slot(cluster.slot_of_key(name), other_than(cluster.node_of_key(name), cluster))
        await semaphore.release()
        assert await semaphore.available_permits() == 3
        await latch.count_down()
        assert await latch.get_count() == 1
        await permits.release(permit)
        for lock in (readers, fair, fenced):
            await lock.lock()
            await lock.unlock()
            await lock.unlock()
            assert not await lock.is_locked()


class TestAsk:
    async def test_a_lock_whose_key_is_still_at_the_source(self, cluster: Cluster, backend: Backend) -> None:
        client, other = connect(backend), connect(backend)
        lock = client.get_lock(NAME)
        await lock.lock()
        slot = cluster.slot_of_key(NAME)
        source = cluster.node_of(slot)
        target = other_than(source, cluster)
        cluster.begin_move(slot, target)
        assert not await other.get_lock(NAME).try_lock()
        await lock.lock()
        await lock.unlock()
        await lock.unlock()
        # Now nobody has the key, so the next one is made at the target.
        await lock.lock()
        assert not await other.get_lock(NAME).try_lock()
        node = map_of(client).table.node_of_slot(slot)
        assert node is not None
        assert node.endpoint.port == source.port
        cluster.finish_move(slot)
        assert target.ask("EXISTS", NAME) == 1
        await lock.unlock()
        assert await other.get_lock(NAME).try_lock()

    async def test_a_lock_whose_key_has_moved(self, cluster: Cluster, backend: Backend) -> None:
        client, other = connect(backend), connect(backend)
        lock = client.get_lock(NAME)
        await lock.lock()
        slot = cluster.slot_of_key(NAME)
        cluster.begin_move(slot, other_than(cluster.node_of(slot), cluster))
        cluster.move_keys(slot)
        assert not await other.get_lock(NAME).try_lock()
        await lock.lock()
        assert await lock.is_locked()
        await lock.unlock()
        await lock.unlock()
        assert await other.get_lock(NAME).try_lock()
        cluster.finish_move(slot)
        assert not await lock.try_lock()

    async def test_the_target_does_not_know_the_script(self, cluster: Cluster, backend: Backend) -> None:
        client = connect(backend)
        lock = client.get_lock(NAME)
        await lock.lock()
        await lock.unlock()
        slot = cluster.slot_of_key(NAME)
        target = other_than(cluster.node_of(slot), cluster)
        cluster.begin_move(slot, target)
        target.ask("SCRIPT", "FLUSH")
        before = redirects(cluster)
        await lock.lock()
        assert redirects(cluster) == before + 1
        cluster.finish_move(slot)
        assert target.ask("EXISTS", NAME) == 1

    @pytest.mark.parametrize("kind", ["get_fenced_lock", "get_fair_lock"])
    async def test_keys_in_both_places_wait_for_the_end_of_the_move(
        self, cluster: Cluster, backend: Backend, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = connect(backend)
        lock = getattr(client, kind)(NAME)
        await lock.lock()
        slot = cluster.slot_of_key(NAME)
        cluster.begin_move(slot, other_than(cluster.node_of(slot), cluster))
        cluster.move_keys(slot, NAME)

        def finish() -> None:
            cluster.move_keys(slot)
            cluster.finish_move(slot)

        end = threading.Timer(0.6, finish)
        end.start()
        await lock.unlock()
        end.join()
        assert not await lock.is_locked()
        assert not [record for record in caplog.records if "available" in record.message]

    async def test_a_call_that_does_not_get_through_says_where(self, cluster: Cluster, backend: Backend) -> None:
        client = connect(backend, retry_attempts=1)
        lock = client.get_fair_lock(NAME)
        await lock.lock()
        slot = cluster.slot_of_key(NAME)
        source = cluster.node_of(slot)
        cluster.begin_move(slot, other_than(source, cluster))
        with pytest.raises(TryAgainError, match=rf"slot {slot} on 127.0.0.1:{source.port} of the cluster of"):
            await lock.unlock()
        cluster.move_keys(slot)
        cluster.finish_move(slot)
        # The release goes on in the background.
        assert await connect(backend).get_lock(NAME).try_lock(wait_time=10)


def hold(lock: Any) -> Callable[[float], Any]:
    """Whether a block was entered in time."""

    async def enter(seconds: float) -> bool:
        try:
            async with lock.hold(seconds):
                return True
        except LockTimeoutError:
            return False

    return enter


ACQUIRES: dict[str, Callable[[Any], Callable[[float], Any]]] = {
    "fair": lambda client: client.get_fair_lock(NAME).try_lock,
    "fenced": lambda client: client.get_fenced_lock(NAME).try_lock,
    "token": lambda client: client.get_fenced_lock(NAME).try_lock_and_get_token,
    "read": lambda client: client.get_read_write_lock(NAME).read_lock().try_lock,
    "write": lambda client: client.get_read_write_lock(NAME).write_lock().try_lock,
    "block": lambda client: hold(client.get_fair_lock(NAME)),
    "semaphore": lambda client: lambda seconds: client.get_semaphore(NAME).try_acquire(2, seconds),
    "permit": lambda client: client.get_permit_expirable_semaphore(NAME).try_acquire,
    "permits": lambda client: partial(client.get_permit_expirable_semaphore(NAME).try_acquire_many, 2),
    "multi": lambda client: (
        client.get_multi_lock(client.get_lock(f"a{{{NAME}}}"), client.get_fair_lock(f"b{{{NAME}}}")).try_lock
    ),
    "red": lambda client: (
        client.get_red_lock(client.get_lock(f"a{{{NAME}}}"), client.get_fair_lock(f"b{{{NAME}}}")).try_lock
    ),
}
"""The acquires of several keys. Each is called with the time that it may wait."""


@pytest.mark.parametrize("wait", [0, 0.1])
async def test_keys_in_both_places_are_not_acquired_in_time(cluster: Cluster, backend: Backend, wait: float) -> None:
    """TRYAGAIN says that the command has not run. So an acquire says that it has acquired nothing."""
    client = connect(backend, retry_attempts=0)
    slot = cluster.slot_of_key(NAME)
    # The target refuses a script whose keys aren't all there.
    cluster.begin_move(slot, other_than(cluster.node_of(slot), cluster))
    for kind, acquire_of in ACQUIRES.items():
        acquired = await acquire_of(client)(wait)
        assert not acquired, kind
    cluster.move_keys(slot)
    cluster.finish_move(slot)
    # Nothing was acquired, and nobody stands in a queue. What a group has acquired is released in the background.
    await backend.until(lambda: not any(node.ask("KEYS", "*") for node in cluster.masters()))


async def test_keys_in_both_places_and_calls_that_acquire_nothing(cluster: Cluster, backend: Backend) -> None:
    """They have nothing to say but the error. What they release is released later."""
    client = connect(backend, retry_attempts=0)
    semaphore, latch = client.get_semaphore(NAME), client.get_count_down_latch(f"{{{NAME}}}")
    permits = client.get_permit_expirable_semaphore(f"p{{{NAME}}}")
    await latch.try_set_count(2)
    slot = cluster.slot_of_key(NAME)
    cluster.begin_move(slot, other_than(cluster.node_of(slot), cluster))
    for call in (partial(semaphore.release, 2), latch.count_down, semaphore.drain_permits, permits.available_permits):
        with pytest.raises(TryAgainError):
            await call()
    cluster.move_keys(slot)
    cluster.finish_move(slot)
    await backend.until(lambda: cluster.node_of(slot).ask("MGET", NAME, f"{{{NAME}}}") == ["2", "1"])


@contextmanager
def naming_each_other(cluster: Cluster, slot: int) -> Iterator[None]:
    """Each of two nodes says that the other one serves the slot, as for a moment at the end of a move."""
    source = cluster.node_of(slot)
    other = other_than(source, cluster)
    source.ask("CLUSTER", "SETSLOT", slot, "NODE", other.id)
    try:
        yield
    finally:
        source.ask("CLUSTER", "SETSLOT", slot, "NODE", source.id)


class TestNodesThatNameEachOther:
    async def test_a_call_pauses_after_some_redirects(self, cluster: Cluster, backend: Backend) -> None:
        client = connect(backend)
        lock = client.get_lock(NAME)
        await lock.lock()
        await lock.unlock()
        before = redirects(cluster)
        with naming_each_other(cluster, cluster.slot_of_key(NAME)):
            with pytest.raises(RedisError, match="MOVED"):
                await lock.try_lock(wait_time=1)
            followed = redirects(cluster) - before
        assert MOST_REDIRECTS < followed < 10 * MOST_REDIRECTS

    async def test_a_call_outlasts_them(
        self, cluster: Cluster, backend: Backend, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Also one that waits for no other owner."""
        client = connect(backend)
        lock = client.get_lock(NAME)
        await lock.lock()
        await lock.unlock()
        with naming_each_other(cluster, cluster.slot_of_key(NAME)):
            call = backend.spawn(lock.try_lock)
            await backend.sleep(0.5)
            assert not call.done()
        assert await call.result()
        # Their other slots are served.
        assert not [record for record in caplog.records if "available" in record.message]


async def test_scripts_are_flushed_on_every_node(cluster: Cluster, backend: Backend) -> None:
    client = connect(backend)
    for _ in range(3):
        for number in range(6):
            cluster.flush_scripts()
            lock = client.get_lock(f"{NAME}-{number}")
            await lock.lock()
            cluster.flush_scripts()
            await lock.unlock()
