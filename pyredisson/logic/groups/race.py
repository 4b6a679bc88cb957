"""Operations that run side by side, awaited together for a bounded time; what comes later is taken care of."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from redis.exceptions import RedisError, TimeoutError

from pyredisson._diagnostics import logger
from pyredisson.logic.ports import Runtime

GRACE = 0.05
"""Seconds, at least, that the others get when enough have answered; else four times as long as those took."""

Operation = Callable[[], Coroutine[Any, Any, bool]]


class Late(TimeoutError):
    """What nobody waited for any longer."""


class Race:
    """Asks several servers at the same time."""

    def __init__(self, runtime: Runtime) -> None:
        self.outcomes: dict[int, bool | Exception] = {}
        """What each operation returned or raised; `Late` for one that hadn't ended when the race was closed."""
        self._runtime = runtime
        self._changed = runtime.wakeup()
        self._begun: list[int] = []

    def start(self, number: int, operation: Operation, late: Callable[[], None] | None = None) -> None:
        """Begins an operation. `late` is called if it returns True after the race was closed."""
        self._begun.append(number)

        async def run() -> None:
            outcome: bool | Exception
            try:
                outcome = await operation()
            except Exception as error:  # noqa: BLE001 - whoever looks at the outcomes judges it
                outcome = error
            # One step, so that it is either counted or late, whoever closes the race meanwhile.
            if self.outcomes.setdefault(number, outcome) is not outcome and outcome is True and late is not None:
                late()
            elif isinstance(outcome, Exception):
                logger.debug("one of several servers: %s", outcome)
            self._changed.set()

        self._runtime.spawn(run)

    async def wait(self, seconds: float, need: int, of: int) -> None:
        """Until all that was begun has ended; only for a moment more when `need` of `of` are True, or can't become so.

        Never longer than `seconds`.
        """
        clock = self._runtime.clock
        began = clock()
        end = began + seconds
        decided = False
        while len(self.outcomes) < len(self._begun):
            now = clock()
            had = self.had()
            if not decided and (had >= need or len(self.outcomes) - had > of - need):
                decided = True
                end = min(end, now + max(GRACE, 4 * (now - began)))
            if now >= end:
                return
            await self._runtime.wait(self._changed, end - now)
            self._changed.clear()

    def close(self) -> None:
        """Nobody waits any more."""
        for number in self._begun:
            if number not in self.outcomes:
                self.outcomes.setdefault(number, Late("a server didn't answer in the time that all of them have"))

    def had(self) -> int:
        """How many have returned True."""
        return sum(outcome is True for outcome in self.outcomes.copy().values())

    def errors(self) -> list[Exception]:
        """What was raised, the most telling first: a server's trouble is what a group of them is made for."""
        raised = [outcome for outcome in self.outcomes.values() if isinstance(outcome, Exception)]
        return sorted(raised, key=lambda error: (isinstance(error, RedisError), isinstance(error, Late)))
