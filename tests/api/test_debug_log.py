"""At DEBUG the log has each acquire, wait and release of every kind, and how an acquire without success has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyredisson._diagnostics import tracing
from pyredisson.errors import ClosedError
from tests.support.backends import Backend
from tests.support.waiting import permit_waiters

pytestmark = pytest.mark.asyncio

KINDS: dict[str, tuple[str, Callable[[Any, int], Any]]] = {
    "lock": ("lock 'a'", lambda client, owner: client.get_lock("a", owner=owner)),
    "fair": ("lock 'a'", lambda client, owner: client.get_fair_lock("a", owner=owner)),
    "fenced": ("lock 'a'", lambda client, owner: client.get_fenced_lock("a", owner=owner)),
    "spin": ("lock 'a'", lambda client, owner: client.get_spin_lock("a", owner=owner)),
    "read": ("read lock 'a'", lambda client, owner: client.get_read_write_lock("a", owner=owner).read_lock()),
    "write": ("write lock 'a'", lambda client, owner: client.get_read_write_lock("a", owner=owner).write_lock()),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """The lines about calls; those about channels and wakeups are details of a wait."""

    def lines() -> list[str]:
        texts = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
        return [text for text in texts if "channel" not in text and "queue" not in text and "woken" not in text]

    caplog.set_level(logging.DEBUG, "pyredisson")
    tracing.look()
    yield lines
    caplog.set_level(logging.WARNING, "pyredisson")
    tracing.look()


@kinds
async def test_a_pair_and_a_wait(backend: Backend, said: Callable[[], list[str]], kind: str) -> None:
    label, get = KINDS[kind]
    client, other = backend.connect(), backend.connect()
    holder = KINDS["write" if kind == "read" else kind][1](other, 1)
    holder_label = KINDS["write" if kind == "read" else kind][0]
    await holder.lock()
    waiting = backend.spawn(lambda: get(client, 2).lock())
    await backend.until(lambda: any("waits for" in text for text in said()))
    await holder.unlock()
    await waiting.result()
    await get(client, 2).unlock()
    first, second = f"{other.id}:1", f"{client.id}:2"
    lines = said()
    # The holder's line about its release may come after the waiter's one.
    release = f"{holder_label} of owner {first} is released: 0 holds remain"
    assert release in lines
    lines.remove(release)
    assert lines == [
        f"{holder_label} of owner {first} is acquired",
        f"owner {second} waits for {label}",
        f"{label} of owner {second} is acquired",
        f"{label} of owner {second} is released: 0 holds remain",
    ]


@kinds
async def test_no_success(backend: Backend, said: Callable[[], list[str]], kind: str) -> None:
    label, get = KINDS[kind]
    client, other = backend.connect(), backend.connect()
    await KINDS["write" if kind == "read" else kind][1](other, 1).lock()
    assert not await get(client, 2).try_lock()
    waiting = backend.spawn(lambda: get(client, 3).lock())
    await backend.until(lambda: any("waits for" in text for text in said()))
    await client.close()
    with pytest.raises(ClosedError):
        await waiting.result()
    *lines, last = said()[1:]
    assert lines == [
        f"{label} of owner {client.id}:2 is not acquired in time",
        f"owner {client.id}:3 waits for {label}",
    ]
    # The owner's name has another number if an attempt was under way.
    assert last.startswith(f"{label} of owner {client.id}:3")
    assert last.endswith(f" is not acquired: ClosedError: client {client.id} is closed")


async def test_a_semaphore(backend: Backend, said: Callable[[], list[str]]) -> None:
    client, other = backend.connect(), backend.connect()
    shop, others = client.get_semaphore("s"), other.get_semaphore("s")
    await shop.try_set_permits(2)
    await others.acquire(2)
    assert not await shop.try_acquire()
    waiting = backend.spawn(lambda: shop.acquire(2))
    await backend.until(lambda: permit_waiters(client, "s") == 1)
    await others.release(2)
    await waiting.result()
    lines = said()
    lines.remove("2 permits of semaphore 's' are released")
    assert lines == [
        "2 permits of semaphore 's' are acquired",
        "1 permits of semaphore 's' are not acquired in time",
        "2 permits of semaphore 's' are waited for",
        "2 permits of semaphore 's' are acquired",
    ]


async def test_permits_with_ids(backend: Backend, said: Callable[[], list[str]]) -> None:
    client, other = backend.connect(), backend.connect()
    pool, others = (each.get_permit_expirable_semaphore("p") for each in (client, other))
    await pool.try_set_permits(2)
    ids = await others.acquire_many(2)
    assert await pool.try_acquire_many(1) == []
    waiting = backend.spawn(lambda: pool.acquire_many(2))
    await backend.until(lambda: "2 permits of semaphore 'p' are waited for" in said())
    await others.release(ids)
    await waiting.result()
    lines = said()
    lines.remove("2 permits of semaphore 'p' are released")
    assert lines == [
        "2 permits of semaphore 'p' are acquired",
        "1 permits of semaphore 'p' are not acquired in time",
        "2 permits of semaphore 'p' are waited for",
        "2 permits of semaphore 'p' are acquired",
    ]


async def test_a_latch(backend: Backend, said: Callable[[], list[str]]) -> None:
    client = backend.connect()
    latch = client.get_count_down_latch("l")
    await latch.try_set_count(1)
    # Long enough for a first look on a machine that stands still for a moment.
    assert not await latch.wait(1)
    waiting = backend.spawn(latch.wait)
    await backend.until(lambda: said().count("latch 'l' is waited for") == 2)
    await latch.count_down()
    assert await waiting.result()
    lines = said()
    lines.remove("latch 'l' is counted down")
    assert lines == [
        "latch 'l' is waited for",
        "latch 'l' is not open in time",
        "latch 'l' is waited for",
        "latch 'l' is open",
    ]


async def test_a_task_that_is_cancelled(tasks: Backend, said: Callable[[], list[str]]) -> None:
    client, other = tasks.connect(), tasks.connect()
    await other.get_lock("a", owner=1).lock()
    task = asyncio.create_task(client.get_lock("a", owner=2).lock())
    await tasks.until(lambda: any("waits for" in text for text in said()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert said()[-1].startswith(f"lock 'a' of owner {client.id}:2")
    assert said()[-1].endswith(" is not acquired: CancelledError: ")
