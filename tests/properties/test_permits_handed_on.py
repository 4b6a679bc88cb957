"""Whichever tasks of a client that want permits are cancelled at any moment: no permit is made or lost."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

import pyredisson.asyncio
from pyredisson.asyncio import Client, Semaphore
from pyredisson.testing import Server

PERMITS = 3


class Plan(NamedTuple):
    """What one task does."""

    client: int
    permits: int
    rounds: int
    turns: int
    """Of the event loop: so long it keeps its permits."""
    cancelled_after: int | None
    """Turns of the event loop; None: never."""


plans = st.lists(
    st.builds(
        Plan,
        client=st.sampled_from([0, 0, 0, 1]),
        permits=st.sampled_from([1, 1, 1, 2, 3]),
        rounds=st.integers(1, 3),
        turns=st.integers(0, 3),
        cancelled_after=st.one_of(st.none(), st.integers(0, 40)),
    ),
    min_size=2,
    max_size=16,
)


class Scene:
    """The tasks, and the permits that they have."""

    def __init__(self) -> None:
        self.held = self.most = 0

    async def work(self, semaphore: Semaphore, plan: Plan) -> None:
        for _ in range(plan.rounds):
            await semaphore.acquire(plan.permits)
            self.held += plan.permits
            self.most = max(self.most, self.held)
            try:
                for _ in range(plan.turns):
                    await asyncio.sleep(0)
            finally:
                self.held -= plan.permits
                await semaphore.release(plan.permits)

    async def cancel(self, task: asyncio.Future[None], turns: int | None) -> None:
        if turns is not None:
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()


async def play(clients: list[Client], chosen: list[Plan]) -> Scene:
    scene = Scene()
    semaphores = [client.get_semaphore("stock") for client in clients]
    tasks = [asyncio.ensure_future(scene.work(semaphores[plan.client], plan)) for plan in chosen]
    pairs = zip(tasks, chosen, strict=True)
    await asyncio.gather(*(scene.cancel(task, plan.cancelled_after) for task, plan in pairs))
    _, late = await asyncio.wait(tasks, timeout=20)
    assert not late
    for task, plan in zip(tasks, chosen, strict=True):
        assert task.cancelled() or task.exception() is None
        assert plan.cancelled_after is not None or not task.cancelled()
    for client in clients:
        # What was posted has run, as it came before this.
        await client.get_semaphore("stock").available_permits()
        assert not any(queue.waiters for queue in client._session.permits.queues.values())
    return scene


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 0.001, 60])
def test_no_more_holders_than_permits_and_none_is_lost(server: Server, admin: Redis, seconds: float) -> None:
    with asyncio.Runner() as runner:

        async def connect() -> list[Client]:
            return [pyredisson.asyncio.connect(server.url, local_hand_over_time=seconds) for _ in range(2)]

        clients = runner.run(connect())

        @given(chosen=plans)
        @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
        def property_holds(chosen: list[Plan]) -> None:
            admin.set("stock", PERMITS)
            scene = runner.run(play(clients, chosen))
            assert scene.most <= PERMITS
            assert admin.get("stock") == b"%d" % PERMITS

        property_holds()
        for client in clients:
            runner.run(client.close())
