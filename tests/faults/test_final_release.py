"""Closing with calls in flight: one final release covers all that they acquired, within about a second."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson.testing import Proxy, Server
from tests.support.children import Child
from tests.support.faults import ACQUIRE, pool_of
from tests.support.raw_backends import RawBackend
from tests.support.waiting import eventually

CALLS = 60


@pytest.fixture
def started_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of threads that were started."""
    started: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    return started


def take_in_threads(client: pyredisson.Client, count: int) -> list[threading.Thread]:
    def take(number: int) -> None:
        try:
            while True:
                lock = client.get_lock(f"a{number}")
                lock.lock()
                lock.unlock()
        except pyredisson.ClosedError:
            return

    threads = [threading.Thread(target=take, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize("latency", [0.0, 0.05, 0.1])
def test_calls_of_many_threads_leave_nothing(
    proxy: Proxy, admin: Redis, started_threads: list[str], latency: float
) -> None:
    client = pyredisson.connect(proxy.url, timeout=5)
    threads = take_in_threads(client, CALLS)
    proxy.wait_for(lambda: proxy.seen(ACQUIRE) > CALLS)
    proxy.latency(latency)
    time.sleep(latency + 0.05)
    before = proxy.connections
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 2
    assert admin.keys() == []
    for thread in threads:
        thread.join(5)
    assert admin.keys() == []
    assert proxy.connections <= before + 1
    assert started_threads.count("pyredisson-final-release") <= 1


@pytest.mark.asyncio
@pytest.mark.parametrize("latency", [0.0, 0.1])
async def test_calls_of_many_tasks_leave_nothing(
    proxy: Proxy, admin: Redis, started_threads: list[str], latency: float
) -> None:
    client = pyredisson.asyncio.connect(proxy.url, timeout=5)
    await client.get_lock("first").is_locked()
    await asyncio.to_thread(proxy.latency, latency)

    async def take(number: int) -> None:
        with pytest.raises(pyredisson.ClosedError):
            await client.get_lock(f"a{number}").lock()
            await asyncio.sleep(60)

    tasks = [asyncio.create_task(take(number)) for number in range(1000)]
    await asyncio.to_thread(proxy.wait_for, ACQUIRE)
    await client.close()
    # Those that got it before have no call that could raise.
    left = await asyncio.to_thread(admin.keys)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert left == []
    assert await asyncio.to_thread(admin.keys) == []
    assert started_threads.count("pyredisson-final-release") <= 2


@pytest.mark.parametrize("lose", [Proxy.hold_reply, Proxy.hold_request, Proxy.drop_reply])
def test_a_call_whose_reply_does_not_come_is_ended(proxy: Proxy, admin: Redis, lose: Any) -> None:
    client = pyredisson.connect(proxy.url, timeout=30)
    fault = lose(proxy, ACQUIRE)
    [thread] = take_in_threads(client, 1)
    waiting = getattr(fault, "held", fault.happened)
    assert waiting.wait(5)
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 2
    thread.join(1)
    assert not thread.is_alive()
    assert admin.keys() == []


def test_a_server_that_is_away_costs_about_a_second(own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    client = pyredisson.connect(own_server.url, timeout=30)
    for number in range(3):
        client.get_lock(f"held{number}").lock()
    threads = take_in_threads(client, 20)
    eventually(lambda: len(pool_of(client)._all) > 5)
    own_server.pause()
    try:
        started = time.monotonic()
        with caplog.at_level(logging.WARNING, "pyredisson"):
            client.close()
        assert time.monotonic() - started < 2.5
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()
        eventually(lambda: not any(thread.name == "pyredisson-final-release" for thread in threading.enumerate()))
    finally:
        own_server.resume()
    assert "locks were not released" in caplog.text


def test_a_command_after_the_final_release_starts_one_more(
    proxy: Proxy, admin: Redis, started_threads: list[str]
) -> None:
    client = pyredisson.connect(proxy.url)
    payloads = [client.get_lock(f"a{number}")._logic.commands.undo_acquire(b"me:1") for number in range(200)]
    for number in range(200):
        admin.hset(f"a{number}", "me:1", 1)
    client.close()
    before = len(proxy.commands)
    proxy.latency(0.02)
    for payload in payloads:
        client._session.repair(payload)
    eventually(lambda: admin.keys() == [])
    eventually(lambda: not any(thread.name == "pyredisson-final-release" for thread in threading.enumerate()))
    # The first one may be gone by the time that the last one comes.
    assert 1 <= started_threads.count("pyredisson-final-release") <= 2
    assert len(proxy.commands) < before + 200 + 20


DAEMONS = """
import sys, threading
import pyredisson
client = pyredisson.connect(sys.argv[1])

def take(number):
    while True:
        client.get_lock(f"a{number}").lock()
        client.get_lock(f"a{number}").unlock()

for number in range(20):
    threading.Thread(target=take, args=(number,), daemon=True).start()
print("go")
sys.stdin.readline()
"""


@pytest.mark.parametrize("latency", [0.0, 0.05])
def test_an_exit_releases_what_daemon_threads_are_acquiring(
    proxy: Proxy, admin: Redis, child: Any, latency: float
) -> None:
    user: Child = child(DAEMONS, proxy.url)
    assert user.receive() == "go"
    proxy.latency(latency)
    proxy.wait_for(lambda: proxy.seen(ACQUIRE) > 200, 30)
    user.send()
    assert user.wait() == 0
    assert admin.keys() == []


@pytest.mark.asyncio
async def test_closing_twice_at_the_same_time(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    client = backend.connect(proxy.url)
    await backend.do(client.get_lock("a").lock())
    proxy.latency(0.02)

    async def close() -> None:
        await backend.do(client.close())

    closing = [backend.start(close) for _ in range(3)]
    for each in closing:
        await each.result()
    assert not await backend.run_blocking(admin.exists, "a")
