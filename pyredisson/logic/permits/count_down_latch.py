"""The count-down latch: a string with the count. The waiters go on when the key is gone."""

from __future__ import annotations

import logging

from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replies import number_in
from pyredisson.logic.channels import Channel
from pyredisson.logic.observing import described
from pyredisson.logic.permits.commands import LatchCommands
from pyredisson.logic.permits.counter import CounterLogic
from pyredisson.logic.retry import LIMITED_BY_RETRIES
from pyredisson.logic.waiting import LOOKING, Waiter

LONGEST_WAIT = 5.0
"""Seconds after which a waiter reads the count again without a message: a message may be lost."""


class LatchChannel(Channel):
    """The waiters of a latch. All of them go on at the same moment."""

    __slots__ = ()

    def on_message(self, payload: bytes) -> None:
        """`0`: the latch has opened; `1`: it was set or deleted. Redisson publishes the same values."""
        if payload in {b"0", b"1"}:
            self.wake_all()


class LatchCall:
    """One call that waits for a latch, until `deadline` (None: without limit)."""

    __slots__ = ("deadline",)

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline


class LatchWait(Waiter):
    """The wait of one call."""

    __slots__ = ("_latch",)

    call: LatchCall

    def __init__(self, latch: CountDownLatchLogic, call: LatchCall) -> None:
        session = latch.session
        self.begin(LOOKING, session, call, session.runtime.wakeup(), latch.commands.channel)
        self._latch = latch

    @property
    def subject(self) -> CountDownLatchLogic:
        return self._latch

    def join(self, first: float) -> bool:
        self.channel = self.session.channels.join(self.channel_name, self.wakeup, LatchChannel)
        self.look_at = self.session.clock() + first
        return False

    async def ask(self) -> bool:
        self.wakeup.clear()
        opened = not await self._latch.count(self.deadline)
        self.look_at = self.session.clock() + LONGEST_WAIT
        return opened

    def is_contender(self, *, stuck: bool = False) -> bool:
        """Each reads the count for itself: all go on at the same moment."""
        return True

    def is_due(self) -> bool:
        return True

    def leave_queue(self) -> None:
        """There is none."""


class CountDownLatchLogic(CounterLogic):
    """The operations of a latch; counts and durations were checked before."""

    __slots__ = ()

    commands_type = LatchCommands
    commands: LatchCommands
    kind = "latch"
    missing = (logging.INFO, "isn't counting: it has come to zero, was deleted, or never set; wait() returns at once")

    async def try_set(self, count: int) -> bool:
        """Sets the count of an open latch. False: the latch is not open."""
        if not count:
            # An open latch has that count: there is nothing to write.
            return not await self.count()
        return bool(await self.once(lambda slot: self.commands.try_set(slot, count)))

    async def count_down(self) -> None:
        """Counts down by one, unless the latch is open. Whatever it raises, this happens: in the background."""
        await self.once(self.commands.count_down, complete=True)
        if tracing.debug:
            logger.debug("latch %r is counted down", readable(self.key))

    async def count(self, deadline: float | None = LIMITED_BY_RETRIES) -> int:
        """The count; 0: the latch is open."""
        return max(0, number_in(await self.query(self.commands.read(), deadline)) or 0)

    async def wait(self, deadline: float | None) -> bool:
        """Waits until the latch is open, or until `deadline` (None: without limit). Returns whether it is open.

        Raises `NotSetError` if the latch must exist, and doesn't exist when the wait begins.
        """
        session = self.session
        count = number_in(await self.query(self.commands.read(), deadline))
        if count is None:
            self.report_missing()
        if (count or 0) <= 0:
            return True
        if deadline is not None and session.clock() >= deadline:
            return False
        call, began = LatchCall(deadline), session.clock()
        waiter = LatchWait(self, call)
        if tracing.debug:
            logger.debug("latch %r is waited for", readable(self.key))
        try:
            if session.observing is not None:
                session.observing.wait_begins(call, self.commands)
            opened = await waiter.run(LONGEST_WAIT)
            if tracing.on:
                self._tell("acquired" if opened else "timed_out", call, began)
            return opened
        except BaseException as error:
            # An interrupt may have come on the way out, before the waiter had left.
            waiter.end()
            if tracing.on:
                self._tell("failed", call, began, error)
            raise

    def _tell(self, what: str, call: object, began: float, error: BaseException | None = None) -> None:
        observing = self.session.observing
        if tracing.debug:
            said = "is open" if what == "acquired" else "is not open in time"
            if error is not None:
                said = f"is not waited for any more: {described(error)}"
            logger.debug("latch %r %s", readable(self.key), said)
        if observing is not None:
            observing.call_ended(what, call, self.commands, began=began, error=error)
