"""What both sides talk to (an address for Python, a configuration for Java, a plain client), and the kinds of locks."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from pyredisson.testing import Cluster, Server
from tests.support.backends import Backend

from .jvm import JavaObject, JavaThread, Pending, now

# Kinds of locks, by the names that Java has for them, and their objects in Python

REENTRANT = ("Lock", "FairLock", "FencedLock", "SpinLock", "ReadLock", "WriteLock")
NON_REENTRANT = ("NonReentrantLock", "NonReentrantFairLock")
ALL = (*REENTRANT, *NON_REENTRANT)
OLD = {"3.27.2"}
"""Versions without non-reentrant locks, which are new in 4.4."""
OVERSLEEPS = {("FairLock", "3.27.2")}
"""A waiter of a fair lock before 3.32 sleeps until a message comes if it looks at the lock once after the lease with
which it began to wait: the time that is left of it is negative, which means no limit."""
WOKEN = 2.0
"""Seconds within which a waiter that was woken by a message has the lock, also on a busy machine. Leases are 30 s."""


def kinds_of(version: str) -> tuple[str, ...]:
    return REENTRANT if version in OLD else ALL


def python_lock(client: Any, kind: str, name: str) -> Any:
    if kind in {"ReadLock", "WriteLock"}:
        both = client.get_read_write_lock(name)
        return both.read_lock() if kind == "ReadLock" else both.write_lock()
    return getattr(client, "get" + re.sub("([A-Z])", r"_\1", kind).lower())(name)


def against(kind: str) -> str:
    """The kind of lock that excludes a holder of this one: a writer for a reader, else the same."""
    return "WriteLock" if kind == "ReadLock" else kind


def acquired(lock: Any, *, keep: bool = False) -> Callable[[], Any]:
    """Work that acquires the lock, and returns when it had it; the lock is released at once, or kept."""

    async def work() -> float:
        await lock.lock()
        then = now()
        if not keep:
            await lock.unlock()
        return then

    return work


async def timed(side: str, thread: JavaThread, theirs: JavaObject, ours: Any, method: str) -> tuple[float, float]:
    """One side calls a method of its object, which is named as in Python. Returns when the call began and ended."""
    began = now()
    if side == "java":
        thread.call(theirs, re.sub("_(.)", lambda found: found[1].upper(), method))
    else:
        await getattr(ours, method)()
    return began, now()


async def wakes(waiter: Pending, release: Callable[[], Awaitable[object]]) -> Any:
    """Python releases what Java waits for, and that wakes Java's thread. Returns what its call returned."""
    began = now()
    await release()
    answer = waiter.answer()
    assert began < answer.ended < began + WOKEN
    return answer.result


# Servers

SINGLE = """singleServerConfig:
  address: "{}"
  connectionMinimumIdleSize: 1
  connectionPoolSize: 32
  subscriptionConnectionMinimumIdleSize: 1"""
CLUSTER = """clusterServersConfig:
  nodeAddresses: {}
  scanInterval: 1000
  # What a replica answers may be older than what the tests have just done.
  readMode: "MASTER"
  masterConnectionMinimumIdleSize: 1
  masterConnectionPoolSize: 32
  slaveConnectionMinimumIdleSize: 1
  subscriptionConnectionMinimumIdleSize: 1"""

CHANNELS = {
    **dict.fromkeys(("ReadLock", "WriteLock"), "redisson_rwlock"),
    **dict.fromkeys(("Semaphore", "PermitExpirableSemaphore"), "redisson_sc"),
}
"""How the channel begins on which the waiters for an object listen, where it isn't that of most locks."""
LOSE_MESSAGES = {"ReadLock", "WriteLock"}
"""The locks for which a thread of Java sleeps on if the message came before it slept."""
BEFORE_SLEEP = 0.1
"""Seconds after its subscription within which a thread of Java has made another attempt, and sleeps."""


@dataclass(frozen=True)
class Target:
    """One server, or several that serve as one. Empty at the start of each test."""

    name: str
    """As in the ids of the tests."""
    url: str
    """The address for `pyredisson.connect`."""
    redis: Any
    """A plain client, which sees all keys."""
    nodes: Sequence[Redis]
    servers: str
    """The section of Redisson's configuration."""
    cluster: Any = None
    """A `Cluster`, if it is one."""

    def yaml(self, servers: Mapping[str, object] | None = None, **settings: object) -> str:
        """The configuration of a Redisson client. `servers`: settings of the servers' section; `settings`: those of the
        outermost level. Few threads: several clients share this machine with the tests."""
        lines = [self.servers, *(f"  {name}: {value}" for name, value in (servers or {}).items())]
        lines += [f"{name}: {value}" for name, value in {"threads": 4, "nettyThreads": 4, **settings}.items()]
        return "\n".join(lines)

    def listeners(self, channel: str) -> int:
        """How many clients are subscribed to that channel, by either kind of subscription.

        Clients in Python listen to both kinds on a cluster, so the larger number is that of the clients.
        """
        plain = sum(int(node.pubsub_numsub(channel)[0][1]) for node in self.nodes)
        return max(plain, sum(int(node.pubsub_shardnumsub(channel)[0][1]) for node in self.nodes))

    def scripts(self) -> int:
        """How many scripts have run."""
        stats: list[dict[str, Any]] = [node.info("commandstats") for node in self.nodes]
        return sum(each.get(f"cmdstat_{name}", {"calls": 0})["calls"] for each in stats for name in ("eval", "evalsha"))

    def close(self) -> None:
        for each in {self.redis, *self.nodes}:
            each.close()

    def holds(self, name: str) -> dict[str, int]:
        """The fields of a lock's hash, as numbers: the owners and how often each of them holds it."""
        return {field.decode(): int(value) for field, value in self.redis.hgetall(name).items() if field != b"mode"}

    def queue(self, name: str) -> list[str]:
        """The owners that wait for a fair lock, in the order of their turns."""
        return [owner.decode() for owner in self.redis.lrange(f"redisson_lock_queue:{_tagged(name)}", 0, -1)]

    def all_keys(self) -> set[str]:
        """All keys but those that Redisson keeps for some seconds so that a release can be repeated."""
        return {key.decode() for key in self.redis.scan_iter() if not key.startswith(b"redisson_unlock_latch:")}

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
        channel = f"{CHANNELS.get(kind, 'redisson_lock__channel')}:{_tagged(name)}"
        if kind == "CountDownLatch":
            channel = f"redisson_countdownlatch__channel__{{{name}}}"
        return lambda: self.listeners(channel) == waiters


def _tagged(name: str) -> str:
    return name if "{" in name else f"{{{name}}}"


def single_server(server: Server) -> Target:
    redis = server.redis()
    return Target("single", server.url, redis, [redis], SINGLE.format(f"redis://{server.host}:{server.port}"))


def cluster_of_servers(cluster: Cluster) -> Target:
    """Each side chooses by itself whether its messages go through plain or sharded channels."""
    addresses = [f"redis://{host}:{port}" for host, port in (node.address for node in cluster.nodes)]
    nodes = [Redis(*node.address) for node in cluster.nodes]
    return Target("cluster", cluster.url, cluster.redis(), nodes, CLUSTER.format(json.dumps(addresses)), cluster)
