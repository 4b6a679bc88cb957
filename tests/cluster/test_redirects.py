"""Calls reach the node that has their keys, whenever its slot moves. Interrupts, collections leave nothing behind."""

import asyncio
import builtins
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import pytest
import redis.exceptions
from redis.exceptions import RedisError, TryAgainError

import pyredisson
from pyredisson import LockLostError, new_owner
from pyredisson._backends.threads.listener import ThreadListeners
from pyredisson._backends.threads.runtime import RoutedThreadRuntime
from pyredisson._client.topology import keeper
from pyredisson.logic.retry import MOST_REDIRECTS
from pyredisson.testing import Cluster, ClusterNode
from tests.api.kinds import CLIENTS, FAIR_KEYS, QUEUE, SCORES, WAITERS
from tests.support.backends import Backend, eventually, fails, in_turn, our_threads, waiters
from tests.support.garbage import collect_at_each_line, only_collections_asked_for
from tests.support.inspecting import Scene, confirmed
from tests.support.kinds import KINDS

from .conftest import everywhere, started
from .scenes import at_each_line, calls, connections, half_moved, known_lock, map_of, names_on, other_than

NAME = "orders"


def connect(backend: Backend, **fields: Any) -> pyredisson.asyncio.Client:
    """A client that looks at the topology only when it has a reason."""
    return backend.connect(topology_refresh_interval=600, **fields)


def wait_for_refreshes(client: Any) -> None:
    """A refresh of the map that is due would find out that a slot moves before any redirect does."""
    keeper = map_of(client).keeper
    eventually(lambda: not (keeper._refreshing or keeper._requested.is_set() or keeper.table.troubled))


def redirects(cluster: Cluster) -> int:
    """How often nodes have answered MOVED or ASK."""
    errors = [node.ask("INFO", "errorstats") for node in cluster.nodes]
    return sum(each.get(f"errorstat_{code}", {"count": 0})["count"] for each in errors for code in ("MOVED", "ASK"))


def move(cluster: Cluster, name: str) -> ClusterNode:
    """Moves the slot of that name. Returns where it is."""
    target = other_than(cluster.node_of_key(name), cluster)
    cluster.move_slot(cluster.slot_of_key(name), target)
    return target


def port_of(client: Any, name: str) -> int:
    """Where the client believes that the name is."""
    node = map_of(client).table.node_of_key(name.encode())
    assert node is not None
    return int(node.endpoint.port)


async def test_the_map_follows_the_first_redirect(cluster: Cluster, backend: Backend) -> None:
    """Many callers that are redirected cause one refresh."""
    client = connect(backend)
    lock = client.get_lock(NAME)
    await lock.lock()
    wait_for_refreshes(client)
    new = move(cluster, NAME)
    before = redirects(cluster)
    await lock.lock()
    first = redirects(cluster)
    # None if a renewal in the background was redirected before.
    assert first <= before + 1
    await in_turn([lock.lock] * 5)
    assert (redirects(cluster), port_of(client, NAME)) == (first, new.port)
    wait_for_refreshes(client)
    move(cluster, NAME)
    refreshes = partial(calls, "cluster|slots", *cluster.nodes)
    before, begun = refreshes(), time.monotonic()
    attempts = [backend.spawn(lambda: client.get_lock(NAME).try_lock()) for _ in range(50)]
    assert not any([await each.result() for each in attempts])
    took = time.monotonic() - begun
    await backend.sleep(0.5)
    # One for the first, one for those during it; and redirects that come late cause one after each pause.
    assert refreshes() - before <= 2 + took / keeper.PAUSE


async def test_keys_in_both_places_and_calls_that_acquire_nothing(cluster: Cluster, backend: Backend) -> None:
    """They have nothing to say but the error, and where. What they release is released later, in the background."""
    client = connect(backend, retry_attempts=0)
    lock, semaphore = client.get_fair_lock(f"l{{{NAME}}}"), client.get_semaphore(NAME)
    latch, permits = client.get_count_down_latch(f"{{{NAME}}}"), client.get_permit_expirable_semaphore(f"p{{{NAME}}}")
    await lock.lock()
    await latch.try_set_count(2)
    calls = lock.unlock, partial(semaphore.release, 2), latch.count_down, semaphore.drain_permits
    with half_moved(cluster, NAME) as (source, target):
        said = rf"slot {cluster.slot_of_key(NAME)} on 127.0.0.1:{source.port} of the cluster of"
        for call in (*calls, permits.available_permits):
            await fails(TryAgainError, call, match=said)
    await backend.until(lambda: target.ask("MGET", NAME, f"{{{NAME}}}") == ["2", "1"])
    assert await connect(backend).get_fair_lock(lock.name).try_lock(wait_time=10)


