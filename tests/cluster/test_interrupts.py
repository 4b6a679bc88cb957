"""Ctrl-C and garbage collections at any line: nothing is held, in flight or waited for afterwards."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson._backends.threads.listener import ThreadListeners
from pyredisson._backends.threads.runtime import RoutedThreadRuntime
from pyredisson.testing import Cluster
from tests.support.backends import Backend
from tests.support.garbage import collect_at_each_line, only_collections_asked_for
from tests.support.waiting import eventually

from .scenes import at_each_line, connections, half_moved, map_of, names_on

ROUTING = (
    "_backends/routed.py",
    "_backends/threads/runtime.py",
    "_backends/threads/listener.py",
    "_protocol/routing.py",
    "_protocol/moving_slots.py",
    "_client/topology/keeper.py",
    "logic/groups/parallel.py",
    "logic/routed_channels.py",
)


class Scene:
    """A client, and what it would leave behind."""

    def __init__(self, cluster: Cluster, client: pyredisson.Client, held_by_others: int = 0) -> None:
        self.cluster, self.client = cluster, client
        self.keeper = map_of(client).keeper
        self.held_by_others = held_by_others
        """How many locks."""

    def check(self, where: str) -> None:
        runtime = self.client._session.runtime
        assert isinstance(runtime, RoutedThreadRuntime)
        assert not self.client._session.holds.table, f"still held after an interrupt in {where}"
        assert (len(runtime._retries), len(runtime._pauses)) == (0, 0), where
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


def check_at_each_line(scene: Callable[[], Scene], act: Callable[[Scene], object], *more_files: str) -> None:
    for made, where in at_each_line((*ROUTING, *more_files), scene, act):
        made.check(where)


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
    with ExitStack() as clients:

        def scene(held_by_others: int = 0) -> Scene:
            clients.close()
            made = clients.enter_context(pyredisson.connect(cluster.url, topology_refresh_interval=600))
            return Scene(cluster, made, held_by_others)

        yield scene


def test_the_first_call(fresh: Callable[..., Scene]) -> None:
    """It waits for the topology."""
    check_at_each_line(fresh, lock_and_unlock)


def test_calls_that_are_redirected(cluster: Cluster, client: pyredisson.Client) -> None:
    """And that replicas confirm."""
    client.get_lock("a").is_locked()
    slot, table = cluster.slot_of_key("a"), map_of(client).table

    def scene() -> Scene:
        right = table.node_of_slot(slot)
        wrong = next(node for node in table.nodes.values() if node is not right)
        # As if it had missed a move.
        table._slots.assign(slot, slot, wrong)
        return Scene(cluster, client)

    check_at_each_line(scene, lock_and_unlock, "_backends/acquiring.py")


def test_calls_that_follow_ask(cluster: Cluster, client: pyredisson.Client) -> None:
    client.get_lock("a").is_locked()
    with half_moved(cluster, "a"):
        check_at_each_line(lambda: Scene(cluster, client), lock_and_unlock)


def test_the_first_waiter(cluster: Cluster, fresh: Callable[..., Scene]) -> None:
    """It opens a listener, and places its channel."""
    cluster.node_of_key("a").ask("HSET", "a", "java:1", 1)
    check_at_each_line(lambda: fresh(1), lambda made: made.client.get_lock("a").try_lock(0.02))


def test_a_multi_lock_of_several_nodes(cluster: Cluster, client: pyredisson.Client) -> None:
    members = [client.get_lock(names_on(cluster, node, 1)[0]) for node in cluster.masters()]
    group = client.get_multi_lock(*members)
    for member in members:
        member.is_locked()

    def act(_: Scene) -> None:
        group.lock()
        group.unlock()

    check_at_each_line(lambda: Scene(cluster, client), act)
    # They end a moment after they have told the caller.
    eventually(lambda: not threads("pyredisson-background"))


def test_a_waiter_is_collected_while_a_listener_is_opened(cluster: Cluster) -> None:
    """It leaves its channel while the first waiter of another node has its listener opened."""
    first, second = (names_on(cluster, node, 1)[0] for node in cluster.masters()[:2])
    connect = partial(pyredisson.connect, cluster.url)
    with only_collections_asked_for(), connect() as client, connect() as other:
        for name in (first, second):
            other.get_lock(name).lock()
        registry = client._session.channels
        channel = client.get_lock(first)._logic.commands.channel

        def story() -> tuple[Callable[[], object], Callable[[], object]]:
            leaving = client._session.runtime.wakeup()
            registry.join(channel, leaving)
            return lambda: client.get_lock(second).try_lock(0.01), lambda: registry.leave(channel, leaving)

        collect_at_each_line([ThreadListeners.open, ThreadListeners.wait], story)
        assert not registry.waiting


def threads(name: str = "pyredisson-") -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_dropped_client_that_has_waited_on_several_nodes(cluster: Cluster, backend: Backend) -> None:
    before = threads()

    seen = partial(connections, "to-be-collected", *cluster.masters())

    async def use() -> weakref.ref[Any]:
        client = backend.connect(client_name="to-be-collected")
        for node in cluster.masters():
            name = names_on(cluster, node, 1)[0]
            async with client.get_lock(name, owner=1):
                assert not await client.get_lock(name).try_lock(0.05)
        assert seen() > len(cluster.masters())
        backend._clients.clear()
        return weakref.ref(getattr(client, "_target", client)._lifecycle)

    reference = await use()
    await backend.until(lambda: gc.collect() >= 0 and reference() is None)
    await backend.until(lambda: seen() == 0)
    await backend.until(lambda: threads() <= before)
    assert "pyredisson-listener" not in {task.get_name() for task in asyncio.all_tasks()}
