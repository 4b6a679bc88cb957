"""Users of a read-write lock on a real server: the scripts, Redisson's steps in plain commands, and time."""

from __future__ import annotations

from typing import Any

from pyredisson._protocol.scripts import script
from pyredisson.testing import Server

LOCK = "orders"
LEASES = "{orders}:"
CLAIM = "pyredisson_rwlock_writer:{orders}"
TURN = "pyredisson_rwlock_turn:{orders}"
CHANNEL = "redisson_rwlock:{orders}"

ADVANCE_TIME = """
for _, key in ipairs(redis.call('KEYS', '*')) do
    local left = redis.call('PTTL', key)
    if left >= 0 then
        redis.call('PEXPIRE', key, math.max(0, left - ARGV[1]))
    end
end
"""
LOOK = """
local times = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
    times[#times + 1] = key
    times[#times + 1] = redis.call('PTTL', key)
end
return {redis.call('HGETALL', KEYS[1]), times}
"""


def lease_key(reader: str, hold: int) -> str:
    return f"{LEASES}{reader}:rwlock_timeout:{hold}"


class Ground:
    """The server, its clock and its keys."""

    def __init__(self, server: Server) -> None:
        self.redis: Any = server.redis()
        self._flags = server.version >= (7,)

    def script(self, name: str, *keys: str, args: tuple[str | int, ...]) -> Any:
        return self.redis.eval(script(name, with_shebang=self._flags).text, len(keys), *keys, *args)

    def advance_time(self, ms: int) -> None:
        """Makes all leases shorter by this much."""
        self.redis.eval(ADVANCE_TIME, 0, ms)

    def look(self) -> tuple[dict[str, str], dict[str, int]]:
        """The lock's fields and the remaining time of each key, read at one moment."""
        fields, times = self.redis.eval(LOOK, 1, LOCK)
        words = [field.decode() for field in fields]
        keys = [key.decode() for key in times[::2]]
        return (
            dict(zip(words[::2], words[1::2], strict=True)),
            dict(zip(keys, times[1::2], strict=True)),
        )

    def fields(self) -> dict[str, str]:
        return {field.decode(): value.decode() for field, value in self.redis.hgetall(LOCK).items()}


class Ours:
    """This library's commands, of one owner name each."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def read(self, reader: str, hold: int, lease: int, writer: str) -> Any:
        return self._ground.script("read_acquire", LOCK, LEASES, CLAIM, args=(reader, hold, lease, writer))

    def leave(self, reader: str, hold: int) -> Any:
        return self._ground.script("read_release", LOCK, LEASES, TURN, args=(CHANNEL, reader, hold))

    def renew(self, reader: str, lease: int) -> bool:
        return bool(self._ground.script("read_renew", LOCK, args=(LEASES, reader, lease)) == [1])

    def write(self, writer: str, hold: int, lease: int, waits: bool) -> Any:
        return self._ground.script("write_acquire", LOCK, CLAIM, TURN, args=(writer, hold, lease, int(waits)))

    def stop(self, writer: str, hold: int) -> Any:
        return self._ground.script("write_release", LOCK, LEASES, args=(CHANNEL, writer, hold))

    def withdraw_claim(self, owner: str) -> Any:
        return self._ground.script("write_withdraw_claim", LOCK, CLAIM, args=(CHANNEL, owner + ":"))

    def force(self, side: str) -> Any:
        return self._ground.script("read_write_force_release", LOCK, args=(CHANNEL, side))


class Java:
    """Redisson's steps."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._redis = ground.redis

    def read(self, reader: str, lease: int) -> bool:
        redis = self._redis
        mode = redis.hget(LOCK, "mode")
        if mode is None:
            redis.hset(LOCK, "mode", "read")
        elif mode == b"write" and not redis.hexists(LOCK, reader + ":write"):
            return False
        hold = redis.hincrby(LOCK, reader, 1)
        redis.set(lease_key(reader, hold), "1", px=lease)
        redis.pexpire(LOCK, max(redis.pttl(LOCK), lease))
        return True

    def leave(self, reader: str) -> None:
        redis = self._redis
        if not redis.hexists(LOCK, reader):
            return
        count = redis.hincrby(LOCK, reader, -1)
        if count == 0:
            redis.hdel(LOCK, reader)
        redis.delete(lease_key(reader, count + 1))
        if redis.hlen(LOCK) > 1:
            longest = max(
                (
                    redis.pttl(lease_key(field, hold))
                    for field, value in self._ground.fields().items()
                    if value.isdigit()
                    for hold in range(1, int(value) + 1)
                ),
                default=-3,
            )
            if longest > 0:
                redis.pexpire(LOCK, longest)
                return
            if redis.hget(LOCK, "mode") == b"write":
                return
        redis.delete(LOCK)

    def renew(self, reader: str, lease: int) -> None:
        count = int(self._redis.hget(LOCK, reader) or 0)
        for hold in range(count, 0, -1):
            self._redis.pexpire(lease_key(reader, hold), lease)
        if count:
            self._redis.pexpire(LOCK, lease)

    def write(self, writer: str, lease: int) -> bool:
        redis = self._redis
        mode = redis.hget(LOCK, "mode")
        if mode is None:
            redis.hset(LOCK, mapping={"mode": "write", writer: 1})
            redis.pexpire(LOCK, lease)
            return True
        if mode == b"write" and redis.hexists(LOCK, writer):
            redis.hincrby(LOCK, writer, 1)
            redis.pexpire(LOCK, redis.pttl(LOCK) + lease)
            return True
        return False

    def stop(self, writer: str, lease: int) -> None:
        redis = self._redis
        if redis.hget(LOCK, "mode") != b"write" or not redis.hexists(LOCK, writer):
            return
        if redis.hincrby(LOCK, writer, -1) > 0:
            redis.pexpire(LOCK, lease)
            return
        redis.hdel(LOCK, writer)
        if redis.hlen(LOCK) == 1:
            redis.delete(LOCK)
        else:
            redis.hset(LOCK, "mode", "read")
