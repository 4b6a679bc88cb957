"""The connections of threads, on a real server; and objects that several threads use without a global lock."""

import asyncio
import importlib
import os
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

import pyredisson.asyncio
from pyredisson._backends.aio.callers import Callers
from pyredisson._backends.aio.connection import connect
from pyredisson._backends.aio.operations import run_in_thread
from pyredisson._backends.aio.wakeup import AioWakeup, Sleeps
from pyredisson._backends.runtime import clock
from pyredisson._backends.threads import listener
from pyredisson._backends.threads.connection import Connection, remaining
from pyredisson._backends.threads.listener import MessageReader, SubscriptionConnection, ThreadListener, self_pipe
from pyredisson._backends.threads.pool import Pool
from pyredisson._backends.threads.runtime import run
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import Blocks, command
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import NoReply
from pyredisson._protocol.routing import RoutingTable
from pyredisson._settings.config import Config
from pyredisson.errors import ClosedError
from pyredisson.logic.owners import Owner
from pyredisson.logic.routed_channels import RoutedChannels
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, eventually
from tests.support.topologies import make_node

PING, BLOCK = command(b"PING"), command(b"BLPOP", b"list", 60)


@pytest.fixture
def node(server: Server) -> Node:
    """A node on which nothing ends by a timeout."""
    return Node(Config(host=server.host, port=server.port, timeout=100))


def test_to_connect_to_a_busy_unix_socket_does_not_block(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(tmp_path / "s"))
        busy.listen(0)
        first.connect(str(tmp_path / "s"))
        with pytest.raises(NoReply):
            Connection(Node(Config(path=str(tmp_path / "s"), connect_timeout=5))).open()


def test_an_address_that_refuses_is_named_with_the_reason() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        port = unheard.getsockname()[1]
        with pytest.raises(NoReply, match=f"127.0.0.1:{port}: .* refused"):
            Connection(Node(Config(host="127.0.0.1", port=port))).open()


def test_what_remains_until_a_deadline() -> None:
    assert 500.0 < remaining(monotonic() + 1000.0) <= 1000.0
    with pytest.raises(TimeoutError):
        remaining(monotonic())


@pytest.mark.parametrize("keepalive", [False, True])
async def test_keepalive(server: Server, keepalive: bool) -> None:
    node = Node(Config(host=server.host, port=server.port, socket_keepalive=keepalive))
    pipeline = await connect(node)
    with closing(Connection(node)) as connection, closing(pipeline):
        connection.open()
        for each in (connection._socket, pipeline._transport.get_extra_info("socket")):  # type: ignore[union-attr]
            assert bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) == keepalive  # type: ignore[union-attr]
    await pipeline.disconnected


def test_replies_that_take_longer_or_come_in_parts_and_the_database(server: Server) -> None:
    with closing(Connection(Node(Config(host=server.host, port=server.port, database=3)))) as connection:
        connection.open()
        assert connection.call_all((PING, PING), extra_seconds=1000.0) == [b"PONG", b"PONG"]
        long = bytes(1_000_000)
        assert connection.call(command(b"ECHO", long)) == long
        assert b" db=3 " in connection.call(command(b"CLIENT", b"INFO"))


def test_a_pool_keeps_its_connection_unless_a_new_one_is_asked_for(node: Node) -> None:
    pool = Pool(node, 2)
    send = partial(pool.send, command(b"CLIENT", b"ID"))
    ids = [run(partial(send, new_connection=new)) for new in (False, False, True, False)]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    pool.close()


@pytest.mark.parametrize("call", [lambda one: one.call(BLOCK), lambda one: one.call_all((BLOCK,))])
@pytest.mark.parametrize("error", [OSError, ValueError])
def test_a_handler_may_raise_any_error(
    node: Node, on_alarm: Any, call: Callable[[Connection], object], error: type[Exception]
) -> None:
    """The caller gets it, and the server may still execute the command."""
    connection = Connection(node)
    connection.open()
    once = [error("from the handler")]

    def handler() -> None:
        if once and not connection.idle:
            raise once.pop()

    identity = connection.connection_id
    on_alarm(handler)
    with pytest.raises(error, match="from the handler"):
        call(connection)
    assert (connection.idle, connection.fileno()) == (False, -1)
    assert node.suspects == [identity]


