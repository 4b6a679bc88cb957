"""What the tests with several servers have in common: nodes, replicas that freeze, and slots on their way."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import pytest

from pyredisson._backends.aio import listener as aio_listener
from pyredisson._backends.threads import listener
from pyredisson._client.servers import SeveralServers
from pyredisson._protocol.replication import ReplicaState
from pyredisson.logic import channels
from pyredisson.testing import AtomicMove, Cluster, ClusterNode, Proxy, Replicated, Sentinels
from tests.support.faults import traced

KEYS_OF_A_SLOW_MOVE = 20
LINES = 500
"""More than any action executes that is interrupted on each of its lines."""
CLIENT = str(uuid.UUID(int=3))
OWNER = f"{CLIENT}:1"
T = TypeVar("T")


def hold(servers: Cluster | Sentinels, *names: str) -> None:
    """`OWNER`, whose process doesn't exist, holds locks of these names."""
    with servers.redis() as redis:
        for name in names:
            redis.hset(name, OWNER, 1)
            redis.pexpire(name, 600_000)


async def known_lock(client: Any, name: str = "a") -> Any:
    """A lock whose scripts its server knows, to which the client is connected."""
    lock = client.get_lock(name)
    await lock.lock()
    await lock.unlock()
    return lock


async def semaphores(client: Any, permits: int) -> tuple[Any, Any]:
    """A semaphore "s", and one whose permits have leases, "e", with so many permits each."""
    made = client.get_semaphore("s"), client.get_permit_expirable_semaphore("e")
    for each in made:
        await each.try_set_permits(permits)
    return made


def map_of(client: Any) -> SeveralServers:
    lifecycle = getattr(client, "_target", client)._lifecycle
    assert isinstance(lifecycle.servers, SeveralServers)
    return lifecycle.servers


def other_than(node: ClusterNode, cluster: Cluster) -> ClusterNode:
    return next(master for master in cluster.masters() if master is not node)


def names_on(cluster: Cluster, node: ClusterNode, count: int, prefix: str = "name") -> list[str]:
    found = (f"{prefix}-{number}" for number in range(100_000) if cluster.node_of_key(f"{prefix}-{number}") is node)
    return [next(found) for _ in range(count)]


def tag_on(cluster: Cluster, node: ClusterNode) -> str:
    return next(tag for tag in map(str, range(1000)) if cluster.node_of_key(tag) is node)


def places(cluster: Cluster) -> tuple[str, ClusterNode, ClusterNode]:
    """A hash tag, the node of its slot, and another master."""
    source, other = cluster.masters()[:2]
    return tag_on(cluster, source), source, other


def connections(name: str, *nodes: ClusterNode) -> int:
    return sum(str(node.ask("CLIENT", "LIST")).count(f"name={name}") for node in nodes)


