"""The walk over all keys of a server: what it finds, costs and needs; names and their keys; cycles of waiters."""

import asyncio
import uuid
from binascii import hexlify
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from graphlib import CycleError, TopologicalSorter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError
from redis.exceptions import TimeoutError as RedisTimeoutError

import pyredisson.asyncio
from pyredisson._core import prefixed
from pyredisson.errors import ClosedError
from pyredisson.holder import Holder
from pyredisson.inspection import discovery as walking
from pyredisson.inspection.announcements import read_clients
from pyredisson.inspection.deadlocks import Deadlock, find
from pyredisson.inspection.model import AnnouncedWait, Evidence, Kind, Owner, Side, State
from pyredisson.inspection.raw import client_of, companions_of, objects_of
from pyredisson.logic.announcement import client_key
from pyredisson.logic.waits import find_cycles
from pyredisson.testing import Proxy, Server
from tests.support.backends import Backend, fails
from tests.support.inspecting import add_foreign_keys, announce, discovery_of, inspector, listed, session_of, walk

from .conftest import on_every_server

CLIENT = str(uuid.UUID(int=3))
OWNER = f"{CLIENT}:1"
QUICK: dict[str, Any] = {"timeout": 1.0, "connect_timeout": 1.0, "retry_attempts": 1}
KEYS, LOCKS = 20_000, 200
NAMES = st.binary(max_size=12) | st.text("{}:ab", max_size=8).map(str.encode)
OTHERS = b"""
orders redisson_lock_queue redisson_lock_queue:orders
redisson_unlock_latch:{orders}:00112233445566778899aabbccddeeff
pyredisson_fencing:{orders} pyredisson_once:{orders} orders:timeout pyredisson_client pyredisson_client:x
"""
CHEAP = {"scan", "type", "hrandfield", "hget", "hmget", "zrange"}
"""The commands that a step may call for a key: the time of each depends neither on the size of the key nor on that of
the database."""


