"""Waiters for locks on several nodes, owners that wait for each other there, and holds that are handed off."""

import pytest

from pyredisson.testing import Cluster
from tests.api.kinds import lock_of, rival_of
from tests.support.backends import Backend
from tests.support.waits import Scene, confirmed

from .scenes import names_on
from .test_redirects import move


@pytest.mark.usefixtures("announced", "listed_soon")
async def test_owners_of_locks_on_two_nodes_wait_for_each_other(
    cluster: Cluster, backend: Backend, scene: Scene
) -> None:
    one, two = backend.connect(), backend.connect()
    [first], [second] = (names_on(cluster, node, 1) for node in cluster.masters()[:2])
    await scene.wait_for_each_other(
        ([one.get_lock(first)], one.get_fair_lock(second)),
        ([two.get_fair_lock(second)], two.get_lock(first)),
    )
    [deadlock] = await confirmed(backend, one, first.encode())
    assert {wait.key for wait in deadlock.waits} == {first.encode(), second.encode()}
    assert [waiter.client_id for waiter in await one.get_lock(first).waiters()] == [two.id]
    assert [waiter.client_id for waiter in await two.get_fair_lock(second).waiters()] == [one.id]


@pytest.mark.parametrize("kind", ["lock", "fair", "fenced", "read", "write"])
async def test_a_hold_is_handed_off_and_its_slot_moves(cluster: Cluster, backend: Backend, kind: str) -> None:
    one, two = backend.connect(), backend.connect()
    lock = lock_of(one, kind)
    await lock.lock()
    token = await lock.hand_off()
    move(cluster, "orders")
    adopted = await two.adopt(token)
    assert await adopted.is_held()
    assert not await lock_of(one, rival_of(kind)).try_lock()
    move(cluster, "orders")
    await adopted.unlock()
    assert await lock_of(one, rival_of(kind)).try_lock()
