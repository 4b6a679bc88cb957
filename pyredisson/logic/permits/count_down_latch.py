"""The count-down latch: a string with the count; who waits goes on when it is gone."""

from __future__ import annotations

import logging

from pyredisson._core import command, latch_channel, pack
from pyredisson.logic import exactly_once, retry, waiting
from pyredisson.logic.channels import Channel
from pyredisson.logic.permits import not_set
from pyredisson.logic.retry import NO_WAIT
from pyredisson.logic.session import Session

LOOK_AGAIN = 5.0
"""Seconds between two looks of one who waits: a message may be lost."""


class LatchChannel(Channel):
    """The waiters of a latch, who all go on at the same moment."""

    __slots__ = ()

    def on_message(self, payload: bytes) -> None:
        """The count is zero (`0`), or the latch was set or deleted (`1`), as Redisson spells it."""
        if payload in {b"0", b"1"}:
            self.wake_all()


class CountDownLatchLogic:
    """What a latch does; counts and durations come in checked."""

    __slots__ = ("_channel", "_memory", "_must_exist", "key", "session")

    def __init__(self, session: Session, key: bytes, *, must_exist: bool = False) -> None:
        self.session = session
        self.key = key
        self._channel = latch_channel(key)
        self._memory = exactly_once.memory(key)
        self._must_exist = must_exist

    async def try_set(self, count: int) -> bool:
        """Sets the count of an open latch."""
        if not count:
            # It is what an open latch has: there is nothing to write.
            return not await self.count()
        session = self.session
        session.check_open()
        slot = session.slots.take()
        payload = pack(
            session.runtime.scripts.latch_set, self.key, self._memory + slot.suffix, slot.number, count, self._channel
        )
        return bool(await session.slots.call(slot, payload))

    async def count_down(self) -> None:
        """Counts down by one, if the latch isn't open. Whatever it raises, it is done in the background."""
        session = self.session
        session.check_open()
        slot = session.slots.take()
        payload = pack(
            session.runtime.scripts.latch_count_down, self.key, self._memory + slot.suffix, slot.number, self._channel
        )
        await session.slots.call(slot, payload, complete=True)

    async def count(self, deadline: float | None = NO_WAIT) -> int:
        """The count; 0: open."""
        return max(0, await self._read(deadline) or 0)

    async def _read(self, deadline: float | None) -> int | None:
        """The count as it is on the server; None: there is none."""
        session = self.session
        session.check_open()
        reply, _ = await retry.send(
            session.runtime, command(b"GET", self.key), attempts=session.attempts, deadline=deadline
        )
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
            not_set.report(self.session, logging.INFO, "latch", self.key, text, must_exist=self._must_exist)
        if count is None or count <= 0:
            return True
        if deadline is not None and self.session.clock() >= deadline:
            return False
        return await waiting.until(self.session, self._channel, look, LOOK_AGAIN, deadline, channel_class=LatchChannel)

    async def delete(self) -> bool:
        """Removes the latch, which opens it; was it there."""
        session = self.session
        session.check_open()
        slot = session.slots.take()
        payload = exactly_once.delete_command(
            session.runtime.scripts, slot, self._memory, self._channel, b"1", self.key
        )
        return bool(await session.slots.call(slot, payload))
