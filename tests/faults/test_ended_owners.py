"""A thread or task that ends while it holds a lock: one log message and, on request, a release."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson.testing import Server
from tests.support.raw_backends import RawBackend
from tests.support.waiting import eventually

LEASE = 1.8
SAID = "is renewed although the thread or task that took it"


async def take_and_end(backend: RawBackend, *locks: Any) -> None:
    async def scenario() -> None:
        for lock in locks:
            await backend.do(lock.lock())

    await backend.start(scenario).result()


@pytest.mark.asyncio
async def test_it_is_logged_once_for_each_hold(
    backend: RawBackend, server: Server, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=LEASE)
    with caplog.at_level(logging.WARNING, "pyredisson"):
        await take_and_end(backend, *(client.get_lock(name) for name in ("a", "b")))
        mine = client.get_lock("mine")
        await backend.do(mine.lock())
        await backend.until(lambda: caplog.text.count(SAID) == 2)
        # Two more rounds.
        await backend.sleep(2 * LEASE / 3 + 0.1)
    assert caplog.text.count(SAID) == 2
    assert "'mine'" not in caplog.text
    assert client.id in caplog.text
    assert admin.exists("a", "b", "mine") == 3


@pytest.mark.asyncio
async def test_fixed_leases_and_explicit_owners_are_nothing_to_talk_about(
    backend: RawBackend, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=LEASE)

    async def scenario() -> None:
        await backend.do(client.get_lock("fixed").lock(60))
        await backend.do(client.get_read_write_lock("reader").read_lock().lock(60))
        await backend.do(client.get_lock("explicit", owner=pyredisson.new_owner()).lock())

    with caplog.at_level(logging.WARNING, "pyredisson"):
        await backend.start(scenario).result()
        await backend.sleep(LEASE)
    assert SAID not in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["lock", "fair_lock", "fenced_lock", "non_reentrant_lock", "spin_lock"])
async def test_on_request_it_is_released(backend: RawBackend, server: Server, admin: Redis, kind: str) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=LEASE, release_when_owner_ends=True)
    lock = getattr(client, f"get_{kind}")("a")
    notified = threading.Event()
    lock.on_lost(lambda _: notified.set())
    mine = client.get_lock("mine")
    await backend.do(mine.lock())
    await take_and_end(backend, lock, *([lock] if kind == "lock" else []))
    await backend.until(lambda: not admin.exists("a"))
    assert await backend.run_blocking(notified.wait, 5)
    # A living owner's is kept, and the lock can be taken again.
    await backend.sleep(LEASE)
    assert admin.exists("mine")
    assert await backend.do(lock.try_lock())


@pytest.mark.asyncio
async def test_a_new_hold_after_the_release_is_not_met_by_it(backend: RawBackend, server: Server, admin: Redis) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=LEASE, release_when_owner_ends=True)
    lock = client.get_lock("a")
    await take_and_end(backend, lock)
    # It waits for it, and has it as soon as it is released.
    await backend.do(lock.lock())
    await backend.sleep(LEASE)
    assert admin.exists("a")
    assert not lock.lost.is_set()
    await backend.do(lock.unlock())


def test_a_thread_that_python_did_not_start(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    import _thread

    with pyredisson.connect(server.url, lock_watchdog_timeout=LEASE) as client:
        taken = threading.Event()

        def take() -> None:
            client.get_lock("a").lock()
            taken.set()

        with caplog.at_level(logging.WARNING, "pyredisson"):
            _thread.start_new_thread(take, ())
            assert taken.wait(5)
            eventually(lambda: SAID in caplog.text)


@pytest.mark.asyncio
async def test_a_logging_filter_that_raises_costs_no_renewal(
    backend: RawBackend, server: Server, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()

    def refuse(record: logging.LogRecord) -> bool:
        if SAID in record.getMessage():
            refused.set()
            raise RuntimeError("a filter of the user")
        return True

    logger = logging.getLogger("pyredisson")
    monkeypatch.setattr(logger, "filters", [refuse])
    client = backend.connect(server.url, lock_watchdog_timeout=LEASE)
    owner = pyredisson.new_owner()
    mine = [client.get_lock(f"mine{number}", owner=owner) for number in range(20)]
    # Due in the same round as the hold that is logged, and before it.
    await take_and_end(backend, *mine, client.get_lock("a"))
    assert await backend.run_blocking(refused.wait, 5)
    await backend.sleep(1.5 * LEASE)
    assert not [lock for lock in mine if lock.lost.is_set()]
    assert admin.exists(*[lock.name for lock in mine]) == len(mine)
