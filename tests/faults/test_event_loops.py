"""Event loops: several, eager tasks, tasks that run the loop, uvloop; and gevent, which may replace too much."""

import asyncio
import gc
import sys
import warnings
from asyncio.base_events import BaseEventLoop
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, nullcontext
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import uvloop
from redis import ConnectionError, Redis

import pyredisson.asyncio
from pyredisson._backends.aio.connection import OPEN, Pipeline, connect
from pyredisson._core import command
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import NoReply, copy_error
from pyredisson.testing import Proxy, Server
from tests.support.backends import NOWHERE, TIME_LIMIT, cancel_after, eventually, listeners, within
from tests.support.faults import AtSteps, InterruptAt

from .kinds import Log, Output, Patch, Start, given_back, taken_by_another

SEVERAL = """
import asyncio, gc, sys
import pyredisson.asyncio
client = pyredisson.asyncio.connect(sys.argv[1])
# What is abandoned may be collected at any moment: here when it is asked for.
gc.disable()

async def take(name):
    lock = client.get_lock(name)
    await lock.lock()
    await lock.unlock()

async def wait():
    first = asyncio.create_task(take("a"))
    print("waiting", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    if sys.argv[2] == "collect":
        gc.collect()
    second = asyncio.create_task(take("b"))
    await first
    await second

for _ in range(3):
    sys.stdin.readline()
    if sys.argv[2] == "run":
        asyncio.run(wait())
    else:
        # Nothing in it is cancelled: it just never runs again.
        loop = asyncio.new_event_loop()
        loop.run_until_complete(wait())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    print("got it", flush=True)
sys.stderr = None
"""


@pytest.mark.parametrize("how", ["run", "abandon", "collect"])
def test_waiters_are_woken_in_every_loop(server: Server, admin: Redis, child: Start, capfd: Output, how: str) -> None:
    user = child(SEVERAL, server.url, how)
    for number in range(1, 4):
        taken_by_another(admin, "a", "b")
        user.send()
        assert user.receive() == "waiting"
        # What an abandoned loop had opened stays there until it is collected: nobody closes it.
        eventually(lambda: listeners(admin, "a") == {"run": 1, "abandon": number, "collect": min(number, 2)}[how])  # noqa: B023
        user.send()
        eventually(lambda: listeners(admin, "b") == (number if how == "abandon" else 1))  # noqa: B023
        given_back(admin, "a", "b")
        # Unheard, it would look again at the end of a whole lease.
        assert (user.receive(5), admin.exists("a", "b")) == ("got it", 0)
    assert user.wait() == 0
    assert "ignored GeneratorExit" not in capfd.readouterr().err


CLOSED = """
import asyncio, sys
import pyredisson, pyredisson.asyncio
client = pyredisson.asyncio.connect(sys.argv[1], local_hand_over_time=60)
other = pyredisson.connect(sys.argv[1])
other.get_lock("other").lock()
holder = client.get_lock("a", owner=1)
loop = asyncio.new_event_loop()

async def leave_waiters():
    await holder.lock()
    waiting = [asyncio.create_task(lock.lock()) for lock in (client.get_lock("other"), client.get_lock("a", owner=2))]
    while not client._session.lock_queues or not client._session.channels.events(b"redisson_lock__channel:{a}"):
        await asyncio.sleep(0.01)
    return waiting

async def use():
    third = asyncio.create_task(client.get_lock("a", owner=3).lock())
    await asyncio.sleep(0.1)
    await holder.unlock()
    async with asyncio.timeout(5):
        await third
    print("got it", flush=True)

kept = loop.run_until_complete(leave_waiters())
loop.close()
asyncio.run(use())
sys.stdin.readline()
sys.stderr = None
"""


def test_waiting_tasks_of_a_closed_loop(server: Server, admin: Redis, child: Start) -> None:
    """A lock is not handed on to them, as nobody would ever release it; and they prevent no release at the end."""
    user = child(CLOSED, server.url)
    # Otherwise it gets the lock when the lease of 30 s has ended.
    assert (user.receive(25), admin.exists("a", "other")) == ("got it", 2)
    user.send()
    assert user.wait() == 0
    # The release of `other` has woken the client whose loop was closed: that is noted for 250 ms.
    eventually(lambda: not admin.keys())


