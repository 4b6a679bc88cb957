"""Waiting for a lock: a message or the end of a lease wakes, and costs one call. Many clients of locks and permits."""

import time
from functools import partial
from typing import Any

import pytest

from pyredisson import ClosedError
from pyredisson.testing import Proxy
from tests.support.backends import WOKEN, WORK_LIMIT, Backend, OtherOwner, ServerState, finished, waiters, within
from tests.support.faults import sha
from tests.support.inspecting import session_of
from tests.support.kinds import KINDS

from .kinds import BY_TIME, CHANNEL, LONG, PERMITS, Orders, held, listening, rival_of, set_permits, take, turn_of, whole

WAITING, CHOSEN = "pyredisson_waiting:{orders}", "pyredisson_woken:{orders}"
"""The list of the clients that wait, and those of them whose turn it is."""
WAITERS, MESSAGES, ROUNDS, TURNS = 8, 10, 20, 8
CALLS, MESSAGES_EACH = 3.2, 2.0
"""The most for one acquisition, the former with one caller in each client, however many clients there are."""
HOLD = FAR = 0.02
"""Seconds of a hold, and seconds that a far client's commands take, and its replies."""
LATE = 4.0
"""Seconds, in place of half a second; less than a lease, and than the five after which a waiter for permits asks."""


def hold_elsewhere(state: ServerState, lease: int | None = None) -> None:
    """Another client holds the lock, for so many milliseconds or without an end."""
    state.redis.hset("orders", "another client:1", 1)
    if lease is not None:
        state.redis.pexpire("orders", lease)


def all_sleep(client: Any, count: int) -> bool:
    """Whether so many calls wait, and all of them sleep."""
    queue = session_of(client).lock_queues.get(b"orders")
    return queue is not None and len(list(queue.waiters)) == waiters(client, "orders") == count


async def start_waiters(backend: Backend, client: Any, count: int, present: int = 0) -> list[OtherOwner[float]]:
    """So many waiters, beside those that are `present`."""
    others = [backend.spawn(lambda: take(client.get_lock("orders"))) for _ in range(count)]
    await backend.until(lambda: all_sleep(client, present + count))
    return others


class TestCalls:
    @pytest.mark.parametrize("kind", ["lock", "read", *PERMITS])
    async def test_none_while_waiting(self, backend: Backend, client: Any, state: ServerState, kind: str) -> None:
        holder = await held(client, rival_of(kind))
        before = state.scripts()
        other = backend.spawn(partial(take, turn_of(client, kind)))
        # One try, and one more when messages were sure to arrive; then silence.
        await backend.until(lambda: state.scripts() == before + 2)
        # Messages that are no release of this one.
        channel = {"lock": CHANNEL, "read": "redisson_rwlock:{orders}"}.get(kind, "redisson_sc:{orders}")
        of_permits = ("0", "-3", "+1" if kind == "semaphore" else "+", " 1", "1.0", "9" * 5000)
        for payload in ("", "abc", *(of_permits if kind in PERMITS else ("2", "-1", " 0", "00"))):
            state.redis.publish(channel, payload)
        state.redis.publish("redisson_lock__channel:{stock}", "0")
        await backend.sleep(0.4)
        assert (state.scripts(), other.done()) == (before + 2, False)
        await holder.aclose()
        await other.result()
        # The release, which has entered the waiter unless permits have ids, and the waiter's.
        assert state.scripts() == before + (5 if kind == "permit" else 4)

    @pytest.mark.parametrize("clients", [1, 3])
    async def test_one_for_each_message(self, backend: Backend, state: ServerState, clients: int) -> None:
        """Each message wakes one waiter, which finds the lock taken again and sleeps after one call."""
        hold_elsewhere(state)
        connected = [backend.connect(local_hand_over_time=LONG) for _ in range(clients)]
        others = []
        for client in connected:
            others += await start_waiters(backend, client, 1)
            before = state.scripts()
            others += await start_waiters(backend, client, WAITERS - 1, present=1)
            # None behind another waiter.
            assert state.scripts() == before
        # Of the clients that wait, the first two listen to Redisson's messages.
        before, listening = state.scripts(), min(clients, 2)
        for number in range(1, MESSAGES + 1):
            assert state.redis.publish(CHANNEL, "0") == listening
            await backend.until(lambda: state.scripts() >= before + listening * number)  # noqa: B023
            await backend.until(lambda: all(all_sleep(client, WAITERS) for client in connected))
            assert state.scripts() == before + listening * number
        # Those that come while a waiter makes its attempt wake others; none of them makes more than one call.
        before = state.scripts()
        with state.redis.pipeline(transaction=False) as pipeline:
            for _ in range(MESSAGES):
                pipeline.publish(CHANNEL, "0")
            pipeline.execute()
        await backend.until(lambda: state.scripts() > before)
        await backend.until(lambda: all(all_sleep(client, WAITERS) for client in connected))
        assert state.scripts() - before <= listening * MESSAGES
        before = state.scripts()
        # The other client releases the lock.
        state.redis.delete("orders")
        state.redis.publish(CHANNEL, "0")
        await finished(others)
        # One acquire, and the release of each owner, which enters the next one.
        assert clients > 1 or state.scripts() == before + 1 + WAITERS


