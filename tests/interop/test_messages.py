"""Plain and sharded messages on a cluster: a client of Java hears one of them, wherever the slot of its lock goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyredisson._client import servers
from tests.cluster.scenes import half_moved, names_on, other_than
from tests.support.backends import Backend

from .jvm import JavaClient
from .targets import WOKEN, ClusterOfServers, acquired, wakes

pytestmark = pytest.mark.asyncio

CHANNEL = "redisson_lock__channel:{orders}"
LAG = 2.5
"""Seconds after which Java, which looks at the cluster every second in these tests, has followed a change."""


@pytest.fixture
def cluster(target: ClusterOfServers) -> ClusterOfServers:
    """What both sides talk to. On a single server there is one flavour of messages, so nothing is tested there."""
    return target


@pytest.fixture(autouse=True)
def settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python leaves plain messages out from 0.3 s after a change on, if it looks at the cluster every 0.1 s."""
    monkeypatch.setattr(servers, "SHORTEST_SETTLING", 0.0)


def modes(version: str) -> list[dict[str, object]]:
    """The settings by which a client of that version hears one flavour."""
    if version == "3.27.2":
        # It has no setting, and chooses by chance.
        return [{}]
    return [{"shardedSubscriptionMode": mode} for mode in ("OFF", "ON")]


async def test_whatever_java_hears_and_wherever_the_slot_goes(
    backend: Backend, version: str, connect_java: Callable[..., JavaClient], cluster: ClusterOfServers
) -> None:
    ours = backend.connect(topology_refresh_interval=0.1).get_lock("orders")
    lock_at = cluster.cluster.slot_of_key("orders")

    async def hand_over(java: JavaClient) -> None:
        theirs = java.get("Lock", "orders")
        await ours.lock()
        waiter = java.ann.begin(theirs, "lock")
        await cluster.until_java_waits(backend, "Lock", "orders")
        await wakes(waiter, ours.unlock)
        # A client of its own, whose subscription ends with it.
        other = backend.connect(topology_refresh_interval=0.1)
        waiting = backend.spawn(acquired(other.get_lock("orders")))
        await backend.until(cluster.waiting("Lock", "orders"))
        released = java.ann.begin(theirs, "unlock").answer()
        assert released.began < await waiting.result() < released.ended + WOKEN
        await other.close()
        await backend.until(lambda: cluster.listeners(CHANNEL) == 0)

    for mode in modes(version):
        java = connect_java(mode)
        await backend.sleep(0.5)
        await hand_over(java)
        cluster.cluster.move_slot(lock_at, other_than(cluster.cluster.node_of(lock_at), cluster.cluster))
        await backend.sleep(LAG)
        await hand_over(java)
        cluster.cluster.fail_over(cluster.cluster.node_of(lock_at), takeover=True)
        await backend.sleep(LAG)
        await hand_over(java)


async def test_java_waits_while_its_slot_is_on_its_way(
    backend: Backend, connect_java: Callable[..., JavaClient], cluster: ClusterOfServers
) -> None:
    """The release runs on the node that the slot is being moved to. Java is subscribed on the one that has it."""
    servers = cluster.cluster
    java = connect_java()
    ours, theirs = backend.connect().get_lock("orders"), java.get("Lock", "orders")
    for master in servers.masters():
        # Java doesn't repeat a script behind ASK that the node doesn't know.
        known = java.get("Lock", names_on(servers, master, 1)[0])
        java.ann.call(known, "lock")
        java.ann.call(known, "unlock")
    await ours.lock()
    waiter = java.ann.begin(theirs, "lock")
    await cluster.until_java_waits(backend, "Lock", "orders")
    with half_moved(servers, "orders", "orders"):
        await wakes(waiter, ours.unlock)
    java.ann.call(theirs, "unlock")


async def test_java_is_subscribed_on_a_replica(
    backend: Backend, version: str, connect_java: Callable[..., JavaClient], cluster: ClusterOfServers
) -> None:
    """The master can't see a subscriber of plain messages there. With the setting "both" they are always published."""
    mode: dict[str, object] = {"subscriptionMode": '"SLAVE"', **modes(version)[0]}
    ours = backend.connect(sharded_pubsub="both", topology_refresh_interval=0.1).get_lock("orders")
    java = connect_java(mode)
    theirs = java.get("Lock", "orders")
    await ours.lock()
    waiter = java.ann.begin(theirs, "lock")
    await cluster.until_java_waits(backend, "Lock", "orders")
    master = cluster.cluster.node_of_key("orders")
    with master.redis() as redis:
        assert [int(count) for _, count in redis.pubsub_numsub(CHANNEL)] == [0]
    await backend.sleep(0.5)
    await wakes(waiter, ours.unlock)
    java.ann.call(theirs, "unlock")
