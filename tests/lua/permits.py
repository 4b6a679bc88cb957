"""The scripts of expiring permits on a server."""

from __future__ import annotations

from typing import Any

from .scripted import Scripted

FREE, USED = "pool", "{pool}:timeout"
CLAIM, TURN = "pyredisson_semaphore_claim:{pool}", "pyredisson_semaphore_turn:{pool}"
MARK, SLOT = "pyredisson_permit_withdrawn:{pool}:", "pyredisson_once:{pool}:me:0"
FOREVER = 922337203685477
A, B, C, D, E = (bytes(range(start, start + 16)) for start in (0, 16, 128, 200, 240))


class PermitScripts(Scripted):
    channel = "redisson_sc:{pool}"

    def acquire(self, lease: int, *ids: bytes, claimant: str = "", redis: Any = None) -> Any:
        keys = [FREE, USED, MARK + ids[0].hex(), CLAIM, TURN]
        return self.run("permit_acquire", keys, self.channel, lease, claimant, *ids, redis=redis)

    def release(self, *ids: bytes, redis: Any = None) -> Any:
        return self.run("permit_release", [FREE, USED], self.channel, 1, *ids, redis=redis)

    def withdraw(self, *ids: bytes, redis: Any = None) -> Any:
        marks = [MARK + permit.hex() for permit in ids]
        return self.run("permit_release", [FREE, USED, *marks], self.channel, 0, *ids, redis=redis)

    def renew(self, lease: int, *permits: tuple[str, bytes], redis: Any = None) -> Any:
        return self.run("permit_renew", [key for key, _ in permits], lease, *[each for _, each in permits], redis=redis)

    def lease(self, permit: bytes, *lease: int, redis: Any = None) -> Any:
        return self.run("permit_lease", [USED], permit, *lease, redis=redis)

    def count(self, redis: Any = None) -> Any:
        return self.run("permit_count", [FREE, USED], self.channel, redis=redis)

    def set(self, number: int, permits: int, redis: Any = None) -> Any:
        return self.run("permit_set", [FREE, USED, SLOT], number, permits, self.channel, redis=redis)

    def now(self) -> int:
        seconds, micros = self.redis.time()
        return int(seconds * 1000 + micros // 1000)

    def use(self, permit: bytes, left: int | None, key: str = USED) -> None:
        """A permit in use as Redisson's scripts leave it."""
        self.redis.zadd(key, {permit: FOREVER if left is None else self.now() + left})

    def free(self) -> str | None:
        """The free permits, as Redisson reads them."""
        return self.text(FREE)

    def valid_until(self) -> dict[bytes, int]:
        """When which permit ends, as Redisson reads it: whole milliseconds, of which it takes the digits."""
        raw = self.redis.execute_command("EVAL", "return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')", 1, USED)
        return {permit: int(score.decode()) for permit, score in zip(raw[::2], raw[1::2], strict=True)}

    def left(self, permit: bytes) -> int:
        return self.valid_until()[permit] - self.now()
