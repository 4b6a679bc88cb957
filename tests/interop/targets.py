"""What both sides talk to: a server, as an address for Python, a configuration for Java, and a plain client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from redis import Redis

from pyredisson.testing import Server


class Target(ABC):
    """One server, or several that serve as one. Empty at the start of each test."""

    url: str
    """The address for `pyredisson.connect`."""
    redis: Any
    """A plain client, which sees all keys."""

    @abstractmethod
    def yaml(self, **settings: object) -> str:
        """The configuration of a Redisson client; `settings` are those of its outermost level."""

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
        return [owner.decode() for owner in self.redis.lrange(f"redisson_lock_queue:{{{name}}}", 0, -1)]

    def all_keys(self) -> set[str]:
        """All keys but those that Redisson keeps for some seconds so that a release can be repeated."""
        keys = {key.decode() for key in self.redis.scan_iter()}
        return {key for key in keys if not key.startswith("redisson_unlock_latch:")}

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
    tagged = name if "{" in name else f"{{{name}}}"
    match kind:
        case "ReadLock" | "WriteLock":
            return f"redisson_rwlock:{tagged}"
        case "Semaphore" | "PermitExpirableSemaphore":
            return f"redisson_sc:{tagged}"
        case "CountDownLatch":
            return f"redisson_countdownlatch__channel__{{{name}}}"
    return f"redisson_lock__channel:{tagged}"


def _settings(settings: dict[str, object]) -> str:
    """Few threads: several clients share this machine with the tests."""
    return "".join(f"{name}: {value}\n" for name, value in {"threads": 4, "nettyThreads": 4, **settings}.items())


class SingleServer(Target):
    """One server."""

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self.redis: Redis = server.redis()
        self._address = f"redis://{server.host}:{server.port}"

    def yaml(self, **settings: object) -> str:
        return (
            "singleServerConfig:\n"
            f'  address: "{self._address}"\n'
            "  connectionMinimumIdleSize: 1\n"
            "  connectionPoolSize: 32\n"
            "  subscriptionConnectionMinimumIdleSize: 1\n"
        ) + _settings(settings)

    def listeners(self, channel: str) -> int:
        [(_, count)] = self.redis.pubsub_numsub(channel)
        return int(count)

    def scripts(self) -> int:
        stats: dict[str, Any] = self.redis.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))

    def close(self) -> None:
        self.redis.close()