@contextmanager
def naming_each_other(cluster: Cluster, name: str = NAME) -> Iterator[None]:
    """Each of two nodes says that the other one serves the slot, as for a moment at the end of a move."""
    slot = cluster.slot_of_key(name)
    source = cluster.node_of(slot)
    source.ask("CLUSTER", "SETSLOT", slot, "NODE", other_than(source, cluster).id)
    try:
        yield
    finally:
        source.ask("CLUSTER", "SETSLOT", slot, "NODE", source.id)


async def test_nodes_name_each_other(cluster: Cluster, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """A call pauses after some redirects. It outlasts them, also one that waits for no other owner."""
    lock = await known_lock(connect(backend), NAME)
    before = redirects(cluster)
    with naming_each_other(cluster):
        await fails(RedisError, lock.try_lock, match="MOVED", wait_time=1)
        followed = redirects(cluster) - before
        call = backend.spawn(lock.try_lock)
        await backend.sleep(0.5)
        assert not call.done()
    assert await call.result()
    assert MOST_REDIRECTS < followed < 10 * MOST_REDIRECTS
    # Their other slots are served.
    assert not [record for record in caplog.records if "available" in record.message]


two_masters = started(Cluster, "module", masters=2, replicas=0)


def queue_up(node: ClusterNode) -> None:
    """The only waiter of the fair lock has left. Whoever drops it removes the queue."""
    node.ask("RPUSH", QUEUE, "gone:1")
    node.ask("ZADD", SCORES, 10**15, "gone:1")
    node.ask("HSET", WAITERS, "gone:1", 0)
    node.ask("ZADD", CLIENTS, 10**15, "other")


@everywhere
async def test_calls_that_were_ended_in_the_middle(two_masters: Cluster, backend: Backend) -> None:
    """A call goes on where the keys are. If it isn't repeated, it raises a class of redis-py."""
    semaphore = backend.connect().get_permit_expirable_semaphore(f"s{{{NAME}}}")
    await semaphore.try_set_permits(2)
    await semaphore.acquire(lease_time=0.2)
    await backend.sleep(0.3)
    with half_moved(two_masters, NAME) as (source, _):
        # The permit has ended. The script frees it, which removes the key of the permits in use, and then counts these.
        count = await backend.begin(semaphore.available_permits, lambda: source.ask("GET", f"s{{{NAME}}}") == "2")
    assert await count.result() == 2
    source = two_masters.node_of_key(NAME)
    source.ask("HSET", NAME, "java:1", 1)
    queue_up(source)
    with half_moved(two_masters, NAME), pytest.raises(TryAgainError) as raised:
        await backend.connect().get_fair_lock(NAME).force_unlock()
    assert raised.type is TryAgainError
    # A release may have run. Then the new node doesn't know the hold, and that is no loss.
    two_masters.flush()
    lock = backend.connect().get_fair_lock(NAME, owner=new_owner())
    await lock.lock()
    slot, source = two_masters.slot_of_key(NAME), two_masters.node_of_key(NAME)
    queue_up(source)
    assert source.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == len(FAIR_KEYS)
    with half_moved(two_masters, NAME):
        release = backend.spawn(lock.unlock)
        await backend.until(lambda: source.ask("CLUSTER", "COUNTKEYSINSLOT", slot) < len(FAIR_KEYS))
    await release.result()


@everywhere
async def test_a_lock_is_handed_on_while_its_slot_is_moved(two_masters: Cluster, backend: Backend) -> None:
    """The script doesn't remove the key: the server would end it there, and nobody would know that the lock is free."""
    client = backend.connect(local_hand_over_time=60)
    holder, waiter = (client.get_lock(NAME, owner=owner) for owner in (1, 2))
    await holder.lock()
    other = await backend.begin(waiter.lock, lambda: waiters(client, NAME) == 1)
    with half_moved(two_masters, NAME) as (source, _):
        await holder.unlock()
        await other.result()
        [(name, levels)] = source.ask("HGETALL", NAME).items()
        assert (name.rpartition(":")[2], levels) == ("2", "1")
    await waiter.unlock()


FACTORIES: list[Callable[[Any, str], Any]] = [
    *KINDS.values(),
    lambda client, name: client.get_multi_lock(client.get_lock(name), client.get_fair_lock("f" + name)),
    lambda client, name: client.get_red_lock(client.get_lock(name), client.get_fair_lock("f" + name)),
    lambda client, name: client.get_semaphore(name),
    lambda client, name: client.get_permit_expirable_semaphore(name),
    lambda client, name: client.get_count_down_latch(name),
]
NOT_TRIED = {"hold", "on_lost", "permit", "remove_on_lost", "acquire", "acquire_many", "lock", "lock_and_get_token"}
"""What isn't awaited, and what goes on until the trouble is over, as it has no limit."""
ID = "0" * 32
Trouble = Callable[[Cluster, str], AbstractContextManager[Any]]
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("add_permits", "reduce_permits", "set_permits", "try_set_permits", "try_set_count"), (1,)),
    "is_held_by": (1,),
    **dict.fromkeys(("get_lease_time", "try_release", "PermitExpirableSemaphore.release"), (ID,)),
    "try_acquire_many": (2,),
    "update_lease_time": (ID, 1),
    "wait": (0.05,),
}


