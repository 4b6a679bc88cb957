"""A client that is dropped without `close()` ends, with a ResourceWarning."""

import asyncio
import contextlib
import gc
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis, RedisError

import pyredisson.asyncio
from pyredisson.logic.channels import LINGER
from pyredisson.testing import Proxy, Server
from tests.support.backends import RawBackend, cancel_after, eventually, our_threads, within
from tests.support.children import CHILD_LIMIT, completed
from tests.support.faults import pool_of
from tests.support.inspecting import Recorder, check_pairs, key_of

from .kinds import Log, away, connections

NAME = "to-be-dropped"
pytestmark = pytest.mark.usefixtures("only_new_garbage")


def is_freed(reference: weakref.ref[Any]) -> bool:
    gc.collect()
    return reference() is None


@contextlib.contextmanager
def warned() -> Iterator[None]:
    """One warning of a dropped client; others may be of its sockets, which the collector may come to first."""
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        # Not `record=True`: a record refers to what was not closed, which keeps the client alive on Python 3.15.
        warnings.showwarning = lambda message, *_: texts.append(str(message))
        yield
    assert sum("was dropped without close()" in text for text in texts) == 1, texts


def test_it_is_warned_of_and_ends(server: Server, admin: Any, announced: None, caplog: Log) -> None:
    """With the threads of its observer, which was told of everything, and with its announcement."""
    before, recorder = our_threads(), Recorder()

    def use() -> weakref.ref[object]:
        client = pyredisson.connect(server.url, client_name=NAME, observer=recorder, lock_watchdog_timeout=3)
        key = key_of(client)
        with client.get_lock("a"), client.get_lock("b", owner=1):
            assert not client.get_lock("b").try_lock(0.05)
            eventually(lambda: any(field.startswith(b"h:") for field in admin.hkeys(key)))
        return weakref.ref(client._lifecycle)

    with warned():
        lifecycle_reference = use()
        eventually(lambda: is_freed(lifecycle_reference))
    eventually(lambda: not connections(admin, NAME) and our_threads() <= before and not admin.keys())
    check_pairs(recorder.events)
    assert recorder.events
    assert "in flight" not in caplog.text


@pytest.mark.parametrize("other_thread", [False, True])
async def test_in_asyncio(tasks: RawBackend, server: Server, admin: Redis, other_thread: bool) -> None:
    """The collector may run on another thread. The client doesn't stay for as long as its channels linger."""
    before = our_threads()

    async def use() -> weakref.ref[object]:
        client = pyredisson.asyncio.connect(server.url, client_name=NAME)
        async with client.get_lock("a"), client.get_lock("b", owner=1):
            assert not await client.get_lock("b").try_lock(0.05)
            semaphore = client.get_semaphore("c")
            assert await semaphore.try_set_permits(1)
            assert not await semaphore.try_acquire(2, 0.05)
        return weakref.ref(client._lifecycle)

    with warned(), within(1.5 * LINGER):
        # In this task, which continues.
        lifecycle_reference = await use()

        def is_gone() -> bool:
            return is_freed(lifecycle_reference) and not connections(admin, NAME) and our_threads() <= before

        await (asyncio.to_thread(eventually, is_gone) if other_thread else tasks.until(is_gone))


def test_it_waits_for_no_lock(server: Server, admin: Redis) -> None:
    """The garbage collector may run while any thread has any of its locks."""
    client = pyredisson.connect(server.url, client_name=NAME)
    with client.get_lock("b", owner=1):
        assert not client.get_lock("b").try_lock(0.05)
    # The command by which the client leaves the list of waiting clients ends first.
    eventually(lambda: not admin.exists("pyredisson_waiting:{b}"))
    session, lifecycle = client._session, client._lifecycle
    mutexes: list[Any] = [session.channels.mutex, session.watchdog._starting, pool_of(client)._mutex]
    mutexes += [lifecycle._releasing, lifecycle._starting]
    lifecycle_reference = weakref.ref(lifecycle)
    with ThreadPoolExecutor(1) as holder:
        assert all(holder.map(lambda mutex: mutex.acquire(), mutexes, timeout=5))
        with warned():
            del client, session, lifecycle
            eventually(lambda: is_freed(lifecycle_reference))
        eventually(lambda: not connections(admin, NAME))
        list(holder.map(lambda mutex: mutex.release(), mutexes, timeout=5))


