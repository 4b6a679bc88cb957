"""What the server under test knows, read with plain commands."""

from typing import Any

from redis import Redis


class ServerState:
    def __init__(self, redis: Any) -> None:
        self.redis = redis

    def holds(self, key: str | bytes) -> dict[str, str]:
        """The owners and the number of their holds, as stored in the lock's hash."""
        return {owner.decode(): count.decode() for owner, count in self.redis.hgetall(key).items()}

    def listeners(self, key: str) -> int:
        """How many clients wait for that lock, and have subscribed to the channels on which they are woken."""
        return listeners(self.redis, key)

    def scripts(self) -> int:
        return scripts_run(self.redis)

    def commands(self) -> int:
        """How many commands have run since the server started, without INFO."""
        stats = self.redis.info("commandstats")
        return sum(int(entry["calls"]) for name, entry in stats.items() if name != "cmdstat_info")


def scripts_run(admin: Redis) -> int:
    stats: dict[str, Any] = admin.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def listeners(admin: Redis, name: str) -> int:
    """How many connections are subscribed to the channels on which clients that wait for that lock are woken."""
    channels = admin.pubsub_channels(f"pyredisson_wake:{{{name}}}:*")
    return sum(count for _, count in admin.pubsub_numsub(*channels)) if channels else 0
