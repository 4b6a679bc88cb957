"""The fair lock: order of arrival, few calls for it; waiters that leave the queue or lose their place, and Java's."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from redis import Redis

from pyredisson import ClosedError
from pyredisson.logic.locks import fair_queue
from pyredisson.testing import Proxy
from tests.lua.fair.scripts import AGE
from tests.support.backends import TIME_LIMIT, Backend, OtherOwner, ServerState, fails, fair_waiters, finished, in_turn
from tests.support.faults import HAND_OVER

from .kinds import CHANNEL, CLIENTS, FAIR, FAIR_KEYS, JAVA, QUEUE, SCORES, WAITERS, left, lock_of, one_waits


class Queue:
    """The queue of the fair lock "orders", as Redisson reads it."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis

    def __len__(self) -> int:
        return int(self.redis.llen(QUEUE))

    def enter(self, *owners: str) -> None:
        """What a Java client does that begins to wait."""
        self.redis.rpush(QUEUE, *owners)
        self.redis.zadd(SCORES, dict.fromkeys(owners, 10**13))

    def leave(self, owner: str) -> None:
        self.redis.lrem(QUEUE, 1, owner)
        self.redis.zrem(SCORES, owner)

    def owners(self) -> list[str]:
        owners = self.redis.lrange(QUEUE, 0, -1)
        assert sorted(owners) == sorted(self.redis.zrange(SCORES, 0, -1))
        return [owner.decode() for owner in owners]

    def heartbeats(self) -> int:
        """How many heartbeats the server has received: only they use this command."""
        return int(self.redis.info("commandstats").get("cmdstat_zremrangebyscore", {"calls": 0})["calls"])

    def scripts(self) -> int:
        """How many scripts have run, without heartbeats: their number depends on time only."""
        while True:
            heartbeats = self.heartbeats()
            scripts = ServerState(self.redis).scripts()
            if self.heartbeats() == heartbeats:
                return scripts - heartbeats


async def start_waiter(backend: Backend, queue: Queue, work: Callable[[], Awaitable[Any]]) -> OtherOwner[Any]:
    """Starts another owner that waits for the lock, and returns when it is the last in the queue."""
    before = len(queue)
    return await backend.begin(work, lambda: len(queue) == before + 1)


async def start_waiters(
    backend: Backend, queue: Queue, clients: list[Any], count: int, kinds: Sequence[str] = ("fair",)
) -> tuple[list[OtherOwner[None]], list[int]]:
    """So many owners of these clients in turn that enter the queue one after the other, and leave the lock at once.

    Returns their calls, and the list to which each appends its number when it has the lock.
    """
    served: list[int] = []

    async def wait(number: int) -> None:
        async with lock_of(clients[number % len(clients)], kinds[number % len(kinds)]):
            served.append(number)

    return [await start_waiter(backend, queue, partial(wait, number)) for number in range(count)], served


@pytest.fixture
def queue(admin: Redis) -> Queue:
    return Queue(admin)


@pytest.mark.parametrize("turns", [[0, 1] * 6, [0, 0, 1, 0, 1, 1, 1, 0], [1, 1, 0, 1, 0, 0, 0, 1]])
async def test_first_come_first_served(backend: Backend, queue: Queue, turns: list[int]) -> None:
    """However the waiters of two clients come one after the other; locks of both kinds share the queue."""
    clients = [backend.connect(), backend.connect()]
    async with clients[0].get_fair_lock("orders", owner=1):
        others, served = await start_waiters(backend, queue, [clients[turn] for turn in turns], len(turns), FAIR)
    await finished(others)
    assert (served, left(queue.redis)) == (list(range(len(turns))), set())