async def test_one_whose_connection_is_being_made_leaves_none(tasks: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """In asyncio: the task that connects continues, although the call that started it was cancelled."""
    late, before = proxy.hold_reply(b"HELLO"), asyncio.all_tasks()

    async def use() -> weakref.ref[object]:
        client = pyredisson.asyncio.connect(proxy.url, client_name=NAME, timeout=20, connect_timeout=20)
        taking = asyncio.create_task(client.get_lock("a").try_lock())
        await tasks.until(late.held.is_set)
        assert await cancel_after(0, taking)
        return weakref.ref(client._lifecycle)

    with warned():
        lifecycle_reference = await use()
        await tasks.until(lambda: is_freed(lifecycle_reference) and asyncio.all_tasks() == before)
    await tasks.until(lambda: not connections(admin, NAME))


AT_EXIT = """
import gc, sys, threading
import pyredisson
gc.disable()
def use():
    client = pyredisson.connect(sys.argv[1])
    with client.get_lock("b", owner=1):
        assert not client.get_lock("b").try_lock(0.05)
use()
print(0)
"""
AFTER_FORK = """
import gc, os, sys, warnings
import pyredisson
warnings.simplefilter("ignore")
warnings.simplefilter("always", ResourceWarning)
client = pyredisson.connect(sys.argv[1])
lock = client.get_lock("a")
assert lock.try_lock()
child = os.fork()
if not child:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del client, lock
        gc.collect()
        dropped = any("was dropped" in str(each.message) for each in caught)
    os._exit(7 if dropped else 0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert lock.is_held()
lock.unlock()
client.close()
"""


@pytest.mark.parametrize("program", [AT_EXIT, AFTER_FORK], ids=["at exit", "in a child that has not used it"])
def test_where_it_is_as_one_that_is_not_dropped(server: Server, program: str) -> None:
    command = (sys.executable, "-W", "error::ResourceWarning:__main__", "-c", program, server.url)
    done = completed(*command, timeout=CHILD_LIMIT, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_what_it_has_still_to_send_is_sent(proxy: Proxy, admin: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """A release that was cut is repeated, and keeps its client alive until it has run."""

    def use() -> weakref.ref[object]:
        client = pyredisson.connect(proxy.url, client_name=NAME, retry_attempts=0)
        lock = client.get_lock("a", owner=1)
        lock.lock()
        away(proxy)
        with pytest.raises(RedisError):
            lock.unlock()
        return weakref.ref(client._lifecycle)

    # A record of the log would refer to the error, whose traceback refers to the lock.
    with warned(), caplog.at_level("CRITICAL", "pyredisson"):
        lifecycle_reference = use()
        gc.collect()
        assert admin.exists("a")
        proxy.refuse(False)
        eventually(lambda: not admin.exists("a"))
        eventually(lambda: is_freed(lifecycle_reference))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("exits", [False, True])
def test_what_it_has_posted_in_a_closed_loop_is_sent(proxy: Proxy, admin: Redis, exits: bool) -> None:
    async def use() -> Any:
        client = pyredisson.asyncio.connect(proxy.url, client_name=NAME)
        lock = client.get_lock("a")
        await lock.lock()
        release = asyncio.create_task(lock.unlock())
        proxy.stall()
        await asyncio.sleep(0)
        release.cancel()
        return client

    client = asyncio.run(use())
    proxy.cut()
    proxy.resume()
    assert admin.exists("a")
    if exits:
        client._lifecycle.end()
        client._lifecycle.send_final_releases()
    del client
    gc.collect()
    eventually(lambda: not admin.exists("a"))


def test_a_lock_keeps_its_client_alive(server: Server) -> None:
    lock = pyredisson.connect(server.url).get_lock("a")
    with lock:
        gc.collect()
    gc.collect()
    assert lock.try_lock()
    lock.unlock()
    lifecycle_reference = weakref.ref(lock._logic.session._host)
    with warned():
        del lock
        eventually(lambda: is_freed(lifecycle_reference))


def test_a_hold_keeps_its_client_alive(server: Server, admin: Redis) -> None:
    """Nobody may take what a program believes to hold: it is renewed for as long as the process lives."""

    def take() -> weakref.ref[Any]:
        client = pyredisson.connect(server.url, lock_watchdog_timeout=3)
        client.get_lock("a", owner=1).lock()
        return weakref.ref(client._lifecycle)

    lifecycle_reference = take()
    gc.collect()
    assert not threading.Event().wait(3.6)
    gc.collect()
    assert admin.exists("a")
    alive: Any = lifecycle_reference()
    alive.end()
    alive._drop_subscriptions()
    alive._runtime.drop()
    alive.send_final_releases()


def test_one_that_was_closed_or_never_used_is_nothing_to_warn_of(server: Server) -> None:
    pyredisson.connect(server.url)
    with pyredisson.connect(server.url) as client:
        client.get_lock("a").lock()
        client.get_lock("b").lock(60)
    lifecycle_reference = weakref.ref(client._lifecycle)
    del client
    # A warning would be an error.
    eventually(lambda: is_freed(lifecycle_reference))
