"""Threads that can't start, or that meet an exception of other code: the client continues all the same."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson.logic.holds import HoldTable
from pyredisson.testing import Server
from tests.support.faults import Credentials
from tests.support.raw_backends import RawBackend
from tests.support.server_state import listeners
from tests.support.waiting import eventually

LEASE = 1.2
CHANNEL = "redisson_lock__channel:{a}"


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], threading.Event]:
    """The next thread of that name doesn't start, as when the system's limit is reached."""
    start = threading.Thread.start

    def fail(name: str) -> threading.Event:
        happened = threading.Event()

        def start_or_not(thread: threading.Thread) -> None:
            if thread.name == name and not happened.is_set():
                happened.set()
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_or_not)
        return happened

    return fail


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["pyredisson-keep-time", "pyredisson-renew"])
async def test_a_watchdog_that_could_not_start_is_started_with_the_next_lock(
    backend: RawBackend, server: Server, admin: Redis, no_thread: Callable[[str], threading.Event], name: str
) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=LEASE)
    happened = no_thread(name)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await backend.do(client.get_lock("a").lock())
    assert happened.is_set()
    lock = client.get_lock("b")
    await backend.do(lock.lock())
    await backend.until(lambda: not admin.exists("a"), 3)
    await backend.sleep(1.5 * LEASE)
    assert not lock.lost.is_set()
    assert await backend.do(lock.is_held())
    # It keeps time, too.
    admin.delete("b")
    assert await backend.do(lock.lost.wait(3))


def test_a_listener_that_could_not_start_is_started_with_the_next_waiter(
    server: Server, admin: Redis, no_thread: Callable[[str], threading.Event]
) -> None:
    admin.hset("a", "another:1", 1)
    with pyredisson.connect(server.url) as client:
        happened = no_thread("pyredisson-listener")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            client.get_lock("a").try_lock(5)
        assert happened.is_set()
        waiter = threading.Thread(target=client.get_lock("a").lock)
        waiter.start()
        eventually(lambda: listeners(admin, "a") == 1)
        admin.delete("a")
        admin.publish(CHANNEL, "0")
        waiter.join(5)
        assert not waiter.is_alive()


@pytest.mark.asyncio
async def test_a_callback_whose_thread_could_not_start_is_called_with_the_next(
    backend: RawBackend, server: Server, admin: Redis, no_thread: Callable[[str], threading.Event]
) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=LEASE)
    notified: list[Any] = []
    locks = [client.get_lock(name) for name in "abc"]
    for lock in locks:
        lock.on_lost(lambda lost: notified.append(lost.name))
        await backend.do(lock.lock())
    happened = no_thread("pyredisson-on-lost")
    admin.delete("a")
    assert await backend.run_blocking(happened.wait, 3)
    assert notified == []
    admin.delete("b")
    await backend.until(lambda: sorted(notified) == ["a", "b"], 3)
    await backend.sleep(LEASE)
    assert not locks[2].lost.is_set()
    # At an exit an exception here would keep other clients from giving back.
    await backend.do(client.close())


@pytest.fixture
def broken_logging() -> Iterator[threading.Event]:
    """A filter that raises, as one does that misses something in a record."""
    happened = threading.Event()

    def refuse(record: logging.LogRecord) -> bool:
        happened.set()
        raise LookupError("no request id")

    logger = logging.getLogger("pyredisson")
    logger.addFilter(refuse)
    yield happened
    logger.removeFilter(refuse)


@pytest.mark.asyncio
async def test_a_logging_filter_that_raises_costs_no_other_lock(
    backend: RawBackend,
    server: Server,
    admin: Redis,
    broken_logging: threading.Event,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=LEASE)
    held, gone, over = (client.get_lock(name) for name in ("held", "gone", "over"))
    await backend.do(gone.lock())
    await backend.do(over.lock(lease_time=0.05))
    await backend.do(held.lock())
    # One is lost by the thread that keeps the time, the other by the one that renews.
    lost = held.lost
    assert await backend.run_blocking(broken_logging.wait, 3)
    broken_logging.clear()
    admin.delete("gone")
    assert await backend.run_blocking(broken_logging.wait, 3)
    await backend.sleep(2 * LEASE)
    assert not lost.is_set()
    assert admin.exists("held")
    # It keeps time, too.
    later = client.get_lock("later")
    notified: list[object] = []
    later.on_lost(notified.append)
    await backend.do(later.lock(lease_time=0.05))
    await backend.until(lambda: notified, 3)
    assert "no request id" in capsys.readouterr().err


@pytest.mark.asyncio
async def test_a_listener_continues_after_a_failing_credential_provider(backend: RawBackend) -> None:
    with Server(password="secret") as server, server.redis() as root:
        root.hset("a", "another:1", 1)
        provider = Credentials("secret", failing="pyredisson-listener")
        client = backend.connect(f"redis://{server.host}:{server.port}/0", credential_provider=provider)

        async def take() -> bool:
            return bool(await backend.do(client.get_lock("a").try_lock(20)))

        waiter = backend.start(take)
        assert await backend.run_blocking(provider.failed.wait, 5)
        await backend.until(lambda: listeners(root, "a") == 1)
        root.delete("a")
        root.publish(CHANNEL, "0")
        assert await waiter.result() is True


@pytest.mark.parametrize("step", range(1, 6))
def test_a_loss_that_two_threads_notice_is_reported_once(server: Server, step: int) -> None:
    """The timekeeper, and the owner's own question; here at each step of the one the other comes in."""
    notified: list[object] = []
    with pyredisson.connect(server.url) as client:
        lock = client.get_lock("a", owner=1)
        lock.on_lost(notified.append)
        lock.lock()
        holds, hold = client._session.holds, lock._logic.hold_of(1)
        assert hold is not None
        other = threading.Thread(target=holds.declare_lost, args=(hold, "the other saw it"))
        steps = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal steps
            if frame.f_code not in {HoldTable.declare_lost.__code__, HoldTable._report_loss.__code__}:
                return None
            if event == "line":
                steps += 1
                if steps == step:
                    other.start()
                    # It may have to wait for this one.
                    other.join(0.1)
            return trace

        sys.settrace(trace)
        try:
            holds.declare_lost(hold, "the one saw it")
        finally:
            sys.settrace(None)
        assert steps >= step
        other.join()
        eventually(lambda: notified)
    assert notified == [lock]