STRANDED = """
import asyncio, sys
import pyredisson.asyncio
client = pyredisson.asyncio.connect(sys.argv[1], lock_watchdog_timeout=0.9, release_when_owner_ends=True)
loop, held = asyncio.new_event_loop(), asyncio.Event()

async def hold():
    await client.get_lock("a").lock()
    held.set()
    await loop.create_future()

kept = loop.create_task(hold())
loop.run_until_complete(held.wait())
loop.close()
print("closed", flush=True)
sys.stdin.readline()
sys.stderr = None
"""


def test_a_task_of_a_closed_loop_counts_as_ended(server: Server, admin: Redis, child: Start) -> None:
    user = child(STRANDED, server.url)
    assert user.receive() == "closed"
    # Otherwise it is renewed as long as the process lives.
    eventually(lambda: not admin.exists("a"))
    user.send()
    assert user.wait() == 0


def test_a_connection_of_a_closed_loop_is_closed(server: Server) -> None:
    """As the collector does in the middle of a handshake. The task that listens must not go on with an error."""
    loop = asyncio.new_event_loop()
    pipeline = loop.run_until_complete(connect(Node(pyredisson.Config.of(server.url))))
    loop.close()
    pipeline.close()
    assert pipeline.failed.done()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del pipeline
        gc.collect()


NESTED = """
import asyncio, sys
import nest_asyncio
import pyredisson.asyncio

async def main():
    async with pyredisson.asyncio.connect(sys.argv[1]) as client:
        # Before the loop is patched, it is one of asyncio's own.
        await client.get_lock("before").lock()
        nest_asyncio.apply()
        loop = asyncio.get_running_loop()

        async def take(number):
            lock = client.get_lock("a")
            for _ in range(5):
                async with lock:
                    loop.run_until_complete(client.get_lock(f"inner:{number}").lock())

        await asyncio.gather(*map(take, range(4)))

asyncio.run(main())
print("done", flush=True)
"""


@pytest.mark.skipif(
    sys.version_info >= (3, 14),
    reason="nest_asyncio supports no Python after 3.13: `asyncio.current_task()` is None in it",
)
def test_tasks_that_run_the_loop(server: Server, admin: Redis, child: Start, capfd: Output) -> None:
    """nest_asyncio allows that, and many notebooks use it. What they run in there gets its replies."""
    user = child(NESTED, server.url)
    assert (user.receive(), user.wait(), admin.keys(), capfd.readouterr().err) == ("done", 0, [], "")


BESIDE_GEVENT = """
import sys
from gevent import monkey
exec(sys.argv[2])
import pyredisson, pyredisson.asyncio
for connect in (pyredisson.connect, pyredisson.asyncio.connect):
    try:
        connect(sys.argv[1])
        print("made")
    except pyredisson.ConfigError as error:
        print(error)
if sys.argv[3]:
    lock = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=1).get_lock("a")
    other = pyredisson.connect(sys.argv[1]).get_lock("a")
    with lock:
        print(other.try_lock(1.5), lock.lost.is_set())
"""
REPLACED = {
    "monkey.patch_all()": "socket, _thread, threading.",
    "monkey.patch_socket()": "socket.",
    "monkey.patch_thread()": "_thread, threading.",
}


@pytest.mark.parametrize("patch", [*REPLACED, "import gevent", "monkey.patch_all(socket=False, thread=False)"])
def test_replaced_modules_are_refused(server: Server, admin: Redis, child: Start, patch: str) -> None:
    """And what the message recommends works."""
    replaced = REPLACED.get(patch)
    user = child(BESIDE_GEVENT, server.url, patch, "" if replaced else "use")
    for printed in (user.receive(), user.receive()):
        if replaced:
            assert f"replaced these modules: {replaced}" in printed
            assert "patch_all(socket=False, thread=False)" in printed
        else:
            assert printed == "made"
    assert (user.receive(), user.wait(), admin.exists("a")) == ("" if replaced else "False False", 0, 0)


