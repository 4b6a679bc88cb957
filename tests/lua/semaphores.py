"""The semaphore's scripts on a server."""

from __future__ import annotations

from typing import Any

from .scripted import Scripted

CLAIM, TURN = "pyredisson_semaphore_claim:{stock}", "pyredisson_semaphore_turn:{stock}"
LANE, OTHER = "pyredisson_once:{stock}:me:0", "pyredisson_once:{stock}:me:1"


class SemaphoreScripts(Scripted):
    channel = "redisson_sc:{stock}"

    def acquire(self, number: int, permits: int, lane: str = LANE, redis: Any = None) -> Any:
        return self.run("semaphore_acquire", ["stock", CLAIM, lane], number, permits, redis=redis)

    def add(self, number: int, permits: int, existing: int = 0, lane: str = LANE, redis: Any = None) -> Any:
        return self.run("semaphore_add", ["stock", lane], number, permits, self.channel, existing, redis=redis)

    def make(self, number: int, permits: int, ttl: int = 0, lane: str = LANE, redis: Any = None) -> Any:
        return self.run("semaphore_set", ["stock", lane], number, permits, ttl, self.channel, redis=redis)

    def undo(self, number: int, lane: str = LANE, redis: Any = None) -> Any:
        """Of the acquire of that number."""
        return self.run("semaphore_undo", ["stock", lane], number + 1, self.channel, redis=redis)

    def delete(self, number: int, *more: str, message: str = "", lane: str = LANE, redis: Any = None) -> Any:
        return self.run("once_delete", ["stock", *more, lane], number, self.channel, message, redis=redis)

    def free(self) -> str | None:
        """The free permits, as Redisson reads them."""
        return self.text("stock")

    def left(self, key: str = "stock") -> int:
        return int(self.redis.pttl(key))

    def remembered(self, lane: str = LANE) -> str | None:
        found = self.text(lane)
        assert found is None or 650_000 < self.left(lane) <= 660_000
        return found
