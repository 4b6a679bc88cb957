"""`release_on_signals`: a process that a signal ends leaves no lock, and ends as it would have without it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest
from redis import Redis

import pyredisson
from pyredisson.testing import Proxy, Server
from tests.support.children import Child
from tests.support.faults import ACQUIRE
from tests.support.server_state import listeners
from tests.support.waiting import eventually

BEGIN = """
import asyncio, signal, sys, threading, time
import pyredisson, pyredisson.asyncio
client = pyredisson.connect(sys.argv[1], timeout=30)
"""

HOLDS = (
    BEGIN
    + """
pyredisson.release_on_signals()
client.get_lock("a").lock()
later = pyredisson.connect(sys.argv[1])
later.get_lock("b").lock(60)
print("go")
time.sleep(60)
"""
)

SLOW = HOLDS.replace(
    "pyredisson.release_on_signals()",
    """
from pyredisson._client import signals
signals.CLOSE_TIMEOUT = 60
pyredisson.release_on_signals()

def tell():
    while not signals._releasing:
        time.sleep(0.01)
    print("releasing")

threading.Thread(target=tell, daemon=True).start()
""",
)

UNASKED = HOLDS.replace("pyredisson.release_on_signals()", "")

WAITS = (
    BEGIN
    + """
pyredisson.release_on_signals()
client.get_lock("a").lock()
print("go")
client.get_lock("other").lock()
"""
)

IN_THREADS = (
    BEGIN
    + """
pyredisson.release_on_signals()
def take(number):
    while True:
        client.get_lock(f"a{number}").lock()
        client.get_lock(f"a{number}").unlock()
for number in range(10):
    threading.Thread(target=take, args=(number,), daemon=True).start()
print("go")
time.sleep(60)
"""
)

CATCHES = (
    BEGIN
    + """
pyredisson.release_on_signals()
lock = client.get_lock("a")
try:
    with lock:
        print("go")
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", client.closed)
    sys.exit(7)
"""
)

HANDLES = (
    BEGIN
    + """
def handle(number, frame):
    print("handled", number, client.closed)
    sys.exit(5)
signal.signal(signal.SIGTERM, handle)
signal.signal(signal.SIGINT, signal.SIG_IGN)
pyredisson.release_on_signals()
pyredisson.release_on_signals()
client.get_lock("a").lock()
print("go")
time.sleep(60)
"""
)

ASYNCIO = """
import asyncio, sys
import pyredisson, pyredisson.asyncio
async def main():
    pyredisson.release_on_signals()
    client = pyredisson.asyncio.connect(sys.argv[1], timeout=30)
    async with client.get_lock("a"):
        print("go")
        if sys.argv[2] == "waits":
            await client.get_lock("other").lock()
        await asyncio.sleep(60)
try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(7)
"""

LOOP_HANDLER = """
import asyncio, signal, sys
import pyredisson, pyredisson.asyncio
async def main():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    pyredisson.release_on_signals()
    client = pyredisson.asyncio.connect(sys.argv[1])
    await client.get_lock("a").lock()
    print("go")
    await ended.wait()
    print("ended", client.closed)