@pytest.mark.parametrize("replaced", [["socket"], ["thread"], ["os", "time"]])
def test_what_eventlet_replaces_is_refused_too(monkeypatch: pytest.MonkeyPatch, replaced: list[str]) -> None:
    """By what eventlet says. It isn't installed here."""
    patcher: Any = SimpleNamespace(is_monkey_patched=replaced.__contains__)
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    refused = pytest.raises(pyredisson.ConfigError, match=f"eventlet has replaced these modules: {replaced[0]}")
    with refused if "os" not in replaced else nullcontext():
        pyredisson.connect().close()


@pytest.mark.parametrize("more", ["", ", ssl=False"])
def test_over_tls_the_module_of_tls_is_refused_too(child: Start, more: str) -> None:
    with Server(tls=True) as server:
        url = f"{server.tls_url}?ssl_ca_certs={server.ca_file}"
        user = child(BESIDE_GEVENT, url, f"monkey.patch_all(socket=False, thread=False{more})", more)
        for printed in (user.receive(), user.receive()):
            assert printed == "made" if more else "modules: ssl. " in printed and "ssl=False)" in printed
        assert (user.receive(), user.wait()) == ("False False" if more else "", 0)


# In a process of its own: a loop that stands still would take the test run with it.
EAGER = """
import asyncio, sys
import pyredisson, pyredisson.asyncio
from redis.exceptions import ConnectionError
from tests.support.kinds import LOCKS
kind, *urls = sys.argv[1:]
inside = 0

def lock_of(clients):
    if kind == "red":
        return clients[0].get_red_lock(*[client.get_lock("a") for client in clients])
    return clients[0].get_semaphore("a") if kind == "semaphore" else LOCKS[kind](clients[0], "a")

async def use(clients):
    global inside
    async with lock_of(clients):
        inside += 1
        assert inside == 1
        await asyncio.sleep(0.001)
        inside -= 1

async def main():
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    clients = [pyredisson.asyncio.connect(url, retry_attempts=0) for url in urls]
    if kind == "semaphore":
        await clients[0].get_semaphore("a").try_set_permits(1)
    if kind == "refused":
        calls = [asyncio.create_task(clients[0].get_lock(f"a{number}").try_lock()) for number in range(100)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert ({type(error) for error in errors}, len(set(map(id, errors)))) == ({ConnectionError}, 100)
    else:
        async with asyncio.TaskGroup() as group:
            for _ in range(3 if kind == "red" else 20):
                group.create_task(use(clients))
    for client in clients:
        await client.close()

asyncio.run(main())
print("done")
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio.eager_task_factory came with Python 3.12")
@pytest.mark.parametrize("kind", ["lock", "fair", "write", "semaphore", "red", "refused"])
def test_eager_tasks(servers: list[Server], redises: list[Redis], child: Start, kind: str) -> None:
    """Operations on a server that refuses connections end before the call that begins them returns."""
    urls = [server.url for server in servers[:2]] if kind != "refused" else []
    user = child(EAGER, kind, *urls, NOWHERE)
    assert (user.receive(), user.wait()) == ("done", 0)
    assert kind == "semaphore" or not any(redis.exists("a") for redis in redises)


Scenario = Callable[[], Coroutine[Any, Any, None]]
Run = Callable[[Scenario], None]
PING = command(b"PING")


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, server: Server, tls_server: Server) -> Iterator[Run]:
    """Runs a scenario in a loop of each kind, which must leave no descriptor open; the servers are there before.

    uvloop's transports raise errors where those of asyncio don't.
    """

    def go(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(scenario(), 3 * TIME_LIMIT))

    # libuv opens some with the first loop, and keeps them.
    request.param().close()
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    yield go
    eventually(lambda: len(list(descriptors.iterdir())) <= before)


def in_each_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a test of a coroutine that runs in the loops of its fixture `run`."""

    @wraps(test)
    def go(run: Run, **fixtures: Any) -> None:
        run(lambda: test(run, **fixtures))

    return go


@pytest.mark.parametrize("way", ["tcp", "keepalive", "unix", "tls"])
@in_each_loop
async def test_every_way_to_the_server(run: Run, server: Server, tls_server: Server, way: str) -> None:
    fields: dict[str, Any] = {"socket_keepalive": True} if way == "keepalive" else {}
    urls = {"unix": server.unix_url, "tls": f"{tls_server.tls_url}?ssl_ca_certs={tls_server.ca_file}"}
    url = urls.get(way, server.url)
    async with pyredisson.asyncio.connect(url, connect_timeout=TIME_LIMIT, **fields) as client, client.get_lock("a"):
        # More than one buffer of replies, many commands in one write.
        held = await asyncio.gather(*[client.get_lock("b").is_locked() for _ in range(5000)])
        assert held == [False] * 5000


