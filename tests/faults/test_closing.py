"""Closing with calls in flight, interrupted or cancelled: nothing stays locked, and it takes about a second."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from redis import Redis

import pyredisson.asyncio
from pyredisson import ClosedError
from pyredisson._backends.aio.listener import AioListener
from pyredisson._backends.runtime import clock
from pyredisson._backends.threads.listener import ThreadListener
from pyredisson._backends.threads.runtime import ThreadRuntime
from pyredisson._client import process
from pyredisson._client.final_release import FinalRelease
from pyredisson._client.lifecycle import ClientLifecycle
from pyredisson._core import command
from pyredisson._protocol.node import Node
from pyredisson._settings.config import Config
from pyredisson.logic.holds import HoldTable
from pyredisson.testing import Proxy, Server
from tests.support.backends import TIME_LIMIT, OtherOwner, RawBackend, cancel_after, eventually, finished, within
from tests.support.faults import ACQUIRE, RELEASE, AtSteps, InterruptAt

from .kinds import Log, NoThread, Patch, connections, do_all
from .stub import Stub, shake

NAME = "to-be-closed"
FINAL_RELEASE = "pyredisson-final-release"
LONGEST = 2.5
"""Seconds: about one, and what a busy machine adds."""


@pytest.fixture
def started_threads(monkeypatch: Patch) -> list[str]:
    started, begin = list[str](), threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        started.append(thread.name)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    return started


@pytest.fixture(params=["plain", "eager"] if hasattr(asyncio, "eager_task_factory") else ["plain"])
async def kind_of_tasks(request: pytest.FixtureRequest) -> None:
    """How tasks begin: `asyncio.eager_task_factory` came with Python 3.12."""
    if request.param == "eager":
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]


tasks_of_each_kind = pytest.mark.usefixtures("kind_of_tasks")


def begun(backend: RawBackend, client: Any, count: int) -> list[OtherOwner[Any]]:
    """So many callers that acquire and release a lock of their own until the client is closed."""

    async def use(number: int) -> None:
        lock = client.get_lock(f"a{number}")
        with pytest.raises(ClosedError):
            while True:
                await do_all(backend, lock.lock, lock.unlock)
                # Virtual time goes on only while all sleep.
                await backend.sleep(0.001)

    return [backend.start(use, number) for number in range(count)]


async def close(backend: RawBackend, client: Any, calls: list[OtherOwner[Any]]) -> None:
    """Closes the client, which takes about a second at most, and ends these calls."""
    with within(LONGEST):
        await backend.do(client.close())
    await finished(calls)


class TestInFlight:
    async def test_closing_twice_at_the_same_time(self, backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
        client = backend.connect(proxy.url)
        await backend.do(client.get_lock("a").lock())
        proxy.latency(0.02)
        await finished([backend.start(client.close) for _ in range(3)])
        assert not admin.exists("a")

    @pytest.mark.parametrize("latency", [0.0, 0.05, 0.1])
    async def test_many_calls_leave_nothing(
        self, backend: RawBackend, proxy: Proxy, admin: Redis, started_threads: list[str], latency: float
    ) -> None:
        """One final release covers all that they acquired."""
        client = backend.connect(proxy.url, timeout=5)
        count = 60 if backend.threads else 300
        calls = begun(backend, client, count)
        await backend.until(lambda: proxy.seen(ACQUIRE) > count)
        proxy.latency(latency)
        await backend.sleep(latency + 0.05)
        before = proxy.connections
        await close(backend, client, calls)
        assert admin.keys() == []
        assert proxy.connections <= before + 1
        assert started_threads.count(FINAL_RELEASE) <= (1 if backend.threads else 2)

    @pytest.mark.parametrize(
        ("lose", "command"),
        [("hold_reply", ACQUIRE), ("hold_request", ACQUIRE), ("drop_reply", ACQUIRE), ("hold_request", RELEASE)],
    )
    async def test_a_call_whose_reply_does_not_come_is_ended(
        self, backend: RawBackend, proxy: Proxy, admin: Redis, lose: str, command: bytes
    ) -> None:
        """And a release is completed."""
        client = backend.connect(proxy.url, timeout=30)
        fault = getattr(proxy, lose)(command)
        calls = begun(backend, client, 1)
        await backend.until(fault.happened.is_set)
        await close(backend, client, calls)
        await backend.until(lambda: admin.keys() == [])

    async def test_a_server_hangs(self, backend: RawBackend, proxy: Proxy, caplog: Log) -> None:
        client = backend.connect(proxy.url, timeout=30)
        await do_all(backend, *[client.get_lock(f"held{number}", owner=1).lock for number in range(3)])
        calls = begun(backend, client, 20)
        await backend.until(lambda: proxy.seen(ACQUIRE) > 40)
        proxy.stall()
        # It doesn't hold up the event loop.
        turning = backend.start(do_all, backend, *[partial(backend.sleep, 0.02)] * 5)
        with caplog.at_level("WARNING", "pyredisson"):
            await close(backend, client, calls)
            assert turning.done()
        if backend.threads:
            eventually(lambda: "locks were not released" in caplog.text)


async def test_what_the_server_refuses_is_logged(
    backend: RawBackend, user: Callable[[str], str], admin: Redis, caplog: Log
) -> None:
    client = backend.connect(user("~* &* +@all"))
    await do_all(backend, *[client.get_lock(name).lock for name in "ab"])
    admin.acl_setuser("app", enabled=True, keys=["*b*"], reset_keys=True)
    await close(backend, client, [])
    assert (admin.exists("a"), admin.exists("b")) == (1, 0)
    assert "1 locks were not released and end with their leases: NOPERM" in caplog.text


def test_what_servers_redirect_again_and_again_is_logged(caplog: Log) -> None:
    with Stub(lambda words: b"-MOVED 1 h:2\r\n" if words[0] == b"DEL" else shake(words)) as stub:
        node = Node(Config.of(stub.url))
        servers = Mock(as_sent=lambda payload, **_: payload, is_failing=lambda _: False)
        servers.serving.return_value = servers.target.return_value = node
        FinalRelease("me", servers, {command(b"DEL", "a"): True}, clock() + TIME_LIMIT, None).send()
    assert "1 locks were not released and end with their leases: MOVED 1 h:2" in caplog.text


async def test_a_command_added_during_a_final_release_is_sent(threads: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """A call that ends while the client sends its last commands adds one of its own."""
    client = threads.connect(proxy.url, timeout=5)
    client.get_lock("held").lock()
    late = proxy.hold_reply(ACQUIRE)
    taking = await threads.started(late.held.is_set, client.get_lock("late").lock)
    final_release = proxy.hold_request(RELEASE)
    closing = await threads.started(final_release.held.is_set, client.close)
    late.deliver()
    await threads.until(taking.done)
    final_release.deliver()
    await closing.result()
    await threads.until(lambda: not admin.keys())


def test_commands_after_a_final_release_start_one_more(proxy: Proxy, admin: Redis, started_threads: list[str]) -> None:
    client = pyredisson.connect(proxy.url)
    payloads = [client.get_lock(f"a{number}")._logic.commands.undo_acquire(b"me:1") for number in range(200)]
    for number in range(200):
        admin.hset(f"a{number}", "me:1", 1)
    client.close()
    before = len(proxy.commands)
    proxy.latency(0.02)
    for payload in payloads:
        client._session.repair(payload)
    eventually(lambda: admin.keys() == [] and FINAL_RELEASE not in {thread.name for thread in threading.enumerate()})
    # The first one may be gone by the time that the last one comes.
    assert 1 <= started_threads.count(FINAL_RELEASE) <= 2
    assert len(proxy.commands) < before + 200 + 20


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        *[("threads", step) for step in (ClientLifecycle.end, ThreadListener.drop, ThreadRuntime.close)],
        ("threads", HoldTable.discard),
        ("asyncio", HoldTable.discard),
        ("asyncio", AioListener.stop),
    ],
)
async def test_an_interrupted_close_leaves_nothing(server: Server, admin: Redis, kind: str, step: Any) -> None:
    backend = RawBackend(kind)
    client = backend.connect(server.url, client_name=NAME)
    assert not await backend.do(client.get_lock("a").is_locked())
    if step in (ThreadListener.drop, ThreadRuntime.close, HoldTable.discard):
        # The others are the first step: what is held before it stays so.
        await backend.do(client.get_lock("a").lock())
    with pytest.raises(KeyboardInterrupt), InterruptAt(step) as interrupt:
        await backend.do(client.close())
    assert interrupt.happened
    # In asyncio the final release goes on, and nobody waits for it.
    assert kind == "asyncio" or not admin.exists("a")
    await backend.until(lambda: not admin.exists("a") and not connections(admin, NAME))
    # What the interrupt left undone, the next call does.
    await backend.do(client.close())
    assert client.closed
    assert not client._session.holds.table


@pytest.mark.parametrize("end", [process.close_all, process._release_all])
def test_the_end_of_a_process_releases_what_a_failed_close_has_noted(
    server: Server, admin: Redis, end: Callable[[], None], caplog: Log
) -> None:
    def fail() -> None:
        raise LookupError

    pyredisson.connect(server.url).get_lock("a", owner=1).lock()
    with AtSteps((HoldTable.discard, fail)):
        end()
    assert not admin.exists("a")
    assert "a client could not be closed" in caplog.text


class TestTasks:
    """Closing an asyncio client needs no help from the program, and ends the calls that connect."""

    @tasks_of_each_kind
    async def test_callers_that_are_connecting_get_closed_error(self, silent: str) -> None:
        """Each an error of its own, also without retries. A cancellation reaches only the caller that is cancelled.

        A task group takes a cancelled task for one that was meant to end, so none of them is cancelled.
        """
        client = pyredisson.asyncio.connect(silent, retry_attempts=0)
        calls: list[asyncio.Task[Any]] = [asyncio.create_task(client.get_lock("a").lock()) for _ in range(3)]
        calls += map(asyncio.create_task, (client.get_semaphore("b").acquire(), client.get_lock("c").try_lock()))
        cancelled, at_the_end = (asyncio.create_task(client.get_lock("a").lock()) for _ in range(2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.get_lock("a").lock(), 0.02)
        assert await cancel_after(0, cancelled)
        assert not any(call.done() for call in calls)
        with within(LONGEST):
            at_the_end.cancel()
            await client.close()
            errors = await asyncio.gather(*calls, return_exceptions=True)
        assert ([type(error) for error in errors], len(set(map(id, errors)))) == ([ClosedError] * 5, 5)
        with pytest.raises(asyncio.CancelledError):
            await at_the_end

    @tasks_of_each_kind
    async def test_a_cancelled_connection_is_made_again(self, tasks: RawBackend, proxy: Proxy) -> None:
        """By a program that cancels every task it doesn't know."""
        ours = asyncio.all_tasks()
        client = tasks.connect(proxy.url)
        hello = proxy.hold_reply(b"HELLO")
        call = asyncio.create_task(client.get_lock("a").try_lock(TIME_LIMIT))
        await tasks.until(hello.held.is_set)
        for task in asyncio.all_tasks() - ours - {call}:
            task.cancel()
        assert await asyncio.wait_for(call, TIME_LIMIT) is True

    async def test_where_no_thread_is_free(self, server: Server, admin: Redis, no_thread: NoThread) -> None:
        """The program's own threads may all be busy; and then no thread can be started, either."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        for can_start in (True, False):
            client = pyredisson.asyncio.connect(server.url)
            await client.get_lock("a").lock()
            over = threading.Event()
            busy = loop.run_in_executor(None, over.wait, 3 * LONGEST)
            refused = None if can_start else no_thread(FINAL_RELEASE, once=False)
            with within(LONGEST):
                await client.close()
            over.set()
            assert await busy, "it has waited for the executor"
            assert refused is None or refused.is_set()
            assert not admin.exists("a")

    @tasks_of_each_kind
    async def test_a_cancelled_close_leaves_nothing(self, tasks: RawBackend, proxy: Proxy, admin: Redis) -> None:
        for turns in range(1, 7):
            client = tasks.connect(proxy.url, client_name=NAME, timeout=TIME_LIMIT)
            await client.get_lock("held").lock()
            waiting = asyncio.create_task(client.get_lock("held", owner=1).lock())
            late = proxy.hold_reply(ACQUIRE)
            taking = asyncio.create_task(client.get_lock("taken").lock())
            await tasks.until(late.held.is_set)
            await cancel_after(turns, asyncio.create_task(client.close()))
            for task in (waiting, taking):
                with pytest.raises(ClosedError):
                    await asyncio.wait_for(task, TIME_LIMIT)
            await tasks.until(lambda: not admin.exists("held", "taken"))
            await tasks.until(lambda: not connections(admin, NAME))

    def test_closing_in_another_loop_than_the_clients(self, server: Server, admin: Redis) -> None:
        """The other one still stands, with a call that waits in it."""
        client = pyredisson.asyncio.connect(server.url)

        async def begin() -> asyncio.Task[None]:
            await client.get_lock("a").lock()
            waiting = asyncio.create_task(client.get_lock("a", owner=1).lock())
            await asyncio.sleep(0.05)
            return waiting

        with asyncio.Runner() as runner:
            waiting = runner.run(begin())
            with within(LONGEST):
                asyncio.run(client.close())
            assert not admin.exists("a")
            with pytest.raises(ClosedError):
                runner.run(asyncio.wait_for(waiting, TIME_LIMIT))
