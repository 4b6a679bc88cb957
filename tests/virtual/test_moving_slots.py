"""A slot moves, or a replica takes over, at any moment: a call counts once, a hold stays or is known to be lost."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, TypeVar

import pytest
from redis.exceptions import ConnectionError, TryAgainError

from pyredisson._protocol import replication
from pyredisson._protocol.scripts import script_name
from pyredisson.errors import LockLostError
from pyredisson.logic.groups import multi_lock
from pyredisson.logic.locks import fair_queue
from tests.support.backends import fails, hold_all, in_turn, within
from tests.support.kinds import LOCKS

from .cluster import ClusterNode, MemoryCluster, NodeSession
from .conftest import World, as_tasks
from .network import LATENCY, SERVERS

NAME = "{a}"
SOON = 5.0
"""Virtual seconds. By itself a waiter would look again when the lease of 30 s has ended."""
INTERVAL = 1.0
"""Virtual seconds: `topology_refresh_interval`. An idle client learns of a new master at the next refresh."""
NOTICE = 1.0
"""Seconds after which a client has looked at its holds, once it knows the new master."""


@pytest.fixture
def cluster(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    for name in ("ASKED_EVERY", "RELIED_ON"):
        # A client asks a node once for its replicas, and nothing before each call.
        monkeypatch.setattr(replication, name, 1e6)
    return cluster


def move_slot(cluster: MemoryCluster) -> ClusterNode:
    target = cluster.begin_move(NAME)
    cluster.finish_move(NAME)
    return target


def move_keys(cluster: MemoryCluster) -> None:
    """The target has all keys of the slot, and doesn't serve it yet."""
    cluster.begin_move(NAME)


def part_keys(cluster: MemoryCluster) -> None:
    """The target has the lock, and the source its other keys."""
    cluster.begin_move(NAME, with_keys=False)
    cluster.move_keys(NAME, NAME)


Move = Callable[[MemoryCluster], object]
T = TypeVar("T")


def go_away(cluster: MemoryCluster) -> None:
    """Nothing moves. The node, whose replica has to confirm acquires, is out of reach for a moment."""
    node = cluster.owner(NAME)
    node.kill()
    asyncio.get_running_loop().call_later(0.3, SERVERS.__setitem__, (node.host, node.port), node)


MOVES = (move_slot, move_keys, part_keys, go_away)


def strikes(move: Move, moments: int = 8) -> Iterator[tuple[int, bool]]:
    """When the slot begins to move after a call has begun, in halves of the latency. At the last moment it is done.

    And whether the former node's replies since the beginning are lost, and its connections end at that moment.
    """
    return product(range(16 if move is go_away else moments), (False, True))


async def strike(
    cluster: MemoryCluster, call: Awaitable[T], moment: int, move: Move, *, lost: bool, ends: bool = True
) -> asyncio.Future[T]:
    """Begins the call, and then moves the slot. Half a second later the move ends (`ends`)."""
    begun, source = asyncio.ensure_future(call), cluster.owner(NAME)
    sessions = list(source.sessions.values()) if lost else []
    for session in sessions:
        session._send = lambda _: None
    await asyncio.sleep(moment * LATENCY / 2)
    move(cluster)
    for session in sessions:
        session.end()
    if ends:
        asyncio.get_running_loop().call_later(0.5, end_of_move, cluster)
    return begun


def end_of_move(cluster: MemoryCluster) -> None:
    if cluster.targets:
        cluster.finish_move(NAME)


def fields(cluster: MemoryCluster, move: Move) -> dict[str, Any]:
    """Settings of a client. Replicas have to confirm its acquires where nothing moves."""
    for node in cluster.nodes:
        node.has_replica = move is go_away
    return {"local_hand_over_time": 60, "check_lock_synced_replicas": move is go_away}


