"""What both sides talk to: a server, as an address for Python, a configuration for Java, and a plain client."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis import Redis
from redis.cluster import RedisCluster

from pyredisson.testing import Cluster, Server
from tests.support.backends import Backend

from .jvm import JavaThread

LOSE_MESSAGES = {"ReadLock", "WriteLock"}
"""The locks for which a thread of Java sleeps on if the message came before it slept."""
BEFORE_SLEEP = 0.1
"""Seconds after its subscription within which a thread of Java has made another attempt, and sleeps."""


class Target(ABC):
    """One server, or several that serve as one. Empty at the start of each test."""

    name: str
    """As in the ids of the tests."""
    url: str
    """The address for `pyredisson.connect`."""
    redis: Any
    """A plain client, which sees all keys."""

    @abstractmethod
    def yaml(self, servers: Mapping[str, object] | None = None, **settings: object) -> str:
        """The configuration of a Redisson client. `servers`: settings of the servers' section; `settings`: those of the
        outermost level."""

    @abstractmethod
    def listeners(self, channel: str) -> int:
        """How many connections are subscribed to that channel, by either kind of subscription."""

    @abstractmethod
    def scripts(self) -> int:
        """How many scripts have run."""

    @abstractmethod
    def close(self) -> None: ...

    def empty(self) -> None:
        self.redis.flushall()

    def holds(self, name: str) -> dict[str, int]:
        """The fields of a lock's hash, as numbers: the owners and how often each of them holds it."""
        fields = {field.decode(): value.decode() for field, value in self.redis.hgetall(name).items()}
        return {field: int(value) for field, value in fields.items() if field != "mode"}

    def queue(self, name: str) -> list[str]:
        """The owners that wait for a fair lock, in the order of their turns."""
        return [owner.decode() for owner in self.redis.lrange(f"redisson_lock_queue:{_tagged(name)}", 0, -1)]

    def all_keys(self) -> set[str]:
        """All keys but those that Redisson keeps for some seconds so that a release can be repeated."""
        keys = {key.decode() for key in self.redis.scan_iter()}
        return {key for key in keys if not key.startswith("redisson_unlock_latch:")}

    async def until_java_waits(
        self, backend: Backend, kind: str, name: str, clients: int = 1, *, threads: Sequence[JavaThread] = ()
    ) -> None:
        """Returns once Java waits for that object, which is the last of so many clients that do.

        `threads`: all of Java that wait, needed for the locks that lose messages.
        """
        await backend.until(self.waiting(kind, name, clients))
        # Its subscription is known. But a message loses its effect if it comes before the thread sleeps: see
        # docs/redisson.md, "Defects of Redisson".
        if kind in LOSE_MESSAGES:
            assert threads
            for thread in threads:
                await backend.until(thread.sleeps)
        else:
            await backend.sleep(BEFORE_SLEEP)

    def waiting(self, kind: str, name: str, waiters: int = 1) -> Callable[[], bool]:
        """A condition: so many clients, or for a fair lock so many owners, wait for that object."""
        if kind.endswith("FairLock"):
            return lambda: len(self.queue(name)) == waiters
        if kind == "SpinLock":
            before = self.scripts()
            return lambda: self.scripts() >= before + 3
        channel = channel_of(kind, name)
        return lambda: self.listeners(channel) == waiters


def channel_of(kind: str, name: str) -> str:
    """The channel on which the waiters for that object listen, but for a fair lock."""
    tagged = _tagged(name)
    match kind:
        case "ReadLock" | "WriteLock":
            return f"redisson_rwlock:{tagged}"
        case "Semaphore" | "PermitExpirableSemaphore":
            return f"redisson_sc:{tagged}"
        case "CountDownLatch":
            return f"redisson_countdownlatch__channel__{{{name}}}"
    return f"redisson_lock__channel:{tagged}"


def _tagged(name: str) -> str:
    return name if "{" in name else f"{{{name}}}"


def _yaml(mode: str, servers: dict[str, object], settings: dict[str, object]) -> str:
    """Redisson's configuration. Few threads: several clients share this machine with the tests."""
    lines = [f"{mode}:", *(f"  {name}: {value}" for name, value in servers.items())]
    lines += [f"{name}: {value}" for name, value in {"threads": 4, "nettyThreads": 4, **settings}.items()]
    return "\n".join(lines)


def _scripts_of(node: Redis) -> int:
    stats: dict[str, Any] = node.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


class SingleServer(Target):
    """One server."""

    name = "single"

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self.redis: Redis = server.redis()
        self._address = f"redis://{server.host}:{server.port}"

    def yaml(self, servers: Mapping[str, object] | None = None, **settings: object) -> str:
        return _yaml(
            "singleServerConfig",
            {
                "address": f'"{self._address}"',
                "connectionMinimumIdleSize": 1,
                "connectionPoolSize": 32,
                "subscriptionConnectionMinimumIdleSize": 1,
                **(servers or {}),
            },
            settings,
        )

    def listeners(self, channel: str) -> int:
        [(_, count)] = self.redis.pubsub_numsub(channel)
        return int(count)

    def scripts(self) -> int:
        return _scripts_of(self.redis)

    def close(self) -> None:
        self.redis.close()


class ClusterOfServers(Target):
    """A cluster. Each side chooses by itself whether its messages go through plain or sharded channels."""

    name = "cluster"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.url = cluster.url
        self.redis: RedisCluster = cluster.redis()
        self._nodes = [Redis(*node.address) for node in cluster.nodes]
        self._addresses = [f"redis://{host}:{port}" for host, port in (node.address for node in cluster.nodes)]

    def yaml(self, servers: Mapping[str, object] | None = None, **settings: object) -> str:
        return _yaml(
            "clusterServersConfig",
            {
                "nodeAddresses": json.dumps(self._addresses),
                "scanInterval": 1000,
                # What a replica answers may be older than what the tests have just done.
                "readMode": '"MASTER"',
                "masterConnectionMinimumIdleSize": 1,
                "masterConnectionPoolSize": 32,
                "slaveConnectionMinimumIdleSize": 1,
                "subscriptionConnectionMinimumIdleSize": 1,
                **(servers or {}),
            },
            settings,
        )

    def listeners(self, channel: str) -> int:
        """Clients in Python listen to both kinds of channels, so the larger number is that of the clients."""
        plain = sum(int(node.pubsub_numsub(channel)[0][1]) for node in self._nodes)
        return max(plain, sum(int(node.pubsub_shardnumsub(channel)[0][1]) for node in self._nodes))

    def scripts(self) -> int:
        return sum(map(_scripts_of, self._nodes))

    def close(self) -> None:
        self.redis.close()
        for node in self._nodes:
            node.close()
