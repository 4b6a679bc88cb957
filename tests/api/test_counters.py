"""Waiting for permits, also beside Java, and claims; the latch; and calls of both in doubt: each counts once."""

import logging
import math
import time
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

import pyredisson
from pyredisson.logic.exactly_once import SessionSlots
from pyredisson.logic.permits import count_down_latch, permit_wait
from pyredisson.logic.permits.semaphore import SemaphoreLogic
from pyredisson.testing import Proxy, Server
from tests.support.backends import TIME_LIMIT, WOKEN, Backend, ServerState, fails, finished, within
from tests.support.faults import LOSSES, InterruptAt, Lose, sha

from .kinds import ID, PERMIT_CHANNEL, PERMIT_CLAIM, PERMIT_TURN, PERMITS, Permits, Stock

OFTEN = 0.1
OTHERS_TURN = 5_000
ONE_BY_ONE = [ID[:-1] + str(number) for number in range(3)]
expirable = pytest.mark.parametrize("stock", ["permit"], indirect=True)


@pytest.fixture(autouse=True)
def only_messages_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Usually a waiter makes an attempt every five seconds, also if it misses a message."""
    monkeypatch.setattr(permit_wait, "LONGEST_WAIT", 60)


@pytest.mark.parametrize(
    ("stock", "call"),
    [*product(PERMITS, ("try_set_permits", "add_permits", "release")), ("permit", "set_permits")],
    indirect=["stock"],
)
async def test_every_way_to_add_permits_wakes_waiters_of_other_clients(stock: Stock, call: str) -> None:
    """Also those who wait for a semaphore that isn't there, or was deleted meanwhile."""
    holder = stock.open()
    added: Any = 3
    if call == "release":
        await holder.try_set_permits(3)
        added = await holder.acquire(3)
    other = await stock.waiter(stock.open())
    if call == "try_set_permits":
        stock.redis.set("stock", 0)
        assert await holder.delete()
    await getattr(holder, call)(added)
    assert (bool(await other.result()), stock.free()) == (True, 2)


async def test_the_time_to_wait(stock: Stock) -> None:
    semaphore = await stock.made(2)
    with within(WOKEN, least=0.2):
        assert not await semaphore.try_acquire(3, 0.2)
    assert (stock.free(), stock.used()) == (2, set())
    # Giving up left nothing to be undone.
    assert not stock.redis.keys("pyredisson_permit*")
    other = await stock.backend.begin(lambda: semaphore.try_acquire(3, timedelta(seconds=30)), stock.is_heard)
    stock.java_adds(1)
    assert await other.result()


