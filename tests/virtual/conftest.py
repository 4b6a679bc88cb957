"""A world in virtual time, for each test of its own."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar

import pytest

import pyredisson.asyncio

from .cluster import MemoryCluster, install_cluster
from .network import connect
from .plugin import install
from .server import MemoryServer
from .time import START, VirtualClock, VirtualLoop

T = TypeVar("T")


class World:
    """A clock, a server and an event loop, all new."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = MemoryServer(self.clock, "192.0.2.1").start()
        self.server.keys.load_all()

    def run(self, test: Callable[[], Coroutine[None, None, object]]) -> float:
        """Virtual seconds that the coroutine took."""
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(self.clock, connect)) as runner:
            runner.run(test())
        return self.clock.now - START

    def client(self, **settings: Any) -> pyredisson.asyncio.Client:
        return pyredisson.asyncio.connect(self.server.url, **settings)


async def as_tasks(*calls: Coroutine[Any, Any, T], seconds: float = 1) -> list[asyncio.Task[T]]:
    """These calls on tasks of their own, so many seconds later."""
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(seconds)
    return tasks


def pytest_pycollect_makeitem(collector: pytest.Module, name: str, obj: Any) -> None:
    """A test that is a coroutine runs in the world of its fixture `world`."""
    if name.startswith("test_") and iscoroutinefunction(obj):

        @wraps(obj)
        def run(world: World, **fixtures: Any) -> None:
            world.run(lambda: obj(world, **fixtures))

        setattr(collector.obj, name, run)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The world in which the clients of this test live."""
    made = World()
    install(monkeypatch, made.clock)
    yield made
    made.server.stop()


@pytest.fixture
def cluster(world: World, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    return install_cluster(monkeypatch, world.clock)


@pytest.fixture
def synced(world: World, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Each node has a replica."""
    made = install_cluster(monkeypatch, world.clock)
    for node in made.nodes:
        node.has_replica = True
    return made
