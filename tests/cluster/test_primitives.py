"""Every primitive works on a cluster, wherever its keys are; an exit, a signal and closing release on all nodes."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from pyredisson.testing import Cluster
from tests.support.backends import Backend
from tests.support.children import Child
from tests.support.kinds import KINDS

NAMES = [f"orders-{number}" for number in range(12)]
HOLD = """
import sys, pyredisson
client = pyredisson.connect(sys.argv[1])
for number in range(20):
    client.get_lock(f"a{number}").lock()
"""
PAUSE = """
print("held")
sys.stdin.readline()
"""
DROP = """
import gc, threading, warnings
for number in range(20):
    client.get_lock(f"a{number}").unlock()
assert "pyredisson-topology" in {thread.name for thread in threading.enumerate()}
warnings.simplefilter("ignore")
del client
gc.collect()
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(5)
print([thread.name for thread in threading.enumerate() if thread.name.startswith("pyredisson")])
"""
FORK = """
import os
parent = client.id
pid = os.fork()
if not pid:
    assert client.id != parent
    assert not client.get_lock("a1").is_held()
    assert not client.get_lock("a1").try_lock()
    for number in range(20):
        client.get_lock(f"b{number}").lock()
    client.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
for number in range(20):
    assert client.get_lock(f"a{number}").is_held()
"""


def keys(cluster: Cluster) -> list[str]:
    return [
        key
        for node in cluster.masters()
        for key in node.ask("KEYS", "*")
        if not key.startswith(("redisson_lock_token", "pyredisson_"))
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_locks(cluster: Cluster, backend: Backend, kind: str) -> None:
    assert {cluster.node_of_key(name) for name in NAMES} == set(cluster.masters())
    one, other = backend.connect(), backend.connect()
    for name in NAMES:
        lock, same = KINDS[kind](one, name), KINDS["write" if kind == "read" else kind](other, name)
        await lock.lock()
        assert await lock.is_held()
        assert not await same.try_lock()
        await lock.unlock()
        assert await same.try_lock(wait_time=5)
        await same.unlock()
    assert not keys(cluster)


@pytest.mark.asyncio
async def test_permits_and_latches(cluster: Cluster, backend: Backend) -> None:
    client = backend.connect()
    for name in NAMES:
        semaphore = client.get_semaphore(f"s-{name}")
        assert await semaphore.try_set_permits(2)
        assert await semaphore.try_acquire(2)
        assert not await semaphore.try_acquire()
        await semaphore.release(2)
        assert await semaphore.available_permits() == 2
        expirable = client.get_permit_expirable_semaphore(f"e-{name}")
        assert await expirable.try_set_permits(1)
        permit = await expirable.try_acquire()
        assert permit is not None
        assert await expirable.try_acquire() is None
        await expirable.release(permit)
        latch = client.get_count_down_latch(f"l-{name}")
        assert await latch.try_set_count(1)
        await latch.count_down()
        assert await latch.wait(1)


@pytest.mark.asyncio
async def test_groups_over_several_nodes(cluster: Cluster, backend: Backend) -> None:
    one, other = backend.connect(), backend.connect()
    for make in (one.get_multi_lock, one.get_red_lock):
        group = make(*map(one.get_lock, NAMES))
        await group.lock()
        assert not await other.get_lock(NAMES[3]).try_lock()
        await group.unlock()
        assert not keys(cluster)


@pytest.mark.asyncio
async def test_a_client_that_is_closed_releases_on_all_nodes(cluster: Cluster, backend: Backend) -> None:
    client = backend.connect()
    for name in NAMES:
        await client.get_lock(name).lock()
    assert sorted(keys(cluster)) == sorted(NAMES)
    await client.close()
    assert not keys(cluster)


@pytest.mark.parametrize(
    ("number", "fork"),
    [(None, ""), (None, FORK), (signal.SIGTERM, ""), (signal.SIGINT, "")],
    ids=["exit", "fork", "SIGTERM", "SIGINT"],
)
def test_a_process_that_ends_releases_on_all_nodes(
    cluster: Cluster, child: Callable[..., Child], number: signal.Signals | None, fork: str
) -> None:
    """Its forked child is a client of its own."""
    process = child("import pyredisson; pyredisson.release_on_signals()" + HOLD + fork + PAUSE, cluster.url)
    assert process.receive() == "held"
    assert len(keys(cluster)) == 20
    if number is None:
        process.send()
    else:
        process.signal(number)
    assert (process.wait() == 0) is (number is None)
    assert not keys(cluster)


def test_a_dropped_client_sends_what_it_still_has_to_send(cluster: Cluster, child: Callable[..., Child]) -> None:
    assert child(HOLD + DROP, cluster.url).receive() == "[]"
    assert not keys(cluster)
