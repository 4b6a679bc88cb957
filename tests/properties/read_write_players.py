"""Users of a read-write lock: the scripts, and Redisson's steps in plain commands."""

from __future__ import annotations

from typing import Any

from .servers import Memory

LOCK = "orders"
LEASES = "{orders}:"
CLAIM = "pyredisson_rwlock_writer:{orders}"
TURN = "pyredisson_rwlock_turn:{orders}"
CHANNEL = "redisson_rwlock:{orders}"


def lease_key(reader: str, hold: int) -> str:
    return f"{LEASES}{reader}:rwlock_timeout:{hold}"


class Ours:
    """This library's commands, of one owner name each."""

    def __init__(self, memory: Memory) -> None:
        self._script = memory.script

    def read(self, reader: str, hold: int, lease: int, writer: str) -> Any:
        return self._script("read_acquire", LOCK, LEASES, CLAIM, args=(reader, hold, lease, writer))

    def leave(self, reader: str, hold: int) -> Any:
        return self._script("read_release", LOCK, LEASES, TURN, args=(CHANNEL, reader, hold))

    def renew(self, reader: str, lease: int) -> bool:
        return bool(self._script("read_renew", LOCK, args=(LEASES, reader, lease)) == [1])

    def write(self, writer: str, hold: int, lease: int, waits: bool) -> Any:
        return self._script("write_acquire", LOCK, CLAIM, TURN, args=(writer, hold, lease, int(waits)))

    def stop(self, writer: str, hold: int) -> Any:
        return self._script("write_release", LOCK, LEASES, args=(CHANNEL, writer, hold))

    def withdraw_claim(self, owner: str) -> Any:
        return self._script("write_withdraw_claim", LOCK, CLAIM, args=(CHANNEL, owner + ":"))

    def force(self, side: str) -> Any:
        return self._script("read_write_force_release", LOCK, args=(CHANNEL, side))


class Java:
    """Redisson's steps."""

    def __init__(self, memory: Memory) -> None:
        self._do = memory.command

    def read(self, reader: str, lease: int) -> bool:
        do = self._do
        mode = do("HGET", LOCK, "mode")
        if mode is None:
            do("HSET", LOCK, "mode", "read")
        elif mode == b"write" and not do("HEXISTS", LOCK, reader + ":write"):
            return False
        do("SET", lease_key(reader, do("HINCRBY", LOCK, reader, 1)), "1", "PX", lease)
        do("PEXPIRE", LOCK, max(do("PTTL", LOCK), lease))
        return True

    def leave(self, reader: str) -> None:
        do = self._do
        if not do("HEXISTS", LOCK, reader):
            return
        count = do("HINCRBY", LOCK, reader, -1)
        if count == 0:
            do("HDEL", LOCK, reader)
        do("DEL", lease_key(reader, count + 1))
        if do("HLEN", LOCK) > 1:
            words = do("HGETALL", LOCK)
            counts = {
                field.decode(): int(value)
                for field, value in zip(words[::2], words[1::2], strict=True)
                if value.isdigit()
            }
            keys = [lease_key(field, hold) for field, count in counts.items() for hold in range(1, count + 1)]
            longest = max((do("PTTL", key) for key in keys), default=-3)
            if longest > 0:
                do("PEXPIRE", LOCK, longest)
                return
            if do("HGET", LOCK, "mode") == b"write":
                return
        do("DEL", LOCK)

    def renew(self, reader: str, lease: int) -> None:
        count = int(self._do("HGET", LOCK, reader) or 0)
        for hold in range(count, 0, -1):
            self._do("PEXPIRE", lease_key(reader, hold), lease)
        if count:
            self._do("PEXPIRE", LOCK, lease)

    def write(self, writer: str, lease: int) -> bool:
        do = self._do
        mode = do("HGET", LOCK, "mode")
        if mode is None:
            do("HSET", LOCK, "mode", "write", writer, 1)
            do("PEXPIRE", LOCK, lease)
        elif mode == b"write" and do("HEXISTS", LOCK, writer):
            do("HINCRBY", LOCK, writer, 1)
            do("PEXPIRE", LOCK, do("PTTL", LOCK) + lease)
        else:
            return False
        return True

    def stop(self, writer: str, lease: int) -> None:
        do = self._do
        if do("HGET", LOCK, "mode") != b"write" or not do("HEXISTS", LOCK, writer):
            return
        if do("HINCRBY", LOCK, writer, -1) > 0:
            do("PEXPIRE", LOCK, lease)
            return
        do("HDEL", LOCK, writer)
        if do("HLEN", LOCK) == 1:
            do("DEL", LOCK)
        else:
            do("HSET", LOCK, "mode", "read")