asyncio.run(main())
"""

Start = Callable[..., Child]


def end(user: Child, number: signal.Signals, seconds: float = 3.0) -> int:
    started = time.monotonic()
    user.signal(number)
    status = user.wait()
    assert time.monotonic() - started < seconds
    return status


def test_sigterm_frees_what_is_held_and_ends_the_process_as_before(server: Server, admin: Redis, child: Start) -> None:
    user = child(HOLDS, server.url)
    assert user.receive() == "go"
    assert admin.exists("a", "b") == 2
    assert end(user, signal.SIGTERM) == -signal.SIGTERM
    assert admin.keys() == []


def test_it_never_acts_unasked(server: Server, admin: Redis, child: Start) -> None:
    user = child(UNASKED, server.url)
    assert user.receive() == "go"
    assert end(user, signal.SIGTERM) == -signal.SIGTERM
    assert admin.exists("a", "b") == 2


def test_while_the_main_thread_waits_for_a_lock(server: Server, admin: Redis, child: Start) -> None:
    admin.hset("other", "somebody:1", 1)
    user = child(WAITS, server.url)
    assert user.receive() == "go"
    eventually(lambda: listeners(admin, "other") == 1)
    assert end(user, signal.SIGTERM) == -signal.SIGTERM
    assert admin.keys() == [b"other"]


@pytest.mark.parametrize("step", ["request", "reply"])
def test_while_the_main_thread_waits_for_a_reply(proxy: Proxy, admin: Redis, child: Start, step: str) -> None:
    held = proxy.hold_request(b"other") if step == "request" else proxy.hold_reply(b"other")
    user = child(WAITS, proxy.url)
    assert user.receive() == "go"
    assert held.held.wait(5)
    assert end(user, signal.SIGTERM) == -signal.SIGTERM
    assert not admin.exists("a")


@pytest.mark.parametrize("latency", [0.0, 0.05])
def test_what_other_threads_are_taking_is_freed_too(proxy: Proxy, admin: Redis, child: Start, latency: float) -> None:
    user = child(IN_THREADS, proxy.url)
    assert user.receive() == "go"
    proxy.latency(latency)
    proxy.wait_for(lambda: proxy.seen(ACQUIRE) > 100, 30)
    assert end(user, signal.SIGTERM) == -signal.SIGTERM
    assert admin.keys() == []


def test_sigint_raises_keyboard_interrupt_as_before(server: Server, admin: Redis, child: Start) -> None:
    user = child(CATCHES, server.url)
    assert user.receive() == "go"
    assert end(user, signal.SIGINT) == 7
    assert user.receive() == "interrupted True"
    assert admin.keys() == []


def test_the_handler_that_was_there_is_called(server: Server, admin: Redis, child: Start) -> None:
    user = child(HANDLES, server.url)
    assert user.receive() == "go"
    user.signal(signal.SIGINT)  # it was ignored, and stays so
    assert end(user, signal.SIGTERM) == 5
    assert user.receive() == "handled 15 True"
    assert admin.keys() == []


@pytest.mark.parametrize("where", ["sleeps", "waits"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 7)])
def test_asyncio(server: Server, admin: Redis, child: Start, number: signal.Signals, status: int, where: str) -> None:
    admin.hset("other", "somebody:1", 1)
    user = child(ASYNCIO, server.url, where)
    assert user.receive() == "go"
    if where == "waits":
        eventually(lambda: listeners(admin, "other") == 1)
    assert end(user, number) == status
    assert admin.keys() == [b"other"]


def test_beside_a_handler_of_the_event_loop(server: Server, admin: Redis, child: Start) -> None:
    user = child(LOOP_HANDLER, server.url)
    assert user.receive() == "go"
    assert end(user, signal.SIGTERM) == 0
    assert user.receive() == "ended True"
    assert admin.keys() == []


def test_a_server_that_is_away_costs_about_a_second(own_server: Server, child: Start) -> None:
    user = child(HOLDS, own_server.url)
    assert user.receive() == "go"
    own_server.pause()
    try:
        assert end(user, signal.SIGTERM) == -signal.SIGTERM
    finally:
        own_server.resume()


def test_a_second_signal_does_not_wait(own_server: Server, child: Start) -> None:
    user = child(SLOW, own_server.url)
    assert user.receive() == "go"
    own_server.pause()
    try:
        user.signal(signal.SIGTERM)
        # In the middle of the first one, which would take a minute.
        assert user.receive() == "releasing"
        assert end(user, signal.SIGTERM, 10) == -signal.SIGTERM
    finally:
        own_server.resume()


def test_only_in_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            pyredisson.release_on_signals()
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    [error] = errors
    assert isinstance(error, ValueError)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("signals", "error"), [([signal.SIGTERM, 9999], ValueError), ([signal.SIGTERM, signal.SIGKILL], OSError)]
)
def test_what_cannot_be_caught_changes_nothing(signals: list[int], error: type[Exception]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(error):
        pyredisson.release_on_signals(signals)
    assert signal.getsignal(signal.SIGTERM) is before
