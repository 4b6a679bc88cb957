"""Messages wake the waiters on a cluster: in both flavours, wherever the slot of the channel is or goes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from redis.exceptions import NoPermissionError

from pyredisson._backends.aio import listener as aio_listener
from pyredisson._backends.threads import listener
from pyredisson.logic import channels
from pyredisson.testing import Cluster, Replicated, Sentinels
from pyredisson.testing.cluster_node import ClusterNode
from tests.support.backends import Backend, OtherOwner
from tests.support.waiting import permit_waiters
from tests.support.waiting import waiters as lock_waiters

pytestmark = pytest.mark.asyncio

NAME = "orders"
SOON = 3.0
"""Seconds within which a message wakes its waiter. By itself a waiter would look again after many seconds."""
FLAVOURS = ("PUBLISH", "SPUBLISH")
MODES = ("auto", "on", "off")
LOCK_CHANNEL = "redisson_lock__channel:{%s}"


class Kind(NamedTuple):
    """A kind of waiter: how others hold what it waits for, how they release it, and what they publish then."""

    hold: list[tuple[object, ...]]
    release: tuple[object, ...]
    channel: str
    message: str
    wait: Callable[[Any, str], Awaitable[object]]


WRITING = ("HSET", "%s", "mode", "write", "java:1:write", 1)
KINDS = {
    "lock": Kind(
        [("HSET", "%s", "java:1", 1)],
        ("DEL", "%s"),
        LOCK_CHANNEL,
        "0",
        lambda client, name: client.get_lock(name).try_lock(wait_time=20),
    ),
    "reader": Kind(
        [WRITING],
        ("DEL", "%s"),
        "redisson_rwlock:{%s}",
        "1",
        lambda client, name: client.get_read_write_lock(name).read_lock().try_lock(wait_time=20),
    ),
    "writer": Kind(
        [WRITING],
        ("DEL", "%s"),
        "redisson_rwlock:{%s}",
        "1",
        lambda client, name: client.get_read_write_lock(name).write_lock().try_lock(wait_time=20),
    ),
    "semaphore": Kind(
        [("SET", "%s", 0)],
        ("INCR", "%s"),
        "redisson_sc:{%s}",
        "1",
        lambda client, name: client.get_semaphore(name).try_acquire(wait_time=20),
    ),
    "permit": Kind(
        [("SET", "%s", 0)],
        ("INCR", "%s"),
        "redisson_sc:{%s}",
        "1",
        lambda client, name: client.get_permit_expirable_semaphore(name).try_acquire(wait_time=20),
    ),
    "latch": Kind(
        [("SET", "%s", 1)],
        ("DEL", "%s"),
        "redisson_countdownlatch__channel__{%s}",
        "0",
        lambda client, name: client.get_count_down_latch(name).wait(20),
    ),
}


ASLEEP: dict[str, Callable[[Any, str], int]] = {
    "lock": lock_waiters,
    "reader": lambda client, name: lock_waiters(client, name, "read"),
    "writer": lambda client, name: lock_waiters(client, name, "write"),
    "semaphore": permit_waiters,
}
"""How many waiters of a client sleep, by their kind. Of the other kinds that isn't known."""