@pytest.mark.parametrize("kind", KINDS)
async def test_the_end_of_the_holders_lease_wakes(orders: Orders, state: ServerState, lock: Any, kind: str) -> None:
    """A dead holder sends no message."""
    hold = {"read": orders.java_writes, "write": orders.java_reads}.get(kind, partial(hold_elsewhere, state))
    with within(WOKEN, least=0.25):
        hold(300)
        await lock.lock()


async def test_a_wait_ends_in_time_under_steady_contention(backend: Backend, state: ServerState) -> None:
    """Messages wake the waiter all the time, as where other clients hand the lock on. The deadline is still one."""
    hold_elsewhere(state)
    stop = False

    async def contend() -> None:
        while not stop:
            state.redis.publish(CHANNEL, "0")
            await backend.sleep(0.005)

    other = backend.spawn(contend)
    before = state.scripts()
    with within(1 + WOKEN, least=1):
        assert await backend.connect().get_lock("orders").try_lock(wait_time=1) is False
    assert state.scripts() > before + 5
    stop = True
    await other.result()


@pytest.mark.parametrize(
    ("kind", "clients", "permits", "callers", "calls"),
    [
        *((kind, 2, 1, 1, CALLS) for kind in ("lock", "semaphore")),
        *((kind, 10, 1, 1, CALLS) for kind in ("fenced", "non-reentrant")),
        *((kind, 50, 1, 1, CALLS) for kind in ("lock", "write")),
        *(("semaphore", 10, 5, 1, CALLS), ("semaphore", 50, 5, 1, CALLS), ("permit", 50, 5, 1, CALLS)),
        # Callers of one client hand it on.
        *(("lock", 2, 1, 8, 2.5), ("semaphore", 2, 4, 16, 3.5)),
    ],
)
async def test_costs_among_many_clients(
    backend: Backend, state: ServerState, kind: str, clients: int, permits: int, callers: int, calls: float
) -> None:
    await set_permits(backend.connect(), kind, permits)
    turns = [turn_of(backend.connect(), kind) for _ in range(clients)] * callers

    async def contend(rounds: int) -> None:
        await finished([backend.spawn(partial(take, turn, rounds)) for turn in turns], WORK_LIMIT)

    # From here on each client listens, and the server knows the scripts.
    await contend(1)
    state.redis.config_resetstat()
    began = time.monotonic()
    await contend(ROUNDS)
    # Another client takes the place of a woken one that needs longer than 250 ms, as on a busy machine.
    late = permits * (time.monotonic() - began) / 0.25
    stats: dict[str, Any] = state.redis.info("commandstats")
    acquisitions = ROUNDS * len(turns)
    scripts, published = state.scripts(), stats.get("cmdstat_publish", {}).get("calls", 0)
    assert scripts <= calls * acquisitions
    # One message of each release of a lock goes to Redisson's channel, to which nobody listens.
    assert published <= (MESSAGES_EACH + (kind not in PERMITS)) * acquisitions + BY_TIME + late
    await backend.until(lambda: not state.redis.exists(WAITING, CHOSEN) and whole(state.redis, kind, permits))


