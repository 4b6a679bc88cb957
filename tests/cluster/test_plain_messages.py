"""Plain messages on a cluster: left out where nobody hears them, and never where somebody does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pyredisson._backends.threads.operations import run
from pyredisson._client import topology
from pyredisson._protocol.scripts import as_eval
from pyredisson.logic.permits import refusal
from pyredisson.testing import Cluster
from pyredisson.testing.cluster_node import ClusterNode
from tests.support.backends import Backend, OtherOwner

from .test_redirects import map_of

pytestmark = pytest.mark.asyncio

NAME = "orders"
CHANNEL = f"redisson_lock__channel:{{{NAME}}}"
SOON = 3.0
"""Seconds within which a message wakes its waiter. By itself a waiter of a lock would look again after many seconds."""
PAIRS = [
    ("auto", "auto"),
    ("auto", "off"),
    ("off", "auto"),
    ("auto", "on"),
    ("on", "auto"),
    ("both", "off"),
    ("both", "on"),
    ("off", "both"),
    ("on", "both"),
]
"""The setting of the client that releases, and that of the client that waits."""


@pytest.fixture
def settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain messages are left out from 0.3 s after a change on, if the topology is looked at every 0.1 s."""
    monkeypatch.setattr(topology, "SHORTEST_SETTLING", 0.0)


class Scene:
    """A lock on a cluster, one client that holds it and one that waits for it."""

    def __init__(self, cluster: Cluster, backend: Backend) -> None:
        self.cluster = cluster
        self.backend = backend
        self.slot = cluster.slot_of_key(NAME)

    @property
    def node(self) -> ClusterNode:
        """The node of the slot."""
        return self.cluster.node_of(self.slot)

    @property
    def elsewhere(self) -> ClusterNode:
        """A master that doesn't have the slot."""
        return next(node for node in self.cluster.masters() if node is not self.node)

    def subscribers(self, flavour: str, node: ClusterNode) -> int:
        with node.redis() as redis:
            anything: Any = redis
            counts = anything.pubsub_numsub if flavour == "plain" else anything.pubsub_shardnumsub
            [(_, count)] = counts(CHANNEL)
            return int(count)

    def published(self) -> int:
        """How many plain messages have been published on all nodes."""
        total = 0
        for node in self.cluster.masters():
            with node.redis() as redis:
                stats: Any = redis.info("commandstats")
                total += stats.get("cmdstat_publish", {}).get("calls", 0)
        return total

    async def begin(self, lock: Any, mode: str, wait_time: float = 25) -> OtherOwner[object]:
        """Starts a waiter, and returns it when it sleeps."""
        waiter: OtherOwner[object] = self.backend.spawn(lambda: lock.try_lock(wait_time=wait_time))
        await self.heard_on(self.node, mode)
        return waiter

    async def heard_on(self, node: ClusterNode, mode: str) -> None:
        for flavour in {"on": ("sharded",), "off": ("plain",)}.get(mode, ("plain", "sharded")):
            await self.backend.until(lambda flavour=flavour: self.subscribers(flavour, node) > 0)  # type: ignore[misc]
        # The attempt after the confirmation must have ended.
        await self.backend.sleep(0.15)

    async def woken(self, waiter: OtherOwner[object], release: Callable[[], Any]) -> float:
        """Releases, and returns the seconds until the waiter has the lock."""
        assert not waiter.done()
        begun = time.monotonic()
        await release()
        assert await waiter.result()
        return time.monotonic() - begun


@pytest.mark.usefixtures("settles_at_once")
async def test_a_lock_that_nobody_waits_for_publishes_no_plain_message(cluster: Cluster, backend: Backend) -> None:
    scene = Scene(cluster, backend)
    before = scene.published()
    new = backend.connect(topology_refresh_interval=10.0).get_lock(NAME)
    await new.lock()
    await new.unlock()
    # The client has just learned where the slot is: others may not know it yet, for three of its refresh intervals.
    assert scene.published() == before + 1
    lock = backend.connect(topology_refresh_interval=0.1).get_lock(NAME)
    await lock.lock()
    await lock.unlock()
    await backend.sleep(0.5)
    before = scene.published()
    for _ in range(10):
        await lock.lock()
        await lock.unlock()
    assert scene.published() == before


async def test_every_release_publishes_a_plain_message_where_that_is_asked_for(
    cluster: Cluster, backend: Backend, settles_at_once: None
) -> None:
    scene = Scene(cluster, backend)
    lock = backend.connect(sharded_pubsub="both", topology_refresh_interval=0.1).get_lock(NAME)
    await lock.lock()
    await lock.unlock()
    await backend.sleep(0.5)
    before = scene.published()
    for _ in range(10):
        await lock.lock()
        await lock.unlock()
    assert scene.published() == before + 10