@pytest.mark.parametrize("move", MOVES)
async def test_each_call_changes_its_number_once(world: World, cluster: MemoryCluster, move: Move) -> None:
    async with cluster.client(**fields(cluster, move)) as client:
        lock, fenced, tokens = client.get_lock(NAME), client.get_fenced_lock("fenced{a}"), []
        for number, (moment, lost) in enumerate(strikes(move)):
            semaphore, latch = client.get_semaphore(f"{{a}}s{number}"), client.get_count_down_latch(f"{{a}}l{number}")
            await semaphore.try_set_permits(5)
            await latch.try_set_count(3)
            changes: list[tuple[Callable[[], Awaitable[object]], list[bytes], int, int]] = [
                (lock.lock, [b"1"], 5, 3),
                (lock.lock, [b"2"], 5, 3),
                (partial(semaphore.acquire, 2), [b"2"], 3, 3),
                (partial(semaphore.release, 2), [b"2"], 5, 3),
                (partial(semaphore.add_permits, 4), [b"2"], 9, 3),
                (latch.count_down, [b"2"], 9, 2),
                (fenced.lock, [b"2"], 9, 2),
                (lock.unlock, [b"1"], 9, 2),
                (lock.unlock, [], 9, 2),
            ]
            for change, levels, permits, count in changes:
                await (await strike(cluster, change(), moment, move, lost=lost))
                await asyncio.sleep(1)
                assert cluster.values(NAME) == levels
                assert (await semaphore.available_permits(), await latch.get_count()) == (permits, count)
            assert cluster.values("fenced{a}") == [b"1"]
            tokens.append(fenced.token)
            await fenced.unlock()
    assert tokens == sorted(set(tokens))


NEXT = {"lock": ["lock"] * 2, "fair": ["fair"] * 3, "write": ["read"] * 2, "read": ["write"] * 2}
"""The kinds of the locks that get a lock from its holder, one after the other or together, by its kind."""


@pytest.mark.parametrize(
    ("kind", "move", "retries"), [*((kind, move, 3) for kind in NEXT for move in MOVES), ("fair", part_keys, 0)]
)
async def test_a_lock_is_handed_on_once(
    world: World, cluster: MemoryCluster, kind: str, move: Move, retries: int
) -> None:
    """And in the order of a fair lock's queue, also if a release is given up: the waiters keep their places."""
    settings = fields(cluster, move) | {"retry_attempts": retries}
    async with cluster.client(**settings) as client, cluster.client(**settings) as other:
        holder = LOCKS[kind](client, NAME, 1)
        made = zip(NEXT[kind], (client, other, client), strict=False)
        waiters = {owner: LOCKS[next_kind](one, NAME, owner) for owner, (next_kind, one) in enumerate(made, 2)}
        entered: list[int] = []

        async def use(owner: int) -> None:
            await waiters[owner].lock()
            entered.append(owner)
            levels = [each for each in cluster.values(NAME) if each.isdigit()]
            assert kind == "write" or levels == [b"1"], "it is not alone"
            assert await waiters[owner].get_hold_count() == 1
            await asyncio.sleep(0.1)
            await waiters[owner].unlock()

        for moment, lost in strikes(move):
            await holder.lock()
            calls = []
            for owner in waiters:
                calls += await as_tasks(use(owner), seconds=0.2)
            release = await strike(cluster, holder.unlock(), moment, move, lost=lost, ends=retries > 0)
            await asyncio.wait([release])
            error = release.exception()
            assert error is None or (not retries and isinstance(error, ConnectionError | TryAgainError))
            end_of_move(cluster)
            with within(SOON):
                await asyncio.gather(*calls)
            # A place in a queue lasts for a second without a heartbeat.
            in_order = kind == "fair" and move is not go_away
            assert (entered if in_order else sorted(entered)) == list(waiters)
            await asyncio.sleep(1)
            assert not cluster.values(NAME)
            entered.clear()


@pytest.mark.parametrize("move", MOVES)
async def test_a_permit_is_handed_on_once(world: World, cluster: MemoryCluster, move: Move) -> None:
    async with cluster.client(**fields(cluster, move)) as client:
        semaphore = client.get_semaphore(NAME)
        await semaphore.try_set_permits(1)
        for moment, lost in strikes(move):
            await semaphore.acquire()
            [other] = await as_tasks(semaphore.acquire(), seconds=0.2)
            release = await strike(cluster, semaphore.release(), moment, move, lost=lost)
            with within(SOON):
                await asyncio.gather(release, other)
            assert await semaphore.available_permits() == 0
            await semaphore.release()
            assert await semaphore.available_permits() == 1


def members(client: Any) -> tuple[Any, Any]:
    return client.get_lock("a{a}"), client.get_fair_lock("b{a}")


def leased_members(client: Any) -> tuple[Any, Any]:
    """The lease of the first one is a key of its own."""
    return client.get_read_write_lock(NAME).read_lock(), client.get_lock("z{a}")


