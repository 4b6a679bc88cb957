"""Clients of a cluster in virtual time: redirects, slots on their way, nodes that are replaced, replicas."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any

import pytest
from redis.exceptions import ConnectionError, NoPermissionError

from pyredisson._backends.aio.connection import Pipeline
from pyredisson._backends.aio.runtime import _Batches
from pyredisson._settings.config import Config
from pyredisson.dashboard.collector import Collector
from pyredisson.errors import NotReplicatedError
from tests.support.backends import cancel_after, fails, hold_all, in_turn, within
from tests.support.faults import AtSteps
from tests.support.inspecting import Recorder, check_pairs, discovery_of, told, walk, whats
from tests.support.kinds import LOCKS, SINGLE_KEY, against

from .cluster import ClusterNode, MemoryCluster
from .conftest import World, as_tasks
from .network import LATENCY

SOON = 0.3
"""Virtual seconds. A waiter that isn't woken waits for a lease."""
PAUSE = 3.0
"""The same after TRYAGAIN, behind which a call pauses."""
SETTLED = 16.0
"""After so long a client leaves out messages that only those would need who don't know where the slot is."""
MOVES = ("not", "keys", "slot", "both", "failover")
"""What moves to another node while a client waits."""
HELD, BEHIND = "held{a}", "behind{a}"
OWNER = b"00000000-0000-4000-8000-000000000000:1"


async def acquire(lock: Any, seconds: float = 0) -> None:
    """Without a watchdog, so that only a wakeup ends a wait."""
    assert await lock.try_lock(seconds, 1000)


async def use(lock: Any) -> None:
    await acquire(lock, 1000)
    await lock.unlock()


PAIRS = [pair for pair in product(("auto", "both", "on", "off"), repeat=2) if set(pair) != {"on", "off"}]
"""`sharded_pubsub` of the client that releases, and of the one that waits. `on` and `off` have no flavour in common."""


@pytest.mark.parametrize(
    ("releasing", "waiting", "method"), [*((*pair, "unlock") for pair in PAIRS), ("auto", "on", "force_unlock")]
)
@pytest.mark.parametrize("moves", MOVES)
async def test_a_waiter_is_woken_wherever_the_slot_is(
    world: World, synced: MemoryCluster, moves: str, releasing: str, waiting: str, method: str
) -> None:
    # The other kinds have several keys: a node refuses these until it has all of them.
    kinds = ("lock", "spin") if moves in ("keys", "both") else ("lock", "read", "write", "fenced")
    for kind in kinds if releasing == waiting else kinds[:1]:
        async with synced.client(sharded_pubsub=releasing) as one, synced.client(sharded_pubsub=waiting) as two:
            holder = LOCKS[kind](one, kind)
            await acquire(holder)
            [waiter] = await as_tasks(use(against(kind, two, kind)), seconds=SETTLED)
            if moves not in ("failover", "not"):
                synced.begin_move(kind)
            if moves in ("slot", "both"):
                synced.finish_move(kind)
            if moves == "failover":
                synced.fail_over(synced.owner(kind))
            if moves in ("both", "failover"):
                await asyncio.sleep(SETTLED)
            if moves == "both":
                synced.begin_move(kind)
            with within(SOON, kind):
                await getattr(holder, method)()
                await waiter
            if moves in ("keys", "both"):
                synced.finish_move(kind)


@pytest.mark.parametrize("sharded", ["auto", "on", "off"])
async def test_a_latch_with_a_brace_in_its_name(world: World, cluster: MemoryCluster, sharded: str) -> None:
    """Its channel is on another slot than its key, so it is published and heard in the plain flavour only."""
    async with cluster.client(sharded_pubsub=sharded) as one, cluster.client(sharded_pubsub=sharded) as two:
        for number in range(4):
            latch, other = (client.get_count_down_latch(f"{{orders-{number}}}:done") for client in (one, two))
            assert await latch.try_set_count(1)
            [waiter] = await as_tasks(other.wait())
            with within(SOON):
                await latch.count_down()
                await waiter