@pytest.mark.parametrize("turns", range(4))
@in_each_loop
async def test_what_is_sent_on_a_closing_connection_was_cut(run: Run, server: Server, turns: int) -> None:
    """uvloop's transport raises when it is closed, where asyncio's drops what is sent."""
    pipeline, subscribed = [await connect(Node(pyredisson.Config.of(server.url))) for _ in range(2)]
    for each in (pipeline, subscribed):
        assert each._transport is not None
        each._transport.abort()
    for _ in range(turns):
        await asyncio.sleep(0)
    if pipeline.state is OPEN:
        for future in [pipeline.submit(PING) for _ in range(3)]:
            with pytest.raises(NoReply):
                await future
    # Who listens doesn't look first.
    subscribed.write(PING)
    for each in (pipeline, subscribed):
        await each.disconnected
        each.write(PING)
        each.close()


@pytest.mark.parametrize("step", [BaseEventLoop.call_soon, _SelectorSocketTransport.write])
async def test_an_interrupt_while_a_command_is_sent(server: Server, step: Callable[..., Any]) -> None:
    """Nobody knows whether it was sent. No other call gets the reply to it, and it none of theirs."""
    async with pyredisson.asyncio.connect(server.url) as client, client.get_lock("a"):
        first = asyncio.create_task(client.get_lock("a").is_locked())
        if step is BaseEventLoop.call_soon:
            await asyncio.sleep(0)  # while it waits for the reply, others are sent in a callback of the loop
        with InterruptAt(step) as interrupt, pytest.raises(KeyboardInterrupt):
            await client.get_lock("b").is_locked()
        assert interrupt.happened
        assert await asyncio.gather(first, *[client.get_lock(name).is_locked() for name in "aba"]) == [1, 1, 0, 1]


def test_an_interrupt_where_a_reply_was_read(server: Server) -> None:
    """That reply is lost. Its call doesn't get the reply to the next one."""
    with closing(asyncio.new_event_loop()) as loop:
        pipeline = loop.run_until_complete(connect(Node(pyredisson.Config.of(server.url))))
        calls = [pipeline.submit(PING)]
        with InterruptAt(Pipeline.buffer_updated) as interrupt, pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(*calls)
        assert interrupt.happened
        calls.append(pipeline.submit(PING))
        loop.run_until_complete(asyncio.wait(calls, timeout=TIME_LIMIT))
        assert [type(each.exception()) for each in calls] == [NoReply] * 2
        loop.run_until_complete(pipeline.disconnected)


async def test_an_interrupt_while_a_connection_fails(proxy: Proxy) -> None:
    """No command of it stays without an end."""
    pipeline = await connect(Node(pyredisson.Config.of(proxy.url, timeout=1)))
    proxy.stall()
    futures = [pipeline.submit(PING) for _ in range(3)]
    with InterruptAt(copy_error) as interrupt, pytest.raises(KeyboardInterrupt):
        pipeline.close()
    assert interrupt.happened
    done, _ = await asyncio.wait(futures, timeout=TIME_LIMIT)
    assert [type(future.exception()) for future in done] == [NoReply] * 3
    await pipeline.disconnected


@pytest.mark.parametrize("step", [Pipeline._check_timeout, Pipeline._fail])
async def test_a_signal_where_a_timeout_is_checked(proxy: Proxy, step: Callable[..., Any]) -> None:
    pipeline = await connect(Node(pyredisson.Config.of(proxy.url, timeout=0.2)))
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    proxy.stall()
    future = pipeline.submit(PING)
    with AtSteps((step, Mock(side_effect=TimeoutError))) as steps:
        await asyncio.wait([future], timeout=TIME_LIMIT)
    assert steps.happened
    assert isinstance(future.exception(), NoReply)
    await pipeline.disconnected


class Full(deque[Any]):
    def append(self, item: object) -> None:
        raise MemoryError


