"""The count-down latch: its contract, waiting, Java clients; and calls in doubt, of the semaphore that counts, too."""

import logging
import math
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from redis.exceptions import ConnectionError, TimeoutError

import pyredisson
from pyredisson._protocol.scripts import script
from pyredisson.logic.permits import count_down_latch as logic
from pyredisson.testing import Proxy
from tests.support.backends import WOKEN, Backend, fails, lasting
from tests.support.faults import FLAGS, LOSSES, Lose
from tests.support.server_state import ServerState

from .permits import Stock

CHANNEL = "redisson_countdownlatch__channel__{done}"


class Done:
    """The latch `done`, seen by one client; and what others do to it."""

    def __init__(self, backend: Backend, state: ServerState, address: object = None, **fields: Any) -> None:
        self.backend = backend
        self.redis: Any = state.redis
        self.client: Any = backend.connect(address, **fields)
        self.latch: Any = self.client.get_count_down_latch("done")

    def gets(self) -> int:
        """How often a count was asked for."""
        return int(self.redis.info("commandstats").get("cmdstat_get", {}).get("calls", 0))

    def listeners(self) -> int:
        """How many clients wait."""
        return int(self.redis.pubsub_numsub(CHANNEL)[0][1])

    def java_counts_down(self) -> None:
        """What Redisson does."""
        count = self.redis.decr("done")
        if count <= 0:
            self.redis.delete("done")
        if count == 0:
            self.redis.publish(CHANNEL, "0")


@pytest.fixture
def done(backend: Backend, state: ServerState) -> Done:
    return Done(backend, state)


@pytest.fixture
def latch(done: Done) -> Any:
    return done.latch


class TestCount:
    async def test_to_zero(self, done: Done, latch: Any) -> None:
        assert (await latch.get_count(), await latch.try_set_count(2)) == (0, True)
        for refused in (3, 0):
            assert await latch.try_set_count(refused) is False
        assert done.redis.get("done") == b"2"
        for left in (1, 0, 0):
            await latch.count_down()
            assert await latch.get_count() == left
        # A count of zero is no key.
        assert not done.redis.exists("done")
        assert await latch.try_set_count(0) is True
        assert not done.redis.exists("done")
        # A plain DECR of others leaves the key.
        done.redis.set("done", 0)
        assert (await latch.get_count(), await latch.wait(0), await latch.try_set_count(0)) == (0, True, True)
        assert await latch.try_set_count(2**63 - 1) is True
        await latch.count_down()
        assert (await latch.get_count(), await latch.delete()) == (2**63 - 2, True)
        assert (done.redis.exists("done"), await latch.get_count()) == (False, 0)
        assert await latch.delete() is False


class TestNotCounting:
    async def test_one_that_must_exist(self, done: Done) -> None:
        latch = done.client.get_count_down_latch("done", must_exist=True)
        await fails(pyredisson.NotSetError, latch.wait, match="'done'")
        assert (await latch.try_set_count(1), await latch.wait(0)) == (True, False)
        waiter = await done.backend.begin(latch.wait, done.listeners)
        # Java counts for it, and it for Java.
        done.redis.set("done", 3)
        done.java_counts_down()
        await latch.count_down()
        done.java_counts_down()
        # A caller that waited before is released; a later caller can't know the earlier count.
        assert await waiter.result() is True
        await fails(pyredisson.NotSetError, latch.wait, 1, match="'done'")

    async def test_an_open_one_is_named_once(self, done: Done, latch: Any, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "pyredisson")
        before = done.gets()
        for timeout in (None, 0, math.inf, 10):
            assert await latch.wait(timeout) is True
        assert done.gets() == before + 4
        await done.backend.until(lambda: done.listeners() == 0)
        assert await done.client.get_count_down_latch("other").wait()
        said = [record for record in caplog.records if "latch" in record.getMessage()]
        assert ["'done'" in record.getMessage() for record in said] == [True, False]
        assert {record.levelno for record in said} == {logging.INFO}


class TestWaiting:
    @pytest.mark.parametrize("timeout", [None, 30])
    @pytest.mark.parametrize("way", ["count_down", "delete", "no message"])
    async def test_all_go_on_when_it_opens(
        self, done: Done, latch: Any, monkeypatch: pytest.MonkeyPatch, timeout: float | None, way: str
    ) -> None:
        theirs = [done.backend.connect().get_count_down_latch("done") for _ in range(2)]
        await latch.try_set_count(2)
        [ours] = [key for key in done.redis.keys("*") if key != b"done"]
        assert ours == f"pyredisson_once:{{done}}:{done.client.id}:0:latch".encode()
        assert 600 < done.redis.ttl(ours) <= 660
        assert done.redis.ttl("done") == -1
        if way == "no message":
            monkeypatch.setattr(logic, "LONGEST_WAIT", 0.1)
        others = [done.backend.spawn(partial(one.wait, timeout)) for one in theirs * 3]
        await done.backend.until(lambda: done.listeners() == 2)
        await latch.count_down()
        assert await latch.wait(0) is False
        with lasting(0.2, WOKEN):
            assert await latch.wait(timedelta(seconds=0.2)) is False
        assert not any(other.done() for other in others)
        with lasting(0, WOKEN):
            if way == "no message":
                done.redis.delete("done")
            else:
                await getattr(latch, way)()
            assert [await other.result() for other in others] == [True] * 6

    async def test_nothing_is_asked_while_waiting(self, done: Done) -> None:
        before = done.gets() + 2
        done.redis.set("done", 1)
        other = await done.backend.begin(done.latch.wait, done.listeners)
        # One look, and one more when messages were sure to arrive; then silence.
        await done.backend.until(lambda: done.gets() == before)
        await done.backend.sleep(0.3)
        assert done.gets() == before
        # It looks again after a message, and goes on only if the count is zero.
        for looks, payload in enumerate(("0", "1"), start=before + 1):
            done.redis.publish(CHANNEL, payload)
            await done.backend.until(lambda: done.gets() == looks)  # noqa: B023
        for payload in ("2", "", "x"):
            done.redis.publish(CHANNEL, payload)
        assert not other.done()
        done.java_counts_down()
        assert await other.result() is True
        assert done.gets() == before + 3

    async def test_closed_while_waiting(self, done: Done, latch: Any) -> None:
        done.redis.set("done", 1)
        other = await done.backend.begin(latch.wait, done.listeners)
        await done.client.close()
        await fails(pyredisson.ClosedError, other.result)
        for call, *arguments in (
            *((latch.wait,), (latch.count_down,), (latch.get_count,), (latch.delete,)),
            *((latch.try_set_count, 0), (latch.try_set_count, 1)),
        ):
            await fails(pyredisson.ClosedError, call, *arguments)


