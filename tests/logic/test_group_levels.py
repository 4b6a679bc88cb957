"""Levels of a red lock of which a member is released late: in no random schedule an operation begins so late."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest
from redis.exceptions import RedisError

from pyredisson._settings.config import Config
from pyredisson.logic.groups.group import GroupOwner
from pyredisson.logic.groups.red_lock import RedLockLogic
from pyredisson.logic.holds import HELD
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.ports import Operation

from .simulator.client import Client
from .simulator.network import FaultPlan, Network
from .simulator.simulation import Simulation

SOON = 4.0
"""Seconds in which all that was begun is done. A lease is longer."""


class Group:
    """A red lock on three servers, and one owner. Operations that the group has begun can be held up."""

    def __init__(self) -> None:
        self.simulation = Simulation(1)
        plan = FaultPlan(self.simulation.random, calm=True)
        self.networks = [Network(self.simulation, plan, None) for _ in range(3)]
        self.clients = [Client(self.simulation, "c", network, Config()) for network in self.networks]
        self.members = [LockLogic(client.session, b"a") for client in self.clients]
        self.logic = RedLockLogic(self.members)
        self.owner = GroupOwner([client.session.owners.new() for client in self.clients])
        self.held_up: list[Operation] = []
        self.holds_up: list[bool] = []
        """Which of the next operations do not begin."""
        runtime: Any = self.clients[0].session.runtime
        self._spawn, runtime.spawn = runtime.spawn, self.spawn

    def spawn(self, operation: Operation) -> None:
        if self.holds_up and self.holds_up.pop(0):
            self.held_up.append(operation)
        else:
            self._spawn(operation)

    def go_on(self) -> None:
        """What was held up begins."""
        while self.held_up:
            self._spawn(self.held_up.pop(0))
        self.simulation.run(self.simulation.now + SOON)

    def take(self) -> None:
        """One more level."""

        async def acquire() -> None:
            assert await self.logic.acquire(self.owner, None, self.simulation.now)

        self._run(acquire())

    def release(self) -> None:
        """One level less, also if that raises that a majority has not replied."""
        hold = self.logic.hold_of(self.owner.id)

        async def release() -> None:
            with suppress(RedisError):
                await self.logic.release(self.owner, hold)

        assert hold is not None
        self._run(release())

    def counts(self) -> list[int]:
        """How many levels of each member are held."""
        holds = [member.hold_of(owner.id) for member, owner in zip(self.members, self.owner.owners, strict=True)]
        return [0 if hold is None or hold.state is not HELD else hold.count for hold in holds]

    def on_servers(self) -> list[list[bytes]]:
        return [list(network.server.keyspace.hash(b"a").values()) for network in self.networks]

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self.clients[0].spawn(coroutine)
        assert self.simulation.run(self.simulation.now + SOON, lambda: task.done)
        self.holds_up.clear()
        self.simulation.run(self.simulation.now + SOON)


@pytest.fixture
def group() -> Iterator[Group]:
    """In the end nothing is left of it."""
    made = Group()
    yield made
    while any(made.counts()):
        made.release()
    made.go_on()
    assert made.on_servers() == [[], [], []]
    assert not any(client.session.holds.table for client in made.clients)
    for client in made.clients:
        client.die()


def test_a_release_that_begins_late_is_no_second_one(group: Group) -> None:
    group.take()
    group.take()
    group.holds_up = [False, True, False]
    group.release()
    assert len(group.held_up) == 1
    assert group.counts() == [1, 1, 1]
    group.go_on()
    assert group.counts() == [1, 1, 1]
    assert group.on_servers() == [[b"1"], [b"1"], [b"1"]]


def test_a_release_that_begins_late_is_not_one_of_a_later_hold(group: Group) -> None:
    group.take()
    group.take()
    group.holds_up = [True, True, True]
    group.release()
    assert group.counts() == [1, 1, 1]
    group.take()
    group.go_on()
    assert group.counts() == [2, 2, 2]
    group.release()
    assert group.counts() == [1, 1, 1]
    assert all(group.on_servers())
