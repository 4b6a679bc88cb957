"""The read-write lock's scripts on a server, and the steps of a Java client."""

from __future__ import annotations

from typing import Any

from .scripted import ME, YOU, ScriptedLock

MY_WRITE, YOUR_WRITE = ME + ":write", YOU + ":write"
CLAIM = "pyredisson_rwlock_writer:{orders}"
TURN = "pyredisson_rwlock_turn:{orders}"
LEASES = "{orders}:"


def lease_key(reader: str, level: int, lock: str = "orders") -> str:
    return f"{{{lock}}}:{reader}:rwlock_timeout:{level}"


class ReadWriteScripts(ScriptedLock):
    channel = "redisson_rwlock:{orders}"

    def read(self, reader: str, hold: int, lease: int, writer: str | None = None, redis: Any = None) -> Any:
        keys = ["orders", LEASES, CLAIM]
        return self.run("read_acquire", keys, reader, hold, lease, writer or reader + ":write", redis=redis)

    def read_release(self, reader: str, hold: int, redis: Any = None) -> Any:
        return self.run("read_release", ["orders", LEASES, TURN], self.channel, reader, hold, redis=redis)

    def renew(self, *holds: tuple[str, str, int], redis: Any = None) -> Any:
        words = [word for lock, reader, lease in holds for word in (f"{{{lock}}}:", reader, lease)]
        keys = [lock for lock, _, _ in holds] + [lease_key(reader, 1, lock) for lock, reader, _ in holds]
        return self.run("read_renew", keys, *words, redis=redis)

    def read_locked(self) -> Any:
        return self.run("read_locked", ["orders"])

    def write(self, writer: str, hold: int, lease: int, *, waits: bool = False, redis: Any = None) -> Any:
        return self.run("write_acquire", ["orders", CLAIM, TURN], writer, hold, lease, int(waits), redis=redis)

    def write_release(self, writer: str, hold: int, redis: Any = None) -> Any:
        return self.run("write_release", ["orders", LEASES], self.channel, writer, hold, redis=redis)

    def let_in(self, writer: str, *readers: tuple[str, int], redis: Any = None) -> Any:
        words = [word for reader in readers for word in reader]
        return self.run("write_let_readers_in", ["orders", LEASES], self.channel, writer, *words, redis=redis)

    def hand_over(self, writer: str, next_writer: str, lease: int, redis: Any = None) -> Any:
        return self.run("write_hand_over", ["orders", LEASES], self.channel, writer, next_writer, lease, redis=redis)

    def withdraw_claim(self, owner: str, redis: Any = None) -> Any:
        return self.run("write_withdraw_claim", ["orders", CLAIM], self.channel, owner + ":", redis=redis)

    def force(self, side: str, redis: Any = None) -> Any:
        return self.run("read_write_force_release", ["orders"], self.channel, side, redis=redis)

    def reading(self, reader: str, *leases: int, key: str = "orders") -> None:
        """Holds as Redisson's scripts leave them."""
        self.redis.hset(key, mapping={"mode": self.redis.hget(key, "mode") or "read", reader: len(leases)})
        for hold, lease in enumerate(leases, 1):
            self.redis.set(lease_key(reader, hold, key), "1", px=lease)
        self.redis.pexpire(key, max(self.redis.pttl(key), *leases))

    def writing(self, owner: str, holds: int, lease: int | None) -> None:
        """Holds as Redisson's scripts leave them."""
        self.redis.hset("orders", mapping={"mode": "write", owner + ":write": holds})
        if lease is not None:
            self.redis.pexpire("orders", lease)

    def leases(self, reader: str, lock: str = "orders") -> dict[int, int]:
        """The remaining lease of each level, from its lease key."""
        start = lease_key(reader, 0, lock)[:-1]
        return {int(key.decode().removeprefix(start)): self.left(key) for key in self.redis.keys(f"{start}*")}

    def java_read_unlock(self, reader: str) -> int | None:
        """What Redisson's script does, step by step."""
        redis = self.redis
        if not redis.hexists("orders", reader):
            return None
        count = redis.hincrby("orders", reader, -1)
        if count == 0:
            redis.hdel("orders", reader)
        redis.delete(lease_key(reader, count + 1))
        if redis.hlen("orders") > 1:
            longest = -3
            for field, value in self.state().items():
                for hold in range(int(value) if value.isdigit() else 0, 0, -1):
                    longest = max(longest, self.left(lease_key(field, hold)))
            if longest > 0:
                redis.pexpire("orders", longest)
                return 0
            if redis.hget("orders", "mode") == b"write":
                return 0
        redis.delete("orders")
        redis.publish(self.channel, "0")
        return 1

    def java_write_unlock(self, writer: str) -> int | None:
        """What Redisson's script does, step by step."""
        redis = self.redis
        if redis.hget("orders", "mode") != b"write" or not redis.hexists("orders", writer):
            return None
        if redis.hincrby("orders", writer, -1) > 0:
            return 0
        redis.hdel("orders", writer)
        if redis.hlen("orders") == 1:
            redis.delete("orders")
            redis.publish(self.channel, "1")
        else:
            redis.hset("orders", "mode", "read")
        return 1


def near(left: int, lease: int) -> bool:
    """Whether the remaining time is so long that the lease began in this test."""
    return lease - 2_000 < left <= lease
