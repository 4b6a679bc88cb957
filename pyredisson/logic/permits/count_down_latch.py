"""The count-down latch: a string with the count. The waiters go on when the key is gone."""

from __future__ import annotations

from pyredisson._diagnostics import logger, readable, tracing
from pyredisson.logic import retry, waiting
from pyredisson.logic.channels import Channel
from pyredisson.logic.observing import described
from pyredisson.logic.permits import permit_wait
from pyredisson.logic.permits.commands import LatchCommands
from pyredisson.logic.retry import LIMITED_BY_RETRIES
from pyredisson.logic.session import Session

LONGEST_WAIT = 5.0
"""Seconds after which a waiter reads the count again without a message: a message may be lost."""


class LatchChannel(Channel):
    """The waiters of a latch. All of them go on at the same moment."""

    __slots__ = ()

    def on_message(self, payload: bytes) -> None:
        """`0`: the latch has opened; `1`: it was set or deleted. Redisson publishes the same values."""
        if payload in {b"0", b"1"}:
            self.wake_all()


class CountDownLatchLogic:
    """The operations of a latch; counts and durations were checked before."""

    __slots__ = ("_must_exist", "commands", "key", "session")

    def __init__(self, session: Session, key: bytes, *, must_exist: bool = False) -> None:
        self.session = session
        self.key = key
        self.commands = LatchCommands(session, key)
        self._must_exist = must_exist

    async def try_set(self, count: int) -> bool:
        """Sets the count of an open latch. False: the latch is not open."""
        if not count:
            # An open latch has that count: there is nothing to write.
            return not await self.count()
        self.session.check_open()
        slot = self.session.slots.allocate()
        return bool(await self.session.slots.send(slot, self.commands.try_set(slot, count)))

    async def count_down(self) -> None:
        """Counts down by one, unless the latch is open. Whatever it raises, this happens: in the background."""
        self.session.check_open()
        slot = self.session.slots.allocate()
        await self.session.slots.send(slot, self.commands.count_down(slot), complete=True)
        if tracing.debug:
            logger.debug("latch %r is counted down", readable(self.key))

    async def count(self, deadline: float | None = LIMITED_BY_RETRIES) -> int:
        """The count; 0: the latch is open."""
        return max(0, await self._read(deadline) or 0)

    async def _read(self, deadline: float | None) -> int | None:
        """The count on the server; None: the latch doesn't exist."""
        session = self.session
        session.check_open()
        reply, _ = await retry.send(session.runtime, self.commands.read(), retries=session.retries, deadline=deadline)
        return None if reply is None else int(reply)

    async def wait(self, deadline: float | None) -> bool:
        """Waits until the latch is open, or until `deadline` (None: without limit). Returns whether it is open.

        Raises `NotSetError` if the latch must exist, and doesn't exist when the wait begins.
        """
        session = self.session

        async def attempt() -> float | None:
            return LONGEST_WAIT if await self.count(deadline) else None

        count = await self._read(deadline)
        if count is None:
            permit_wait.report_latch(session, self.key, must_exist=self._must_exist)
        if count is None or count <= 0:
            return True
        if deadline is not None and session.clock() >= deadline:
            return False
        began = session.clock()
        if tracing.on:
            self._tell_waiting(attempt)
        try:
            opened = await waiting.until(
                session, self.commands.channel, attempt, LONGEST_WAIT, deadline, channel_class=LatchChannel
            )
        except BaseException as error:
            if tracing.on:
                self._tell("failed", attempt, began, error)
            raise
        if tracing.on:
            self._tell("acquired" if opened else "timed_out", attempt, began)
        return opened

    def _tell_waiting(self, call: object) -> None:
        if tracing.debug:
            logger.debug("latch %r is waited for", readable(self.key))
        if self.session.observing is not None:
            self.session.observing.wait_begins(call, self.commands)

    def _tell(self, what: str, call: object, began: float, error: BaseException | None = None) -> None:
        observing = self.session.observing
        if tracing.debug:
            said = "is open" if what == "acquired" else "is not open in time"
            if error is not None:
                said = f"is not waited for any more: {described(error)}"
            logger.debug("latch %r %s", readable(self.key), said)
        if observing is not None:
            observing.call_ended(what, call, self.commands, began=began, error=error)

    async def delete(self) -> bool:
        """Removes the latch, which opens it; returns whether it existed."""
        self.session.check_open()
        slot = self.session.slots.allocate()
        return bool(await self.session.slots.send(slot, self.commands.delete(slot)))
