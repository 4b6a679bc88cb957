"""A cluster in memory, and clients for asyncio that know it: redirects, slots on their way, replicas that confirm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import groupby, product
from typing import Any

import pytest
from redis.exceptions import ClusterDownError, ResponseError, TryAgainError

import pyredisson.asyncio
from pyredisson._backends.aio.runtime import RoutedAioRuntime
from pyredisson._backends.routed import Wake
from pyredisson._client import servers
from pyredisson._core import slot
from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.replies import NoReply, Redirected, Reply
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.scripts import NAMES, script
from pyredisson._protocol.topology import Member, Shard, TopologyView
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config

from .network import Close, Send
from .plugin import WithoutLoop
from .server import MemoryServer, Session, encoded
from .time import VirtualClock

SLOTS = 16384
REFRESHED_AFTER = 0.05
"""Virtual seconds after which a client knows the topology that it has asked for."""
WITHOUT_KEYS = {
    b"ASKING", b"CLIENT", b"CONFIG", b"FLUSHALL", b"HELLO", b"INFO", b"PING", b"PSUBSCRIBE", b"PUBLISH", b"PUBSUB",
    b"SCRIPT", b"SUBSCRIBE", b"SUNSUBSCRIBE", b"UNSUBSCRIBE", b"WAIT",
}  # fmt: skip
CHANNELS = (b"SSUBSCRIBE", b"SPUBLISH")


class MemoryCluster:
    """Nodes that serve equal parts of the slots at first."""

    def __init__(self, clock: VirtualClock, count: int = 3) -> None:
        self.nodes = [ClusterNode(self, clock, number, 7000 + number) for number in range(count)]
        self.owners = [self.nodes[number * count // SLOTS] for number in range(SLOTS)]
        self.targets: dict[int, ClusterNode] = {}
        """The nodes to which slots are being moved."""
        self.epoch = 1
        self.confirmed: Reply = 1
        """What all nodes reply to WAIT."""
        for node in self.nodes:
            node.start()
            node.load_scripts()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{node.host}:{node.port}" for node in self.nodes)

    @property
    def waits(self) -> int:
        """How often a node was asked for a confirmation."""
        return sum(node.calls["wait"] for node in self.nodes)

    def client(self, **fields: Any) -> pyredisson.asyncio.Client:
        return pyredisson.asyncio.connect(self.url, **fields)

    def owner(self, name: str) -> ClusterNode:
        """The node that serves the slot of that key."""
        return self.owners[slot(name.encode())]

    def values(self, name: str) -> list[bytes]:
        """Those of the fields of that key, wherever it is."""
        return [value for node in self.nodes for value in node.keys.keyspace.do_hvals(name.encode())]

    def name_on(self, node: ClusterNode, prefix: str = "name") -> str:
        return next(name for name in (f"{prefix}-{number}" for number in range(10_000)) if self.owner(name) is node)

    def begin_move(self, name: str, *, with_keys: bool = True) -> ClusterNode:
        """The slot of that key is on its way to another node, which has its keys already. Returns that node."""
        number = slot(name.encode())
        source = self.owners[number]
        target = self.targets[number] = self.nodes[(source.number + 1) % len(self.nodes)]
        if with_keys:
            self._move_keys(number, source, target)
        return target

    def move_keys(self, name: str, *keys: str) -> None:
        """Moves these keys of a slot that is on its way, or all that it has."""
        number = slot(name.encode())
        self._move_keys(number, self.owners[number], self.targets[number], [key.encode() for key in keys])

    def finish_move(self, name: str) -> None:
        """The target serves the slot. The source ends the sharded subscriptions of its channels."""
        number = slot(name.encode())
        source, target = self.owners[number], self.targets.pop(number)
        self._move_keys(number, source, target)
        self.owners[number] = target
        self.epoch += 1
        for session in list(source.sessions.values()):
            for channel in [each for each in session.channels[b"smessage"] if slot(each) == number]:
                session.queue(session.do_sunsubscribe(channel))
            session.flush()

    def fail_over(self, node: ClusterNode, *, gone: bool = True) -> ClusterNode:
        """A replica takes over from a node that is gone, or hangs. It has its data."""
        replica = ClusterNode(self, node.clock, node.number, node.successor.port)
        replica.start()
        # Messages of its scripts are its own.
        replica.load_scripts()
        here, there = replica.keys.keyspace, node.keys.keyspace
        here.values, here.valid_until = there.values, there.valid_until
        self.owners = [replica if owner is node else owner for owner in self.owners]
        self.nodes[node.number] = replica
        self.epoch += 1
        if gone:
            node.kill()
        return replica

    def _move_keys(self, number: int, source: ClusterNode, target: ClusterNode, keys: Iterable[bytes] = ()) -> None:
        there, here = source.keys.keyspace, target.keys.keyspace
        for key in keys or [key for key in list(there.values) if slot(key) == number]:
            if (value := there.value(key)) is not None:
                here.values[key] = value
                here.valid_until |= {key: there.valid_until[key]} if key in there.valid_until else {}
                there.do_del(key)

    def view(self) -> TopologyView:
        ranges: dict[ClusterNode, list[tuple[int, int]]] = {node: [] for node in self.nodes}
        for owner, slots in groupby(range(SLOTS), self.owners.__getitem__):
            numbers = list(slots)
            ranges[owner].append((numbers[0], numbers[-1]))
        shards = []
        for node in self.nodes:
            replicas = (Member(node.successor, b""),) if node.has_replica else ()
            member = Member(Address(node.host, node.port), node.run_id)
            shards.append(Shard(member, replicas, tuple(ranges[node])))
        return TopologyView(tuple(shards), self.epoch)


class ClusterNode(MemoryServer):
    """One of the nodes. It refuses commands for slots and keys that it doesn't have."""

    def __init__(self, cluster: MemoryCluster, clock: VirtualClock, number: int, port: int) -> None:
        super().__init__(clock, "192.0.2.3", port)
        self.cluster, self.number = cluster, number
        self.successor = Address("192.0.2.3", port + 1000)
        """Where its replica listens when that has taken over."""
        self.has_replica = False

    def load_scripts(self) -> None:
        for name, pubsub in product(NAMES, PubSub):
            self.keys.load(script(name, with_shebang=True, pubsub=pubsub).text)

    def open_session(self, send: Send, close: Close) -> Session:
        return NodeSession(self, send, close)

    def _publish(self, channel: bytes, text: bytes) -> int:
        heard = self._send_message(b"message", channel, text)
        for node in self.cluster.nodes:
            if node is not self:
                node._send_message(b"message", channel, text)
                for session in list(node.sessions.values()):
                    session.flush()
        return heard

    def refusal(self, keys: list[bytes], *, asking: bool) -> ResponseError | None:
        """The error for a command with these keys, by the rules of Redis 7."""
        if not keys:
            return None
        number = slot(keys[0])
        if any(slot(key) != number for key in keys):
            return ResponseError("CROSSSLOT Keys in request don't hash to the same slot")
        owner, target = self.cluster.owners[number], self.cluster.targets.get(number)
        missing = [key for key in keys if self.keys.keyspace.value(key) is None]
        if target is None or self not in (owner, target) or (self is target and not asking):
            return None if owner is self else Redirected(f"MOVED {number} {owner.host}:{owner.port}")
        if not missing or (self is target and len(keys) == 1):
            return None
        if self is target or len(missing) < len(keys):
            return TryAgainError("TRYAGAIN Multiple keys request during rehashing of slot")
        return Redirected(f"ASK {number} {target.host}:{target.port}")