def never_found(cluster: Cluster, name: str) -> AbstractContextManager[None]:
    """Nodes name each other, which the server allows only without keys. The client still believes to hold its locks."""
    cluster.flush()
    return naming_each_other(cluster, name)


@pytest.mark.parametrize("trouble", [never_found, half_moved])
async def test_each_call(cluster: Cluster, backend: Backend, trouble: Trouble) -> None:
    client = connect(backend, retry_attempts=0)
    objects = [make(client, f"{number}{{{NAME}}}") for number, make in enumerate(FACTORIES)]
    for made in objects:
        if hasattr(getattr(made, "_target", made), "lock"):
            await made.lock(60)
    raised: dict[str, type[Exception]] = {}
    with trouble(cluster, NAME):
        for made in objects:
            kind = type(getattr(made, "_target", made)).__name__
            public = getattr(pyredisson, kind)
            for method in sorted(name for name in dir(public) if callable(getattr(public, name))):
                if method.startswith("_") or method in NOT_TRIED:
                    continue
                arguments = ARGUMENTS.get(f"{kind}.{method}", ARGUMENTS.get(method, ()))
                try:
                    await getattr(made, method)(*arguments)
                except Exception as error:  # noqa: BLE001 - any class may come
                    raised[f"{kind}.{method}"] = type(error)
    modules = redis.exceptions, pyredisson, builtins
    for call, raised_type in raised.items():
        assert any(getattr(module, raised_type.__name__, None) is raised_type for module in modules), call
    assert sum(issubclass(error, redis.exceptions.RedisError) for error in raised.values()) > 20


@pytest.mark.usefixtures("announced", "listed_soon")
async def test_owners_on_two_nodes_wait_for_each_other(cluster: Cluster, backend: Backend, scene: Scene) -> None:
    one, two = backend.connect(), backend.connect()
    [first], [second] = (names_on(cluster, node, 1) for node in cluster.masters()[:2])
    await scene.wait_for_each_other(
        ([one.get_lock(first)], one.get_fair_lock(second)), ([two.get_fair_lock(second)], two.get_lock(first))
    )
    [deadlock] = await confirmed(backend, one, first.encode())
    assert {wait.key for wait in deadlock.waits} == {first.encode(), second.encode()}
    assert [waiter.client_id for waiter in await one.get_lock(first).waiters()] == [two.id]
    assert [waiter.client_id for waiter in await two.get_fair_lock(second).waiters()] == [one.id]


async def test_leases_of_one_lock_and_its_slot_moves(cluster: Cluster, backend: Backend) -> None:
    client = backend.connect()
    renewed, lock = client.get_lock("orders", watchdog_timeout=5), client.get_lock("orders")
    await renewed.lock()
    move(cluster, "orders")
    assert 0 < (await renewed.remain_time_to_live() or 0) <= 5
    await renewed.unlock()
    await lock.lock(lease_time=30)
    move(cluster, "orders")
    await lock.extend(60)
    assert 50 < (await lock.remain_time_to_live() or 0) <= 60
    await lock.unlock()
    await lock.lock(at_most=1)
    move(cluster, "orders")
    other = backend.connect()
    assert await other.get_lock("orders").try_lock(20)
    await fails(LockLostError, lock.unlock)
    # What a client holds at its end is released where it is then.
    target = move(cluster, "orders")
    await other.close()
    assert not target.ask("EXISTS", "orders")


# Interrupts and collections at any line

ROUTING = (
    *("_backends/routed.py", "_backends/threads/runtime.py", "_backends/threads/listener.py"),
    *("_protocol/routing.py", "_protocol/moving_slots.py", "_client/topology/keeper.py"),
    *("logic/groups/parallel.py", "logic/routed_channels.py"),
)
Act = Callable[[pyredisson.Client], object]


def check_at_each_line(
    cluster: Cluster, begin: Callable[[], pyredisson.Client], act: Act, *more_files: str, held_by_others: int = 0
) -> None:
    """Nothing is left behind by an action that was interrupted. `held_by_others`: how many locks."""
    for client, where in at_each_line((*ROUTING, *more_files), begin, act):
        runtime, registry, keeper = client._session.runtime, cast(Any, client._session.channels), map_of(client).keeper
        assert isinstance(runtime, RoutedThreadRuntime)
        assert not client._session.holds.table, f"still held after an interrupt in {where}"
        assert (len(runtime._retries), len(runtime._pauses)) == (0, 0), where
        # An interrupted call may leave its wakeup to the next refresh.
        keeper.request()
        eventually(lambda keeper=keeper: not keeper._waiting)  # type: ignore[misc]
        assert not any((registry.waiting, registry.place_of, *(one.waiting for one in registry._nodes.values()))), where
        eventually(lambda runtime=runtime: runtime.calls_in_flight == 0)  # type: ignore[misc]
        eventually(lambda: sum(node.ask("DBSIZE") for node in cluster.masters()) == held_by_others)