async def test_waiters_without_a_message_make_an_attempt_of_their_own(world: World, cluster: MemoryCluster) -> None:
    """After `lock_watchdog_timeout` if the lock has no lease; for permits and latches every five seconds."""
    async with cluster.client(lock_watchdog_timeout=20) as client:
        node = cluster.nodes[0]
        lock, permits, latch = (cluster.name_on(node, prefix) for prefix in ("lock", "permits", "latch"))
        keys = node.keys.keyspace
        keys.do_hset(lock.encode(), b"java:1", b"1")
        keys.do_set(permits.encode(), b"0")
        keys.do_set(latch.encode(), b"1")
        began = world.clock()
        waits: list[Any] = [client.get_semaphore(permits).acquire(), client.get_count_down_latch(latch).wait()]
        waiting = await as_tasks(*waits, client.get_lock(lock).lock())
        # Nothing is published.
        keys.do_del(lock.encode(), latch.encode())
        keys.do_set(permits.encode(), b"1")
        for waiter, seconds in zip(waiting, (5, 5, 20), strict=True):
            await waiter
            assert world.clock() - began < seconds + SOON


MOVE: dict[str, Callable[[MemoryCluster], object]] = {
    "begun": lambda cluster: cluster.begin_move(HELD, with_keys=False),
    "key moved": lambda cluster: cluster.move_keys(HELD, HELD),
    "all keys moved": lambda cluster: cluster.move_keys(HELD),
    "finished": lambda cluster: cluster.finish_move(HELD),
}
"""The steps in which a slot with two locks moves."""