class Scene:
    """A waiter on a cluster, and somebody else who holds what it waits for and speaks to single nodes."""

    def __init__(self, cluster: Cluster, backend: Backend, kind: str = "lock", name: str = NAME) -> None:
        self.cluster = cluster
        self.backend = backend
        self.kind = KINDS[kind]
        self._asleep = ASLEEP.get(kind)
        self._client: Any = None
        """That of the waiter."""
        self.name = name
        self.channel = self.kind.channel % name
        self.slot = cluster.slot_of_key(name)

    @property
    def node(self) -> ClusterNode:
        """The node of the slot."""
        return self.cluster.node_of(self.slot)

    def run(self, words: tuple[object, ...], node: ClusterNode | None = None) -> None:
        with (node or self.node).redis() as redis:
            command: Any = redis.execute_command
            command(*(self.name if word == "%s" else word for word in words))

    def subscribers(self, flavour: str, node: ClusterNode) -> int:
        """The number of connections that hear the channel on that node."""
        with node.redis() as redis:
            anything: Any = redis
            counts = anything.pubsub_numsub if flavour == "PUBLISH" else anything.pubsub_shardnumsub
            [(_, count)] = counts(self.channel)
            return int(count)

    async def begin(self, client: Any, mode: str = "auto") -> OtherOwner[object]:
        """Starts the waiter, and returns it when it hears the channel on the node of the slot."""
        for words in self.kind.hold:
            self.run(words)
        self._client = client
        waiter: OtherOwner[object] = self.backend.spawn(lambda: self.kind.wait(client, self.name))
        await self.heard_on(self.node, mode)
        return waiter

    async def heard_on(self, node: ClusterNode, mode: str, seconds: float = 5.0) -> None:
        """Waits until the channel is heard on that node, in all flavours of the mode."""
        wanted = {"auto": FLAVOURS, "on": FLAVOURS[1:], "off": FLAVOURS[:1]}[mode]
        for flavour in wanted:
            await self.backend.until(lambda flavour=flavour: self.subscribers(flavour, node) == 1, seconds)  # type: ignore[misc]
        # The attempt after the confirmation should have ended: it could find the lock free without a message.
        await self.backend.sleep(0.3)

    async def released(self, waiter: OtherOwner[object], publish: str, node: ClusterNode | None = None) -> float:
        """Releases with a message, and returns the seconds until the waiter has gone on."""
        assert not waiter.done()
        asleep, client = self._asleep, self._client
        if asleep is not None:
            # On a busy machine the attempt after the confirmation may last longer than `heard_on` waits.
            await self.backend.until(lambda: asleep(client, self.name) == 1)
        self.run(self.kind.release)
        await self.backend.sleep(0.05)
        assert not waiter.done(), "it needed no message"
        begun = time.monotonic()
        self.run((publish, self.channel, self.kind.message), node)
        assert await waiter.result()
        return time.monotonic() - begun


@pytest.mark.parametrize("publish", FLAVOURS)
@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_waiter(cluster: Cluster, backend: Backend, kind: str, publish: str) -> None:
    scene = Scene(cluster, backend, kind)
    waiter = await scene.begin(backend.connect())
    assert await scene.released(waiter, publish) < SOON


@pytest.mark.parametrize(("mode", "publish"), [("on", "SPUBLISH"), ("off", "PUBLISH")])
async def test_one_flavour_only(cluster: Cluster, backend: Backend, mode: str, publish: str) -> None:
    scene = Scene(cluster, backend)
    waiter = await scene.begin(backend.connect(sharded_pubsub=mode), mode)
    [other] = set(FLAVOURS) - {publish}
    assert scene.subscribers(other, scene.node) == 0
    scene.run((other, scene.channel, "0"))
    assert await scene.released(waiter, publish) < SOON


@pytest.mark.parametrize("mode", MODES)
async def test_our_own_releases(cluster: Cluster, backend: Backend, mode: str) -> None:
    """Every mode wakes its own waiters, and those of the default mode."""
    one = backend.connect(sharded_pubsub=mode)
    for hearing in {mode, "auto"}:
        scene = Scene(cluster, backend)
        await one.get_lock(NAME).lock()
        other = backend.connect(sharded_pubsub=hearing)
        waiter = backend.spawn(lambda other=other: other.get_lock(NAME).try_lock(wait_time=20))  # type: ignore[misc]
        await scene.heard_on(scene.node, hearing)
        await backend.sleep(0.1)
        begun = time.monotonic()
        await one.get_lock(NAME).unlock()
        assert await waiter.result()
        assert time.monotonic() - begun < SOON
        await other.close()
        cluster.flush()


async def test_a_plain_message_of_another_node(cluster: Cluster, backend: Backend) -> None:
    scene = Scene(cluster, backend)
    waiter = await scene.begin(backend.connect())
    elsewhere = next(node for node in cluster.masters() if node is not scene.node)
    assert await scene.released(waiter, "PUBLISH", elsewhere) < SOON


@pytest.mark.parametrize("mode", MODES)
async def test_a_latch_with_a_brace_in_its_name(cluster: Cluster, backend: Backend, mode: str) -> None:
    """Its channel is on another slot than its key, so it is published and heard in the plain flavour only."""
    one, other = backend.connect(sharded_pubsub=mode), backend.connect(sharded_pubsub=mode)
    for number in range(6):
        name = f"{{orders-{number}}}:done"
        latch = one.get_count_down_latch(name)
        assert await latch.try_set_count(1)
        waiter = backend.spawn(lambda name=name: other.get_count_down_latch(name).wait(20))  # type: ignore[misc]
        channel: Any = f"redisson_countdownlatch__channel__{{{name}}}"

        def heard(channel: Any = channel) -> bool:
            counts = []
            for node in cluster.masters():
                with node.redis() as redis:
                    counts += [count for _, count in redis.pubsub_numsub(channel)]
            return bool(sum(counts) == 1)

        await backend.until(heard)
        await backend.sleep(0.1)
        begun = time.monotonic()
        await latch.count_down()
        assert await waiter.result()
        assert time.monotonic() - begun < SOON


