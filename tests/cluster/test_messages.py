"""Messages wake the waiters on a cluster, wherever the slot is or goes, also all keys at once."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from pyredisson import new_owner
from pyredisson._client import servers
from pyredisson.testing import Cluster, ClusterNode
from tests.support.backends import Backend, OtherOwner, eventually, fails, finished, in_turn, waiters, within

from .conftest import CALM_NODE_TIMEOUT, atomically, started
from .scenes import calls, known_lock, other_than, places

NAME = "orders"
SOON = 3.0
"""Seconds within which a message wakes its waiter. By itself a waiter would look again after many seconds."""
FLAVOURS = ("PUBLISH", "SPUBLISH")
MODES = ("auto", "on", "off")
HEARD = {"on": FLAVOURS[1:], "off": FLAVOURS[:1]}
"""The flavours that a client hears with that setting; both with any other."""
CHANNEL = f"redisson_lock__channel:{{{NAME}}}"
HOLD = ("HSET", NAME, "java:1", 1)


class Scene:
    """A waiter on some servers, and somebody else who holds the lock and speaks to single nodes."""

    def __init__(self, servers: Any, backend: Backend) -> None:
        self.cluster, self.backend = servers, backend
        self.slot = Cluster.slot_of_key(NAME)
        self.client: Any = None
        """The waiter's."""

    @property
    def node(self) -> Any:
        return self.cluster.node_of(self.slot) if isinstance(self.cluster, Cluster) else self.cluster.master()

    @property
    def elsewhere(self) -> ClusterNode:
        return other_than(self.node, self.cluster)

    def subscribers(self, flavour: str, node: ClusterNode) -> int:
        [_, count] = node.ask("PUBSUB", "NUMSUB" if flavour == "PUBLISH" else "SHARDNUMSUB", CHANNEL)
        return int(count)

    async def begin(self, client: Any, mode: str = "auto") -> OtherOwner[object]:
        """Starts the waiter for what somebody else holds, and returns it when it sleeps."""
        self.node.ask(*HOLD)
        self.client = client
        waiter: OtherOwner[object] = self.backend.spawn(lambda: client.get_lock(NAME).try_lock(20))
        await self.heard_on(self.node, mode)
        return waiter

    async def heard_on(self, node: ClusterNode, mode: str) -> None:
        """Waits until the channel is heard on that node, in all flavours of the mode."""
        for flavour in HEARD.get(mode, FLAVOURS):
            await self.backend.until(lambda flavour=flavour: self.subscribers(flavour, node) > 0, 5.0)  # type: ignore[misc]
        # The attempt after the confirmation should have ended: it could find the lock free without a message.
        await self.backend.sleep(0.15)

    async def followed(self, move: Callable[[Any], object], mode: str) -> None:
        """After such a move the channel is heard on the other node, and not on the former one."""
        old = self.node
        move(self)
        assert self.node is not old
        await self.heard_on(self.node, mode)
        await self.backend.until(lambda: self.subscribers("SPUBLISH", old) == 0)

    async def released(self, waiter: OtherOwner[object], publish: str, node: ClusterNode | None = None) -> None:
        """Somebody else releases, with a message that wakes the waiter."""
        assert not waiter.done()
        # On a busy machine the attempt after the confirmation may last longer than `heard_on` waits.
        await self.backend.until(lambda: waiters(self.client, NAME) == 1)
        self.node.ask("DEL", NAME)
        await self.backend.sleep(0.05)
        assert not waiter.done(), "it needed no message"
        with within(SOON):
            (node or self.node).ask(publish, CHANNEL, "0")
            assert await waiter.result()


MOVES: dict[str, Callable[[Scene], object]] = {
    "the slot moves": lambda scene: scene.cluster.move_slot(scene.slot, scene.elsewhere),
    "a replica takes over": lambda scene: scene.cluster.fail_over(scene.node, takeover=True),
}


@pytest.fixture
def scene(cluster: Cluster, backend: Backend) -> Scene:
    return Scene(cluster, backend)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("mode", MODES)
async def test_subscriptions_follow_the_slot(scene: Scene, backend: Backend, mode: str, move: str) -> None:
    """Without any command of the user. A message that is missed meanwhile is not missing."""
    client = backend.connect(sharded_pubsub=mode, topology_refresh_interval=1.0)
    waiter = await scene.begin(client, mode)
    for _ in range(2 if move == "the slot moves" else 1):
        await scene.followed(MOVES[move], mode)
    await scene.released(waiter, HEARD.get(mode, FLAVOURS)[-1])
    # A waiter makes an attempt whenever it has subscribed anew, at the latest after the refresh interval.
    scene.node.ask("DEL", NAME)
    waiter = await scene.begin(client, mode)
    scene.node.ask("DEL", NAME)
    MOVES[move](scene)
    with within(1.0 + SOON):
        assert await waiter.result()


