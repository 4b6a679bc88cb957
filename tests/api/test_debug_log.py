"""At DEBUG the log has each acquire, wait and release of every kind, and how an acquire without success has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pyredisson._diagnostics import tracing
from pyredisson.errors import ClosedError
from tests.support.backends import Backend
from tests.support.kinds import KINDS
from tests.support.waiting import permit_waiters

from .kinds import kinds, lock_of, rival_of

pytestmark = pytest.mark.asyncio
LABELS = dict.fromkeys(KINDS, "lock 'a'") | {"read": "read lock 'a'", "write": "write lock 'a'"}


class Said:
    """The lines about calls; those about channels and wakeups are details of a wait."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._records = caplog.get_records

    @property
    def lines(self) -> list[str]:
        texts = [record.getMessage() for record in self._records("call") if record.levelno == logging.DEBUG]
        return [text for text in texts if not any(word in text for word in ("channel", "queue", "woken"))]

    def waits(self) -> bool:
        return any("waits for" in line for line in self.lines)

    def without(self, line: str) -> list[str]:
        """All but this one, which may come before or after that of a waiter."""
        lines = self.lines
        lines.remove(line)
        return lines


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Said]:
    caplog.set_level(logging.DEBUG, "pyredisson")
    tracing.look()
    yield Said(caplog)
    caplog.set_level(logging.WARNING, "pyredisson")
    tracing.look()


@kinds
async def test_a_pair_and_a_wait(backend: Backend, said: Said, kind: str) -> None:
    client, other = backend.connect(), backend.connect()
    label, holder = LABELS[kind], lock_of(other, rival_of(kind), "a", 1)
    await holder.lock()
    waiting = backend.spawn(lambda: lock_of(client, kind, "a", 2).lock())
    await backend.until(said.waits)
    await holder.unlock()
    await waiting.result()
    await lock_of(client, kind, "a", 2).unlock()
    of_holder, first, second = LABELS[rival_of(kind)], f"{other.id}:1", f"{client.id}:2"
    assert said.without(f"{of_holder} of owner {first} is released: 0 holds remain") == [
        f"{of_holder} of owner {first} is acquired",
        f"owner {second} waits for {label}",
        f"{label} of owner {second} is acquired",
        f"{label} of owner {second} is released: 0 holds remain",
    ]


@kinds
async def test_no_success(backend: Backend, said: Said, kind: str) -> None:
    client, label = backend.connect(), LABELS[kind]
    await lock_of(backend.connect(), rival_of(kind), "a", 1).lock()
    assert not await lock_of(client, kind, "a", 2).try_lock()
    waiting = backend.spawn(lambda: lock_of(client, kind, "a", 3).lock())
    await backend.until(said.waits)
    await client.close()
    with pytest.raises(ClosedError):
        await waiting.result()
    *lines, last = said.lines[1:]
    assert lines == [
        f"{label} of owner {client.id}:2 is not acquired in time",
        f"owner {client.id}:3 waits for {label}",
    ]
    # The owner's name has another number if an attempt was under way.
    assert last.startswith(f"{label} of owner {client.id}:3")
    assert last.endswith(f" is not acquired: ClosedError: client {client.id} is closed")


async def test_a_task_that_is_cancelled(tasks: Backend, said: Said) -> None:
    client = tasks.connect()
    await tasks.connect().get_lock("a", owner=1).lock()
    task = asyncio.create_task(client.get_lock("a", owner=2).lock())
    await tasks.until(said.waits)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert said.lines[-1].startswith(f"lock 'a' of owner {client.id}:2")
    assert said.lines[-1].endswith(" is not acquired: CancelledError: ")


@pytest.mark.parametrize("expirable", [False, True])
async def test_a_semaphore(backend: Backend, said: Said, *, expirable: bool) -> None:
    client, other = backend.connect(), backend.connect()
    factory = "get_permit_expirable_semaphore" if expirable else "get_semaphore"
    acquire = "acquire_many" if expirable else "acquire"
    ours, theirs = (getattr(each, factory)("s") for each in (client, other))
    await ours.try_set_permits(2)
    permits: Any = await getattr(theirs, acquire)(2)
    assert not await ours.try_acquire()
    waiting = backend.spawn(lambda: getattr(ours, acquire)(2))
    await backend.until(lambda: "2 permits of semaphore 's' are waited for" in said.lines)
    await backend.until(lambda: expirable or permit_waiters(client, "s") == 1)
    await theirs.release(permits if expirable else 2)
    await waiting.result()
    assert said.without("2 permits of semaphore 's' are released") == [
        "2 permits of semaphore 's' are acquired",
        "1 permits of semaphore 's' are not acquired in time",
        "2 permits of semaphore 's' are waited for",
        "2 permits of semaphore 's' are acquired",
    ]


async def test_a_latch(backend: Backend, said: Said) -> None:
    latch = backend.connect().get_count_down_latch("l")
    await latch.try_set_count(1)
    # Long enough for a first look on a machine that stands still for a moment.
    assert not await latch.wait(1)
    waiting = backend.spawn(latch.wait)
    await backend.until(lambda: said.lines.count("latch 'l' is waited for") == 2)
    await latch.count_down()
    assert await waiting.result()
    assert said.without("latch 'l' is counted down") == [
        "latch 'l' is waited for",
        "latch 'l' is not open in time",
        "latch 'l' is waited for",
        "latch 'l' is open",
    ]