ACQUIRES: dict[str, Callable[[Any], Callable[[float], Any]]] = {
    "fair": lambda client: client.get_fair_lock(NAME).try_lock,
    "fenced": lambda client: client.get_fenced_lock(NAME).try_lock,
    "token": lambda client: client.get_fenced_lock(NAME).try_lock_and_get_token,
    "read": lambda client: client.get_read_write_lock(NAME).read_lock().try_lock,
    "write": lambda client: client.get_read_write_lock(NAME).write_lock().try_lock,
    "semaphore": lambda client: partial(client.get_semaphore(NAME).try_acquire, 2),
    "permit": lambda client: client.get_permit_expirable_semaphore(NAME).try_acquire,
    "permits": lambda client: partial(client.get_permit_expirable_semaphore(NAME).try_acquire_many, 2),
    "multi": lambda client: client.get_multi_lock(*members(client)).try_lock,
    "red": lambda client: client.get_red_lock(*members(client)).try_lock,
    "leased": lambda client: partial(client.get_multi_lock(*leased_members(client)).try_lock, lease_time=60),
}
"""The acquires of several keys. Each is called with the time that it may wait. The last one extends its leases."""
PERMITS = {"semaphore": b"2", "permit": b"1", "permits": b"2"}


@pytest.mark.parametrize("move", [part_keys, go_away])
@pytest.mark.parametrize("kind", ACQUIRES)
async def test_an_acquire_that_may_not_wait_for_the_end_of_a_move(
    world: World, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, kind: str, move: Move
) -> None:
    """TRYAGAIN says that a command has not run. So the acquire says that it has acquired nothing.

    An earlier copy, whose reply was lost, or another member of a group may have acquired something: that is released.
    So it is where nothing moves, and the acquire is given up in doubt.
    """
    monkeypatch.setattr(multi_lock, "EXTEND_AFTER", 0.0)
    async with cluster.client(**fields(cluster, move), retry_attempts=0) as client, cluster.client() as other:
        for (moment, lost), wait in product(strikes(move, 16 if kind == "leased" else 8), (0, 0.1)):
            for node in cluster.nodes:
                node.keys.keyspace.values.clear()
            if kind in PERMITS:
                cluster.owner(NAME).keys.keyspace.do_set(NAME.encode(), PERMITS[kind])
            # It has its connections.
            async with client.get_lock("other{a}"):
                pass
            call = await strike(cluster, ACQUIRES[kind](client)(wait), moment, move, lost=lost, ends=False)
            try:
                acquired = bool(await call)
            except ConnectionError:
                assert move is go_away or (lost and not wait)
                acquired = False
            assert not (acquired and lost and move is part_keys)
            end_of_move(cluster)
            await asyncio.sleep(1)
            too = await ACQUIRES["write" if kind in ("read", "leased") else kind](other)(0 if acquired else 10)
            assert bool(too) is not acquired


