"""A scheduler of plain coroutines with its own clock: everything happens in events, in one order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from random import Random
from typing import Any


class Cancelled(BaseException):
    """Interrupts a task at an await, as `CancelledError` or `KeyboardInterrupt` would."""


class Simulation:
    """The clock, the dice and the queue of what is going to happen."""

    def __init__(self, seed: int, trace: list[str] | None = None) -> None:
        self.random, self._trace = Random(seed), trace
        self.now = 1000.0
        self.queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = count()
        self.after_event: Callable[[], None] | None = None

    def clock(self) -> float:
        return self.now

    def at(self, when: float, action: Callable[..., object], *args: Any) -> None:
        """Has `action(*args)` called at that time; first come, first served within one moment."""
        heapq.heappush(self.queue, (when, next(self._order), action, args))

    def after(self, seconds: float, action: Callable[..., object], *args: Any) -> None:
        """As `at`, from now."""
        self.at(self.now + seconds, action, *args)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Lets time pass until `done`, or until that moment: False."""
        while not done():
            if not self.queue or self.queue[0][0] > until:
                self.now = until
                return False
            when, _, action, args = heapq.heappop(self.queue)
            self.now = max(self.now, when)
            self.step(action, *args)
        return True

    def step(self, action: Callable[..., object], *args: Any) -> None:
        action(*args)
        if self.after_event is not None:
            self.after_event()

    def log(self, text: str, *args: object) -> None:
        """A line of the schedule that a failing seed shows."""
        if self._trace is not None:
            self._trace.append(f"{self.now - 1000:10.4f}  {text % args if args else text}")


class Process:
    """One program on one machine: it may be paused, and it may die."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation, self.name = simulation, name
        self.alive, self.paused_until = True, 0.0
        self.tasks: list[Task] = []

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> Task:
        """Starts a task at once."""
        task = Task(self, coroutine)
        self.tasks.append(task)
        task.step(None, None)
        return task

    def deliver(self, action: Callable[..., object], *args: Any) -> None:
        """Does something in this process, now or as soon as it is no longer paused."""
        if self.alive and self.paused_until > self.simulation.now:
            self.simulation.at(self.paused_until, self.deliver, action, *args)
        elif self.alive:
            action(*args)

    def die(self) -> None:
        """Everything in it ends, without a message to other processes."""
        self.alive = False
        for task in self.tasks:
            task.coroutine.close()


class Park:
    """One await of one task, which goes on when somebody resolves it."""

    task: Task | None = None

    def __await__(self) -> Generator[Park, Any, Any]:
        return (yield self)

    def resolve(self, value: object = None, error: BaseException | None = None) -> None:
        """The task goes on, unless it went on already."""
        task = self.task
        if task is not None and task.park is self:
            task.process.deliver(task.go_on, self, value, error)


class Task:
    """A coroutine, and where it waits."""

    park: Park | None = None
    done = False
    _strike_in, _strike_at_end, _strike_span = 0, False, 0.0

    def __init__(self, process: Process, coroutine: Coroutine[Any, Any, None]) -> None:
        self.process, self.coroutine = process, coroutine

    def plan_strike(self, awaits: int, span: float) -> None:
        """Cancels the task at that await from now: within `span` seconds, or just as it would go on. 0: at none."""
        self._strike_in, self._strike_at_end, self._strike_span = awaits, False, span

    def go_on(self, park: Park, value: object, error: BaseException | None) -> None:
        """After an await; a stale one is ignored."""
        if self.park is park and self._strike_at_end:
            self.strike(park)
        elif self.park is park:
            self.step(value, error)

    def step(self, value: object, error: BaseException | None) -> None:
        """Runs to the next await."""
        self.park = None
        try:
            park = self.coroutine.send(value) if error is None else self.coroutine.throw(error)
        except StopIteration:
            self.done = True
            return
        park.task, self.park = self, park
        self._strike_in -= 1
        if self._strike_in == 0:
            simulation = self.process.simulation
            self._strike_at_end = simulation.random.random() < 0.5
            if not self._strike_at_end:
                simulation.after(simulation.random.random() * self._strike_span, self._strike_if_there, park)

    def _strike_if_there(self, park: Park) -> None:
        if self.park is park:
            self.process.deliver(self.strike, park)

    def strike(self, park: Park) -> None:
        if self.park is park:
            self._strike_at_end = False
            self.process.simulation.log("%s: a task is cancelled", self.process.name)
            self.step(None, Cancelled())


class Flag:
    """A `Wakeup` of this simulation."""

    alive = True
    park: Park | None = None

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._set = simulation, False

    def set(self) -> None:
        if not self._set and self.park is not None:
            # Not at once: the caller that sets a wakeup continues before the waiter.
            self._simulation.after(self._simulation.random.random() * 1e-4, self.park.resolve)
        self._set = True

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set