async def test_no_memory_while_a_command_is_sent(server: Server) -> None:
    """The command and its future are added both, or none of them."""
    pipeline = await connect(Node(pyredisson.Config.of(server.url)))
    pipeline._replies, replies = Full(), pipeline._replies
    with pytest.raises(MemoryError):
        pipeline.submit(PING)
    pipeline._replies = replies
    assert await pipeline.submit(command(b"EXISTS", b"a")) == 0
    pipeline.close()
    await pipeline.disconnected


async def test_what_a_finalizer_posts_in_the_middle_of_a_write(server: Server) -> None:
    """The garbage collector may run it there. The replies still come in the order of the commands."""
    async with pyredisson.asyncio.connect(server.url) as client, client.get_lock("a"):
        post = partial(client._runtime.post, command(b"INCR", b"c"))
        with AtSteps((_SelectorSocketTransport.write, post)) as steps:
            assert not await client.get_lock("b").is_locked()
        assert steps.happened


def test_a_task_ends_the_program(run: Run, server: Server, caplog: Log) -> None:
    """A task may go on in the callback that reads its reply: the connection must not take the end for its failure."""

    async def scenario() -> None:
        async with pyredisson.asyncio.connect(server.url) as client:

            async def work() -> None:
                await client.get_lock("a").lock()
                sys.exit(3)

            ended.append(asyncio.create_task(work()))
            await client.get_lock("b").lock()
            await asyncio.wait([*ended, asyncio.create_task(client.get_lock("b", owner=1).lock())])

    ended = list[asyncio.Task[None]]()
    with pytest.raises(SystemExit, match="3"):
        run(scenario)
    # Without the question asyncio would log it when the task is collected, perhaps in the next test.
    assert isinstance(ended[0].exception(), SystemExit)
    assert not [record for record in caplog.records if record.name == "asyncio"]


@in_each_loop
async def test_a_connection_that_the_server_drops(run: Run, server: Server, admin: Redis) -> None:
    client = pyredisson.asyncio.connect(server.url)
    lock = client.get_lock("a")
    await lock.lock()
    waiting = asyncio.create_task(client.get_lock("a", owner=1).lock())
    await asyncio.to_thread(eventually, lambda: listeners(admin, "a") == 1)
    for _ in range(2):
        admin.client_kill_filter(_type="normal", skipme=True)
        admin.client_kill_filter(_type="pubsub")
        # The loop learns of it in its next turn, and the calls begin before that.
        calls = [asyncio.create_task(client.get_lock(f"b{i}").try_lock(TIME_LIMIT)) for i in range(10)]
        assert await asyncio.gather(*calls) == [True] * 10
        for i in range(10):
            await client.get_lock(f"b{i}").force_unlock()
    await lock.unlock()
    await waiting
    await client.close()


@pytest.mark.parametrize("answers", [True, False])
@in_each_loop
async def test_a_task_that_is_cancelled_while_it_connects(run: Run, server: Server, silent: str, answers: bool) -> None:
    for step in range(8):
        client = pyredisson.asyncio.connect(server.url if answers else silent)
        task = asyncio.create_task(client.get_lock("a").is_locked())
        if step == 7:
            await asyncio.sleep(0.05)
        await cancel_after(step, task)
        await client.close()


@in_each_loop
async def test_an_error_in_a_callback_is_no_timeout(run: Run, server: Server, monkeypatch: Patch) -> None:
    """While replies are read, and while it connects."""

    def refuse(*received: object) -> None:
        raise TypeError(f"not expected: {received}")

    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    pipeline = await connect(Node(pyredisson.Config.of(server.url)))
    future = pipeline.submit(PING)
    pipeline.on_reply = refuse
    with pytest.raises(NoReply, match=r"not expected: .*PONG"):
        await future
    await pipeline.disconnected
    seen.clear()
    monkeypatch.setattr(Pipeline, "connection_made", refuse)
    client = pyredisson.asyncio.connect(server.url, retry_attempts=0, connect_timeout=2 * TIME_LIMIT)
    with within(TIME_LIMIT), pytest.raises(ConnectionError, match="without handing it over"):
        await client.get_lock("a").try_lock()
    assert "Transport" in str(seen[0]["exception"])
    await client.close()
