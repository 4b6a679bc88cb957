"""Plain messages on a cluster: left out where nobody hears them, and never where somebody does."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from pyredisson._backends.threads.operations import run
from pyredisson._client import topology
from pyredisson._protocol.scripts import as_eval
from pyredisson.logic.permits import refusal
from pyredisson.testing import Cluster
from tests.support.backends import Backend, OtherOwner

from .scenes import calls, half_moved, map_of
from .test_messages import MODES, NAME, SOON, Scene, subscribers

pytestmark = pytest.mark.asyncio

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
    ("on", "on"),
    ("off", "off"),
]
"""The setting of the client that releases, and that of the client that waits."""
MOVES: dict[str, Callable[[Scene], object]] = {"the slot moves": Scene.move, "a replica takes over": Scene.fail_over}


@pytest.fixture
def settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain messages are left out from 0.3 s after a change on, if the topology is looked at every 0.1 s."""
    monkeypatch.setattr(topology, "SHORTEST_SETTLING", 0.0)


@pytest.fixture
def scene(cluster: Cluster, backend: Backend) -> Scene:
    return Scene(cluster, backend)


def published(cluster: Cluster) -> int:
    """How many plain messages have been published on all nodes."""
    return sum(calls(node, "publish") for node in cluster.masters())


@pytest.mark.usefixtures("settles_at_once")
@pytest.mark.parametrize(("mode", "messages"), [("auto", 0), ("both", 10)])
async def test_releases_of_a_lock_that_nobody_waits_for(
    cluster: Cluster, backend: Backend, mode: str, messages: int
) -> None:
    before = published(cluster)
    async with backend.connect(sharded_pubsub=mode, topology_refresh_interval=10.0).get_lock(NAME):
        pass
    # The client has just learned where the slot is: others may not know it yet, for three of its refresh intervals.
    assert published(cluster) == before + 1
    lock = backend.connect(sharded_pubsub=mode, topology_refresh_interval=0.1).get_lock(NAME)
    await lock.lock()
    await lock.unlock()
    await backend.sleep(0.5)
    before = published(cluster)
    for _ in range(10):
        await lock.lock()
        await lock.unlock()
    assert published(cluster) == before + messages


@pytest.mark.usefixtures("settles_at_once")
@pytest.mark.parametrize(("releasing", "waiting"), PAIRS)
async def test_clients_of_different_settings(scene: Scene, backend: Backend, releasing: str, waiting: str) -> None:
    """Each wakes the other one: at first, after the slot has moved, and after a failover."""
    holder = backend.connect(sharded_pubsub=releasing, topology_refresh_interval=0.1).get_lock(NAME)
    other = backend.connect(sharded_pubsub=waiting, topology_refresh_interval=0.1).get_lock(NAME)
    for change in (lambda: None, scene.move, scene.fail_over):
        change()
        await holder.lock()
        waiter = await scene.wait(lambda: other.try_lock(25), waiting)
        # Beyond the time after a change.
        await backend.sleep(0.5)
        await scene.woken(waiter, holder.unlock)
        await backend.as_another_owner(other.force_unlock)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("kind", ["before", "after"])
@pytest.mark.parametrize("waiting", ["auto", "off"])
async def test_a_waiter_that_has_not_noticed_a_move(
    scene: Scene, backend: Backend, monkeypatch: pytest.MonkeyPatch, move: str, kind: str, waiting: str
) -> None:
    """It is still subscribed on the former master. The releasing client has known the cluster before, or only after."""
    # A failover may take so long that the waiter would look again by itself, just after the release.
    monkeypatch.setattr(refusal, "LONGEST_WAIT", 60.0)
    permits = backend.connect(topology_refresh_interval=30.0).get_semaphore(NAME)
    assert await permits.try_set_permits(0)
    other = backend.connect(sharded_pubsub=waiting, topology_refresh_interval=30.0).get_semaphore(NAME)
    waiter: OtherOwner[object] = backend.spawn(lambda: other.try_acquire(wait_time=25))
    await backend.until(lambda: subscribers(scene.node, f"redisson_sc:{{{NAME}}}") == 1)
    await backend.sleep(0.15)
    MOVES[move](scene)
    if kind == "after":
        permits = backend.connect().get_semaphore(NAME)
    await scene.woken(waiter, permits.release)