@pytest.mark.parametrize(
    ("kind", "near", "permits"),
    [
        *(("lock", 20, 1), ("fenced", 3, 1), ("non-reentrant", 3, 1), ("write", 20, 1), ("read", 20, 1)),
        *(("semaphore", 20, 5), ("permit", 3, 1)),
    ],
)
async def test_a_far_client_gets_its_turn(backend: Backend, proxy: Proxy, kind: str, near: int, permits: int) -> None:
    """A far reader among near writers, otherwise all are of the same kind."""
    await set_permits(backend.connect(), kind, permits)
    far = turn_of(backend.connect(proxy.url), kind)
    await take(far)
    proxy.latency(FAR)
    over, turns = False, [0] * near

    async def work(number: int) -> None:
        turn = turn_of(backend.connect(), rival_of(kind))
        while not over:
            async with turn:
                await backend.sleep(HOLD)
            turns[number] += 1

    others = [backend.spawn(partial(work, number)) for number in range(near)]
    await backend.until(lambda: min(turns) > 0, WORK_LIMIT)
    before = list(turns)
    await take(far, TURNS)
    meanwhile = [now - then for now, then in zip(turns, before, strict=True)]
    over = True
    await finished(others, WORK_LIMIT)
    # It waits for one turn of each other client, and asks for the next turn two latencies later. While others hold
    # permits, they go on during all six latencies: to ask, to be woken, to acquire and to release.
    at_most = 2 if permits == 1 else 1 + 6 * FAR / (HOLD * near / permits)
    assert (sum(meanwhile) / near if kind in PERMITS else max(meanwhile)) <= at_most * TURNS + 2


async def waiting_in_turn(
    backend: Backend, redis: Any, count: int, kind: str = "lock", present: int = 0, **settings: Any
) -> list[Any]:
    """So many clients that wait, in this order. The result of each is when it had its turn."""
    others = []
    for number in range(1, count + 1):
        work = partial(take, turn_of(backend.connect(**settings), kind))
        others.append(await backend.begin(work, lambda: listening(redis, kind) == number + present))  # noqa: B023
    return others


many = pytest.mark.parametrize("kind", ["lock", *PERMITS])


@many
async def test_clients_have_their_turns_in_order(backend: Backend, client: Any, redis: Any, kind: str) -> None:
    holder = await held(backend.connect(), kind)
    others = await waiting_in_turn(backend, redis, 5, kind)
    assert redis.zcard(WAITING) == 5
    await holder.aclose()
    times = await finished(others, LATE)
    assert times == sorted(times)
    if kind == "lock":
        # A lock that is taken away wakes the callers of its holder's client.
        await client.get_lock("orders").lock()
        waiter = await backend.begin(client.get_lock("orders", owner=2).lock, lambda: waiters(client, "orders") == 1)
        assert await backend.connect().get_lock("orders").force_unlock()
        await waiter.result(LATE)


@many
@pytest.mark.parametrize("frozen", [False, True])
async def test_a_client_that_is_gone_or_frozen(backend: Backend, redis: Any, kind: str, frozen: bool) -> None:
    """One that is gone is passed over at once. A frozen one listens and never comes, which costs the others little."""
    number = ":1" if kind in PERMITS else ""
    with redis.pubsub() as silent:
        if frozen:
            silent.subscribe("pyredisson_wake:{orders}:silent")
        redis.zadd(WAITING, {f"silent:1{number}": 1} | ({} if frozen else {f"silent too:7{number}": 2}))
        holder = await held(backend.connect(), kind)
        [waiter] = await waiting_in_turn(backend, redis, 1, kind, present=frozen and kind == "lock")
        released = time.monotonic()
        await holder.aclose()
        assert (0.2 if frozen and kind == "lock" else 0) < await waiter.result(LATE) - released < LATE
    assert frozen or not redis.exists(WAITING)