COUNT_DOWN, ACQUIRE, UNDO = (
    script(name, with_shebang=FLAGS).sha for name in ("latch_count_down", "semaphore_acquire", "semaphore_undo")
)
COUNTED: dict[str, list[tuple[str, str, list[int], Any, int]]] = {
    "latch": [
        ("latch_set", "try_set_count", [2], True, 2),
        ("latch_count_down", "count_down", [], None, 1),
        ("exactly_once_delete", "delete", [], True, 0),
    ],
    "semaphore": [
        ("semaphore_acquire", "try_acquire", [2], True, 3),
        ("semaphore_acquire", "try_acquire", [2], True, 1),
        ("semaphore_add", "release", [2], None, 3),
        ("semaphore_add", "release", [1], None, 4),
        ("semaphore_add", "release_if_exists", [2], True, 6),
        ("semaphore_add", "add_permits", [3], None, 9),
        ("semaphore_add", "reduce_permits", [1], None, 8),
        ("semaphore_acquire", "drain_permits", [], 8, 0),
        ("exactly_once_delete", "delete", [], True, 0),
        ("semaphore_set", "try_set_permits", [6], True, 6),
        ("semaphore_set", "try_set_permits", [7], False, 6),
    ],
}
"""Scripts, calls that send them, their results, and the count after that."""


@LOSSES
@pytest.mark.parametrize("kind", COUNTED)
async def test_each_call_counts_once(backend: Backend, state: ServerState, proxy: Proxy, lose: Lose, kind: str) -> None:
    client = backend.connect(proxy.url, timeout=0.3)
    counter: Any = client.get_count_down_latch("done") if kind == "latch" else client.get_semaphore("done")
    if kind == "semaphore":
        await counter.try_set_permits(5)
    for name, call, arguments, result, count in COUNTED[kind]:
        fault = lose(proxy, script(name, with_shebang=FLAGS).sha)
        assert await getattr(counter, call)(*arguments) == result, call
        assert (fault.happened.is_set(), int(state.redis.get("done") or 0)) == (True, count), call


@pytest.mark.parametrize("ran", [True, False])
async def test_what_failed_is_counted_in_the_background(
    backend: Backend, state: ServerState, proxy: Proxy, ran: bool
) -> None:
    done = Done(backend, state, proxy.url, timeout=0.8, retry_attempts=0, lock_watchdog_timeout=3)
    await done.latch.try_set_count(3)
    fault = (proxy.drop_reply if ran else proxy.cut_request)(COUNT_DOWN, 2)
    await fails((ConnectionError, TimeoutError), done.latch.count_down)
    assert fault.happened.is_set()
    await backend.until(lambda: proxy.seen(COUNT_DOWN) >= 3)
    await backend.until(lambda: done.redis.get("done") == b"2")
    await done.latch.count_down()
    assert await done.latch.get_count() == 1


async def test_the_server_is_a_new_one(backend: Backend, state: ServerState, proxy: Proxy) -> None:
    """Permits that were never acquired are not released."""
    stock = Stock(backend, state, "semaphore")
    semaphore = await stock.made(5, proxy.url, timeout=0.8, retry_attempts=0, lock_watchdog_timeout=3)
    late = proxy.hold_reply(ACQUIRE)
    other = await backend.begin(lambda: semaphore.try_acquire(2), late.held.is_set)
    stock.redis.flushall()
    stock.redis.set("stock", 5)
    proxy.cut_request(ACQUIRE)
    await fails((ConnectionError, TimeoutError), other.result)
    await backend.until(lambda: proxy.seen(UNDO) > 0)
    await backend.until(lambda: any(b" 0" in stock.redis.get(key) for key in stock.redis.keys("pyredisson_once*")))
    assert stock.free() == 5


async def test_a_long_pause_while_the_outcome_was_in_doubt(
    backend: Backend, state: ServerState, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have forgotten what it did: asked again, it would do it again."""
    monkeypatch.setattr("pyredisson.logic.exactly_once.REMEMBERED", 0.0)
    stock = Stock(backend, state, "semaphore")
    semaphore = await stock.made(5, proxy.url)
    proxy.cut_reply(ACQUIRE)
    await semaphore.acquire(2)
    # It undid the one in doubt, and asked with a new number.
    proxy.wait_for(UNDO)
    await backend.until(lambda: stock.free() == 3)
    assert proxy.seen(ACQUIRE) == 2