@pytest.mark.parametrize("mode", MODES)
async def test_waiters_of_all_nodes_at_once(cluster: Cluster, backend: Backend, mode: str) -> None:
    client = backend.connect(sharded_pubsub=mode)
    scenes = [Scene(cluster, backend, name=f"orders-{number}") for number in range(9)]
    assert len({scene.node for scene in scenes}) == 3
    waiters = [await scene.begin(client, mode) for scene in scenes]
    for scene, waiter in zip(scenes, waiters, strict=True):
        assert await scene.released(waiter, "PUBLISH" if mode == "off" else "SPUBLISH") < SOON


class TestSlotsThatMove:
    """The subscription follows without any command of the user."""

    @pytest.mark.parametrize("mode", MODES)
    async def test_a_slot(self, cluster: Cluster, backend: Backend, mode: str) -> None:
        scene = Scene(cluster, backend)
        waiter = await scene.begin(backend.connect(sharded_pubsub=mode, topology_refresh_interval=1.0), mode)
        old = scene.node
        for _ in range(2):
            target = next(node for node in cluster.masters() if node is not scene.node)
            cluster.move_slot(scene.slot, target)
            await scene.heard_on(target, mode)
        await backend.until(lambda: scene.subscribers("SPUBLISH", old) == 0 or scene.node is old)
        assert not waiter.done()
        assert await scene.released(waiter, "PUBLISH" if mode == "off" else "SPUBLISH") < SOON

    async def test_many_waiters_of_one_slot(self, cluster: Cluster, backend: Backend) -> None:
        client = backend.connect()
        names = [f"{{orders}}:{number}" for number in range(40)]
        heard_names: list[Any] = [f"redisson_lock__channel:{name}" for name in names]
        slot = cluster.slot_of_key(names[0])
        with cluster.node_of(slot).redis() as redis:
            for name in names:
                redis.hset(name, "java:1", "1")
        waiters = [
            backend.spawn(lambda name=name: client.get_lock(name).try_lock(wait_time=20))  # type: ignore[misc]
            for name in names
        ]

        def heard() -> bool:
            with cluster.node_of(slot).redis() as redis:
                anything: Any = redis
                return bool(sum(count for _, count in anything.pubsub_shardnumsub(*heard_names)) == len(names))

        await backend.until(heard)
        cluster.move_slot(slot, next(node for node in cluster.masters() if node is not cluster.node_of(slot)))
        await backend.until(heard)
        await backend.sleep(0.2)
        begun = time.monotonic()
        with cluster.node_of(slot).redis() as redis:
            for name, channel in zip(names, heard_names, strict=True):
                redis.delete(name)
                redis.spublish(channel, "0")
        for waiter in waiters:
            assert await waiter.result()
        assert time.monotonic() - begun < 10

    @pytest.mark.parametrize("mode", MODES)
    async def test_a_replica_takes_over(self, cluster: Cluster, backend: Backend, mode: str) -> None:
        scene = Scene(cluster, backend)
        waiter = await scene.begin(backend.connect(sharded_pubsub=mode, topology_refresh_interval=1.0), mode)
        new = cluster.fail_over(scene.node, takeover=True)
        await scene.heard_on(new, mode)
        assert not waiter.done()
        assert await scene.released(waiter, "PUBLISH" if mode == "off" else "SPUBLISH") < SOON


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "pause"])
@pytest.mark.parametrize("mode", MODES)
async def test_a_master_that_fails(own_cluster: Cluster, backend: Backend, mode: str, end: str) -> None:
    """Nobody sends a command, and the client hears of the new master all the same."""
    scene = Scene(own_cluster, backend)
    waiter = await scene.begin(backend.connect(sharded_pubsub=mode, topology_refresh_interval=1.0), mode)
    old = scene.node
    getattr(own_cluster, end)(old)
    new = own_cluster.wait_for_promotion(old)
    promoted = time.monotonic()
    await scene.heard_on(new, mode)
    assert time.monotonic() - promoted < 2.5
    # An attempt that failed meanwhile is made again after a pause.
    await backend.sleep(1.0)
    assert await scene.released(waiter, "PUBLISH" if mode == "off" else "SPUBLISH", new) < SOON


