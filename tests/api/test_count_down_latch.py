"""The count-down latch on both backends: its contract, waiting, Java clients, and lost replies."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from redis.exceptions import ConnectionError, TimeoutError

import pyredisson
import pyredisson.asyncio
from pyredisson._protocol.scripts import script
from pyredisson.logic.permits import count_down_latch as logic
from pyredisson.testing import Proxy, Server
from tests.support.backends import NOWHERE, WOKEN, Backend
from tests.support.faults import LOSSES, Lose
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio

CHANNEL = "redisson_countdownlatch__channel__{done}"


def listeners(server_state: ServerState) -> int:
    [(_, count)] = server_state.redis.pubsub_numsub(CHANNEL)
    return int(count)


def java_count_down(server_state: ServerState) -> None:
    """What Redisson does."""
    count = server_state.redis.decr("done")
    if count <= 0:
        server_state.redis.delete("done")
    if count == 0:
        server_state.redis.publish(CHANNEL, "0")


@pytest.fixture
def sha(server: Server) -> Callable[[str], bytes]:
    """What to look for in a request."""
    return lambda name: script(name, with_shebang=server.version >= (7,)).sha


async def test_what_is_ours_on_the_server_ends(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    latch = client.get_count_down_latch("done")
    await latch.try_set_count(2)
    await latch.count_down()
    [ours] = [key for key in server_state.redis.keys("*") if key != b"done"]
    assert ours == f"pyredisson_once:{{done}}:{client.id}:0:latch".encode()
    assert 600 < server_state.redis.ttl(ours) <= 660


class TestCount:
    async def test_to_zero(self, backend: Backend, server_state: ServerState) -> None:
        latch = backend.connect().get_count_down_latch("done")
        assert await latch.get_count() == 0
        assert await latch.try_set_count(2) is True
        assert await latch.try_set_count(3) is False
        assert server_state.redis.get("done") == b"2"
        assert server_state.redis.ttl("done") == -1
        await latch.count_down()
        assert await latch.get_count() == 1
        await latch.count_down()
        assert await latch.get_count() == 0
        assert not server_state.redis.exists("done")
        assert await latch.try_set_count(3) is True

    async def test_an_open_one_stays_open(self, backend: Backend, server_state: ServerState) -> None:
        latch = backend.connect().get_count_down_latch("done")
        await latch.count_down()
        assert await latch.get_count() == 0
        assert not server_state.redis.exists("done")

    async def test_a_count_of_zero_leaves_no_key(self, backend: Backend, server_state: ServerState) -> None:
        latch = backend.connect().get_count_down_latch("done")
        assert await latch.try_set_count(0) is True
        assert server_state.redis.keys() == []
        await latch.try_set_count(1)
        assert await latch.try_set_count(0) is False
        assert server_state.redis.get("done") == b"1"

    async def test_what_others_left_at_zero(self, backend: Backend, server_state: ServerState) -> None:
        """A plain DECR doesn't remove the key."""
        latch = backend.connect().get_count_down_latch("done")
        server_state.redis.set("done", 0)
        assert await latch.get_count() == 0
        assert await latch.wait(0) is True
        assert await latch.try_set_count(0) is True
        assert await latch.try_set_count(2) is True
        assert server_state.redis.get("done") == b"2"

    async def test_delete(self, backend: Backend, server_state: ServerState) -> None:
        latch = backend.connect().get_count_down_latch("done")
        assert await latch.delete() is False
        await latch.try_set_count(2)
        assert await latch.delete() is True
        assert not server_state.redis.exists("done")
        assert await latch.get_count() == 0

    async def test_the_largest(self, backend: Backend) -> None:
        latch = backend.connect().get_count_down_latch("done")
        assert await latch.try_set_count(2**63 - 1)
        await latch.count_down()
        assert await latch.get_count() == 2**63 - 2

    async def test_handles_of_one_name(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect(name_mapper=lambda name: f"app:{name}")
        one, two = client.get_count_down_latch("done"), client.get_count_down_latch(b"done")
        await one.try_set_count(2)
        await two.count_down()
        assert await one.get_count() == 1
        assert (one.name, two.name) == ("done", b"done")
        assert "app:done" in repr(one)
        assert server_state.redis.get("app:done") == b"1"

    async def test_messages_to_java(self, backend: Backend, server_state: ServerState) -> None:
        """`1` before anyone waits for a new count, `0` at zero and never before."""
        latch = backend.connect().get_count_down_latch("done")
        with server_state.redis.pubsub() as ear:
            ear.subscribe(CHANNEL)
            assert ear.get_message(timeout=5)["type"] == "subscribe"
            await latch.count_down()
            await latch.try_set_count(2)
            await latch.try_set_count(3)
            await latch.count_down()
            await latch.count_down()
            await latch.count_down()
            await latch.try_set_count(1)
            await latch.delete()
            await latch.delete()
            assert [ear.get_message(timeout=5)["data"] for _ in range(4)] == [b"1", b"0", b"1", b"1"]
            assert ear.get_message(timeout=0.05) is None


class TestArguments:
    @pytest.mark.parametrize("count", [-1, 2**63])
    async def test_counts_that_cannot_be(self, backend: Backend, count: int) -> None:
        with pytest.raises(ValueError, match="count"):
            await backend.connect(NOWHERE).get_count_down_latch("done").try_set_count(count)

    @pytest.mark.parametrize("count", [True, 1.0, "1", None])
    async def test_counts_of_other_types(self, backend: Backend, count: Any) -> None:
        with pytest.raises(TypeError, match="count"):
            await backend.connect(NOWHERE).get_count_down_latch("done").try_set_count(count)

    @pytest.mark.parametrize(
        ("wait", "error"),
        [(-1, ValueError), (math.nan, ValueError), (timedelta(-1), ValueError), ("1", TypeError), (True, TypeError)],
    )
    async def test_waits_that_cannot_be(self, backend: Backend, wait: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="timeout"):
            await backend.connect(NOWHERE).get_count_down_latch("done").wait(wait)

    async def test_names_that_cannot_be(self, backend: Backend) -> None:
        with pytest.raises(ValueError, match="name"):
            backend.connect(NOWHERE).get_count_down_latch("")


class TestWaiting:
    async def test_an_open_one(self, backend: Backend, server_state: ServerState) -> None:
        latch = backend.connect().get_count_down_latch("done")
        before = gets(server_state)
        assert await latch.wait() is True
        assert await latch.wait(0) is True
        assert await latch.wait(math.inf) is True
        assert gets(server_state) == before + 3
        assert listeners(server_state) == 0

    async def test_not_in_time(self, backend: Backend) -> None:
        latch = backend.connect().get_count_down_latch("done")
        await latch.try_set_count(1)
        assert await latch.wait(0) is False
        started = time.monotonic()
        assert await latch.wait(timedelta(seconds=0.2)) is False
        assert 0.2 <= time.monotonic() - started < WOKEN

    @pytest.mark.parametrize("timeout", [None, 30])
    async def test_all_go_on_at_zero(self, backend: Backend, server_state: ServerState, timeout: float | None) -> None:
        clients = [backend.connect() for _ in range(2)]
        latch = backend.connect().get_count_down_latch("done")
        await latch.try_set_count(2)

        def waiter(client: pyredisson.asyncio.Client) -> Callable[[], Awaitable[bool]]:
            return lambda: client.get_count_down_latch("done").wait(timeout)

        others = [backend.spawn(waiter(clients[number % 2])) for number in range(6)]
        await backend.until(lambda: listeners(server_state) == 2)
        await latch.count_down()
        await backend.sleep(0.05)
        assert not any(other.done() for other in others)
        opened = time.monotonic()
        await latch.count_down()
        assert [await other.result() for other in others] == [True] * 6
        assert time.monotonic() - opened < WOKEN

    async def test_all_go_on_when_it_is_deleted(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        latch = client.get_count_down_latch("done")
        await latch.try_set_count(2)
        others = [backend.spawn(client.get_count_down_latch("done").wait) for _ in range(3)]
        await backend.until(lambda: listeners(server_state) == 1)
        await backend.connect().get_count_down_latch("done").delete()
        assert [await other.result() for other in others] == [True] * 3

    async def test_java_counts_down_and_is_counted_for(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.set("done", 3)
        latch = backend.connect().get_count_down_latch("done")
        other = backend.spawn(latch.wait)
        await backend.until(lambda: listeners(server_state) == 1)
        java_count_down(server_state)
        await latch.count_down()
        java_count_down(server_state)
        assert await other.result() is True

    async def test_a_name_with_braces(self, backend: Backend, server_state: ServerState) -> None:
        """Redisson adds its own all the same."""
        server_state.redis.set("{t}done", 1)
        other = backend.spawn(backend.connect().get_count_down_latch("{t}done").wait)
        channel = "redisson_countdownlatch__channel__{{t}done}"
        await backend.until(lambda: server_state.redis.pubsub_numsub(channel)[0][1] == 1)
        await backend.connect().get_count_down_latch("{t}done").count_down()
        assert await other.result() is True

    async def test_a_message_too_early_opens_nothing(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.set("done", 1)
        other = backend.spawn(backend.connect().get_count_down_latch("done").wait)
        await backend.until(lambda: listeners(server_state) == 1)
        for payload in ("0", "1", "2", "", "x"):
            server_state.redis.publish(CHANNEL, payload)
        await backend.sleep(0.1)
        assert not other.done()
        java_count_down(server_state)
        assert await other.result() is True

    async def test_a_message_that_was_lost(
        self, backend: Backend, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logic, "LONGEST_WAIT", 0.1)
        server_state.redis.set("done", 1)
        other = backend.spawn(backend.connect().get_count_down_latch("done").wait)
        await backend.until(lambda: listeners(server_state) == 1)
        server_state.redis.delete("done")
        assert await other.result() is True

    async def test_nothing_is_asked_while_waiting(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.set("done", 1)
        before = gets(server_state) + 2
        other = backend.spawn(backend.connect().get_count_down_latch("done").wait)
        # One look, and one more when messages were sure to arrive; then silence.
        await backend.until(lambda: gets(server_state) == before)
        await backend.sleep(0.3)
        assert gets(server_state) == before
        java_count_down(server_state)
        await other.result()
        assert gets(server_state) == before + 1

    async def test_closed_while_waiting(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.set("done", 1)
        client = backend.connect()
        latch = client.get_count_down_latch("done")
        other = backend.spawn(latch.wait)
        await backend.until(lambda: listeners(server_state) == 1)
        await client.close()
        with pytest.raises(pyredisson.ClosedError):
            await other.result()
        calls: list[Callable[[], Awaitable[object]]] = [
            latch.wait,
            latch.count_down,
            latch.get_count,
            latch.delete,
            lambda: latch.try_set_count(0),
            lambda: latch.try_set_count(1),
        ]
        for call in calls:
            with pytest.raises(pyredisson.ClosedError):
                await call()

    async def test_a_cancelled_wait_leaves_no_waiter(self, tasks: Backend, server_state: ServerState) -> None:
        server_state.redis.set("done", 1)
        client = tasks.connect()
        waiting = asyncio.ensure_future(client.get_count_down_latch("done").wait())
        await tasks.until(lambda: listeners(server_state) == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not any(channel.waiters for channel in client._session.channels.by_name.values())


def gets(server_state: ServerState) -> int:
    return int(server_state.redis.info("commandstats").get("cmdstat_get", {}).get("calls", 0))


class TestDoubt:
    @LOSSES
    async def test_counted_once(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes], lose: Lose
    ) -> None:
        latch = backend.connect(proxy.url, timeout=0.8).get_count_down_latch("done")
        faults = [lose(proxy, sha("latch_set"))]
        assert await latch.try_set_count(4) is True
        for left in (3, 2, 1):
            faults.append(lose(proxy, sha("latch_count_down")))
            await latch.count_down()
            assert await latch.get_count() == left
        faults.append(lose(proxy, sha("exactly_once_delete")))
        assert await latch.delete() is True
        assert all(fault.happened.is_set() for fault in faults)
        assert not server_state.redis.exists("done")

    async def test_a_late_copy_counts_nothing(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes]
    ) -> None:
        latch = backend.connect(proxy.url, timeout=0.8).get_count_down_latch("done")
        await latch.try_set_count(3)
        late = proxy.hold_request(sha("latch_count_down"))
        await latch.count_down()
        assert late.held.is_set()
        with pytest.raises(OSError, match="closed the connection"):
            await asyncio.to_thread(late.deliver)
        assert await latch.get_count() == 2

    @pytest.mark.parametrize("ran", [True, False])
    async def test_what_failed_is_counted_in_the_background(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes], ran: bool
    ) -> None:
        client = backend.connect(proxy.url, timeout=0.8, retry_attempts=0, lock_watchdog_timeout=3)
        latch = client.get_count_down_latch("done")
        await latch.try_set_count(3)
        lose = proxy.drop_reply if ran else proxy.cut_request
        fault = lose(sha("latch_count_down"), 2)
        with pytest.raises((ConnectionError, TimeoutError)):
            await latch.count_down()
        assert fault.happened.is_set()
        await backend.until(lambda: proxy.seen(sha("latch_count_down")) >= 3)
        await backend.until(lambda: server_state.redis.get("done") == b"2")
        await latch.count_down()
        assert await latch.get_count() == 1

    async def test_cancelled_it_is_counted_all_the_same(self, tasks: Backend, server_state: ServerState) -> None:
        client = tasks.connect()
        latch = client.get_count_down_latch("done")
        await latch.try_set_count(100)
        struck = 0
        for turns in range(1, 8):
            task = asyncio.ensure_future(latch.count_down())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            [outcome] = await asyncio.gather(task, return_exceptions=True)
            struck += isinstance(outcome, asyncio.CancelledError)
            # What was posted came before this.
            assert await latch.get_count() == 100 - turns
        assert struck
