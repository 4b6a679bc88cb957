"""Every primitive works on a cluster, wherever its keys are; groups in as few round trips as possible; exits."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import pytest_asyncio

import pyredisson.asyncio
from pyredisson.testing import Cluster
from tests.support.backends import Backend
from tests.support.children import Child

from .scenes import names_on

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


LATENCY = 0.25
"""Seconds, in each direction."""
MEMBERS = 3


@pytest.fixture(scope="module")
def proxied() -> Iterator[Cluster]:
    """A cluster with a proxy before each node."""
    with Cluster(masters=MEMBERS, replicas=0, proxied=True) as running:
        yield running


class Scene:
    """A client that is connected to all nodes, each of which is far away."""

    def __init__(self, cluster: Cluster, backend: Backend) -> None:
        self.client = backend.connect(topology_refresh_interval=600, check_lock_synced_replicas=False)
        self.members = [self.client.get_lock(names_on(cluster, node, 1)[0]) for node in cluster.masters()]
        self._cluster = cluster

    async def begin(self) -> None:
        for member in self.members:
            await member.lock()
        for member in self.members:
            await member.unlock()
        # One connection for each call that is in flight at the same time.
        group = self.client.get_red_lock(*self.members)
        await group.lock()
        await group.unlock()
        self.slow_down(LATENCY)

    def slow_down(self, latency: float) -> None:
        """`latency`: seconds, in each direction."""
        self._latency = latency
        for node in self._cluster.nodes:
            self._cluster.proxy_of(node).latency(latency)

    async def end(self) -> None:
        self.slow_down(0)
        await self.client.close()

    def held(self) -> int:
        """On how many nodes a lock is held."""
        nodes = ((self._cluster.node_of_key(str(one.name)), one.name) for one in self.members)
        return sum(node.ask("EXISTS", name) for node, name in nodes)

    async def round_trips(self, *calls: Callable[[], Awaitable[object]], times: int = 3) -> list[float]:
        """How many round trips each of these calls takes, made in turn. The fewest count: the machine delays some."""
        fewest = [math.inf] * len(calls)
        for _ in range(times):
            for number, call in enumerate(calls):
                begun = time.monotonic()
                await call()
                fewest[number] = min(fewest[number], (time.monotonic() - begun) / (2 * self._latency))
        return fewest


@pytest_asyncio.fixture
async def scene(proxied: Cluster, backend: Backend) -> AsyncIterator[Scene]:
    proxied.flush()
    made = Scene(proxied, backend)
    await made.begin()
    yield made
    await made.end()


@pytest.mark.asyncio
async def test_a_red_lock(scene: Scene) -> None:
    group = scene.client.get_red_lock(*scene.members)
    for taken in await scene.round_trips(group.lock, group.is_held, group.unlock):
        assert 1 <= taken < 1.8
    assert scene.held() == 0
    await group.lock()
    assert scene.held() > MEMBERS / 2


@pytest.mark.asyncio
async def test_a_multi_lock_is_acquired_in_order_and_released_in_parallel(proxied: Cluster, scene: Scene) -> None:
    """Although one of its members is lost. So are the members of an attempt that fails at the last one."""
    group = scene.client.get_multi_lock(*scene.members)
    acquired, released = await scene.round_trips(group.lock, group.unlock)
    assert MEMBERS <= acquired < MEMBERS + 0.8
    assert 1 <= released < 1.8
    assert scene.held() == 0
    await group.lock()
    assert scene.held() == MEMBERS
    lost = scene.members[1].name
    proxied.node_of_key(lost).ask("DEL", lost)
    with pytest.raises(pyredisson.LockLostError):
        await group.unlock()
    assert scene.held() == 0
    last = max(scene.members, key=lambda member: str(member.name))
    proxied.node_of_key(str(last.name)).ask("HSET", last.name, "java:1", 1)
    [taken] = await scene.round_trips(group.try_lock)
    assert MEMBERS + 1 <= taken < MEMBERS + 1.8
    for member in scene.members:
        assert await member.is_locked() == (member is last)


@pytest.mark.asyncio
async def test_a_release_waits_for_a_server_as_that_of_one_lock_does(proxied: Cluster, backend: Backend) -> None:
    """Much longer than a third of `lock_watchdog_timeout`, as long as the limits of the call allow."""
    proxied.flush()
    client = backend.connect(lock_watchdog_timeout=0.3, timeout=20, check_lock_synced_replicas=False)
    locks = [client.get_lock(names_on(proxied, node, 1)[0], owner=1) for node in proxied.masters()]
    group = client.get_multi_lock(*locks)
    await group.lock(lease_time=60)
    for node in proxied.nodes:
        proxied.proxy_of(node).stall()
    release = backend.spawn(group.unlock)
    await backend.sleep(0.5)
    assert not release.done()
    for node in proxied.nodes:
        proxied.proxy_of(node).resume()
    await release.result()
    assert not any([await lock.is_locked() for lock in locks])


@pytest.mark.asyncio
async def test_a_closed_client_releases_on_all_nodes_at_the_same_time(scene: Scene) -> None:
    """One round trip for the handshakes, and one for the releases."""
    for member in scene.members:
        await member.lock()
    # Closing takes a second at most.
    scene.slow_down(0.15)
    [taken] = await scene.round_trips(scene.client.close, times=1)
    # At least 4 if the handshakes or the releases came one after the other.
    assert taken < 3.8
    assert scene.held() == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis+cluster://h1:1,h2:1", "redis+cluster://h3:1,h2:1", True),
        ("redis+cluster://h1:1", "redis+cluster://h2:1", False),
        ("redis+cluster://h1:1", "redis://h1:1", False),
        ("redis+sentinel://h1:1,h2:1/one", "redis+sentinel://h2:1/one", True),
        ("redis+sentinel://h1:1/one", "redis+sentinel://h1:1/other", False),
        ("redis+replicated://h1:1,h2:1", "redis+replicated://h2:1", True),
        ("redis://h1:1", "redis://h1:1/0", True),
        ("redis://h1:1", "redis://h1:1/1", False),
    ],
)
def test_a_lock_that_two_clients_have_by_other_addresses(one: str, other: str, same: bool) -> None:
    """A red lock would count it twice. No server is needed."""
    with pyredisson.connect(one) as first, pyredisson.connect(other) as second:
        locks = first.get_lock("a"), second.get_lock("a")
        if same:
            with pytest.raises(ValueError, match="twice"):
                first.get_red_lock(*locks)
        else:
            first.get_red_lock(*locks)