@pytest.mark.parametrize("seconds", [0.01, 0])
async def test_scripts_for_a_hand_off(backend: Backend, queue: Queue, seconds: float) -> None:
    """A second wait needs no new subscription: it need not look again. For many waiters: `test_many_turns`."""
    client = backend.connect(local_hand_over_time=seconds)
    holder, lock = client.get_fair_lock("orders", owner=1), client.get_fair_lock("orders", owner=2)
    for attempts in (2, 1):
        await holder.lock()
        before = queue.scripts()
        other = await start_waiter(backend, queue, lock.lock)
        await backend.until(lambda: queue.scripts() >= before + attempts)  # noqa: B023
        await backend.sleep(0.05)
        assert queue.scripts() == before + attempts
        await in_turn((holder.unlock, other.result, lock.unlock))
        assert queue.scripts() == before + attempts + (2 if seconds else 3)


SPOILED: dict[str, tuple[Callable[[Queue], object], Sequence[int]]] = {
    "everything is gone": (lambda queue: queue.redis.flushall(), ()),
    "the queue is gone": (lambda queue: queue.redis.delete(QUEUE), ()),
    "the times are gone": (lambda queue: queue.redis.delete(SCORES), ()),
    "our own keys are gone": (lambda queue: queue.redis.delete(WAITERS), range(8)),
    "a step of the clock": (lambda queue: queue.redis.eval(AGE, len(FAIR_KEYS), *FAIR_KEYS, 3_600_000), range(8)),
    # As by a Java client whose clock is ahead.
    "two were evicted": (lambda queue: list(map(queue.leave, queue.owners()[:2])), range(2, 8)),
    "deleted as by java": (lambda queue: queue.redis.delete(*FAIR_KEYS[:3]), ()),
}
"""What is done to a queue of eight waiters, and which of them are the first ones after that, in this order."""
OFTEN = 0.05
"""Seconds between two heartbeats, for which the test waits."""
FREED = ("everything is gone", "deleted as by java")
"""What frees the lock, too. No message is published: heartbeats notify the waiters."""


