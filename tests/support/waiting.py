"""Waiting for what must happen, with a limit after which the test fails."""

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyredisson.logic.waiting import WAITING, Waiter

TIME_LIMIT = 10.0
"""Seconds after which a test fails that waits for something. Usually it happens at once."""


def eventually(condition: Callable[[], object], seconds: float = TIME_LIMIT) -> None:
    """Returns once the condition holds; fails the test after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {inspect.getsource(condition).strip()}"
        time.sleep(0.005)


@contextmanager
def within(seconds: float, note: str = "out of bounds", *, least: float = 0.0) -> Iterator[None]:
    """The body takes less time than `seconds`, and at least `least`."""
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    assert least <= took < seconds, f"it took {took:.2f} s: {note}"


async def cancel_after(turns: int, task: asyncio.Task[object]) -> bool:
    """Cancels the task after so many iterations of the event loop; returns whether that ended it."""
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    return isinstance(outcome, asyncio.CancelledError)


def asleep(client: Any, name: str, kind: str = "lock") -> int:
    """How many calls of a client sleep until a lock of this kind is released, and will hear of it."""
    if "fair" in kind:
        return fair_waiters(client, name)
    return waiters(client, name, kind if kind in ("read", "write") else None)


def waiters(client: Any, name: str, side: str | None = None) -> int:
    """How many calls of a client sleep until a lock is released, and will hear of it. `side`: of a read-write lock."""
    session = getattr(client, "_target", client)._session
    return _asleep_in(session, session.lock_queues, name.encode() if side is None else (name.encode(), side.encode()))


def fair_waiters(client: Any, name: str) -> int:
    """How many calls of a client sleep in the queue of a fair lock, and will hear that their turn has come."""
    session = getattr(client, "_target", client)._session
    with session.channels.mutex:
        queue = session.fair_queues.get(name.encode())
        tickets = [] if queue is None else list(queue.tickets)
        return sum(_sleeps(ticket.waiter) and ticket.channel.confirmed for ticket in tickets if ticket.waiter)


def permit_waiters(client: Any, name: str) -> int:
    """How many calls of a client sleep until permits are released, and will hear of them."""
    session = getattr(client, "_target", client)._session
    return _asleep_in(session, session.permits.queues, name.encode())


def _asleep_in(session: Any, queues: dict[Any, Any], key: object) -> int:
    # With the mutex: whoever confirms the subscription also wakes a waiter.
    with session.channels.mutex:
        queue = queues.get(key)
        if queue is None or queue.channel is None or not queue.channel.confirmed:
            return 0
        # Behind an explicit owner, which may be one of Redisson, it listens to Redisson's channel, too.
        relay = getattr(queue.channel, "relay", None)
        if relay is not None and not relay.confirmed:
            return 0
        return sum(map(_sleeps, queue.waiters))


def _sleeps(waiter: Waiter) -> bool:
    """Not if it was woken, and is about to make an attempt."""
    return waiter.state is WAITING and not waiter.wakeup.is_set()