async def test_work_beside_an_event_loop_is_done() -> None:
    done: list[str] = []
    await run_in_thread(lambda: done.append(threading.current_thread().name), "worker")
    assert done == ["worker"]


def waiting_call(pool: Pool, threads: ThreadPoolExecutor, *, new_connection: bool = False) -> Future[Any]:
    """A call on a thread of its own that waits for a connection."""
    call: Future[Any] = threads.submit(run, partial(pool.send, PING, new_connection=new_connection))
    eventually(lambda: pool._waiting)
    return call


@pytest.mark.parametrize(("end", "expected"), [(Pool.close, ClosedError), (Pool.retire, NoReply)])
def test_a_call_that_waits_for_a_connection_ends_with_the_pool(
    node: Node, end: Callable[[Pool], None], expected: type[Exception]
) -> None:
    pool = Pool(node, 1)
    used = pool._connect_or_wait()
    with ThreadPoolExecutor() as threads:
        call = waiting_call(pool, threads)
        end(pool)
        assert type(call.exception(TIME_LIMIT)) is expected
    pool._return(used)
    assert not pool.connected


@pytest.mark.parametrize("new", [False, True])
def test_a_call_that_waits_for_a_connection_gets_the_next_one(node: Node, admin: Redis, new: bool) -> None:
    """Or one in its place."""
    pool = Pool(node, 1)
    with ThreadPoolExecutor() as threads, closing(pool):
        first = threads.submit(run, pool.send, BLOCK)
        eventually(lambda: admin.client_list(_type="normal")[0] and pool.calls_in_flight == 1)
        call = waiting_call(pool, threads, new_connection=new)
        admin.rpush("list", "element")
        assert call.result(TIME_LIMIT) == b"PONG"
        assert first.result(TIME_LIMIT) == [b"list", b"element"]


def test_one_thread_at_a_time_is_the_reader() -> None:
    reader, other = ThreadWakeup(), ThreadWakeup()
    assert reader.alive
    role = listener.ReaderRole()
    assert role.take(reader) is role.take(other) is reader
    assert not role.release(other)
    assert role.take(other) is reader
    assert role.release(reader)
    assert role.take(other) is other


@pytest.mark.parametrize(("interval", "expected"), [(0, 50.0), (10, 10.0), (90, 50.0)])
def test_when_a_reader_has_to_send_a_ping(node: Node, interval: float, expected: float) -> None:
    node.ping_interval = interval
    channels: Any = SimpleNamespace(mutex=threading.RLock())
    with self_pipe() as pipe, closing(SubscriptionConnection(node)) as connection:
        connection.open()
        messages = MessageReader(node, connection, channels, pipe)
        seconds = messages._seconds_to_poll(monotonic() + 50.0)
        assert expected - 5.0 < seconds <= expected
        messages.check()
        assert messages._seconds_to_poll(monotonic() + 50.0) == 0 or not interval
        messages._ping_after_silence(monotonic())
        assert bool(messages._ping_sent_at) == bool(interval)
        # After the reply to a PING no other one is due.
        messages._ping_sent_at = 0.0
        assert messages._seconds_to_poll(monotonic() + 50.0) > 0


def test_a_waiter_without_a_node_waits_without_a_listener() -> None:
    channels = RoutedChannels(clock, RoutingTable(make_node, None))
    listeners = listener.ThreadListeners(channels)
    channels.open(listeners)
    wakeup = ThreadWakeup()
    listeners.wait(wakeup, 0.0)
    assert not wakeup.is_set()


@pytest.mark.parametrize("secure", [False, True])
def test_a_thread_that_may_run_handlers_has_another_one_read(node: Node, on_alarm: Any, secure: bool) -> None:
    """And so has any other one over TLS."""
    if not secure:
        on_alarm(lambda: None)
    wakeup, connection = ThreadWakeup(), SubscriptionConnection(node)
    connection.secure = secure
    channels: Any = SimpleNamespace(waiting={wakeup})
    listener = ThreadListener(node, channels)
    listener._wakeup.clear()
    with self_pipe() as pipe:
        listener._role.connected(MessageReader(node, connection, channels, pipe))
        listener.wait(wakeup, 0.0)
    assert listener._role.unread
    assert listener._wakeup.is_set()