def fill(redis: Any) -> None:
    """Keys of other programs, of every type, and few locks among them."""
    pipeline = redis.pipeline(transaction=False)
    for number in range(KEYS // 5):
        pipeline.set(f"counter:{number}", number)
        pipeline.hset(f"cart:{number}", mapping={f"item:{item}": item for item in range(1 + number % 40)})
        pipeline.rpush(f"list:{number}", "x")
        pipeline.zadd(f"{{ranks}}:{number}:timeout", {"somebody": number})
        pipeline.set(f"page:{number}", "<html>")
    for number in range(LOCKS):
        pipeline.hset(f"lock:{number}", f"{CLIENT}:{number}", 1)
    # A small hash whose fields are expensive to read.
    for number in range(200):
        pipeline.hset(f"wide:{number}", mapping={f"field:{item:04}": "x" * 50 for item in range(120)})
    pipeline.execute()


@on_every_server
async def test_nothing_is_missing_and_nothing_invented(backend: Backend, redis: Any) -> None:
    client = backend.connect()
    discovery = await walk(discovery_of(client))
    assert (discovery.found, discovery.scanned, discovery.total) == ({}, 0, 0)
    fill(redis)
    await discovery_of(client).step()
    redis.config_resetstat()
    discovery = await walk(discovery_of(client))
    called = {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in redis.info("commandstats").items()}
    assert discovery.found == dict.fromkeys((b"lock:%d" % number for number in range(LOCKS)), Evidence.HASH)
    assert discovery.scanned >= discovery.total == KEYS + LOCKS + 200
    assert (discovery.failed, discovery.topology_changed) == ({}, False)
    for name in called.keys() & {"dbsize", "info", "config", "config|resetstat"}:
        del called[name]
    # No step is long: each looks at few keys, and at little of each. It never calls KEYS.
    steps = called.pop("evalsha")
    assert steps > discovery.scanned / (2 * walking.KEYS_IN_A_STEP)
    assert set(called) <= CHEAP
    assert sum(called.values()) <= 3 * discovery.scanned + steps


async def test_companion_keys_and_clients(backend: Backend, redis: Any) -> None:
    redis.rpush("redisson_lock_queue:{one}", "x")
    redis.mset({f"pyredisson_once:{{two}}:{CLIENT}:{end}": "2 1" for end in ("0:latch", "1")})
    redis.zadd("{three}:timeout", {b"0123456789abcdef": 1})
    redis.mset({"redisson_lock_token:four{x}": 5, "pyredisson_fencing:{five}": 5})
    redis.set("redisson_unlock_latch:{six}:00112233445566778899aabbccddeeff", 0)
    announce(redis, CLIENT)
    discovery = await walk(discovery_of(backend.connect()))
    found = dict.fromkeys((b"one", b"{one}", b"four{x}"), Evidence.COMPANION)
    found |= {b"two": Evidence.LATCH, b"{two}": Evidence.LATCH}
    found |= {b"three": Evidence.PERMITS, b"{three}": Evidence.PERMITS}
    assert (discovery.found, [*discovery.clients]) == (found, [CLIENT])


@on_every_server
async def test_a_pattern(backend: Backend, redis: Any) -> None:
    """Also when the server knows no script."""
    for name in ("cron:a", "cron:B", "web"):
        redis.hset(name, f"{CLIENT}:1", 1)
    client = backend.connect()
    for pattern, found in ("*", "cron:a cron:B web"), ("cron:*", "cron:a cron:B"), ("cron:[a-z]", "cron:a"), ("x", ""):
        redis.script_flush()
        assert set(await listed(client, pattern)) == {*found.split()}


async def test_passes_one_after_the_other(backend: Backend, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a pass ends, the objects of the pass before count; then those that are gone are forgotten."""
    monkeypatch.setattr(walking, "KEYS_IN_A_STEP", 16)
    redis.mset({f"counter:{number}": number for number in range(200)})
    redis.hset("first", f"{CLIENT}:1", 1)
    announce(redis, CLIENT)
    discovery = await walk(discovery_of(backend.connect()))
    assert (set(discovery.found), set(discovery.clients)) == ({b"first"}, {CLIENT})
    assert not await discovery.step()
    redis.delete("first", f"pyredisson_client:{{{CLIENT}}}")
    redis.hset("second", f"{CLIENT}:1", 1)
    discovery.restart()
    assert (discovery.done, discovery.scanned) == (False, 0)
    assert await discovery.step()
    assert b"first" in discovery.found
    while await discovery.step():
        assert b"first" in discovery.found
        assert CLIENT in discovery.clients
    assert (set(discovery.found), set(discovery.clients)) == ({b"second"}, set())


async def test_the_rate(backend: Backend, redis: Any) -> None:
    redis.mset({f"counter:{number}": number for number in range(1000)})
    client = backend.connect()
    clock, discovery = session_of(client).clock, discovery_of(client, rate=2000)
    begun = clock()
    await walk(discovery)
    # The pause after the last step isn't needed.
    assert clock() - begun > (1000 - 2 * walking.KEYS_IN_A_STEP) / 2000


@on_every_server
async def test_with_the_rights_that_are_needed(backend: Backend, user: Callable[[str], str], redis: Any) -> None:
    """As the documentation of `Inspector` names them."""
    add_foreign_keys(redis)
    redis.hset("orders", f"{CLIENT}:1", 1)
    announce(redis, CLIENT)
    client = backend.connect(user("~* +@read +@connection +eval +evalsha +time +pubsub +info -keys"))
    found = await listed(client)
    assert set(found) == {"orders"}
    assert found["orders"].owners[0].holder.host == "web-3"
    assert len((await read_clients(session_of(client), [CLIENT]))[0]) == 1
    # tests/lua/test_inspect_scripts.py removes the rights of the scripts one by one.
    for missing in ("-type", "+type -evalsha -eval"):
        redis.execute_command("ACL", "SETUSER", "app", *missing.split())
        await fails(NoPermissionError, walk, discovery_of(client))


@pytest.fixture
def locks(redis: Any, monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """The names of some locks on the server, for which a walk needs many steps."""
    monkeypatch.setattr(walking, "KEYS_IN_A_STEP", 16)
    names = {b"lock:%d" % number for number in range(200)}
    for name in names:
        redis.hset(name, OWNER, 1)
    return names


async def test_lost_replies_and_a_client_that_is_closed(backend: Backend, proxy: Proxy, locks: set[bytes]) -> None:
    client = backend.connect(proxy.url, **QUICK)
    fault = proxy.drop_reply(b"DBSIZE", times=2)
    discovery = await walk(discovery_of(client))
    assert (set(discovery.found), discovery.failed, fault.left) == (locks, {}, 0)
    discovery = discovery_of(client, rate=1.0)
    assert await discovery.step()
    waiter = backend.spawn(discovery.step)
    await backend.sleep(0.05)
    # It pauses for many seconds, as the rate demands.
    assert not waiter.done()
    await client.close()
    await fails(ClosedError, waiter.result)


async def test_a_server_that_is_away(backend: Backend, own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cursors stay valid, and a failure is not the end. If it hangs, the next pass finds its objects."""
    monkeypatch.setattr(walking, "KEYS_IN_A_STEP", 16)
    with own_server.redis() as redis:
        redis.mset({f"counter:{number}": number for number in range(200)})
    discovery = discovery_of(backend.connect(own_server.url))
    assert await discovery.step()
    own_server.kill()
    assert await discovery.step()
    [error] = discovery.failed.values()
    assert isinstance(error, RedisConnectionError)
    own_server.start()
    await walk(discovery)
    assert (discovery.failed, discovery.done) == ({}, True)
    # The walk goes on without a server that hangs, and says so.
    client = backend.connect(own_server.url, **QUICK)
    with own_server.redis() as redis:
        redis.hset("orders", OWNER, 1)
    own_server.pause()
    discovery = await walk(discovery_of(client))
    assert discovery.done
    [error] = discovery.failed.values()
    assert isinstance(error, (RedisTimeoutError, RedisConnectionError))
    known, failed = await inspector(client).states([b"orders", b"other"])
    assert (known, [*failed]) == ([], [b"orders", b"other"])
    own_server.resume()
    discovery.restart()
    await walk(discovery)
    assert (set(discovery.found), discovery.failed) == ({b"orders"}, {})
    # What was found stays if a server doesn't answer: the objects may still be there.
    own_server.pause()
    discovery.restart()
    await walk(discovery)
    assert (set(discovery.found), bool(discovery.failed)) == ({b"orders"}, True)
    own_server.resume()
    [state], _ = await inspector(client).states([b"orders"])
    assert state.held


async def test_a_step_that_is_cancelled_is_repeated(proxy: Proxy, locks: set[bytes]) -> None:
    async with pyredisson.asyncio.connect(proxy.url) as client:
        discovery = discovery_of(client)
        assert await discovery.step()
        for _ in range(3):
            reply = proxy.hold_reply(b"DBSIZE")
            task = asyncio.create_task(discovery.step())
            assert await asyncio.to_thread(reply.held.wait, 10)
            task.cancel()
            await fails(asyncio.CancelledError, lambda task=task: task)
            await asyncio.to_thread(reply.deliver)
        await walk(discovery)
        assert (set(discovery.found), discovery.failed) == (locks, {})


@given(NAMES)
def test_a_companion_leads_back_to_its_object(name: bytes) -> None:
    for key, _ in companions_of(name):
        names, _ = objects_of(key)
        assert name in names
        # The other one has the same companion key in Redisson, too.
        assert all(key in dict(companions_of(other)) for other in names)


@given(NAMES, st.integers(0, 99), st.binary(min_size=16, max_size=16))
def test_what_a_script_remembers_leads_back_to_its_object(name: bytes, slot: int, permit: bytes) -> None:
    """The reply of a call, by the kind of the object, and a permit that was withdrawn."""
    once = prefixed(b"pyredisson_once", name) + b":%b:%d" % (CLIENT.encode(), slot)
    keys = {once: Evidence.COUNTER, once + b":semaphore": Evidence.SEMAPHORE, once + b":latch": Evidence.LATCH}
    withdrawn = prefixed(b"pyredisson_permit_withdrawn", name) + b":" + hexlify(permit)
    for key, expected in (keys | dict.fromkeys((once + b":permit", withdrawn), Evidence.PERMITS)).items():
        names, evidence = objects_of(key)
        assert (name in names, evidence) == (True, expected)


@pytest.mark.parametrize("key", [b"", *OTHERS.split()])
def test_other_keys_belong_to_no_object_and_no_client(key: bytes) -> None:
    assert (objects_of(key)[0], client_of(key)) == ((), None)


@given(st.uuids())
def test_the_key_of_a_client(client: uuid.UUID) -> None:
    key = client_key(str(client))
    assert (client_of(key), objects_of(key)[0]) == (str(client), ())


# Cycles of owners that wait for each other: in any graph, and among locks of any kind, held by anyone.
OWNERS = st.integers(0, 9)
LOCKED = st.integers(0, 5)
WRITER = st.tuples(st.just("write"), st.sets(OWNERS, min_size=1, max_size=1))
READERS = st.tuples(st.just("read"), st.sets(OWNERS, min_size=1, max_size=3))
WAITS = st.dictionaries(OWNERS, st.tuples(LOCKED, st.sampled_from(["read", "write"])))


def has_cycle(graph: Mapping[int, Sequence[int]]) -> bool:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False


@given(st.dictionaries(st.integers(0, 12), st.lists(st.integers(0, 12), max_size=3), max_size=13))
def test_cycles_of_any_graph(graph: dict[int, list[int]]) -> None:
    cycles = find_cycles(graph)
    assert bool(cycles) == has_cycle(graph)
    nodes = [node for cycle in cycles for node in cycle]
    assert len(nodes) == len(set(nodes))
    assert all(after in graph[node] for each in cycles for node, after in zip(each, [*each[1:], each[0]], strict=True))
    # What is left has none.
    assert not has_cycle({node: others for node, others in graph.items() if node not in nodes})


@dataclass
class World:
    """Who holds what, and who waits for what. A lock is held by one writer, or by readers."""

    holders: dict[int, tuple[Side, set[int]]]
    """By the lock: the side, and the owners."""
    waits: dict[int, tuple[int, Side]]
    """By the owner: the lock, and the side."""

    def stuck(self) -> set[int]:
        """The owners that never go on, found by letting all others go on and release what they hold."""
        waiting = dict(self.waits)
        while free := [one for one, (lock, side) in waiting.items() if not self._blocking(waiting, lock, side) - {one}]:
            for owner in free:
                del waiting[owner]
        return set(waiting)

    def _blocking(self, waiting: Mapping[int, object], lock: int, side: Side) -> set[int]:
        """The holders of a lock that wait themselves, and keep a waiter for that side out."""
        held, owners = self.holders.get(lock, ("read", set()))
        return set() if held == side == "read" else owners & waiting.keys()

    def announced(self) -> list[AnnouncedWait]:
        waits = self.waits.items()
        return [AnnouncedWait(side, b"%d" % lock, holder_of(owner), True) for owner, (lock, side) in waits]

    def states(self) -> dict[bytes, State]:
        return {
            b"%d" % lock: held_by(lock, "read-write", *(Owner("", holder_of(each), side=side) for each in owners))
            for lock, (side, owners) in self.holders.items()
        }


def holder_of(owner: int, **fields: Any) -> Holder:
    return Holder(client_id=f"c{owner % 3}", owner_id=owner, **fields)


def held_by(lock: int, kind: Kind, *owners: Owner) -> State:
    return State(b"%d" % lock, str(lock), kind, True, "", True, owners, len(owners))


@given(st.builds(World, st.dictionaries(LOCKED, WRITER | READERS), WAITS))
def test_owners_that_never_go_on_are_found_and_no_others(world: World) -> None:
    stuck, found = world.stuck(), find(world.announced(), world.states())
    assert {wait.node[1] for deadlock in found for wait in deadlock.waits} <= stuck
    assert bool(found) == bool(stuck)


@pytest.mark.parametrize(("later", "goes_on"), [(0.002, True), (-0.002, True), (1.5, False), (None, False)])
def test_the_same_calls_still_wait(later: float | None, goes_on: bool) -> None:
    """A later wait of the same owner for the same lock is another one."""

    def deadlock(*since: float | None) -> Deadlock:
        began = [None if each is None else datetime.fromtimestamp(each, UTC) for each in since]
        holders = [holder_of(number, since=each) for number, each in enumerate(began)]
        return Deadlock(tuple(AnnouncedWait("lock", b"a", holder, True) for holder in holders))

    before = deadlock(1000.0, 2000.0)
    now = deadlock(1000.0, None if later is None else 2000.0 + later)
    assert (now.goes_on(before), now.identity) == (goes_on, before.identity)


def test_semaphores_and_locks_that_are_kept_or_just_acquired() -> None:
    """Whoever releases any permit helps. A lock that is kept for a while, or that the waiter has by now, needs nobody's
    release."""
    one, two = holder_of(1), holder_of(2)
    waits = [AnnouncedWait("lock", b"1", one, True), AnnouncedWait("lock", b"2", two, True)]
    held = {b"1": held_by(1, "lock", Owner("", two)), b"2": held_by(2, "lock", Owner("", one))}
    assert find(waits, held)
    assert not find(waits, held | {b"1": held_by(1, "permits", Owner("", two))})
    assert not find(waits, held | {b"1": held_by(1, "lock", Owner("", two, kept=True))})
    assert not find([waits[0], AnnouncedWait("lock", b"2", two, False)], held)
    assert not find(waits, {b"1": held[b"1"]})
    assert not find([AnnouncedWait("lock", b"1", two, True)], held)