class TestSlotsOnTheirWay:
    """A release runs on the node that the slot is being moved to; its waiters are subscribed on the one that has it."""

    @pytest.mark.usefixtures("settles_at_once")
    @pytest.mark.parametrize(
        ("releasing", "waiting", "method"), [*((*pair, "unlock") for pair in PAIRS), ("auto", "on", "force_unlock")]
    )
    async def test_a_release(self, scene: Scene, backend: Backend, releasing: str, waiting: str, method: str) -> None:
        holder = backend.connect(sharded_pubsub=releasing, topology_refresh_interval=0.1).get_lock(NAME)
        await holder.lock()
        other = backend.connect(sharded_pubsub=waiting).get_lock(NAME)
        waiter = await scene.wait(lambda: other.try_lock(25), waiting)
        with half_moved(scene.cluster, NAME, NAME) as (_, target):
            await backend.sleep(0.5)
            await scene.woken(waiter, getattr(holder, method))
        assert target.ask("EXISTS", NAME) == 1

    async def test_a_client_in_java_that_hears_sharded_messages_only(self, scene: Scene, backend: Backend) -> None:
        lock = backend.connect().get_lock(NAME)
        await lock.lock()
        with scene.node.redis() as redis, redis.pubsub() as listening:
            listening.ssubscribe(scene.channel)
            assert listening.get_message(timeout=5)["type"] == "ssubscribe"
            with half_moved(scene.cluster, NAME, NAME):
                await lock.unlock()
                assert listening.get_message(timeout=5)["data"] == b"0"

    async def test_a_release_in_the_background(self, scene: Scene, backend: Backend) -> None:
        """Such releases are sent together with others, which are redirected elsewhere or not at all."""
        client, other = backend.connect(sharded_pubsub="on"), backend.connect(sharded_pubsub="on").get_lock(NAME)
        names = [NAME, *(f"orders-{number}" for number in range(4))]
        for name in names:
            await client.get_lock(name).lock()
        waiter = await scene.wait(lambda: other.try_lock(25), "on")
        with half_moved(scene.cluster, NAME, NAME):
            session = getattr(client, "_target", client)._session
            # The node that they are redirected to doesn't know the script.
            commands = [hold.commands.abandon(hold) for hold in session.holds.release_all()]
            releases = [as_eval(command, with_shebang=True) for command in commands]
            assert len(releases) == len(names)
            runtime = map_of(client).watchdog_runtime(3.0)

            async def release() -> None:
                assert run(lambda: runtime.send_all(releases)) == [1] * len(names)

            await scene.woken(waiter, release)
            run(runtime.close)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
async def test_waiters_without_a_message_make_an_attempt_of_their_own(
    scene: Scene, backend: Backend, mode: str
) -> None:
    """When the lease ends, or after `lock_watchdog_timeout`. Without a lease: every five seconds."""
    killed, lost, permits_name, latch_name = (f"{kind}{{{NAME}}}" for kind in ("killed", "lost", "permits", "latch"))
    client = backend.connect(sharded_pubsub=mode, lock_watchdog_timeout=1.5)
    permits, latch = client.get_semaphore(permits_name), client.get_count_down_latch(latch_name)
    assert await permits.try_set_permits(0)
    assert await latch.try_set_count(1)
    scene.node.ask("HSET", killed, "gone:1", 1)
    scene.node.ask("PEXPIRE", killed, 1500)
    scene.node.ask("HSET", lost, "java:1", 1)
    begun = time.monotonic()
    locks = [backend.spawn(partial(client.get_lock(name).try_lock, 25)) for name in (killed, lost)]
    others = [backend.spawn(partial(permits.try_acquire, 1, 25)), backend.spawn(partial(latch.wait, 25))]
    await backend.sleep(0.5)
    assert not any(waiter.done() for waiter in (*locks, *others))
    # Nothing is published.
    scene.node.ask("DEL", lost, latch_name)
    scene.node.ask("INCR", permits_name)
    for waiters, seconds in ((locks, 1.5), (others, 5.0)):
        for waiter in waiters:
            assert await waiter.result()
        assert time.monotonic() - begun < 0.5 + seconds + SOON


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("move", MOVES)
async def test_what_was_missed_while_the_subscription_moved(
    scene: Scene, backend: Backend, mode: str, move: str
) -> None:
    """A waiter makes an attempt whenever it has subscribed anew, at the latest after the refresh interval."""
    waiter = await scene.begin(backend.connect(sharded_pubsub=mode, topology_refresh_interval=1.0), mode)
    scene.node.ask("DEL", NAME)
    MOVES[move](scene)
    moved = time.monotonic()
    assert await waiter.result()
    assert time.monotonic() - moved < 1.0 + SOON