def lock_and_unlock(client: pyredisson.Client, lock: Any = None) -> None:
    lock = client.get_lock("a") if lock is None else lock
    lock.lock()
    lock.unlock()


@pytest.fixture
def fresh(cluster: Cluster) -> Iterator[Callable[[], pyredisson.Client]]:
    """Makes a client, and closes the one before it."""
    with ExitStack() as clients:

        def made() -> pyredisson.Client:
            clients.close()
            return clients.enter_context(pyredisson.connect(cluster.url, topology_refresh_interval=600))

        yield made


@pytest.fixture
def client(fresh: Callable[[], pyredisson.Client]) -> pyredisson.Client:
    return fresh()


@pytest.mark.parametrize("waits", [0, 1], ids=["call", "waiter"])
def test_the_first_call(cluster: Cluster, fresh: Callable[[], pyredisson.Client], waits: int) -> None:
    """It waits for the topology. A waiter also opens a listener, and places its channel."""
    if waits:
        cluster.node_of_key("a").ask("HSET", "a", "java:1", 1)
    act: Act = (lambda made: made.get_lock("a").try_lock(0.02)) if waits else lock_and_unlock
    check_at_each_line(cluster, fresh, act, held_by_others=waits)


def test_calls_that_are_redirected(cluster: Cluster, client: pyredisson.Client) -> None:
    """And that replicas confirm."""
    client.get_lock("a").is_locked()
    slot, table = cluster.slot_of_key("a"), map_of(client).table

    def begin() -> pyredisson.Client:
        right = table.node_of_slot(slot)
        # As if it had missed a move.
        table._slots.assign(slot, slot, next(node for node in table.nodes.values() if node is not right))
        return client

    check_at_each_line(cluster, begin, lock_and_unlock, "_backends/acquiring.py")


def test_calls_that_follow_ask(cluster: Cluster, client: pyredisson.Client) -> None:
    client.get_lock("a").is_locked()
    with half_moved(cluster, "a"):
        check_at_each_line(cluster, lambda: client, lock_and_unlock)


def test_a_multi_lock_of_several_nodes(cluster: Cluster, client: pyredisson.Client) -> None:
    members = [client.get_lock(names_on(cluster, node, 1)[0]) for node in cluster.masters()]
    group = client.get_multi_lock(*members)
    for member in members:
        member.is_locked()

    check_at_each_line(cluster, lambda: client, partial(lock_and_unlock, lock=group))
    # They end a moment after they have told the caller.
    eventually(lambda: not our_threads("pyredisson-background"))


def test_a_waiter_is_collected_while_a_listener_is_opened(cluster: Cluster) -> None:
    """It leaves its channel while the first waiter of another node has its listener opened."""
    first, second = (names_on(cluster, node, 1)[0] for node in cluster.masters()[:2])
    connect = partial(pyredisson.connect, cluster.url)
    with only_collections_asked_for(), connect() as client, connect() as other:
        for name in (first, second):
            other.get_lock(name).lock()
        registry = client._session.channels
        channel = client.get_lock(first)._logic.commands.channel

        def story() -> tuple[Callable[[], object], Callable[[], object]]:
            leaving = client._session.runtime.wakeup()
            registry.join(channel, leaving)
            return lambda: client.get_lock(second).try_lock(0.01), lambda: registry.leave(channel, leaving)

        collect_at_each_line([ThreadListeners.open, ThreadListeners.wait], story)
        assert not registry.waiting


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_dropped_client_that_has_waited_on_several_nodes(cluster: Cluster, backend: Backend) -> None:
    before = our_threads()
    seen = partial(connections, "to-be-collected", *cluster.masters())

    async def use() -> weakref.ref[Any]:
        client = backend.connect(client_name="to-be-collected")
        for node in cluster.masters():
            name = names_on(cluster, node, 1)[0]
            async with client.get_lock(name, owner=1):
                assert not await client.get_lock(name).try_lock(0.05)
        assert seen() > len(cluster.masters())
        backend._clients.clear()
        return weakref.ref(getattr(client, "_target", client)._lifecycle)

    reference = await use()
    await backend.until(lambda: gc.collect() >= 0 and reference() is None)
    await backend.until(lambda: seen() == 0)
    await backend.until(lambda: our_threads() <= before)
    assert "pyredisson-listener" not in {task.get_name() for task in asyncio.all_tasks()}