@pytest.mark.parametrize(("stock", "messages"), [("semaphore", 1), ("semaphore", 4), ("permit", 1)], indirect=["stock"])
async def test_messages_wake_as_many_as_there_are_permits(stock: Stock, messages: int) -> None:
    """One message says that four permits are free; or four in a row say how many there are: 1, 2, 3, 4."""
    semaphore = stock.open()
    others = [await stock.waiter(semaphore) for _ in range(12)]
    before = stock.scripts()
    with stock.redis.pipeline(transaction=True) as together:
        for number in range(1, messages + 1):
            together.incrby("stock", 4 // messages)
            together.publish(PERMIT_CHANNEL, number * (4 // messages))
        together.execute()
    await stock.backend.until(lambda: sum(other.done() for other in others) == 4)
    # One more, which enters the others in the list. On a busy machine some look again after a quarter of a second.
    assert stock.scripts() <= before + 5 + 3
    stock.java_adds(8)
    await finished(others)
    assert stock.free() == 0


@pytest.mark.parametrize(("wait", "longest"), [(None, OFTEN), (30, OFTEN), (1, 60)])
async def test_a_message_that_was_lost(stock: Stock, monkeypatch: Any, wait: float | None, longest: float) -> None:
    """A waiter makes an attempt from time to time, and when its time is over."""
    monkeypatch.setattr(permit_wait, "LONGEST_WAIT", longest)
    semaphore = stock.open()
    call = semaphore.acquire if wait is None else partial(semaphore.try_acquire, 1, wait)
    other = await stock.backend.begin(call, stock.is_heard)
    stock.redis.incrby("stock", 1)
    await other.result()
    assert stock.free() == 0


@expirable
async def test_a_holder_that_died_frees_its_permit_when_the_lease_ends(stock: Stock) -> None:
    stock.redis.set("stock", 1)
    semaphore, before, started = stock.open(), stock.scripts(), time.monotonic()
    stock.java_acquires(ID, 2)
    assert set(await semaphore.try_acquire(1, 30)) == stock.used()
    assert 1.9 < time.monotonic() - started < 2 + WOKEN
    # One try, one when messages were sure to arrive, and one that had it.
    assert stock.scripts() == before + 3


@expirable
async def test_java_releases_by_id(stock: Stock) -> None:
    """Of several it publishes only their number, and not how many are free."""
    stock.redis.set("stock", 4)
    for permit in ONE_BY_ONE:
        stock.java_acquires(permit, 600)
    semaphore = stock.open()
    other, before = await stock.waiter(semaphore, 3), stock.scripts()
    stock.java_releases(*ONE_BY_ONE[:2])
    permits = await other.result()
    assert (len(permits), stock.scripts()) == (3, before + 1)
    other = await stock.waiter(semaphore)
    stock.java_releases(ONE_BY_ONE[2])
    permits += await other.result()
    assert stock.used() == set(permits)


async def test_java_wakes_one_after_the_other(stock: Stock) -> None:
    """The first one hears Java's message. Each one that has come wakes the next one, as long as permits are free."""
    await (await stock.made(1)).acquire()
    listed = partial(stock.redis.zcard, "pyredisson_waiting:{stock}")
    leaver = await stock.backend.begin(partial(stock.open().try_acquire, 1, 1), lambda: listed() == 1)
    others = [await stock.waiter(stock.open()) for _ in range(6)]
    # The second one hears Java when the first one has left.
    assert not await leaver.result()
    await stock.backend.until(lambda: listed() == 6)
    for number in range(3):
        stock.java_adds(1)
        await stock.backend.until(lambda: sum(other.done() for other in others) == number + 1)  # noqa: B023
    stock.java_adds(3)
    await finished(others)
    assert stock.free() == 0


async def take(semaphore: Permits, permits: int) -> None:
    taken = await semaphore.try_acquire(permits, TIME_LIMIT)
    assert taken
    await semaphore.release(taken)


async def test_a_claim_begins_after_a_second(stock: Stock) -> None:
    began = time.monotonic()
    # For permits that there will never be.
    waiter = stock.backend.spawn(partial((await stock.made(3)).try_acquire, 9, 2))
    await stock.claimed()
    assert time.monotonic() - began >= 1
    assert 0 < stock.redis.pttl(PERMIT_CLAIM) <= 2_000
    assert OTHERS_TURN < stock.redis.pttl(PERMIT_TURN) <= 5_000 + OTHERS_TURN
    # Also callers without time to wait: otherwise a caller that asks again and again would get all permits.
    assert not any([await stock.open().try_acquire(1), await waiter.result()])
    await stock.backend.until(lambda: not stock.redis.exists(PERMIT_CLAIM))
    assert await stock.open().try_acquire(3)


class TestClaims:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They begin after a fifth of their usual time."""
        monkeypatch.setattr(permit_wait, "CLAIM_DELAY", 0.2)

    @pytest.mark.parametrize("clients", ["the same client", "other clients"])
    async def test_a_waiter_for_several_permits_succeeds_beside_single_ones(self, stock: Stock, clients: str) -> None:
        """However long the callers of its own client may hand permits on; and several of them, one after the other."""
        large = await stock.made(4, local_hand_over_time=60)
        semaphores = [large] if clients == "the same client" else [stock.open(), stock.open()]
        stop, rounds, inside = False, [0] * 12, list[int]()

        async def single(number: int) -> None:
            """So that all four are never free at once."""
            semaphore = semaphores[number % len(semaphores)]
            while not stop:
                taken = await semaphore.try_acquire(1, TIME_LIMIT)
                assert taken
                inside.append(number)
                assert len(inside) <= 4
                rounds[number] += 1
                await stock.backend.sleep(0.01 + 0.003 * number)
                inside.remove(number)
                await semaphore.release(taken)
                # A caller that releases a permit must not always be the first to ask again.
                await stock.backend.sleep(0.002)

        others = [stock.backend.spawn(partial(single, number)) for number in range(len(rounds))]
        try:
            await stock.backend.until(lambda: min(rounds) > 0)
            await take(large, 4)
            await finished([stock.backend.spawn(partial(take, each, 3)) for each in (large, stock.open(), large)])
            before = list(rounds)
            await stock.backend.until(lambda: all(now > then for now, then in zip(rounds, before, strict=True)))
        finally:
            stop = True
        await finished(others)

    async def test_what_a_claimant_leaves_wakes_others(self, stock: Stock) -> None:
        semaphore, holder = await stock.made(4), stock.open()
        held = await holder.try_acquire(2)
        claimant = stock.backend.spawn(partial(semaphore.try_acquire, 3, TIME_LIMIT))
        await stock.claimed()
        # A claim keeps it out for long.
        single = stock.backend.spawn(partial(stock.open().try_acquire, 1, 4 * TIME_LIMIT))
        await stock.backend.sleep(0.1)
        assert not single.done()
        stock.redis.pexpire(PERMIT_CLAIM, 60_000)
        await holder.release(held)
        assert all([await claimant.result(), await single.result(WOKEN)])

    async def test_a_dead_claimant_holds_up_others_until_its_claim_ends(self, stock: Stock) -> None:
        semaphore = await stock.made(3)
        with within(WOKEN, least=0.2):
            stock.redis.set(PERMIT_CLAIM, "3 dead", px=400)
            assert await semaphore.try_acquire(1, TIME_LIMIT)


LATCH_CHANNEL = "redisson_countdownlatch__channel__{done}"


class Done:
    """The latch `done`, seen by one client; and what others do to it."""

    def __init__(self, backend: Backend, redis: Any, client: Any) -> None:
        self.backend, self.redis, self.client = backend, redis, client
        self.latch: Any = client.get_count_down_latch("done")

    def gets(self) -> int:
        """How often a count was asked for."""
        return int(self.redis.info("commandstats").get("cmdstat_get", {}).get("calls", 0))

    def listeners(self) -> int:
        """How many clients wait."""
        return int(self.redis.pubsub_numsub(LATCH_CHANNEL)[0][1])

    def java_counts_down(self) -> None:
        count = self.redis.decr("done")
        if count <= 0:
            self.redis.delete("done")
        if count == 0:
            self.redis.publish(LATCH_CHANNEL, "0")


@pytest.fixture
def done(backend: Backend, redis: Any, client: Any) -> Done:
    return Done(backend, redis, client)


class TestLatch:
    async def test_to_zero(self, done: Done) -> None:
        latch = done.latch
        assert (await latch.get_count(), await latch.try_set_count(2)) == (0, True)
        for refused in (3, 0):
            assert await latch.try_set_count(refused) is False
        assert done.redis.get("done") == b"2"
        for left in (1, 0, 0):
            await latch.count_down()
            assert await latch.get_count() == left
        # A count of zero is no key.
        assert not done.redis.exists("done")
        assert (await latch.try_set_count(0), done.redis.exists("done")) == (True, 0)
        # A plain DECR of others leaves the key.
        done.redis.set("done", 0)
        assert (await latch.get_count(), await latch.wait(0), await latch.try_set_count(0)) == (0, True, True)
        assert await latch.try_set_count(2**63 - 1) is True
        await latch.count_down()
        assert (await latch.get_count(), await latch.delete()) == (2**63 - 2, True)
        assert (done.redis.exists("done"), await latch.get_count()) == (False, 0)
        assert await latch.delete() is False

    async def test_a_key_with_something_else(self, done: Done) -> None:
        """What only reads it says the same as what writes it."""
        fenced = done.client.get_fenced_lock("stock")
        for key in ("done", "redisson_lock_token:{stock}"):
            done.redis.set(key, "text")
        permits = done.client.get_semaphore("done").available_permits
        for call in (done.latch.count_down, done.latch.get_count, done.latch.wait, permits, fenced.get_token):
            await fails(ResponseError, call, match="value is not an integer or out of range")

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

    async def test_an_open_one_is_named_once(self, done: Done, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "pyredisson")
        before = done.gets()
        for timeout in (None, 0, math.inf, 10):
            assert await done.latch.wait(timeout) is True
        assert done.gets() == before + 4
        await done.backend.until(lambda: done.listeners() == 0)
        assert await done.client.get_count_down_latch("other").wait()
        said = [(record.getMessage(), record.levelno) for record in caplog.records if "latch" in record.getMessage()]
        assert [("'done'" in text, level) for text, level in said] == [(True, logging.INFO), (False, logging.INFO)]

    @pytest.mark.parametrize("timeout", [None, 30])
    @pytest.mark.parametrize("way", ["count_down", "delete", "no message"])
    async def test_all_go_on(self, done: Done, monkeypatch: Any, timeout: float | None, way: str) -> None:
        theirs = [done.backend.connect().get_count_down_latch("done") for _ in range(2)]
        await done.latch.try_set_count(2)
        [ours] = [key for key in done.redis.keys("*") if key != b"done"]
        assert ours == f"pyredisson_once:{{done}}:{done.client.id}:0:latch".encode()
        assert (600 < done.redis.ttl(ours) <= 660, done.redis.ttl("done")) == (True, -1)
        if way == "no message":
            monkeypatch.setattr(count_down_latch, "LONGEST_WAIT", 0.1)
        others = [done.backend.spawn(partial(one.wait, timeout)) for one in theirs * 3]
        await done.backend.until(lambda: done.listeners() == 2)
        await done.latch.count_down()
        assert await done.latch.wait(0) is False
        with within(WOKEN, least=0.2):
            assert await done.latch.wait(timedelta(seconds=0.2)) is False
        assert not any(other.done() for other in others)
        with within(WOKEN):
            if way == "no message":
                done.redis.delete("done")
            else:
                await getattr(done.latch, way)()
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
            done.redis.publish(LATCH_CHANNEL, payload)
            await done.backend.until(lambda: done.gets() == looks)  # noqa: B023
        for payload in ("2", "", "x"):
            done.redis.publish(LATCH_CHANNEL, payload)
        assert not other.done()
        done.java_counts_down()
        assert (await other.result(), done.gets()) == (True, before + 3)


ACQUIRE, UNDO = (sha(f"semaphore_{name}") for name in ("acquire", "finish"))
COUNTED: dict[str, list[tuple[str, str, list[int], Any, int]]] = {
    "latch": [
        *(("latch_set", "try_set_count", [2], True, 2), ("latch_count_down", "count_down", [], None, 1)),
        ("exactly_once_delete", "delete", [], True, 0),
    ],
    "semaphore": [
        *(("semaphore_acquire", "try_acquire", [2], True, count) for count in (3, 1)),
        *(("semaphore_add", "release", [2], None, 3), ("semaphore_add", "release", [1], None, 4)),
        *(("semaphore_add", "release_if_exists", [2], True, 6), ("semaphore_add", "add_permits", [3], None, 9)),
        *(("semaphore_add", "reduce_permits", [1], None, 8), ("semaphore_acquire", "drain_permits", [], 8, 0)),
        ("exactly_once_delete", "delete", [], True, 0),
        *(("semaphore_set", "try_set_permits", [permits], permits == 6, 6) for permits in (6, 7)),
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
        fault = lose(proxy, sha(name))
        assert await getattr(counter, call)(*arguments) == result, call
        assert (fault.happened.is_set(), int(state.redis.get("done") or 0)) == (True, count), call


@pytest.mark.parametrize("step", [SemaphoreLogic.release, SessionSlots.send])
def test_an_interrupted_release_counts_once(server: Server, redis: Any, step: Any) -> None:
    with pyredisson.connect(server.url) as client:
        semaphore = client.get_semaphore("stock")
        semaphore.add_permits(2)
        with pytest.raises(KeyboardInterrupt), InterruptAt(step):
            semaphore.release()
    assert redis.get("stock") == b"3"


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


async def test_a_long_pause_in_doubt(backend: Backend, state: ServerState, proxy: Proxy, monkeypatch: Any) -> None:
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