@pytest.mark.parametrize("what", SPOILED)
async def test_the_queue_is_spoilt(backend: Backend, queue: Queue, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """By Java, an operator or the server's clock. Everybody is served, and in order where the server still knows it."""
    monkeypatch.setattr(fair_queue, "HEARTBEAT_INTERVAL", OFTEN)
    spoil, first = SPOILED[what]
    queue.redis.hset("orders", "somebody:1", 1)
    clients = [backend.connect(), backend.connect()]
    others, served = await start_waiters(backend, queue, clients, 8)
    # The last acquire of each, behind its subscription, would enter the spoilt queue.
    await backend.until(lambda: all(fair_waiters(client, "orders") == 4 for client in clients))
    await backend.until(lambda: queue.redis.zcard(CLIENTS) == 2)
    owners = queue.owners()
    spoil(queue)
    if what not in FREED:
        before = queue.heartbeats()
        await backend.until(lambda: queue.heartbeats() >= before + 4 and len(queue) == 8)
        assert queue.owners()[: len(first)] == [owners[number] for number in first]
        queue.redis.delete("orders")
    await finished(others)
    assert (sorted(served), served[: len(first)]) == (list(range(8)), list(first))
    await backend.until(lambda: left(queue.redis) <= ({WAITERS} if what != "everything is gone" else set()))


@pytest.mark.parametrize("way", ["unlock", "force_unlock"])
async def test_more_dead_waiters_than_one_call_drops(backend: Backend, queue: Queue, way: str) -> None:
    """A try gets the lock behind them. Its release notifies the waiter behind them, though nobody else is there."""
    dead = [f"0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55:{number}" for number in range(900)]

    def die() -> None:
        queue.enter(*dead)
        queue.redis.hset(WAITERS, mapping=dict.fromkeys(dead, 1))

    die()
    before = queue.scripts()
    lock = backend.connect().get_fair_lock("orders")
    assert await lock.try_lock()
    assert queue.scripts() >= before + 4
    die()
    queue.enter(JAVA)
    with queue.redis.pubsub(ignore_subscribe_messages=True) as ear:
        ear.subscribe(f"{CHANNEL}:{JAVA}")
        assert ear.get_message(timeout=TIME_LIMIT) is None
        await getattr(lock, way)()
        await backend.until(lambda: (message := ear.get_message()) and message["data"] == b"0")
    assert queue.owners() == [JAVA]


async def test_waiters_of_a_closed_client_leave_in_one_call(backend: Backend, queue: Queue) -> None:
    client, other = backend.connect(), backend.connect()
    holder, behind = (other.get_fair_lock("orders", owner=owner) for owner in (1, 2))
    before = queue.scripts()
    await holder.lock()
    waiting = [await start_waiter(backend, queue, client.get_fair_lock("orders", owner=each).lock) for each in range(3)]
    last = await start_waiter(backend, queue, behind.lock)
    # All have sent an acquire, and another one after their subscription was confirmed.
    await backend.until(lambda: queue.scripts() == before + 9)
    await client.close()
    for waiter in waiting:
        await fails(ClosedError, waiter.result)
    assert queue.scripts() == before + 10
    [owner] = queue.owners()
    assert owner.startswith(other.id)
    await in_turn((holder.unlock, last.result, behind.unlock))
    assert left(queue.redis) <= {WAITERS}


class TestHandingOn:
    """Inside one client, while other waiters are in the queue."""

    async def test_a_refused_waiter_keeps_its_place_without_an_attempt(self, backend: Backend, queue: Queue) -> None:
        """Another client's waiter came first."""
        client, another = backend.connect(), backend.connect()
        holder, theirs, first = await one_waits(backend, client, "fair", another)
        second = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=3).lock)
        await backend.until(lambda: fair_waiters(client, "orders") == 1)
        [_, place] = queue.owners()
        asked_at = queue.redis.hget(WAITERS, place)
        await holder.unlock()
        await first.result()
        await backend.sleep(0.1)
        assert (queue.owners(), queue.redis.hget(WAITERS, place)) == ([place], asked_at)
        await theirs.unlock()
        await second.result()

    @pytest.mark.parametrize("what", ["a dead waiter before it", "its place was lost", "it was spoilt"])
    async def test_a_queue_that_has_changed(self, backend: Backend, queue: Queue, what: str) -> None:
        """The dead waiter is dropped by the same call. A waiter without a place enters the queue again."""
        holder, waiter, other = await one_waits(backend, backend.connect(), "fair")
        before, dead = queue.scripts(), what == "a dead waiter before it"
        if dead:
            queue.redis.lpush(QUEUE, "dead:1")
            queue.redis.zadd(SCORES, {"dead:1": 1})
        else:
            queue.redis.delete(QUEUE, SCORES)
        if what == "it was spoilt":
            queue.redis.set(QUEUE, "text")
            # As the server refuses the script, the lock is released as without a waiter.
            await fails(Exception, holder.unlock, match="WRONGTYPE")
            queue.redis.delete(QUEUE)
        else:
            await holder.unlock()
        await other.result()
        # A first call of the script is sent twice.
        assert not dead or queue.scripts() - before <= 2
        await waiter.unlock()
        await backend.until(lambda: left(queue.redis) <= (set() if dead else {WAITERS}))

    async def test_a_slow_command_costs_no_place(self, threads: Backend, proxy: Proxy, queue: Queue) -> None:
        """The only waiter of its client goes on with its heartbeats. (Tasks send them behind that command.)"""
        client, another = threads.connect(proxy.url, timeout=TIME_LIMIT), threads.connect()
        holder, waiter, other = await one_waits(threads, client, "fair")
        theirs = another.get_fair_lock("orders", owner=3)
        last = await start_waiter(threads, queue, theirs.lock)
        places = queue.owners()
        slow = proxy.hold_request(HAND_OVER["fair"])
        releasing = await threads.begin(holder.unlock, slow.held.is_set)
        await threads.until(lambda: queue.redis.zscore(CLIENTS, another.id))
        begun = queue.redis.zscore(CLIENTS, another.id)
        # In ms, on the server's clock. A client counts as alive for 1.5 s after a heartbeat.
        await threads.until(lambda: (queue.redis.zscore(CLIENTS, another.id) or 0) > begun + 2500)
        assert queue.owners() == places
        slow.deliver()
        await finished([releasing, other])
        assert (last.done(), list(ServerState(queue.redis).holds("orders"))) == (False, places[:1])
        await in_turn((waiter.unlock, last.result, theirs.unlock))