@pytest.mark.parametrize("right", ["channel", "ssubscribe", "subscribe"])
async def test_a_user_without_the_right(scene: Scene, cluster: Cluster, backend: Backend, right: str) -> None:
    """The waiter raises the error: messages that only come in this flavour would never wake it."""
    denied = ["resetchannels"] if right == "channel" else ["allchannels", f"-{right}"]
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "app", "on", ">secret", "allkeys", "+@all", *denied)
    try:
        scene.node.ask(*HOLD)
        client = backend.connect(username="app", password="secret")
        await fails(NoPermissionError, client.get_lock(NAME).try_lock, wait_time=20)
    finally:
        for node in cluster.nodes:
            node.ask("ACL", "DELUSER", "app")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("with_replicas", "mode", "end"),
    [
        *(("own_cluster", *each) for each in product(["auto"], ["kill", "pause"])),
        *(("own_cluster", "on", "pause"), ("own_cluster", "off", "kill")),
        # Without slots there are plain messages only.
        *((servers, "off", "") for servers in ("sentinels", "replicated")),
    ],
    indirect=["with_replicas"],
)
async def test_a_master_that_is_replaced(with_replicas: Any, backend: Backend, mode: str, end: str) -> None:
    """Nobody sends a command, and the client hears of the new master all the same."""
    scene = Scene(with_replicas, backend)
    waiter = await scene.begin(backend.connect(sharded_pubsub=mode, topology_refresh_interval=1.0), mode)
    old = scene.node
    if end:
        getattr(with_replicas, end)(old)
    new = with_replicas.wait_for_promotion(old) if end else with_replicas.fail_over()
    with within(2.5):
        await scene.heard_on(new, mode)
    # An attempt that failed meanwhile is made again after a pause.
    await backend.sleep(1.0)
    await scene.released(waiter, HEARD.get(mode, FLAVOURS)[-1], new)


@pytest.mark.parametrize(("mode", "messages"), [("auto", 0), ("both", 10)])
async def test_releases_that_nobody_waits_for(
    cluster: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch, mode: str, messages: int
) -> None:
    # Plain messages are left out from 0.3 s after a change on, if the topology is looked at every 0.1 s.
    monkeypatch.setattr(servers, "SHORTEST_SETTLING", 0.0)
    # How many plain messages have been published on all nodes.
    published = partial(calls, "publish", *cluster.masters())
    before = published()
    async with backend.connect(sharded_pubsub=mode, topology_refresh_interval=10.0).get_lock(NAME):
        pass
    # The client has just learned where the slot is: others may not know it yet, for three of its refresh intervals.
    assert published() == before + 1
    lock = await known_lock(backend.connect(sharded_pubsub=mode, topology_refresh_interval=0.1), NAME)
    await backend.sleep(0.5)
    before = published()
    await in_turn([lock.lock, lock.unlock] * 10)
    assert published() == before + messages


# Slots that move with all keys at once


moving = started(Cluster, "module", CALM_NODE_TIMEOUT, config={"enable-debug-command": "yes"})
"""A cluster whose servers move slots at once. Not to be stopped."""


@atomically
@pytest.mark.parametrize("mode", MODES)
async def test_subscriptions_follow_a_slot_that_moves_at_once(moving: Cluster, backend: Backend, mode: str) -> None:
    """The server ends the sharded subscription, and somebody who knows nothing of it publishes on the new node."""
    scene = Scene(moving, backend)
    waiter = await scene.begin(backend.connect(sharded_pubsub=mode, topology_refresh_interval=1.0), mode)
    for _ in range(2):
        await scene.followed(lambda each: moving.move_atomically(each.slot, each.slot, each.elsewhere), mode)
    assert not waiter.done()
    await scene.released(waiter, HEARD.get(mode, FLAVOURS)[-1])


@atomically
async def test_a_hand_over_takes_longer_than_calls_wait_for_replies(moving: Cluster, backend: Backend) -> None:
    """The source lets writes wait. What gets no reply in time has not run there, and runs once at the target."""
    tag, source, other = places(moving)
    if "MIGRATESLOTS" not in str(source.ask("CLUSTER", "HELP")):
        pytest.skip("only Valkey can be told to wait with the hand-over")
    client = backend.connect(timeout=0.5)
    held = client.get_lock(f"held{{{tag}}}", owner=new_owner())  # released by another thread or task
    semaphore = client.get_semaphore(f"permits{{{tag}}}")
    await held.lock()
    await semaphore.try_set_permits(5)
    slot = moving.slot_of_key(tag)
    other.ask("DEBUG", "SLOTMIGRATION", "PREVENT-FAILOVER", 1)
    try:
        move = moving.begin_atomic_move(slot, slot, other)
        eventually(lambda: move.state == "failover-granted")
        calls = [backend.spawn(held.unlock), backend.spawn(lambda: semaphore.acquire(2))]
        await backend.sleep(1.2)
        assert not any(call.done() for call in calls)
    finally:
        other.ask("DEBUG", "SLOTMIGRATION", "PREVENT-FAILOVER", 0)
    moving.finish_atomic_move(move)
    await finished(calls)
    assert (await semaphore.available_permits(), held.lost.is_set()) == (3, False)
    assert await backend.connect().get_lock(f"held{{{tag}}}").try_lock()
