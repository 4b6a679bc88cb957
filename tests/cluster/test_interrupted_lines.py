"""Ctrl-C on each line of what routes commands: nothing is held, in flight or waited for after it."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import pyredisson
from pyredisson._backends.threads.routed import RoutedThreadRuntime
from pyredisson._client.servers import SeveralServers
from pyredisson.testing import Cluster
from tests.support.waiting import eventually

from .test_failed_nodes import names_on
from .test_redirects import other_than

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


class Strike:
    """Raises KeyboardInterrupt on one line of the main thread, in the modules that route."""

    def __init__(self, line: int) -> None:
        self._left = line
        self.where = ""

    def __enter__(self) -> Strike:
        gc.disable()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(ROUTING):
            return None
        if event == "line":
            self._left -= 1
            if not self._left:
                self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._trace


class Scene:
    """A client, and what it would leave behind."""

    def __init__(self, cluster: Cluster, client: pyredisson.Client) -> None:
        self.cluster = cluster
        self.client = client
        servers = client._lifecycle.servers
        assert isinstance(servers, SeveralServers)
        self.servers = servers
        self.held_by_others = 0
        """How many locks."""

    def strike(self, line: int, act: Callable[[Scene], object]) -> bool:
        """Interrupts `act` on that line. Returns whether it was interrupted."""
        with Strike(line) as strike:
            try:
                act(self)
            except KeyboardInterrupt:
                assert strike.where
        self.check(strike.where)
        return bool(strike.where)

    def check(self, where: str) -> None:
        runtime = self.client._session.runtime
        assert isinstance(runtime, RoutedThreadRuntime)
        assert not self.client._session.holds.table, f"still held after an interrupt in {where}"
        assert not runtime._retries, where
        assert not runtime._pauses, where
        # An interrupted call may leave its wakeup to the next refresh.
        self.servers.keeper.request()
        eventually(lambda: not self.servers.keeper._waiting)
        registry: Any = self.client._session.channels
        assert not registry.waiting, where
        assert not registry._place_of, where
        assert not any(place.waiting for place in registry._nodes.values()), where
        eventually(lambda: runtime.calls_in_flight == 0)
        masters = self.cluster.masters()
        eventually(lambda: sum(node.ask("DBSIZE") for node in masters) == self.held_by_others)


def at_each_line(scene: Callable[[], Scene], act: Callable[[Scene], object]) -> None:
    for line in range(1, LINES):
        if not scene().strike(line, act):
            assert line > 5, "no line was run"
            return
    pytest.fail("it never came to its end")


@pytest.fixture
def client(cluster: Cluster) -> Iterator[pyredisson.Client]:
    with pyredisson.connect(cluster.url, topology_refresh_interval=600) as made:
        yield made


class Fresh:
    """Makes a client for each interrupt, and closes the one before it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client: pyredisson.Client | None = None

    def scene(self) -> Scene:
        self.close()
        self._client = pyredisson.connect(self._cluster.url, topology_refresh_interval=600)
        return Scene(self._cluster, self._client)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


@pytest.fixture
def fresh(cluster: Cluster) -> Iterator[Fresh]:
    made = Fresh(cluster)
    yield made
    made.close()


def test_the_first_call(fresh: Fresh) -> None:
    """It waits for the topology."""

    def act(made: Scene) -> None:
        made.client.get_lock("a").lock()
        made.client.get_lock("a").unlock()

    at_each_line(fresh.scene, act)


def test_calls_that_are_redirected(cluster: Cluster, client: pyredisson.Client) -> None:
    lock = client.get_lock("a")
    slot = cluster.slot_of_key("a")
    client.get_lock("a").is_locked()

    def scene() -> Scene:
        made = Scene(cluster, client)
        table = made.servers.table
        right = table.node_of_slot(slot)
        wrong = next(node for node in table.nodes.values() if node is not right)
        # As if it had missed a move.
        table._slots.assign(slot, slot, wrong)
        return made

    def act(_: Scene) -> None:
        lock.lock()
        lock.unlock()

    at_each_line(scene, act)


def test_calls_that_follow_ask(cluster: Cluster, client: pyredisson.Client) -> None:
    lock = client.get_lock("a")
    lock.is_locked()
    slot = cluster.slot_of_key("a")
    cluster.begin_move(slot, other_than(cluster.node_of(slot), cluster))
    try:

        def act(_: Scene) -> None:
            lock.lock()
            lock.unlock()

        at_each_line(lambda: Scene(cluster, client), act)
    finally:
        cluster.move_keys(slot)
        cluster.finish_move(slot)


def test_the_first_waiter(cluster: Cluster, fresh: Fresh) -> None:
    """It opens a listener, and places its channel."""
    cluster.node_of_key("a").ask("HSET", "a", "java:1", 1)

    def scene() -> Scene:
        made = fresh.scene()
        made.held_by_others = 1
        return made

    at_each_line(scene, lambda made: made.client.get_lock("a").try_lock(0.02))


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