async def test_two_frozen_clients_cost_no_lease(backend: Backend, redis: Any) -> None:
    """The first one is woken, and the second one told when to look."""
    with redis.pubsub() as silent:
        silent.subscribe(*(f"pyredisson_wake:{{orders}}:{name}" for name in ("silent", "too")))
        redis.zadd(WAITING, {"silent:1": 1, "too:1": 2})
        holder = await held(backend.connect(), "lock")
        [waiter] = await waiting_in_turn(backend, redis, 1, present=2)
        released = time.monotonic()
        await holder.aclose()
        assert await waiter.result(LATE) - released < LATE


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("kind", ["lock", "read", *PERMITS])
async def test_closed_clients_leave_the_list(backend: Backend, redis: Any, proxy: Proxy, kind: str, asks: Any) -> None:
    """`asks`: the reply to its first attempt, which has entered it, is on its way."""
    await held(backend.connect(), rival_of(kind))
    waiting = backend.connect(proxy.url)
    enters = proxy.hold_reply(b"EVALSHA").held.is_set if asks else lambda: listening(redis, kind) == 1
    other = await backend.begin(partial(take, turn_of(waiting, kind)), enters)
    assert b"pyredisson_waiting" in b" ".join(redis.scan_iter())
    await waiting.close()
    assert b"pyredisson_waiting" not in b" ".join(redis.scan_iter())
    with pytest.raises(ClosedError):
        await other.result()


@many
async def test_a_list_that_is_deleted(backend: Backend, state: ServerState, kind: str) -> None:
    """By an operator, say, or by a server that evicts keys. The clients rely on their timers then."""
    lease = 2.0
    holder = await held(backend.connect(lock_watchdog_timeout=lease), kind)
    others = await waiting_in_turn(backend, state.redis, 3, kind, lock_watchdog_timeout=lease)
    assert state.redis.delete(WAITING)
    await holder.aclose()
    await finished(others, 2 * lease + LATE)
    assert not state.redis.exists(WAITING)


async def test_a_client_is_woken_while_its_call_asks(backend: Backend, state: ServerState, proxy: Proxy) -> None:
    """No call of it waits at that moment, so it leaves the list. That must not take the next call's place away."""
    holder, client = await held(backend.connect()), backend.connect(proxy.url)
    lock = client.get_lock("orders")
    assert not await lock.try_lock(wait_time=0.1)
    await backend.until(lambda: not state.redis.exists(WAITING))
    refused = proxy.hold_reply(sha("lock_acquire"))
    other = await backend.begin(lock.lock, refused.held.is_set)
    [member] = state.redis.zrange(WAITING, 0, -1)
    # As a release does.
    state.redis.zrem(WAITING, member)
    state.redis.publish(f"pyredisson_wake:{{orders}}:{client.id}", member)
    leaving = state.scripts()
    await backend.until(lambda: state.scripts() > leaving)
    refused.deliver()
    await backend.until(lambda: state.redis.zcard(WAITING) == 1)
    assert state.redis.zrange(WAITING, 0, -1) != [member]
    await holder.aclose()
    await other.result()


@pytest.mark.parametrize(("leaves", "message"), [(False, "0"), (True, "1")])
async def test_three_behind_redisson(backend: Backend, state: ServerState, leaves: bool, message: str) -> None:
    """The first two listen to both messages of Redisson. `leaves`: the first gives up, so the third has to listen."""
    hold_elsewhere(state)
    attempt = partial(backend.connect().get_lock("orders").try_lock, 2 if leaves else WORK_LIMIT)
    giving_up = await backend.begin(attempt, lambda: listening(state.redis, "lock") == 1)
    others = await waiting_in_turn(backend, state.redis, 2, present=1)
    await backend.until(lambda: state.redis.pubsub_numsub(CHANNEL)[0][1] == 2)
    if leaves:
        assert await giving_up.result() is False
        await backend.until(lambda: state.redis.pubsub_numsub(CHANNEL)[0][1] == 3)
    state.redis.delete("orders")
    state.redis.publish(CHANNEL, message)
    if not leaves:
        assert await giving_up.result()
        assert await backend.connect().get_lock("orders").force_unlock()
    await finished(others)