@pytest.mark.usefixtures("settles_at_once")
@pytest.mark.parametrize(("releasing", "waiting"), PAIRS)
async def test_clients_of_different_settings(cluster: Cluster, backend: Backend, releasing: str, waiting: str) -> None:
    """Each wakes the other one: at first, after the slot has moved, and after a failover."""
    scene = Scene(cluster, backend)
    holder = backend.connect(sharded_pubsub=releasing, topology_refresh_interval=0.1).get_lock(NAME)
    other = backend.connect(sharded_pubsub=waiting, topology_refresh_interval=0.1).get_lock(NAME)

    async def hand_over() -> None:
        await holder.lock()
        waiter = await scene.begin(other, waiting)
        # Beyond the time after a change.
        await backend.sleep(0.5)
        assert await scene.woken(waiter, holder.unlock) < SOON
        await backend.as_another_owner(other.force_unlock)

    await hand_over()
    cluster.move_slot(scene.slot, scene.elsewhere)
    await hand_over()
    cluster.fail_over(scene.node, takeover=True)
    await hand_over()


MOVES = {
    "the slot moves": lambda scene: scene.cluster.move_slot(scene.slot, scene.elsewhere),
    "a replica takes over": lambda scene: scene.cluster.fail_over(scene.node, takeover=True),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("kind", ["before", "after"])
@pytest.mark.parametrize("waiting", ["auto", "off"])
async def test_a_waiter_that_has_not_noticed_a_move(
    cluster: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch, move: str, kind: str, waiting: str
) -> None:
    """It is still subscribed on the former master. The releasing client has known the cluster before, or only after."""
    # A failover may take so long that the waiter would look again by itself, just after the release.
    monkeypatch.setattr(refusal, "LONGEST_WAIT", 60.0)
    scene = Scene(cluster, backend)
    permits = backend.connect(topology_refresh_interval=30.0).get_semaphore(NAME)
    assert await permits.try_set_permits(0)
    other = backend.connect(sharded_pubsub=waiting, topology_refresh_interval=30.0).get_semaphore(NAME)
    waiter: OtherOwner[object] = backend.spawn(lambda: other.try_acquire(wait_time=25))
    channel: Any = f"redisson_sc:{{{NAME}}}"

    def subscribed() -> bool:
        with scene.node.redis() as redis:
            return bool(dict(redis.pubsub_numsub(channel))[channel.encode()])

    await backend.until(subscribed)
    await backend.sleep(0.15)
    MOVES[move](scene)
    if kind == "after":
        permits = backend.connect().get_semaphore(NAME)
    assert await scene.woken(waiter, permits.release) < SOON


class TestSlotsOnTheirWay:
    """A release runs on the node that the slot is being moved to; its waiters are subscribed on the one that has it."""

    @pytest.mark.usefixtures("settles_at_once")
    @pytest.mark.parametrize(
        ("releasing", "waiting", "method"),
        [*((*pair, "unlock") for pair in PAIRS), ("on", "on", "unlock"), ("auto", "on", "force_unlock")],
    )
    async def test_a_release(
        self, cluster: Cluster, backend: Backend, releasing: str, waiting: str, method: str
    ) -> None:
        scene = Scene(cluster, backend)
        holder = backend.connect(sharded_pubsub=releasing, topology_refresh_interval=0.1).get_lock(NAME)
        await holder.lock()
        waiter = await scene.begin(backend.connect(sharded_pubsub=waiting).get_lock(NAME), waiting)
        target = scene.elsewhere
        cluster.begin_move(scene.slot, target)
        cluster.move_keys(scene.slot)
        await backend.sleep(0.5)
        assert await scene.woken(waiter, getattr(holder, method)) < SOON
        cluster.finish_move(scene.slot)
        assert target.ask("EXISTS", NAME) == 1

    async def test_a_client_in_java_that_hears_sharded_messages_only(self, cluster: Cluster, backend: Backend) -> None:
        scene = Scene(cluster, backend)
        lock = backend.connect().get_lock(NAME)
        await lock.lock()
        with scene.node.redis() as redis, redis.pubsub() as listening:
            listening.ssubscribe(CHANNEL)
            assert listening.get_message(timeout=5)["type"] == "ssubscribe"
            cluster.begin_move(scene.slot, scene.elsewhere)
            cluster.move_keys(scene.slot)
            await lock.unlock()
            assert listening.get_message(timeout=5)["data"] == b"0"
        cluster.finish_move(scene.slot)

    async def test_a_release_in_the_background(self, cluster: Cluster, backend: Backend) -> None:
        """Such releases are sent together with others, which are redirected elsewhere or not at all."""
        scene = Scene(cluster, backend)
        client = backend.connect(sharded_pubsub="on")
        names = [NAME, *(f"orders-{number}" for number in range(4))]
        for name in names:
            await client.get_lock(name).lock()
        waiter = await scene.begin(backend.connect(sharded_pubsub="on").get_lock(NAME), "on")
        cluster.begin_move(scene.slot, scene.elsewhere)
        cluster.move_keys(scene.slot)
        session = getattr(client, "_target", client)._session
        # The node that they are redirected to doesn't know the script.
        commands = [hold.commands.abandon(hold) for hold in session.holds.release_all()]
        releases = [as_eval(command, with_shebang=True) for command in commands]
        assert len(releases) == len(names)
        runtime = map_of(client).watchdog_runtime(3.0)

        async def release() -> None:
            assert run(lambda: runtime.send_all(releases)) == [1] * len(names)

        assert await scene.woken(waiter, release) < SOON
        run(runtime.close)
        cluster.finish_move(scene.slot)


class TestWithoutAMessage:
    """What a waiter does if no message comes: it makes an attempt of its own, on a cluster as on a single server."""

    @pytest.mark.parametrize("mode", ["auto", "on", "off"])
    async def test_the_lease_of_a_killed_holder_ends(self, cluster: Cluster, backend: Backend, mode: str) -> None:
        scene = Scene(cluster, backend)
        scene.node.ask("HSET", NAME, "gone:1", 1)
        scene.node.ask("PEXPIRE", NAME, 1500)
        ends = time.monotonic() + 1.5
        waiter = await scene.begin(backend.connect(sharded_pubsub=mode).get_lock(NAME), mode)
        assert not waiter.done()
        assert await waiter.result()
        assert time.monotonic() < ends + SOON

    @pytest.mark.parametrize("mode", ["auto", "on", "off"])
    async def test_a_release_whose_message_is_lost(self, cluster: Cluster, backend: Backend, mode: str) -> None:
        scene = Scene(cluster, backend)
        scene.node.ask("HSET", NAME, "java:1", 1)
        lock = backend.connect(sharded_pubsub=mode, lock_watchdog_timeout=1.5).get_lock(NAME)
        waiter = await scene.begin(lock, mode)
        scene.node.ask("DEL", NAME)
        begun = time.monotonic()
        assert await waiter.result()
        assert time.monotonic() - begun < 1.5 + SOON

    @pytest.mark.slow
    @pytest.mark.parametrize("mode", ["auto", "on", "off"])
    async def test_permits_and_counts(self, cluster: Cluster, backend: Backend, mode: str) -> None:
        """A semaphore or a latch has no lease. Its waiters make an attempt every five seconds."""
        scene = Scene(cluster, backend)
        client = backend.connect(sharded_pubsub=mode)
        permits, latch = client.get_semaphore(NAME), client.get_count_down_latch(f"{{{NAME}}}latch")
        assert await permits.try_set_permits(0)
        assert await latch.try_set_count(1)
        waiters = [
            backend.spawn(lambda: permits.try_acquire(wait_time=25)),
            backend.spawn(lambda: latch.wait(25)),
        ]
        await backend.sleep(0.5)
        scene.node.ask("INCR", NAME)
        scene.node.ask("DEL", f"{{{NAME}}}latch")
        begun = time.monotonic()
        for waiter in waiters:
            assert await waiter.result()
        assert time.monotonic() - begun < 5.0 + SOON

    @pytest.mark.parametrize("move", MOVES)
    @pytest.mark.parametrize("mode", ["auto", "on", "off"])
    async def test_what_was_missed_while_the_subscription_moved(
        self, cluster: Cluster, backend: Backend, mode: str, move: str
    ) -> None:
        """A waiter makes an attempt whenever it has subscribed anew, at the latest after the refresh interval."""
        scene = Scene(cluster, backend)
        scene.node.ask("HSET", NAME, "java:1", 1)
        lock = backend.connect(sharded_pubsub=mode, topology_refresh_interval=1.0).get_lock(NAME)
        waiter = await scene.begin(lock, mode)
        scene.node.ask("DEL", NAME)
        MOVES[move](scene)
        moved = time.monotonic()
        assert await waiter.result()
        assert time.monotonic() - moved < 1.0 + SOON