async def test_heartbeats_go_on_while_keys_are_in_two_places(
    world: World, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt would pause for longer than the places last without a heartbeat."""
    sent: list[str] = []
    execute = NodeSession._execute

    def recorded(session: NodeSession, *words: bytes) -> bytes:
        sent.append(script_name(words))
        return execute(session, *words)

    monkeypatch.setattr(NodeSession, "_execute", recorded)
    async with cluster.client() as client, cluster.client() as other:
        holder, first = (client.get_fair_lock(NAME, owner=owner) for owner in (1, 2))
        second = other.get_fair_lock(NAME)
        await holder.lock()
        waiting = await as_tasks(first.lock(), second.lock())
        part_keys(cluster)
        # So a third heartbeat of a client can only be one of those that follow each other quickly.
        monkeypatch.setattr(fair_queue, "HEARTBEAT_INTERVAL", 60.0)
        sent.clear()
        await asyncio.sleep(3)
        assert (set(sent), len(sent) >= 10) == ({"fair_heartbeat"}, True)
        end_of_move(cluster)
        await asyncio.sleep(6)
        assert sent.count("fair_heartbeat") < 100
        await holder.unlock()
        await waiting[0]
        await first.unlock()
        await waiting[1]


async def test_releases_in_the_background_of_slots_on_their_way(world: World, cluster: MemoryCluster) -> None:
    """They are sent together. One is redirected, to a node that doesn't know the script. Each wakes its waiter."""
    async with cluster.client(sharded_pubsub="on") as client, cluster.client(sharded_pubsub="on") as other:
        names = [NAME, *(f"orders-{number}" for number in range(4))]
        await hold_all(client, *names)
        waiting = await as_tasks(*(other.get_lock(name).lock() for name in names))
        cluster.begin_move(NAME).keys.flush_scripts()
        with within(SOON):
            for hold in client._session.holds.release_all():
                client._session.repair(hold.commands.abandon(hold))
            await asyncio.gather(*waiting)
        end_of_move(cluster)


def fail_over(cluster: MemoryCluster) -> ClusterNode:
    replica = cluster.fail_over(cluster.owner(NAME))
    replica.has_replica = True
    return replica


@pytest.mark.parametrize("change", [fail_over, move_slot])
@pytest.mark.parametrize("lease", [None, 25.0])
async def test_a_hold_that_the_new_master_does_not_know_is_lost_within_a_second(
    world: World, synced: MemoryCluster, lease: float | None, change: Callable[[MemoryCluster], ClusterNode]
) -> None:
    """What the new master knows stays as it is."""
    async with synced.client(topology_refresh_interval=INTERVAL) as one, synced.client() as two:
        known = one.get_lock("{a}known")
        # More than a command asks for.
        unknown = [one.get_lock(f"{{a}}{number}") for number in range(250)]
        await in_turn(partial(lock.lock, lease) for lock in (known, *unknown))
        await asyncio.sleep(1)
        change(synced).keys.keyspace.do_del(*(str(lock.name).encode() for lock in unknown))
        await asyncio.sleep(INTERVAL + NOTICE)
        assert all(lock.lost.is_set() for lock in unknown)
        assert not known.lost.is_set()
        assert not await two.get_lock(known.name).try_lock()
        assert await two.get_lock(unknown[0].name).try_lock()
        await fails(LockLostError, unknown[0].unlock, match="another server serves it now, which doesn't know it")
        left = await known.remain_time_to_live()
        assert left is not None
        assert 20 < left <= (lease or 30)
        await known.unlock()


async def test_anybody_can_take_what_was_held_before(world: World, synced: MemoryCluster) -> None:
    """Redisson's issue 4822: only the process that had held the lock could take it again."""
    async with synced.client() as one, synced.client() as two, synced.client() as three:
        locks = [client.get_lock("{a}") for client in (one, two, three)]
        entered, done = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            async with locks[1]:
                entered.set()
                await done.wait()

        await locks[0].lock()
        [waiter] = await as_tasks(wait())
        for holder in locks[:2]:
            fail_over(synced)
            assert (await holder.is_locked(), holder.lost.is_set()) == (True, False)
            assert not await locks[2].try_lock()
            with within(NOTICE):
                if holder is locks[0]:
                    await holder.unlock()
                    await entered.wait()
                else:
                    done.set()
                    await waiter
        for lock in (locks[2], locks[0]):
            assert await lock.try_lock()
            await lock.unlock()


async def test_leases_that_the_new_master_has_not_extended(world: World, synced: MemoryCluster) -> None:
    """It knows a hold, but not the nested acquire with a longer lease: the lease is extended again.

    A lease that was not lost isn't extended, not even that of a reader. The watchdog visits a reader because clients in
    Java may shorten the leases of others.
    """
    async with synced.client(topology_refresh_interval=INTERVAL) as client:
        reader, writer = (client.get_read_write_lock(f"{{a}}{name}") for name in ("reader", "writer"))
        locks: list[Any] = [reader.read_lock(), writer.write_lock(), client.get_lock("{a}lock")]
        locks += [client.get_fair_lock("{a}fair"), client.get_fenced_lock("{a}fenced")]
        for lock in locks:
            await lock.lock(15)
            await lock.lock(60)
        # The watchdog renews one of the levels.
        locks += await hold_all(client, "{a}mixed")
        await locks[-1].lock(60)
        short = client.get_read_write_lock("{a}short").read_lock()
        await short.lock(15)
        new = fail_over(synced)
        for key in new.keys.keyspace.do_keys(b"{a}*"):
            new.keys.keyspace.do_pexpire(key, b"15000")
        await asyncio.sleep(INTERVAL + NOTICE)
        *lefts, last = (new.keys.keyspace.do_pttl(str(lock.name).encode()) for lock in (*locks, short))
        assert all(left > 30_000 for left in lefts)
        assert 10_000 < last <= 15_000
        assert not any(lock.lost.is_set() for lock in locks)
        await in_turn(lock.unlock for lock in (short, *locks, *locks))