@pytest.mark.parametrize("released_after", MOVE)
@pytest.mark.parametrize("kind", LOCKS)
async def test_a_lock_that_is_held_and_waited_for_moves_with_its_slot(
    world: World, cluster: MemoryCluster, kind: str, released_after: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else acquires it, its owner can nest, and the release reaches the waiter."""
    async with cluster.client() as client, cluster.client() as two, cluster.client() as three:
        held, behind = LOCKS[kind](client, HELD), client.get_lock(BEHIND)
        wanted, third = (against(kind, each, HELD) for each in (two, three))
        await held.lock()
        await behind.lock()
        [waiting] = await as_tasks(use(wanted))
        moved = [*MOVE].index(released_after) + 1
        left = [*MOVE][moved:]
        for step in [*MOVE][:moved]:
            MOVE[step](cluster)
            assert await behind.is_held()
            if kind in SINGLE_KEY or step == "finished":
                assert await held.is_held()
                assert not await third.try_lock()
            if kind in ("lock", "spin"):
                await held.lock()
                assert await held.get_hold_count() == 2
                await held.unlock()
        asyncio.get_running_loop().call_later(0.5, lambda: [MOVE[step](cluster) for step in left])
        assert (held.lost.is_set(), waiting.done()) == (False, False)
        # A call that needs all keys pauses until they are together again. A list of clients is one more.
        at_once = not left or kind == "spin" or (kind in SINGLE_KEY and released_after == "begun")
        with within(SOON if at_once else 0.5 + PAUSE):
            await held.unlock()
            await waiting
        await behind.unlock()
        await asyncio.sleep(1)
    # Calls that wait for the end of the move don't report the server as not available.
    assert not [record for record in caplog.records if "available" in record.message]


async def test_holds_on_all_nodes_are_renewed(world: World, cluster: MemoryCluster) -> None:
    """The watchdog sends the commands for one node at once, and those behind ASK to the other one.

    While keys are in two places, a batch is refused, and each lock alone is served. A reader has a key for its lease.
    """
    async with cluster.client(observer=Recorder()) as client:
        names = [cluster.name_on(node, prefix) for node in cluster.nodes for prefix in "abc"]
        tagged = [f"{{a}}:{number}" for number in range(20)]
        readers = [client.get_read_write_lock(f"{name}:r").read_lock() for name in tagged]
        locks = [*await hold_all(client, *names, *tagged), *readers]
        await in_turn(partial(reader.lock, 1000 if number % 2 else None) for number, reader in enumerate(readers))
        cluster.begin_move("{a}", with_keys=False)
        cluster.move_keys("{a}", *tagged[::2])
        for name in names[::2]:
            cluster.begin_move(name)
        await asyncio.sleep(100)
        # For a moment a lock is on one node, and the key of its lease on the other: a new key there would end the move.
        cluster.move_keys("{a}", *(str(reader.name) for reader in readers))
        await asyncio.sleep(5)
        for name in ("{a}", *names[::2]):
            cluster.finish_move(name)
        await asyncio.sleep(100)
        assert not any(lock.lost.is_set() for lock in locks)
        # The nodes have no replicas.
        assert cluster.waits == 0
        await in_turn(lock.unlock for lock in locks)
        assert whats(told(client)) == ["acquired"] * len(locks) + ["released"] * len(locks)
        check_pairs(told(client))
        assert not any(node.keys.keyspace.do_keys(b"*-*") for node in cluster.nodes)


async def test_a_call_to_a_master_that_hangs_is_sent_to_its_successor(world: World, synced: MemoryCluster) -> None:
    async with synced.client(timeout=60, topology_refresh_interval=1) as client:
        lock, node = client.get_lock("a"), synced.owner("a")
        await acquire(lock)
        node.pause()
        with within(5):
            [call] = await as_tasks(lock.unlock())
            synced.fail_over(node, gone=False)
            await call
        assert not await lock.is_locked()


async def test_while_a_master_is_away_the_others_are_known_exactly(world: World, cluster: MemoryCluster) -> None:
    """What a walk has found on the one that is away stays known."""
    away, other = cluster.nodes[:2]
    async with cluster.client(retry_attempts=0, timeout=1, connect_timeout=1) as client:
        lost, gone, new = cluster.name_on(away), cluster.name_on(other, "gone"), cluster.name_on(other, "new")
        for node, name in ((away, lost), (other, gone)):
            node.keys.keyspace.do_hset(name.encode(), OWNER, b"1")
        discovery = await walk(discovery_of(client))
        assert {*discovery.found} == {lost.encode(), gone.encode()}
        away.pause()
        other.keys.keyspace.do_del(gone.encode())
        other.keys.keyspace.do_hset(new.encode(), OWNER, b"1")
        discovery.restart()
        await walk(discovery)
        assert {*discovery.found} == {lost.encode(), new.encode()}


async def test_a_dashboard_that_begins_while_a_master_is_silent_reads_the_others(
    world: World, cluster: MemoryCluster
) -> None:
    away, other, _ = cluster.nodes
    name, collector = cluster.name_on(other), Collector(Config.of(cluster.url), 1.0)
    async with cluster.client() as client:
        await hold_all(client, name)
        away.pause()
        with collector.watch():
            [running] = await as_tasks(collector.run(), seconds=30)
        assert {*collector.snapshot.seen} == {name.encode()}
        collector.stop()
        await running


async def test_a_closed_client_leaves_no_connection(world: World, synced: MemoryCluster) -> None:
    async with synced.client() as client, synced.client() as other:
        await hold_all(client, *map(synced.name_on, synced.nodes))
        waits = await as_tasks(*(use(other.get_lock(synced.name_on(node))) for node in synced.nodes))
        assert min(len(node.sessions) for node in synced.nodes) >= 5
        with within(SOON):
            await client.close()
            await asyncio.gather(*waits)
    assert not any(node.sessions for node in synced.nodes)


async def use_block(lock: Any) -> None:
    """A user's block, unless no replica confirms the acquire."""
    with suppress(NotReplicatedError):
        async with lock:
            await asyncio.sleep(2 * LATENCY)


@pytest.mark.parametrize("when", ["at first", "connected", "behind ASK", "not confirmed"])
async def test_cancelled_at_any_moment_it_leaves_no_key(world: World, synced: MemoryCluster, when: str) -> None:
    if when == "behind ASK":
        synced.begin_move("a")
    if when == "not confirmed":
        synced.confirmed = 0
    struck = 0
    # At each moment the event loop takes some turns.
    for moment, turns in product(range(50), range(4)):
        async with synced.client() as client:
            if when != "at first":
                await client.get_lock("a").is_locked()
            task = asyncio.create_task(use_block(client.get_lock("a")))
            await asyncio.sleep(moment * LATENCY / 2)
            struck += await cancel_after(turns, task)
            await asyncio.sleep(1)
            assert not client._session.holds.table
            assert not any(node.keys.keyspace.do_keys(b"a") for node in synced.nodes), (moment, turns)
    assert struck > 50


async def test_acquires_that_come_while_a_wait_waits_share_the_next_one(world: World, synced: MemoryCluster) -> None:
    """Others are confirmed each by its own. Without a confirmation none of them counts."""
    async with synced.client() as client:
        node = synced.nodes[0]
        names = [synced.name_on(node, f"{number}") for number in range(100)]
        await hold_all(client, *names[:3])
        assert node.calls["wait"] == 3
        node.pause()
        acquires = []
        for name in names[3:6]:
            acquires += await as_tasks(acquire(client.get_lock(name)), seconds=0.1)
        node.resume()
        await asyncio.gather(*acquires)
        assert node.calls["wait"] == 5
        await asyncio.gather(*(acquire(client.get_lock(name)) for name in names[6:50]))
        assert 5 < node.calls["wait"] <= 10
        synced.confirmed = 0
        refused = await asyncio.gather(*(client.get_lock(name).lock() for name in names[50:]), return_exceptions=True)
        assert {type(outcome) for outcome in refused} == {NotReplicatedError}
        await asyncio.sleep(1)
        assert len(node.keys.keyspace.do_keys(b"*-*")) == 50
        assert node.calls["wait"] <= 15


def raise_recursion_error() -> None:
    raise RecursionError


@pytest.mark.parametrize(
    "step",
    [asyncio.BaseEventLoop.call_soon, _Batches._send, Pipeline.submit_all, Pipeline.flush, _Batches._on_confirmed],
)
async def test_an_exception_before_an_acquire_is_sent_stops_no_other(
    world: World, synced: MemoryCluster, step: Callable[..., object]
) -> None:
    """As of a call that is deep in the stack; or, in a callback of the event loop, of a signal's handler."""
    async with synced.client() as client:
        await use(client.get_lock("a"))
        with AtSteps((step, raise_recursion_error)) as steps, suppress(RecursionError):
            await asyncio.wait_for(use(client.get_lock("a")), 30)
        assert steps.happened
        await asyncio.wait_for(use(client.get_lock("a")), 30)


@pytest.mark.parametrize("moving", [False, True])
async def test_acquires_that_are_not_confirmed(world: World, synced: MemoryCluster, moving: bool) -> None:
    """They don't count. Nothing is to be confirmed if the server doesn't run WAIT for this user."""
    async with synced.client() as client:
        lock = client.get_lock("a")
        await use(lock)
        if moving:
            synced.begin_move("a")
        synced.confirmed = 0
        await fails(NotReplicatedError, lock.lock, 30)
        await asyncio.sleep(1)
        assert not await lock.is_locked()
        synced.confirmed = NoPermissionError("NOPERM no permission to run 'wait'")
        await lock.lock(30)
        assert await lock.is_locked()


async def test_a_master_grants_nothing_that_a_replica_has_replaced(world: World, synced: MemoryCluster) -> None:
    """Also one that has left it before the client has asked it for the first time."""
    node, *others = synced.nodes
    async with synced.client(retry_attempts=0) as client:
        await acquire(client.get_lock(synced.name_on(others[0])))
        node.has_replica = False
        refused = pytest.raises(ConnectionError, match=f"was replaced as the master by {node.successor}")
        with ClusterNode(synced, world.clock, 0, node.successor.port), refused:
            await client.get_lock(synced.name_on(node)).try_lock()


async def test_neither_permits_nor_levels_count_without_a_confirmation(world: World, synced: MemoryCluster) -> None:
    async with synced.client() as client:
        (lock,) = await hold_all(client, "a")
        await lock.lock()
        semaphore, expirable = client.get_semaphore("s{a}"), client.get_permit_expirable_semaphore("e{a}")
        await in_turn(partial(each.try_set_permits, 3) for each in (semaphore, expirable))
        synced.confirmed = 0
        for named, acquire in (
            ("lock 'a'", lock.lock),
            ("semaphore 's{a}'", partial(semaphore.acquire, 2)),
            ("semaphore 's{a}'", semaphore.try_acquire),
            ("semaphore 's{a}'", semaphore.drain_permits),
            ("semaphore 'e{a}'", expirable.acquire),
        ):
            await fails(NotReplicatedError, acquire, match=rf"{named} .* 0 of 1 replica")
        await asyncio.sleep(1)
        assert await semaphore.available_permits() == await expirable.available_permits() == 3
        assert (await lock.get_hold_count(), synced.values("a")) == (2, [b"2"])
        await lock.unlock()
        assert await lock.is_held()
        await lock.unlock()
        assert (await lock.is_locked(), client._session.holds.table) == (False, {})


HANDED_ON = {"lock": ["lock"], "fair": ["fair"], "write": ["read", "read"]}
"""The kinds of the locks that get a lock from its holder inside a client, by its kind."""
confirmed_or_not = pytest.mark.parametrize("confirmed", [1, 0])


@confirmed_or_not
@pytest.mark.parametrize("kind", HANDED_ON)
async def test_a_lock_handed_on_needs_replicas(world: World, synced: MemoryCluster, kind: str, confirmed: int) -> None:
    """The release happens in any case. Only the next owners need the confirmation: one for all."""
    async with synced.client(local_hand_over_time=60) as client:
        holder = LOCKS[kind](client, "a", 1)
        others = [LOCKS[next_kind](client, "a", owner) for owner, next_kind in enumerate(HANDED_ON[kind], 2)]
        await holder.lock()
        attempts = await as_tasks(*(other.lock() for other in others))
        before, synced.confirmed = synced.waits, confirmed
        await holder.unlock()
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        failures = {type(outcome) for outcome in outcomes if isinstance(outcome, Exception)}
        assert (failures, synced.waits - before) == (set() if confirmed else {NotReplicatedError}, 1)
        if confirmed:
            assert sorted(synced.values("a")) == [b"1"] * len(others) + [b"read"] * (kind == "write")
            await in_turn(other.unlock for other in others)
        await asyncio.sleep(1)
        assert (await holder.is_locked(), client._session.holds.table) == (False, {})


@confirmed_or_not
@pytest.mark.parametrize("count", [1, 4])
async def test_permits_handed_on_need_replicas(world: World, synced: MemoryCluster, count: int, confirmed: int) -> None:
    """The releases happen in any case. Several of them share a command."""
    async with synced.client(local_hand_over_time=60) as client:
        semaphore = client.get_semaphore("s")
        await semaphore.try_set_permits(count)
        await semaphore.acquire(count)
        attempts = await as_tasks(*(semaphore.acquire() for _ in range(count)))
        before, synced.confirmed = synced.waits, confirmed
        await asyncio.gather(*(semaphore.release() for _ in range(count)))
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        assert 1 <= synced.waits - before <= count
        await asyncio.sleep(1)
        if confirmed:
            assert (outcomes, await semaphore.available_permits()) == ([None] * count, 0)
            return
        assert {type(outcome) for outcome in outcomes} == {NotReplicatedError}
        assert await semaphore.available_permits() == count
        synced.confirmed = 1
        await semaphore.acquire(count)


async def test_a_hand_over_that_acquires_nothing_needs_no_confirmation(world: World, synced: MemoryCluster) -> None:
    async with synced.client(local_hand_over_time=60) as client:
        semaphore = client.get_semaphore("s")
        await semaphore.try_set_permits(1)
        await semaphore.acquire()
        [other] = await as_tasks(semaphore.acquire())
        await semaphore.reduce_permits(1)
        synced.confirmed = 0
        await semaphore.release()
        assert (await semaphore.available_permits(), other.done()) == (0, False)
        synced.confirmed = 1
        await semaphore.release()
        await other
        assert await semaphore.available_permits() == 0


@confirmed_or_not
@pytest.mark.parametrize("whose", ["release", "waiter"])
async def test_a_hand_over_that_is_cancelled_at_any_moment_loses_no_permit(
    world: World, synced: MemoryCluster, whose: str, confirmed: int
) -> None:
    struck = 0
    async with synced.client(local_hand_over_time=60) as client:
        semaphore = client.get_semaphore("s")
        await semaphore.try_set_permits(1)
        for moment, turns in product(range(20), range(1, 5)):
            await semaphore.acquire()
            [waiter] = await as_tasks(semaphore.acquire())
            synced.confirmed = confirmed
            release = asyncio.create_task(semaphore.release())
            await asyncio.sleep(moment * LATENCY / 2)
            struck += await cancel_after(turns, release if whose == "release" else waiter)
            _, outcome = await asyncio.gather(release, waiter, return_exceptions=True)
            assert outcome is None or isinstance(outcome, NotReplicatedError | asyncio.CancelledError)
            synced.confirmed = 1
            await asyncio.sleep(1)
            assert await semaphore.available_permits() == (0 if outcome is None else 1), (moment, turns)
            if outcome is None:
                await semaphore.release()
    assert struck