async def test_a_slot_without_a_node(own_cluster: Cluster, backend: Backend) -> None:
    """The node ends the subscription, and nobody accepts another one until the slot is assigned again."""
    scene = Scene(own_cluster, backend)
    for node in own_cluster.nodes:
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    waiter = await scene.begin(backend.connect())
    owner = scene.node
    for node in own_cluster.nodes:
        node.ask("CLUSTER", "DELSLOTS", scene.slot)
    await backend.until(lambda: scene.subscribers("SPUBLISH", owner) == 0)
    await backend.sleep(1.0)
    assert not waiter.done()
    owner.ask("CLUSTER", "ADDSLOTS", scene.slot)
    await scene.heard_on(owner, "auto")
    await backend.until(lambda: scene.node is owner)
    assert await scene.released(waiter, "SPUBLISH") < SOON


async def test_nodes_without_channels_have_no_connection(
    cluster: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that waited on every node once doesn't keep a connection to each of them."""
    for module in (channels, listener, aio_listener):
        monkeypatch.setattr(module, "LINGER", 0.5)
    client = backend.connect(ping_interval=0.5, client_name="lingers")
    scenes = [Scene(cluster, backend, name=f"orders-{number}") for number in range(9)]

    def connections() -> int:
        count = 0
        for node in cluster.masters():
            with node.redis() as redis:
                mine = [one for one in redis.client_list() if one["name"] == "lingers"]
                count += sum(int(one["sub"]) + int(one.get("ssub", 0)) > 0 for one in mine)
        return count

    for scene in scenes:
        waiter = await scene.begin(client)
        assert connections() > 0
        await scene.released(waiter, "SPUBLISH")
    await backend.until(lambda: connections() == 0, 20)
    waiter = await scenes[0].begin(client)
    assert await scenes[0].released(waiter, "SPUBLISH") < SOON


@pytest.mark.parametrize("right", ["channel", "ssubscribe", "subscribe"])
async def test_a_user_without_the_right(cluster: Cluster, backend: Backend, right: str) -> None:
    """The waiter raises the error: messages that only come in this flavour would never wake it."""
    scene = Scene(cluster, backend)
    denied = ["resetchannels"] if right == "channel" else ["allchannels", f"-{right}"]
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "app", "on", ">secret", "allkeys", "+@all", *denied)
    try:
        for words in scene.kind.hold:
            scene.run(words)
        client = backend.connect(username="app", password="secret")
        with pytest.raises(NoPermissionError):
            await client.get_lock(NAME).try_lock(wait_time=20)
    finally:
        for node in cluster.nodes:
            node.ask("ACL", "DELUSER", "app")


async def test_the_names_of_the_channels(cluster: Cluster) -> None:
    """The channels of `KINDS` are on the slot of their object."""
    for kind in KINDS.values():
        assert cluster.slot_of_key(kind.channel % NAME) == cluster.slot_of_key(NAME)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sentinels", "replicated"])
async def test_a_master_with_replicas_is_replaced(
    request: pytest.FixtureRequest, kind: str, backend_kind: type[Backend]
) -> None:
    """Without slots there are plain messages only, which are heard on the present master."""
    servers: Sentinels | Replicated = request.getfixturevalue(kind)
    backend = backend_kind(servers.url)

    def subscribers() -> int:
        with servers.master().redis() as redis:
            anything: Any = redis
            [(_, count)] = anything.pubsub_numsub(LOCK_CHANNEL % NAME)
            return int(count)

    def run(*words: object) -> None:
        with servers.master().redis() as redis:
            command: Any = redis.execute_command
            command(*words)

    try:
        run("HSET", NAME, "java:1", 1)
        client = backend.connect(topology_refresh_interval=1.0)
        waiter = backend.spawn(lambda: client.get_lock(NAME).try_lock(wait_time=20))
        await backend.until(lambda: subscribers() == 1)
        old = servers.master()
        servers.fail_over()
        assert servers.master() is not old
        await backend.until(lambda: subscribers() == 1)
        await backend.sleep(0.5)
        assert not waiter.done()
        run("DEL", NAME)
        begun = time.monotonic()
        run("PUBLISH", LOCK_CHANNEL % NAME, "0")
        assert await waiter.result()
        assert time.monotonic() - begun < SOON
    finally:
        await backend.close()
