"""Ctrl-C and cancellations strike while commands are redirected: no hold is left behind."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

import pyredisson.asyncio
from pyredisson.testing import Cluster
from tests.faults.test_cancellation import STEPS
from tests.faults.test_interrupts import TAKE_AND_GIVE_BACK
from tests.support.children import CHILD_LIMIT, Child
from tests.support.replicated_master import ReplicatedMaster
from tests.support.waiting import cancel_after, eventually

from .test_redirects import other_than

NAME = "a"


def held(cluster: Cluster) -> bool:
    return bool(cluster.node_of_key(NAME).ask("EXISTS", NAME))


async def take_and_end(client: pyredisson.asyncio.Client, name: str, seconds: float) -> None:
    """A user's block, that lasts `seconds`."""
    async with client.get_lock(name):
        await asyncio.sleep(seconds)


class Mover:
    """Moves the slot of the lock from node to node, until it is stopped."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        self.moves = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Mover:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        cluster, slot = self._cluster, self._cluster.slot_of_key(NAME)
        while not self._over.wait(0.05):
            cluster.begin_move(slot, other_than(cluster.node_of(slot), cluster))
            # Calls are redirected by ASK meanwhile.
            self._over.wait(0.05)
            cluster.move_keys(slot)
            cluster.finish_move(slot)
            self.moves += 1


@pytest.mark.timeout(2 * CHILD_LIMIT)
@pytest.mark.parametrize("mode", ["free", "contended"])
def test_ctrl_c_at_random_moments_while_the_slot_moves(
    cluster: Cluster, child: Callable[..., Child], mode: str
) -> None:
    with Mover(cluster) as mover:
        user = child(TAKE_AND_GIVE_BACK, cluster.url, 1, mode, 400, "KeyboardInterrupt")
        report: dict[str, Any] = json.loads(user.receive(CHILD_LIMIT) or "{}")
    assert report, "the child failed"
    assert mover.moves > 3
    assert report["interrupts"] > 50
    assert report["errors"] == []
    assert report["kept"] == []
    assert report["waiters"] == 0
    eventually(lambda: not held(cluster), 10)
    user.send()
    assert user.wait() == 0


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
    assert report["errors"] == []
    assert report["kept"] == []
    assert report["waiters"] == 0
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
    slot = cluster.slot_of_key(NAME)
    target = other_than(cluster.node_of(slot), cluster)
    async with pyredisson.asyncio.connect(cluster.url, topology_refresh_interval=600) as client:
        await client.get_lock(NAME).is_locked()
        cluster.begin_move(slot, target)
        try:
            struck = 0
            for turns in range(STEPS):
                task = asyncio.ensure_future(take_and_end(client, NAME, 0))
                struck += await cancel_after(turns, task)
                await asyncio.to_thread(eventually, lambda: target.ask("DBSIZE") == 0, 10)
        finally:
            cluster.move_keys(slot)
            cluster.finish_move(slot)
    assert struck
