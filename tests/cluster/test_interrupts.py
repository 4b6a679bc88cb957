"""Ctrl-C and cancellations while commands are redirected or confirmed: nothing is held, in flight or waited for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson._backends.threads.routed import RoutedThreadRuntime
from pyredisson.testing import Cluster
from tests.faults.test_cancellation import STEPS
from tests.faults.test_interrupts import TAKE_AND_GIVE_BACK
from tests.support.children import CHILD_LIMIT, Child
from tests.support.replicated_master import ReplicatedMaster
from tests.support.waiting import cancel_after, eventually

from .scenes import half_moved, interrupted_at, map_of, names_on

NAME = "a"


def held(cluster: Cluster) -> bool:
    return bool(cluster.node_of_key(NAME).ask("EXISTS", NAME))


async def take_and_end(client: pyredisson.asyncio.Client, name: str, seconds: float) -> None:
    """A user's block, that lasts `seconds`."""
    async with client.get_lock(name):
        await asyncio.sleep(seconds)


@pytest.mark.timeout(2 * CHILD_LIMIT)
@pytest.mark.parametrize("mode", ["free", "contended"])
def test_ctrl_c_at_random_moments_while_replicas_confirm(
    own_master: ReplicatedMaster[Cluster], child: Callable[..., Child], mode: str
) -> None:
    # Longer than it takes to connect after the interrupt before.
    program = TAKE_AND_GIVE_BACK.replace("3.5e-4", "4e-3")
    user = child(program, own_master.url, 1, mode, 400, "KeyboardInterrupt")
    report: dict[str, Any] = json.loads(user.receive(CHILD_LIMIT) or "{}")
    assert report, "the child failed"
    # They come at random, and on a busy machine many of them while the program connects.
    assert own_master.waits() > 20
    assert report["interrupts"] > 50
    assert (report["errors"], report["kept"], report["waiters"]) == ([], [], 0)
    eventually(lambda: not own_master.exists(NAME), 10)
    user.send()
    assert user.wait() == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("connected", [True, False])
async def test_cancelled_at_any_turn_of_the_loop(cluster: Cluster, connected: bool) -> None:
    struck = 0
    for turns in range(STEPS):
        async with pyredisson.asyncio.connect(cluster.url) as client:
            if connected:
                await client.get_lock("other").is_locked()
            task = asyncio.ensure_future(take_and_end(client, NAME, 2e-4 * max(0, turns - 20)))
            struck += await cancel_after(turns, task)
            await asyncio.to_thread(eventually, lambda: not held(cluster), 5)
    assert struck


@pytest.mark.asyncio
async def test_cancelled_at_any_turn_while_it_follows_ask(cluster: Cluster) -> None:
    struck = 0
    async with pyredisson.asyncio.connect(cluster.url, topology_refresh_interval=600) as client:
        await client.get_lock(NAME).is_locked()
        with half_moved(cluster, NAME) as (_, target):
            for turns in range(STEPS):
                struck += await cancel_after(turns, asyncio.ensure_future(take_and_end(client, NAME, 0)))
                await asyncio.to_thread(eventually, lambda: target.ask("DBSIZE") == 0, 10)
    assert struck


ROUTING = (
    "_backends/routed.py",
    "_backends/batches.py",
    "_backends/threads/routed.py",
    "_backends/threads/routed_listener.py",
    "_protocol/routing.py",
    "_protocol/server_health.py",
    "_protocol/settling.py",
    "_client/topology/keeper.py",
    "logic/groups/parallel.py",
    "logic/routed_channels.py",
)
LINES = 400


class Scene:
    """A client, and what it would leave behind."""

    def __init__(self, cluster: Cluster, client: pyredisson.Client, held_by_others: int = 0) -> None:
        self.cluster = cluster
        self.client = client
        self.keeper = map_of(client).keeper
        self.held_by_others = held_by_others
        """How many locks."""

    def check(self, where: str) -> None:
        runtime = self.client._session.runtime
        assert isinstance(runtime, RoutedThreadRuntime)
        assert not self.client._session.holds.table, f"still held after an interrupt in {where}"
        assert not runtime._retries, where
        assert not runtime._pauses, where
        # An interrupted call may leave its wakeup to the next refresh.
        self.keeper.request()
        eventually(lambda: not self.keeper._waiting)
        registry: Any = self.client._session.channels
        assert not registry.waiting, where
        assert not registry._place_of, where
        assert not any(place.waiting for place in registry._nodes.values()), where
        eventually(lambda: runtime.calls_in_flight == 0)
        masters = self.cluster.masters()
        eventually(lambda: sum(node.ask("DBSIZE") for node in masters) == self.held_by_others)


def at_each_line(scene: Callable[[], Scene], act: Callable[[Scene], object]) -> None:
    for line in range(1, LINES):
        made = scene()
        where = interrupted_at(line, ROUTING, lambda made=made: act(made))  # type: ignore[misc]
        made.check(where)
        if not where:
            assert line > 5, "no line was run"
            return
    pytest.fail("it never came to its end")


def lock_and_unlock(made: Scene) -> None:
    made.client.get_lock("a").lock()
    made.client.get_lock("a").unlock()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[pyredisson.Client]:
    with pyredisson.connect(cluster.url, topology_refresh_interval=600) as made:
        yield made


@pytest.fixture
def fresh(cluster: Cluster) -> Iterator[Callable[..., Scene]]:
    """Makes a client for each interrupt, and closes the one before it."""
    made: list[pyredisson.Client] = []

    def scene(held_by_others: int = 0) -> Scene:
        close()
        made.append(pyredisson.connect(cluster.url, topology_refresh_interval=600))
        return Scene(cluster, made[-1], held_by_others)

    def close() -> None:
        while made:
            made.pop().close()

    yield scene
    close()


def test_the_first_call(fresh: Callable[..., Scene]) -> None:
    """It waits for the topology."""
    at_each_line(fresh, lock_and_unlock)


def test_calls_that_are_redirected(cluster: Cluster, client: pyredisson.Client) -> None:
    client.get_lock("a").is_locked()
    slot, table = cluster.slot_of_key("a"), map_of(client).table

    def scene() -> Scene:
        right = table.node_of_slot(slot)
        wrong = next(node for node in table.nodes.values() if node is not right)
        # As if it had missed a move.
        table._slots.assign(slot, slot, wrong)
        return Scene(cluster, client)

    at_each_line(scene, lock_and_unlock)


def test_calls_that_follow_ask(cluster: Cluster, client: pyredisson.Client) -> None:
    client.get_lock("a").is_locked()
    with half_moved(cluster, "a"):
        at_each_line(lambda: Scene(cluster, client), lock_and_unlock)


def test_the_first_waiter(cluster: Cluster, fresh: Callable[..., Scene]) -> None:
    """It opens a listener, and places its channel."""
    cluster.node_of_key("a").ask("HSET", "a", "java:1", 1)
    at_each_line(lambda: fresh(1), lambda made: made.client.get_lock("a").try_lock(0.02))


def test_a_multi_lock_of_several_nodes(cluster: Cluster, client: pyredisson.Client) -> None:
    members = [client.get_lock(names_on(cluster, node, 1)[0]) for node in cluster.masters()]
    group = client.get_multi_lock(*members)
    for member in members:
        member.is_locked()

    def act(_: Scene) -> None:
        group.lock()
        group.unlock()

    at_each_line(lambda: Scene(cluster, client), act)
    # They end a moment after they have told the caller.
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "pyredisson-background"])
