"""uvloop: its transports raise errors where those of asyncio don't. Each test runs on both loops."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis import Redis
from redis.exceptions import ConnectionError

import pyredisson.asyncio
from pyredisson import Config
from pyredisson._backends.aio.connection import OPEN, Pipeline, connect
from pyredisson._backends.aio.wakeup import AioWakeup
from pyredisson._core import command
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.node import Node
from pyredisson.testing import Server
from tests.support.server_state import listeners
from tests.support.waiting import TIME_LIMIT, cancel_after, eventually

BackgroundCall = Callable[[], Coroutine[Any, Any, None]]
Run = Callable[[BackgroundCall], None]
PING = command(b"PING")


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, server: Server, tls_server: Server) -> Iterator[Run]:
    """Runs a scenario in a loop of that kind, which must leave no descriptor open; the servers are there before."""

    def go(scenario: BackgroundCall) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded(scenario))

    # libuv opens some with the first loop, and keeps them.
    request.param().close()
    before = descriptors()
    yield go
    eventually(lambda: descriptors() <= before)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def bounded(scenario: BackgroundCall) -> None:
    async with asyncio.timeout(3 * TIME_LIMIT):
        await scenario()


@pytest.mark.parametrize("way", ["tcp", "keepalive", "unix", "tls"])
def test_every_way_to_the_server(run: Run, server: Server, tls_server: Server, way: str) -> None:
    fields: dict[str, Any] = {"keepalive": {"socket_keepalive": True}}.get(way, {})
    urls = {"unix": server.unix_url, "tls": f"{tls_server.tls_url}?ssl_ca_certs={tls_server.ca_file}"}

    async def scenario() -> None:
        inside = 0
        async with pyredisson.asyncio.connect(
            urls.get(way, server.url), connect_timeout=TIME_LIMIT, **fields
        ) as client:

            async def use() -> None:
                nonlocal inside
                async with client.get_lock("a"):
                    inside += 1
                    assert inside == 1
                    await asyncio.sleep(0.001)
                    inside -= 1

            async with asyncio.TaskGroup() as group:
                for _ in range(10):
                    group.create_task(use())
            # More than one buffer of replies, many commands in one write.
            held = await asyncio.gather(*[client.get_lock("b").is_locked() for _ in range(5000)])
            assert held == [False] * 5000

    run(scenario)


@pytest.mark.parametrize("turns", range(4))
def test_what_is_sent_on_a_closing_connection_was_cut(run: Run, server: Server, turns: int) -> None:
    """uvloop's transport raises when it is closed, where asyncio's drops what is sent."""

    async def scenario() -> None:
        pipeline = await connect(Node(Config.of(server.url)))
        subscribed = await connect(Node(Config.of(server.url)))
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

    run(scenario)


def test_a_task_ends_the_program(run: Run, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A task may go on in the callback that reads its reply: the connection must not take the end for its failure."""

    async def scenario() -> None:
        async with pyredisson.asyncio.connect(server.url) as client:

            async def work() -> None:
                await client.get_lock("a").lock()
                sys.exit(3)

            working = asyncio.create_task(work())
            await client.get_lock("b").lock()
            await asyncio.wait([working, asyncio.create_task(client.get_lock("b", owner=1).lock())])

    with pytest.raises(SystemExit, match="3"):
        run(scenario)
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_connection_that_the_server_drops(run: Run, server: Server, admin: Redis) -> None:
    async def scenario() -> None:
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

    run(scenario)


@pytest.mark.parametrize("answers", [True, False])
def test_a_task_that_is_cancelled_while_it_connects(run: Run, server: Server, answers: bool) -> None:
    async def scenario(url: str) -> None:
        for step in range(8):
            client = pyredisson.asyncio.connect(url)
            task = asyncio.create_task(client.get_lock("a").is_locked())
            if step == 7:
                await asyncio.sleep(0.05)
            await cancel_after(step, task)
            await client.close()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = server.url if answers else f"redis://127.0.0.1:{silent.getsockname()[1]}"
        run(lambda: scenario(url))


def test_an_error_in_a_callback_of_the_connection_is_no_timeout(
    run: Run, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Pipeline, transport: asyncio.BaseTransport) -> None:
        raise TypeError("not the transport that was expected")

    async def scenario() -> None:
        seen: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
        client = pyredisson.asyncio.connect(server.url, retry_attempts=0, connect_timeout=2 * TIME_LIMIT)
        begin = time.monotonic()
        with pytest.raises(ConnectionError, match="without handing it over"):
            await client.get_lock("a").try_lock()
        assert time.monotonic() - begin < TIME_LIMIT
        assert "not the transport" in str(seen[0]["exception"])
        await client.close()

    monkeypatch.setattr(Pipeline, "connection_made", refuse)
    run(scenario)


def test_an_error_while_replies_are_read_is_no_timeout(run: Run, server: Server) -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        pipeline = await connect(Node(Config.of(server.url)))

        def on_reply(_: object) -> None:
            raise ValueError("a fault in the listener")

        future = pipeline.submit(PING)
        pipeline.on_reply = on_reply
        with pytest.raises(NoReply, match="a fault in the listener"):
            await future
        await pipeline.disconnected

    run(scenario)


def test_a_wait_is_not_over_early(run: Run) -> None:
    """uvloop rounds to milliseconds: who looked again too soon would then wait for the next reason to look."""

    async def scenario() -> None:
        for seconds in (0.0304, 0.0203, 0.01049, 0.02044):
            begin = time.monotonic()
            assert not await AioWakeup().wait(seconds)
            assert time.monotonic() - begin >= seconds

    run(scenario)
