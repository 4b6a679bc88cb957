"""A user in a schedule: a thread or a task of a client, which may be cancelled."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from .client import Client
from .simulation import Cancelled, Task

if TYPE_CHECKING:
    from .judge import Judge

FAILED: Any = object()
"""The result of an operation that was cancelled or raised an error."""
STRIKES = (1, 2, 3, 4, 4, 4, 5, 6)
"""At which await a cancellation strikes; at the fourth a waiter can first get a wakeup."""


class User:
    """A thread or a task of a client."""

    def __init__(self, client: Client, judge: Judge, name: str) -> None:
        self.client = client
        self.name = name
        self.task: Task | None = None
        self.session = client.session
        self.simulation = client.simulation
        self.random = client.simulation.random
        self.fault_plan = client.node.network.fault_plan
        self.lease = client.session.lease_ms / 1000
        self.operations = 0
        """How many it has begun."""
        self.busy = False
        """Whether one of them goes on."""
        self.retired = False
        """Does nothing after its first operations: a new acquire could hide that a wakeup was lost."""
        self._judge = judge

    @property
    def over(self) -> bool:
        """Whether it has done all its operations, or is dead."""
        return not self.client.alive or (self.task is not None and self.task.done)

    async def live(self) -> None:
        """All that it does."""
        raise NotImplementedError

    async def arrive(self) -> None:
        """Waits for a random time, so that users don't start at the same moment."""
        await self.session.runtime.sleep(self.random.random() * self.random.choice((0.0, 0.0, 0.02, 0.2)))

    async def nap(self) -> None:
        """Whatever one does with a lock, or without it."""
        die = self.random.random()
        scale = 0.0 if die < 0.3 else 0.05 if die < 0.9 else 2 * self.lease
        await self.session.runtime.sleep(scale * self.random.random())

    def wait_time(self, *, endless: bool) -> float | None:
        """How long it is going to wait; None: as long as it takes."""
        die = self.random.random()
        if die < 0.5 and endless:
            return None
        return 0.0 if die < 0.65 else self.random.random() * self.random.choice((0.05, 1, 5))

    async def attempt(self, operation: Coroutine[Any, Any, Any], what: str) -> Any:
        """The result of an operation that has begun; `FAILED` ends it."""
        try:
            return await operation
        except Cancelled:
            if what == "acquire":
                self.retired = self.random.random() < 0.7
            self.ended(f"{what} was cancelled")
        except RedisError as error:
            self._judge.failed(self.name, error)
            self.ended(f"{what} failed: {error}")
        return FAILED

    def ended(self, outcome: str) -> None:
        """After an operation, whatever became of it."""
        self.end(outcome)

    def begin(self, what: str, *args: object) -> None:
        """Before an operation, which may be cancelled."""
        assert self.task is not None
        self.simulation.log(f"%s: {what}", self.name, *args)
        self.operations += 1
        self.busy = True
        if self.fault_plan.cancels and self.random.random() < self.fault_plan.cancels:
            self.task.plan_strike(self.random.choice(STRIKES), self.random.choice((0.5, 4)) * self.fault_plan.slowest)

    def end(self, outcome: str) -> None:
        """After it, whatever became of it."""
        assert self.task is not None
        self.task.forget_strike()
        self.busy = False
        self.simulation.log("%s: %s", self.name, outcome)
