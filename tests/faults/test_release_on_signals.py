"""`release_on_signals`: a process that a signal ends leaves no lock, and ends as it would have without it."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

import pyredisson
from pyredisson.testing import Proxy, Server
from tests.support.children import Child
from tests.support.faults import ACQUIRE
from tests.support.server_state import listeners
from tests.support.waiting import eventually

from .kinds import Start

PROGRAM = """
import asyncio, signal, sys, threading, time
import pyredisson, pyredisson.asyncio
from pyredisson._client import process
url, mode = sys.argv[1:]

def handle(number, frame):
    print("handled", number, client.closed)
    sys.exit(5)

def tell():
    while not process._releasing:
        time.sleep(0.01)
    print("releasing")

def take(number):
    while True:
        client.get_lock(f"a{number}").lock()
        client.get_lock(f"a{number}").unlock()

if mode == "handles":
    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pyredisson.release_on_signals()
if mode == "slow":
    process.CLOSE_TIMEOUT = 60
    threading.Thread(target=tell, daemon=True).start()
if mode != "unasked":
    pyredisson.release_on_signals()
client = pyredisson.connect(url, timeout=30)
later = pyredisson.connect(url)
if mode == "threads":
    for number in range(10):
        threading.Thread(target=take, args=(number,), daemon=True).start()
try:
    with client.get_lock("a"):
        later.get_lock("b").lock(60)
        print("go")
        if mode == "waits":
            client.get_lock("other").lock()
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", client.closed)
    sys.exit(7)
"""

ASYNCIO = """
import asyncio, signal, sys
import pyredisson, pyredisson.asyncio
url, mode = sys.argv[1:]
async def main():
    ended = asyncio.Event()
    if mode == "handles":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    pyredisson.release_on_signals()
    client = pyredisson.asyncio.connect(url, timeout=30)
    await client.get_lock("a").lock()
    print("go")
    if mode == "waits":
        await client.get_lock("other").lock()
    await ended.wait()
    print("ended", client.closed)
try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(7)
"""


def end(user: Child, number: signal.Signals, seconds: float = 3.0) -> int:
    started = time.monotonic()
    user.signal(number)
    status = user.wait()
    assert time.monotonic() - started < seconds
    return status


@pytest.fixture
def go(child: Start) -> Start:
    """Starts a program that holds a lock."""

    def start(url: str, mode: str = "holds", program: str = PROGRAM) -> Child:
        user = child(program, url, mode)
        assert user.receive() == "go"
        return user

    return start


@pytest.mark.parametrize(
    ("mode", "number", "status", "says"),
    [
        ("holds", signal.SIGTERM, -signal.SIGTERM, ""),
        ("holds", signal.SIGINT, 7, "interrupted True"),
        ("handles", signal.SIGTERM, 5, "handled 15 True"),
        ("unasked", signal.SIGTERM, -signal.SIGTERM, ""),
    ],
)
def test_what_is_held_is_freed_and_the_process_ends_as_before(
    server: Server, admin: Redis, go: Start, mode: str, number: signal.Signals, status: int, says: str
) -> None:
    user = go(server.url, mode)
    assert admin.exists("a", "b") == 2
    if mode == "handles":
        user.signal(signal.SIGINT)  # it was ignored, and stays so
    assert end(user, number) == status
    assert user.receive() == says
    # It never acts unasked.
    assert admin.exists("a", "b") == (2 if mode == "unasked" else 0)


@pytest.mark.parametrize("step", ["message", "hold_request", "hold_reply"])
def test_while_the_main_thread_waits_for_a_lock(proxy: Proxy, admin: Redis, go: Start, step: str) -> None:
    held = None
    if step == "message":
        admin.hset("other", "somebody:1", 1)
    else:
        held = getattr(proxy, step)(b"other")
    user = go(proxy.url, "waits")
    eventually(lambda: listeners(admin, "other") == 1 if held is None else held.held.is_set())
    assert end(user, signal.SIGTERM) == -signal.SIGTERM
    assert not admin.exists("a", "b")


@pytest.mark.parametrize("latency", [0.0, 0.05])
def test_what_other_threads_are_taking_is_freed_too(proxy: Proxy, admin: Redis, go: Start, latency: float) -> None:
    user = go(proxy.url, "threads")
    proxy.latency(latency)
    proxy.wait_for(lambda: proxy.seen(ACQUIRE) > 100, 30)
    assert end(user, signal.SIGTERM) == -signal.SIGTERM
    assert admin.keys() == []


@pytest.mark.parametrize(
    ("mode", "number", "status"),
    [
        *[(mode, signal.SIGTERM, -signal.SIGTERM) for mode in ("sleeps", "waits")],
        *[(mode, signal.SIGINT, 7) for mode in ("sleeps", "waits")],
        ("handles", signal.SIGTERM, 0),
    ],
)
def test_asyncio(server: Server, admin: Redis, go: Start, mode: str, number: signal.Signals, status: int) -> None:
    """`handles`: beside a handler of the event loop."""
    admin.hset("other", "somebody:1", 1)
    user = go(server.url, mode, ASYNCIO)
    if mode == "waits":
        eventually(lambda: listeners(admin, "other") == 1)
    assert end(user, number) == status
    assert user.receive() == ("ended True" if mode == "handles" else "")
    # The next release finds out that the client is gone, and takes it out of the list.
    assert set(admin.keys()) - {b"pyredisson_waiting:{other}"} == {b"other"}
    assert admin.pttl("pyredisson_waiting:{other}") <= 60_000


@pytest.mark.parametrize("mode", ["holds", "slow"])
def test_a_server_that_is_away(own_server: Server, go: Start, mode: str) -> None:
    """It costs about a second. A second signal doesn't wait, in the middle of a first one that would take a minute."""
    user = go(own_server.url, mode)
    own_server.pause()
    try:
        if mode == "slow":
            user.signal(signal.SIGTERM)
            assert user.receive() == "releasing"
        assert end(user, signal.SIGTERM, 10 if mode == "slow" else 3) == -signal.SIGTERM
    finally:
        own_server.resume()


def test_only_in_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="main thread"):
        pool.submit(pyredisson.release_on_signals).result()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("signals", "error"), [([signal.SIGTERM, 9999], ValueError), ([signal.SIGTERM, signal.SIGKILL], OSError)]
)
def test_what_cannot_be_caught_changes_nothing(signals: list[int], error: type[Exception]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(error):
        pyredisson.release_on_signals(signals)
    assert signal.getsignal(signal.SIGTERM) is before