class NodeSession(Session):
    server: ClusterNode
    _asking = False

    def _execute(self, name: bytes, *arguments: bytes) -> bytes:
        asking, self._asking = self._asking, name == b"ASKING"
        if name == b"ASKING":
            return b"+OK\r\n"
        keys = [] if name in WITHOUT_KEYS else list(arguments[:1])
        if name.startswith(b"EVAL"):
            keys = list(arguments[2 : 2 + int(arguments[1])])
        # A channel has no key: the node of its slot takes it also while keys are on their way.
        here = name in CHANNELS and self.server.cluster.owners[slot(keys[0])] is self.server
        refusal = None if here else self.server.refusal(keys, asking=asking)
        return super()._execute(name, *arguments) if refusal is None else encoded(refusal)

    def do_info(self, *parts: bytes) -> bytes:
        if parts != (b"replication",):
            return super().do_info(*parts)
        host, port = self.server.successor
        replica = f"slave0:ip={host},port={port},state=online,offset=1,lag=0\r\n" * self.server.has_replica
        # A replica that has taken over continues the history of its master.
        histories = f"master_replid:{self.server.port}\r\nmaster_replid2:{self.server.port - 1000}\r\n"
        return encoded(f"# Replication\r\nrole:master\r\n{replica}{histories}".encode())

    def do_wait(self, *_: bytes) -> bytes:
        return encoded(self.server.cluster.confirmed)


class VirtualKeeper:
    """Applies what the nodes say: some time after it was asked for, and at an interval. It needs no thread."""

    def __init__(self, table: RoutingTable, cluster: MemoryCluster, interval: float) -> None:
        self.table, self._cluster, self._interval = table, cluster, interval
        self._next: asyncio.TimerHandle | None = None
        table.on_request = self.request

    def request(self) -> None:
        if self._next is None or self._next.when() > asyncio.get_running_loop().time() + REFRESHED_AFTER:
            self._set_timer(REFRESHED_AFTER)

    def _set_timer(self, seconds: float) -> None:
        self.close()
        self._next = asyncio.get_running_loop().call_later(seconds, self._refresh)

    def _refresh(self) -> None:
        self.table.apply(self._cluster.view(), self.table.begin_view())
        self._set_timer(self._interval)

    def wait_until_known(self, wake: Wake) -> None:
        self._refresh()
        wake()

    def forget(self, wake: Wake) -> None: ...

    def check_known(self) -> None:
        if not self.table.ready:
            raise NoReply(ClusterDownError("CLUSTERDOWN"), may_have_run=False)

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()


class WatchdogRuntime(WithoutLoop, RoutedAioRuntime): ...


def install_cluster(patch: pytest.MonkeyPatch, clock: VirtualClock) -> MemoryCluster:
    """A cluster that clients of a cluster find."""
    open_topology, cluster = servers.open_topology, MemoryCluster(clock)

    def open_virtual(config: Config, *arguments: Any) -> Any:
        return VirtualKeeper(open_topology(config, *arguments).table, cluster, config.topology_refresh_interval)

    def watchdog_runtime(several: servers.SeveralServers) -> Any:
        return WatchdogRuntime(several.config, several.scripts, several.keeper, lambda _: None)

    patch.setattr(servers, "open_topology", open_virtual)
    patch.setattr(servers.SeveralServers, "watchdog_runtime", watchdog_runtime)
    return cluster
