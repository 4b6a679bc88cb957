"""A scheduler of plain coroutines with its own clock: everything happens in events, in one order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine, Generator
from random import Random
from typing import Any


class Cancelled(BaseException):
    """Interrupts a task at an await, as `CancelledError` or `KeyboardInterrupt` would."""


class Simulation:
    """The clock, the dice and the queue of what is going to happen."""

    def __init__(self, seed: int, trace: list[str] | None = None) -> None:
        self.random = Random(seed)
        self.now = 1000.0
        self._trace = trace
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._events = 0
        self.after_event: Callable[[], None] | None = None

    def clock(self) -> float:
        return self.now

    def at(self, when: float, action: Callable[..., object], *args: Any) -> None:
        """Has `action(*args)` called at that time; first come, first served within one moment."""
        self._events += 1
        heapq.heappush(self._queue, (when, self._events, action, args))

    def after(self, seconds: float, action: Callable[..., object], *args: Any) -> None:
        """As `at`, from now."""
        self.at(self.now + seconds, action, *args)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Lets time pass until `done`, or until that moment: False."""
        queue = self._queue
        while not done():
            if not queue or queue[0][0] > until:
                self.now = until
                return False
            when, _, action, args = heapq.heappop(queue)
            if when > self.now:
                self.now = when
            action(*args)
            if self.after_event is not None:
                self.after_event()
        return True

    def log(self, text: str, *args: object) -> None:
        """A line of the schedule that a failing seed shows."""
        if self._trace is not None:
            self._trace.append(f"{self.now - 1000:10.4f}  {text % args if args else text}")


class Process:
    """One program on one machine: it may be paused, and it may die."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.alive = True
        self.paused_until = 0.0
        self._tasks: list[Task] = []

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> Task:
        """Starts a task at once."""
        task = Task(self, coroutine)
        self._tasks.append(task)
        task.step(None, None)
        return task

    def deliver(self, action: Callable[..., object], *args: Any) -> None:
        """Does something in this process, now or as soon as it is no longer paused."""
        if not self.alive:
            return
        if self.paused_until > self.simulation.now:
            self.simulation.at(self.paused_until, self.deliver, action, *args)
        else:
            action(*args)

    def die(self) -> None:
        """Everything in it ends, without a message to other processes."""
        self.alive = False
        for task in self._tasks:
            task.coroutine.close()


class Park:
    """One await of one task, which goes on when somebody resolves it."""

    __slots__ = ("task",)

    task: Task | None

    def __init__(self) -> None:
        self.task = None

    def __await__(self) -> Generator[Park, Any, Any]:
        return (yield self)

    def resolve(self, value: object = None, error: BaseException | None = None) -> None:
        """The task goes on, unless it went on already."""
        task = self.task
        if task is not None and task.park is self:
            task.process.deliver(task.go_on, self, value, error)


class Task:
    """A coroutine, and where it waits."""

    __slots__ = ("_strike_at_end", "_strike_in", "coroutine", "done", "park", "process", "strike_span")

    def __init__(self, process: Process, coroutine: Coroutine[Any, Any, None]) -> None:
        self.process = process
        self.coroutine = coroutine
        self.park: Park | None = None
        self.done = False
        self._strike_in = 0
        self._strike_at_end = False
        self.strike_span = 0.0

    def plan_strike(self, awaits: int, span: float) -> None:
        """Cancels the task at that await from now: within `span` seconds, or just as it would go on. 0: at none."""
        self._strike_in = awaits
        self.strike_span = span
        self._strike_at_end = False

    def go_on(self, park: Park, value: object, error: BaseException | None) -> None:
        """After an await; a stale one is ignored."""
        if self.park is park:
            if self._strike_at_end:
                self._strike(park)
            else:
                self.step(value, error)

    def step(self, value: object, error: BaseException | None) -> None:
        """Runs to the next await."""
        self.park = None
        try:
            park = self.coroutine.send(value) if error is None else self.coroutine.throw(error)
        except StopIteration:
            self.done = True
            return
        park.task = self
        self.park = park
        if self._strike_in:
            self._strike_in -= 1
            if not self._strike_in:
                simulation = self.process.simulation
                if simulation.random.random() < 0.5:
                    self._strike_at_end = True
                else:
                    simulation.after(simulation.random.random() * self.strike_span, self._strike_if_there, park)

    def _strike_if_there(self, park: Park) -> None:
        if self.park is park:
            self.process.deliver(self._strike, park)

    def _strike(self, park: Park) -> None:
        if self.park is park:
            self._strike_at_end = False
            self.process.simulation.log("%s: a task is cancelled", self.process.name)
            self.step(None, Cancelled())


class Flag:
    """A `Wakeup` of this simulation."""

    __slots__ = ("_set", "_simulation", "park")

    alive = True

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._set = False
        self.park: Park | None = None

    def set(self) -> None:
        if not self._set:
            self._set = True
            if self.park is not None:
                # Not at once: the caller that sets a wakeup continues before the waiter.
                self._simulation.after(self._simulation.random.random() * 1e-4, self.park.resolve)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set