def test_a_waiter_reads_until_its_time_is_over(node: Node) -> None:
    wakeup = ThreadWakeup()
    channels: Any = SimpleNamespace(waiting={wakeup})
    listener = ThreadListener(node, channels)
    with self_pipe() as pipe, closing(SubscriptionConnection(node)) as connection, ThreadPoolExecutor() as threads:
        connection.open()
        listener._role.connected(MessageReader(node, connection, channels, pipe))
        began = monotonic()
        threads.submit(listener.wait, wakeup, 0.05).result()
        assert monotonic() - began >= 0.05
        assert (listener._role.failure, wakeup.is_set()) == (None, False)


async def test_a_command_of_another_event_loop_is_not_sent_over_this_connection(server: Server) -> None:
    async with pyredisson.asyncio.connect(server.url) as client:
        lock = client.get_lock("orders")
        await lock.lock()
        elsewhere: list[bytes] = []
        runtime = lock._logic.session.runtime
        await asyncio.to_thread(runtime._holder.post, b"", elsewhere.append)  # type: ignore[attr-defined]
        assert elsewhere == [b""]
        await lock.unlock()


# --- Objects that several threads use without a global lock


HAS_LOCK = not sysconfig.get_config_var("Py_GIL_DISABLED")
LIMIT = 60.0
"""Seconds after which something has gone wrong."""


@pytest.mark.skipif(HAS_LOCK, reason="this build has a global lock")
def test_the_import_leaves_the_global_lock_off() -> None:
    # hiredis, which redis-py imports where it is installed, switches it on.
    program = "import sys; sys.modules['hiredis'] = None; import pyredisson.asyncio; sys.exit(sys._is_gil_enabled())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=LIMIT, env=environment)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="this Python has no module for sub-interpreters")
def test_a_sub_interpreter_is_told_that_it_cannot_import_the_core() -> None:
    refused = pytest.raises(Exception, match=r"ImportError: .*does not support loading in subinterpreters")
    with closing(importlib.import_module("concurrent.interpreters").create()) as interpreter, refused:
        interpreter.exec("import pyredisson._core")


def test_blocks_are_entered_and_left_by_many_threads() -> None:
    blocks, callers = Blocks(), [object() for _ in range(4)]

    def use(caller: object) -> int:
        left = 0
        for number in range(5000):
            blocks[caller] = number
            left += blocks[caller] is not None
        return left

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(use, callers * 2)) == [5000] * 8
    assert not blocks
    assert blocks[callers[0]] is None


def test_a_wakeup_that_is_set_is_never_slept_through() -> None:
    """Others believe that a waiter is awake while its wakeup is set, and pass it over."""
    wakeup, rounds, ended = ThreadWakeup(), 100 if HAS_LOCK else 5000, threading.Event()

    def keep_awake() -> None:
        while not ended.is_set():
            if not wakeup.is_set():
                wakeup.set()

    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(keep_awake)
        woken = 0
        while woken < rounds and wakeup.wait(LIMIT):
            wakeup.clear()
            woken += 1
        ended.set()
    assert woken == rounds


async def test_another_thread_wakes_a_task() -> None:
    """The watchdog does, when a hold is lost. The loop's debug mode refuses what isn't made for other threads."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    wakeup = AioWakeup(Sleeps(loop))
    waiting = asyncio.create_task(wakeup.wait(LIMIT))
    await asyncio.sleep(0)
    await asyncio.to_thread(wakeup.set)
    assert await asyncio.wait_for(waiting, LIMIT / 2)


def test_each_event_loop_has_its_own_tasks() -> None:
    """One client, tasks of event loops on several threads: no task acts as a task of another loop."""
    callers = Callers()
    callers.begin(pyredisson.asyncio.connect()._session)

    async def owners() -> set[int]:
        async def own() -> int:
            first: Owner = callers.current()
            for _ in range(20):
                await asyncio.sleep(0)
                assert callers.current() is first
            return first.id

        return set(await asyncio.gather(*(own() for _ in range(50))))

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(asyncio.run, owners()) for _ in range(8)]
        assert len(set().union(*(each.result(LIMIT) for each in found))) == 8 * 50
