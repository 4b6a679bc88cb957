"""Garbage collections with several servers: they may end a waiter on any line, and a client that nobody closed."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson._backends.threads.routed_listener import ThreadListeners
from pyredisson.logic.routed_channels import NodeChannels, RoutedChannels
from pyredisson.testing import Cluster
from tests.support.backends import Backend
from tests.support.garbage import collect_at_each_line, only_collections_asked_for

from .scenes import names_on
from .test_routed_channels import HIGH, LOW, Clients, follow, moved

CLIENT_NAME = "to-be-collected"
ROUTED = [
    function
    for kind in (RoutedChannels, NodeChannels)
    for function in vars(kind).values()
    if hasattr(function, "__code__")
]


class TestWaiters:
    @pytest.fixture(autouse=True)
    def undisturbed(self) -> Iterator[None]:
        with only_collections_asked_for():
            yield

    @pytest.mark.parametrize(
        "act",
        [
            follow,
            lambda clients: clients.registry.refresh(),
            lambda clients: clients.join(HIGH),
            lambda clients: clients.listener(HIGH).channels.on_refused(HIGH, moved(12182, 0)),
            lambda clients: clients.listener(HIGH).channels.on_dropped(HIGH),
            lambda clients: clients.listener(HIGH).channels.on_disconnected(),
            lambda clients: clients.listener(HIGH).channels.on_subscribed(HIGH),
        ],
        ids=["follow", "refresh", "join", "moved", "dropped", "disconnected", "subscribed"],
    )
    def test_one_is_collected_on_any_line(self, act: Callable[[Clients], object]) -> None:
        """It leaves its channel on the thread that changes the channels."""
        made: list[Clients] = []

        def story() -> tuple[Callable[[], object], Callable[[], object]]:
            clients = Clients()
            made.append(clients)
            leaving = clients.join(HIGH)
            for name in (HIGH, LOW):
                clients.join(name)
            clients.confirm(LOW)

            def finalize() -> None:
                clients.registry.leave(HIGH, leaving)

            return lambda: act(clients), finalize

        assert collect_at_each_line(ROUTED, story) > 3
        for clients in made:
            clients.registry.refresh()
            clients.check()
            waiters = {wakeup for channel in clients.registry.by_name.values() for wakeup in channel.waiters}
            assert clients.registry.waiting == waiters == set(clients.registry._place_of)
            assert waiters == {wakeup for one in clients.listeners.values() for wakeup in one.channels.waiting}

    def test_a_listener_is_opened(self, cluster: Cluster) -> None:
        """A collected waiter leaves its channel while the first one of another node has its listener opened."""
        first, second = (names_on(cluster, node, 1)[0] for node in cluster.masters()[:2])
        with pyredisson.connect(cluster.url) as client, pyredisson.connect(cluster.url) as other:
            for name in (first, second):
                other.get_lock(name).lock()
            registry = client._session.channels

            def story() -> tuple[Callable[[], object], Callable[[], object]]:
                leaving = client._session.runtime.wakeup()
                registry.join(client.get_lock(first)._logic.commands.channel, leaving)

                def finalize() -> None:
                    registry.leave(client.get_lock(first)._logic.commands.channel, leaving)

                return lambda: client.get_lock(second).try_lock(0.01), finalize

            collect_at_each_line([ThreadListeners.open, ThreadListeners.wait], story)
            assert not registry.waiting


def connections(cluster: Cluster) -> int:
    return sum(str(node.ask("CLIENT", "LIST")).count(f"name={CLIENT_NAME}") for node in cluster.masters())


def threads() -> int:
    return sum(thread.name.startswith("pyredisson-") for thread in threading.enumerate())


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_dropped_client_that_has_waited_on_several_nodes(cluster: Cluster, backend: Backend) -> None:
    before = threads()

    async def use() -> weakref.ref[Any]:
        client = backend.connect(client_name=CLIENT_NAME)
        for node in cluster.masters():
            name = names_on(cluster, node, 1)[0]
            async with client.get_lock(name, owner=1):
                assert not await client.get_lock(name).try_lock(0.05)
        assert connections(cluster) > len(cluster.masters())
        backend._clients.clear()
        return weakref.ref(getattr(client, "_target", client)._lifecycle)

    reference = await use()
    await backend.until(lambda: gc.collect() >= 0 and reference() is None and connections(cluster) == 0)
    await backend.until(lambda: threads() <= before)
    assert "pyredisson-listener" not in {task.get_name() for task in asyncio.all_tasks()}


@pytest.mark.asyncio
async def test_a_waiting_coroutine_that_is_collected_leaves_its_channel(cluster: Cluster) -> None:
    """The collector closes the coroutines of an event loop that was closed and forgotten."""
    name = names_on(cluster, cluster.masters()[0], 1)[0]
    cluster.node_of_key(name).ask("HSET", name, "java:1", 1)
    async with pyredisson.asyncio.connect(cluster.url) as client:
        registry = client._session.channels
        assert isinstance(registry, RoutedChannels)

        async def wait() -> None:
            await client.get_lock(name).lock()

        waiting = wait()
        task = asyncio.ensure_future(waiting)
        for _ in range(1000):
            if any(place.waiting for place in registry._nodes.values()):
                break
            await asyncio.sleep(0.01)
        assert registry._place_of
        waiting.close()
        assert not registry.waiting
        assert not registry._place_of
        assert not any(place.waiting for place in registry._nodes.values())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
