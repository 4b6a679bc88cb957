"""The count-down latch: a string with the count; who waits goes on when it is gone."""

from __future__ import annotations

import logging

from pyredisson._core import command, latch_channel, pack
from pyredisson.logic import calls, missing, once, waiting
from pyredisson.logic.calls import NO_WAIT
from pyredisson.logic.hub import Channel
from pyredisson.logic.shared import Shared

LOOK_AGAIN = 5.0
"""Seconds between two looks of one who waits: a message may be lost."""


class LatchChannel(Channel):
    """The waiters of a latch, who all go on at the same moment."""

    __slots__ = ()

    def heard(self, payload: bytes) -> None:
        """The count is zero (`0`), or the latch was set or deleted (`1`), as Redisson spells it."""
        if payload in {b"0", b"1"}:
            self.wake_all()


class CountDownLatchLogic:
    """What a latch does; counts and durations come in checked."""

    __slots__ = ("_channel", "_memory", "_must_exist", "key", "shared")

    def __init__(self, shared: Shared, key: bytes, *, must_exist: bool = False) -> None:
        self.shared = shared
        self.key = key
        self._channel = latch_channel(key)
        self._memory = once.memory(key)
        self._must_exist = must_exist

    async def try_set(self, count: int) -> bool:
        """Sets the count of an open latch."""
        if not count:
            # It is what an open latch has: there is nothing to write.
            return not await self.count()
        shared = self.shared
        shared.check_open()
        lane = shared.lanes.take()
        payload = pack(
            shared.runtime.scripts.latch_set, self.key, self._memory + lane.suffix, lane.number, count, self._channel
        )
        return bool(await shared.lanes.call(lane, payload))

    async def count_down(self) -> None:
        """Counts down by one, if the latch isn't open. Whatever it raises, it is done in the background."""
        shared = self.shared
        shared.check_open()
        lane = shared.lanes.take()
        payload = pack(
            shared.runtime.scripts.latch_count_down, self.key, self._memory + lane.suffix, lane.number, self._channel
        )
        await shared.lanes.call(lane, payload, complete=True)

    async def count(self, deadline: float | None = NO_WAIT) -> int:
        """The count; 0: open."""
        return max(0, await self._read(deadline) or 0)

    async def _read(self, deadline: float | None) -> int | None:
        """The count as it is on the server; None: there is none."""
        shared = self.shared
        shared.check_open()
        reply = await calls.call(shared.runtime, command(b"GET", self.key), attempts=shared.attempts, deadline=deadline)
        return None if reply is None else int(reply)

    async def wait(self, deadline: float | None) -> bool:
        """Waits until the latch is open, or until `deadline` (None: as long as it takes); is it open.

        Raises `NotSetError` if the latch must exist when the wait begins, and doesn't.
        """

        async def look() -> float | None:
            return LOOK_AGAIN if await self.count(deadline) else None

        count = await self._read(deadline)
        if count is None:
            text = "isn't counting: it has come to zero, was deleted, or was never set; wait() returns at once"
            missing.tell(self.shared, logging.INFO, "latch", self.key, text, must_exist=self._must_exist)
        if count is None or count <= 0:
            return True
        if deadline is not None and self.shared.clock() >= deadline:
            return False
        return await waiting.until(self.shared, self._channel, look, LOOK_AGAIN, deadline, kind=LatchChannel)

    async def delete(self) -> bool:
        """Removes the latch, which opens it; was it there."""
        shared = self.shared
        shared.check_open()
        lane = shared.lanes.take()
        payload = once.delete_command(shared.runtime.scripts, lane, self._memory, self._channel, b"1", self.key)
        return bool(await shared.lanes.call(lane, payload))
