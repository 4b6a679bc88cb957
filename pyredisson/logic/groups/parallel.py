"""Operations on several servers that run in parallel, with one timeout for all of them."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from redis.exceptions import RedisError, TimeoutError

from pyredisson._diagnostics import logger
from pyredisson.logic.ports import Runtime

SHORTEST_GRACE = 0.05
"""Seconds, at least, that the other operations get after enough of them have ended."""
GRACE_FACTOR = 4
"""The other operations get so many times as long as the operations that decided the outcome took."""

Operation = Callable[[], Coroutine[Any, Any, object]]
"""It succeeds if it returns something true."""


class ParallelOperations:
    """Starts operations, waits for enough of them, and notes the outcome of each."""

    def __init__(self, runtime: Runtime) -> None:
        self.outcomes: dict[int, bool | Exception] = {}
        """By number: whether the operation succeeded, or what it raised. A `TimeoutError`: it goes on after `close`."""
        self._runtime = runtime
        self._changed = runtime.wakeup()
        self._started: list[int] = []

    def start(self, number: int, operation: Operation, on_late_success: Callable[[], None] | None = None) -> None:
        """Starts an operation. `on_late_success` is called if it succeeds after `close`."""
        self._started.append(number)

        async def run() -> None:
            outcome: bool | Exception
            try:
                outcome = bool(await operation())
            except Exception as error:  # noqa: BLE001 - the caller looks at the outcomes
                outcome = error
            # One step, as `close` may run on another thread: a success either counts or is late, and never both.
            noted = self.outcomes.setdefault(number, outcome)
            if noted is not outcome and outcome is True and on_late_success is not None:
                on_late_success()
            elif isinstance(outcome, Exception):
                logger.debug("one of several servers: %s", outcome)
            self._changed.set()

        try:
            self._runtime.spawn(run)
        except RuntimeError as error:
            # No thread can be started. If others were, they may be enough.
            self.outcomes.setdefault(number, error)

    async def wait(self, timeout: float, needed: int, total: int) -> None:
        """Waits until each started operation has ended, for `timeout` seconds at most.

        When `needed` of `total` operations have succeeded, or can't succeed any more, the result is known. Then the
        other operations get only a short time more.
        """
        clock, decided = self._runtime.clock, False
        began = clock()
        end = began + timeout
        while len(self.outcomes) < len(self._started):
            now, successes = clock(), self.successes()
            if not decided and (successes >= needed or len(self.outcomes) - successes > total - needed):
                decided = True
                end = min(end, now + max(SHORTEST_GRACE, GRACE_FACTOR * (now - began)))
            if now >= end:
                return
            await self._runtime.wait(self._changed, end - now)
            self._changed.clear()

    def close(self) -> None:
        """Notes a timeout for each operation that has not ended, and goes on. No outcome changes after that."""
        for number in self._started:
            self.outcomes.setdefault(number, TimeoutError("a server didn't answer in the time that all of them have"))

    def successes(self) -> int:
        return sum(outcome is True for outcome in self.outcomes.copy().values())

    def errors(self) -> list[Exception]:
        """What was raised. Errors that are no trouble with a server come first, timeouts last."""
        errors = [outcome for outcome in self.outcomes.values() if isinstance(outcome, Exception)]
        return sorted(errors, key=lambda error: (isinstance(error, RedisError), isinstance(error, TimeoutError)))


async def run_side_by_side(
    runtime: Runtime, operations: Sequence[Callable[[], Awaitable[list[Exception]]]], timeout: float
) -> list[Exception]:
    """Runs operations in parallel, which return their errors. Returns the errors of all.

    The first operation is this thread's or task's own. After `timeout` seconds it doesn't wait for the others any more,
    and they go on: a finalizer may run this on a thread that holds a mutex which they need.
    """
    outcomes: dict[int, list[Exception]] = {}
    ended = runtime.wakeup()

    async def run(number: int) -> None:
        errors: list[Exception] = []
        try:
            errors = await operations[number]()
        except Exception as error:  # noqa: BLE001 - the caller looks at the errors
            errors = [error]
        finally:
            # Also if the program has cancelled this task.
            outcomes[number] = errors
            ended.set()

    end = runtime.clock() + timeout
    own = [0]
    for number in range(1, len(operations)):
        try:
            runtime.spawn(partial(run, number))
        except RuntimeError:
            # No thread can be started.
            own.append(number)
    for number in own:
        outcomes[number] = await operations[number]()
    while len(outcomes) < len(operations) and (remaining := end - runtime.clock()) > 0:
        await runtime.wait(ended, remaining)
        ended.clear()
    late = [TimeoutError("a server didn't answer in time") for _ in range(len(operations) - len(outcomes))]
    return [error for number in sorted(outcomes) for error in outcomes[number]] + late
