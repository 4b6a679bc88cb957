"""The semaphore's scripts on a server."""

from __future__ import annotations

from typing import Any

from .scripted import Scripted

CLAIM, TURN = "pyredisson_semaphore_claim:{stock}", "pyredisson_semaphore_turn:{stock}"
SLOT, OTHER = "pyredisson_once:{stock}:me:0", "pyredisson_once:{stock}:me:1"


class SemaphoreScripts(Scripted):
    channel = "redisson_sc:{stock}"

    def acquire(self, number: int, permits: int, slot: str = SLOT, redis: Any = None) -> Any:
        return self.run("semaphore_acquire", ["stock", CLAIM, slot], number, permits, redis=redis)

    def add(self, number: int, permits: int, existing: int = 0, slot: str = SLOT, redis: Any = None) -> Any:
        return self.run("semaphore_add", ["stock", slot], number, permits, self.channel, existing, redis=redis)

    def make(self, number: int, permits: int, ttl: int = 0, slot: str = SLOT, redis: Any = None) -> Any:
        return self.run("semaphore_set", ["stock", slot], number, permits, ttl, self.channel, redis=redis)

    def correct(self, number: int, shown: int, free: int) -> Any:
        return self.run("semaphore_correct", ["stock", SLOT], number, shown, free, self.channel)

    def undo(self, number: int, slot: str = SLOT, redis: Any = None) -> Any:
        """Of the acquire of that number."""
        return self.run("semaphore_undo", ["stock", slot], number + 1, self.channel, redis=redis)

    def hand_over(
        self, number: int, permits: int, wanted: int, existing: int = 0, slot: str = SLOT, redis: Any = None
    ) -> Any:
        keys = ["stock", CLAIM, slot]
        return self.run("semaphore_hand_over", keys, number, permits, wanted, self.channel, existing, redis=redis)

    def finish(self, number: int, permits: int, existing: int = 0, slot: str = SLOT, redis: Any = None) -> Any:
        """The hand-over of that number."""
        return self.run("semaphore_finish", ["stock", slot], number + 1, permits, self.channel, existing, redis=redis)

    def delete(self, number: int, *more: str, message: str = "", slot: str = SLOT, redis: Any = None) -> Any:
        return self.run("exactly_once_delete", ["stock", *more, slot], number, self.channel, message, redis=redis)

    def free(self) -> str | None:
        """The free permits, as Redisson reads them."""
        return self.text("stock")

    def left(self, key: str = "stock") -> int:
        return int(self.redis.pttl(key))

    def remembered(self, slot: str = SLOT) -> str | None:
        found = self.text(slot)
        assert found is None or 650_000 < self.left(slot) <= 660_000
        return found