def linger(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Sets how long a channel without waiters stays subscribed."""
    for module in (channels, listener, aio_listener):
        monkeypatch.setattr(module, "LINGER", seconds)


def calls(command: str, *nodes: Any) -> int:
    """How often the nodes have executed a command."""
    stats = [node.ask("INFO", "commandstats") for node in nodes]
    return sum(int(each.get(f"cmdstat_{command}", {"calls": 0})["calls"]) for each in stats)


def at_each_line(files: tuple[str, ...], begin: Callable[[], T], act: Callable[[T], object]) -> Iterator[tuple[T, str]]:
    """Begins a scene for each line of these files that the action executes, and runs it with Ctrl-C on it. Yields the
    scene, and where it was interrupted. The last time it isn't."""
    left, where = 0, ""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left, where
        if not frame.f_code.co_filename.endswith(files):
            return None
        left -= event == "line"
        if left == 0 and not where:
            where = f"{frame.f_code.co_name}:{frame.f_lineno}"
            raise KeyboardInterrupt
        return trace

    for line in range(1, LINES):
        scene, left, where = begin(), line, ""
        try:
            with traced(trace):
                act(scene)
        except KeyboardInterrupt:
            assert where
        yield scene, where
        if not where:
            assert line > 5, "no line was run"
            return
    raise AssertionError("it never came to its end")


@contextmanager
def half_moved(cluster: Cluster, name: str, *keys: str) -> Iterator[tuple[ClusterNode, ClusterNode]]:
    """The slot of that name is on its way from one node to another; these keys have moved. Behind it all have."""
    slot = cluster.slot_of_key(name)
    source = cluster.node_of(slot)
    target = other_than(source, cluster)
    cluster.begin_move(slot, target)
    try:
        if keys:
            cluster.move_keys(slot, *keys)
        yield source, target
    finally:
        cluster.move_keys(slot)
        cluster.finish_move(slot)


def begin_slow_move(cluster: Cluster, tag: str, to: ClusterNode, seconds: float = 2.0) -> AtomicMove:
    """Begins an atomic move whose keys take so long to copy. Meanwhile the source goes on serving the slot."""
    slot = cluster.slot_of_key(tag)
    source = cluster.node_of(slot)
    for number in range(KEYS_OF_A_SLOW_MOVE):
        source.ask("SET", f"{{{tag}}}:{number}", number, "PX", 60_000)
    source.ask("CONFIG", "SET", "rdb-key-save-delay", round(seconds / KEYS_OF_A_SLOW_MOVE * 1e6))
    return cluster.begin_atomic_move(slot, slot, to)


@contextmanager
def while_it_is_copied(cluster: Cluster, tag: str, to: ClusterNode) -> Iterator[None]:
    """The keys of the slot are copied while the body runs. Behind it the slot has moved."""
    source = cluster.node_of_key(tag)
    move = begin_slow_move(cluster, tag, to)
    yield
    assert cluster.node_of_key(tag) is source, "the copying did not take long enough for the test"
    cluster.finish_atomic_move(move)
    source.ask("CONFIG", "SET", "rdb-key-save-delay", 0)
    assert cluster.node_of_key(tag) is to


class Master:
    """The only master among some servers, and its replicas."""

    def __init__(self, servers: Cluster | Sentinels | Replicated) -> None:
        self.servers = servers
        self.url = servers.url
        self.node: Any
        """A `ClusterNode` or a `ReplicatedNode`."""
        self.replicas: tuple[Any, ...]
        if isinstance(servers, Cluster):
            (self.node,) = servers.masters()
            self.replicas = servers.replicas_of(self.node)
        else:
            self.node, self.replicas = servers.master(), servers.replicas()
        self._frozen: list[Any] = []

    def freeze(self, count: int | None = None) -> None:
        """Freezes so many replicas, or all of them. They stay connected."""
        for replica in self.replicas[:count]:
            self._frozen.append(replica)
            replica.pause()

    def restore(self) -> None:
        while self._frozen:
            self._frozen.pop().resume()
        assert self.node.ask("WAIT", len(self.replicas), 10000) is not None

    def online(self) -> int:
        """How many replicas the master has that can confirm a write."""
        info: dict[str, Any] = self.node.ask("INFO", "replication")
        return sum(info[key]["state"] == "online" for key in info if key.startswith("slave") and key[5:].isdigit())

    def waits(self) -> int:
        return calls("wait", self.node)

    def exists(self, name: str) -> bool:
        return bool(self.node.ask("EXISTS", name))

    @property
    def proxy(self) -> Proxy:
        """The one between the clients and the master."""
        assert isinstance(self.servers, Cluster)
        return self.servers.proxy_of(self.node)


def replicas_known_to(client: Any) -> list[ReplicaState]:
    """What a client knows about the replicas of each master."""
    return [node.replicas for node in map_of(client).table.nodes.values()]


def let_a_minute_pass(client: Any) -> None:
    """What the masters have said about their replicas becomes older."""
    for state in replicas_known_to(client):
        for name in ("asked_at", "ask_again_at", "none_until"):
            setattr(state, name, getattr(state, name) - 60)
