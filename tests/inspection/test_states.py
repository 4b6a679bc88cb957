"""The state of every primitive, free, held and waited for, beside keys that are none; holds that were shown end."""

import math
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pyredisson.errors import ClosedError
from pyredisson.holder import Holder
from pyredisson.inspection import announcements, states
from pyredisson.inspection.announcements import Announced, read_announced, read_clients
from pyredisson.inspection.model import AnnouncedHold, Owner, State
from pyredisson.inspection.states import LIMIT, MOST_LISTED
from pyredisson.inspection.unlocking import release_shown
from tests.support.backends import Backend, fails
from tests.support.inspecting import add_foreign_keys, announce, inspector, listed, session_of, state_of
from tests.support.kinds import KINDS, acquired, against

from .conftest import on_every_server

JAVA = f"{uuid.UUID(int=5)}"
CLIENTS = [str(uuid.UUID(int=number)) for number in range(3)]
PLAIN = ("lock", "fair", "fenced", "spin")


@pytest.fixture(autouse=True)
def foreign_keys(redis: Any) -> None:
    add_foreign_keys(redis)


def lease(state: State, owner: int = 0) -> float:
    return state.owners[owner].holder.time_to_live or 0


@on_every_server
@pytest.mark.parametrize("kind", PLAIN)
async def test_a_lock(backend: Backend, redis: Any, kind: str) -> None:
    client = backend.connect()
    lock = await acquired(KINDS[kind](client, "or ders"), 20)
    await lock.lock(20)
    state = (await listed(client))["or ders"]
    # Neither a fair lock without waiters nor a spin lock can be told from a lock.
    assert (state.kind, state.certain, state.held) == ("fenced" if kind == "fenced" else "lock", False, True)
    [owner] = state.owners
    assert (owner.levels, owner.side, owner.kept, state.owner_count) == (2, None, False, 1)
    assert (owner.holder.client_id, owner.raw) == (client.id, f"{client.id}:{owner.holder.owner_id}")
    assert (state.time_to_live, 15 < lease(state) <= 20) == (lease(state), True)
    assert state.token == (await lock.get_token() if kind == "fenced" else None)
    assert (state.permits, state.free, state.count, state.waiters) == (None, None, None, ())
    # Its holder announces the kind, and when the hold began.
    announce(redis, client.id, {f"{owner.holder.owner_id} or ders": kind})
    state = (await listed(client))["or ders"]
    assert (state.kind, state.certain) == (kind, True)
    [owner] = state.owners
    holder: Any = owner.holder
    assert (holder.client_name, holder.host, holder.pid) == ("billing@web-3:812", "web-3", 812)
    assert (holder.since.timestamp(), holder.foreign) == (pytest.approx(1_795_167_377.9), False)
    assert await release_shown(session_of(client), state, owner)
    state = await state_of(client, "or ders")
    assert (state.held, state.kind) == (False, "fenced" if kind == "fenced" else "unknown")
    assert (state.owners, state.owner_count, state.time_to_live) == ((), 0, None)


@on_every_server
async def test_readers(backend: Backend, redis: Any) -> None:
    """One whose lease has ended keeps writers out until the lock is removed, so it is listed."""
    client = backend.connect()
    lock = await acquired(client.get_read_write_lock("orders").read_lock(), 10)
    await lock.lock(20)
    await backend.as_another_owner(lambda: client.get_read_write_lock("orders").read_lock().lock(40))
    for kind in ("write", "read"):
        await KINDS[kind](client, "stock").lock()
    redis.hset("report", mapping={"mode": "read", f"{JAVA}:1": 1, f"{JAVA}:2": 1})
    redis.pexpire("report", 30_000)
    redis.set(f"{{report}}:{JAVA}:2:rwlock_timeout:1", 1, px=20_000)
    found = await listed(client)
    assert (lease(found["report"], 0), 15 < lease(found["report"], 1) <= 20) == (0, True)
    state = found["stock"]
    assert (state.kind, state.owner_count) == ("read-write", 2)
    owners = sorted((str(owner.side), owner.holder.client_id) for owner in state.owners)
    assert owners == [("read", client.id), ("write", client.id)]
    state = found["orders"]
    assert (state.kind, state.certain, state.held, state.owner_count) == ("read-write", True, True, 2)
    assert sorted((owner.levels, owner.side) for owner in state.owners) == [(1, "read"), (2, "read")]
    first, last = sorted([lease(state, 0), lease(state, 1)])
    assert 15 < first <= 20 < 35 < last <= 40
    assert state.time_to_live == pytest.approx(last, abs=0.1)


class TestNumbers:
    @pytest.mark.parametrize("kind", ["semaphore", "permits", "latch", "claim"])
    async def test_keys_that_say_the_kind(self, backend: Backend, redis: Any, kind: str) -> None:
        """The slot of a call, or the claim of a waiter for several permits."""
        redis.set("stock", -2)
        if kind == "claim":
            kind = "semaphore"
            redis.set("pyredisson_semaphore_claim:{stock}", f"2 {JAVA}:1", px=60_000)
        else:
            redis.set(f"pyredisson_once:{{stock}}:{JAVA}:0:{kind.removesuffix('s')}", "2 1", px=60_000)
        state = (await listed(backend.connect()))["stock"]
        assert (state.kind, state.certain) == (kind, True)
        assert (state.free, state.count) == ((None, -2) if kind == "latch" else (-2, None))
        assert state.permits == (-2 if kind == "permits" else None)

    @on_every_server
    async def test_permits(self, backend: Backend, redis: Any) -> None:
        client = backend.connect()
        await client.get_semaphore("seats").try_set_permits(3)
        await client.get_semaphore("seats").acquire()
        semaphore = client.get_permit_expirable_semaphore("stock")
        await semaphore.try_set_permits(5)
        leased = await semaphore.acquire(lease_time=20)
        kept = await semaphore.acquire()
        # An endless one, as Java makes, and one that has ended.
        redis.zadd("{stock}:timeout", {bytes.fromhex(kept): 922337203685477, b"0123456789abcdef": 1})
        redis.decr("stock")
        announce(redis, client.id, {f"{kept} stock": "permit"})
        found = await listed(client)
        state = found["seats"]
        assert (state.kind, state.held, state.free, state.permits, state.owners) == ("semaphore", True, 2, None, ())
        state = found["stock"]
        assert (state.kind, state.certain, state.held) == ("permits", True, True)
        # What has ended can be acquired.
        assert (state.free, state.permits, state.owner_count) == (3, 5, 2)
        [first, last] = [(each.raw, each.holder.client_id, each.holder.host) for each in state.owners]
        assert (first[:2], last) == ((leased, None), (kept, client.id, "web-3"))
        assert 15 < lease(state, 0) <= 20 < lease(state, 1) == math.inf

    @on_every_server
    async def test_a_latch(self, backend: Backend) -> None:
        client = backend.connect()
        latch = client.get_count_down_latch("done")
        await latch.try_set_count(2)
        state = (await listed(client))["done"]
        # The server remembers calls, but not yet for what.
        assert state.kind in ("latch", "semaphore")
        assert not state.certain or state.kind == "latch"
        waiter = backend.spawn(lambda: client.get_count_down_latch("done").wait())
        while (await state_of(client, "done")).kind != "latch":
            await backend.sleep(0.005)
        state = (await listed(client))["done"]
        assert (state.kind, state.count, state.held, state.waiting_clients) == ("latch", 2, True, 1)
        await latch.count_down()
        await latch.count_down()
        await waiter.result()
        state = await state_of(client, "done")
        assert (state.kind, state.count, state.held) == ("latch", 0, False)


class TestOthers:
    async def test_what_is_said_of_them(self, backend: Backend, redis: Any) -> None:
        client = backend.connect()
        for name, why in (
            ("cart", "a hash of owners"),
            ("car", "a hash without owners"),
            ("limits", "a rate limiter of Redisson: not a lock"),
            ("page", "a string that is no number"),
            ("jobs", "a key of type list: neither a lock nor another object"),
            ("tags", "a key of type set"),
            ("absent", "there is no such key"),
        ):
            state = await state_of(client, name)
            assert why in state.why
            # A user has named it, so its fields may be owners of clients that choose other ids than Redisson.
            assert (state.kind, state.held) == (("lock", True) if name == "cart" else ("unknown", False))
        # A number may be anybody's counter.
        redis.set("stock", 3)
        assert "stock" not in await listed(client)
        state = await state_of(client, "stock")
        assert (state.kind, state.certain, "a semaphore or a latch" in state.why) == ("unknown", False, True)
        known, _ = await inspector(client).states([b"stock"], kind="semaphore")
        assert [(state.kind, state.certain, state.free) for state in known] == [("semaphore", True, 3)]
        # Companion keys of another type are somebody else's, so nothing in them is read.
        redis.hset("orders", f"{JAVA}:1", 1)
        companions = [f"redisson_{name}:{{orders}}" for name in ("lock_queue", "lock_timeout", "lock_token")]
        for name in (*companions, "pyredisson_fair_waiters:{orders}", "{orders}:timeout"):
            redis.sadd(name, "x")
        state = await state_of(client, "orders")
        assert (state.owner_count, {companion.type for companion in state.companions}) == (1, {"set"})

    async def test_several_locks_in_one_hash_and_a_lock_that_is_only_kept(self, backend: Backend, redis: Any) -> None:
        """The former as Redisson's multi-lock of one hash stores them."""
        name = f"{JAVA}:1"
        redis.hset("nightly", f"{JAVA}:{2**32}:kept", 1)
        for value in ("sMUTHC2Ql4EaCGlDp3W/MQ", "436CZJNgLJy17cg3htdgnw"):
            fields = {value: name, f"{value}:{name}:expire_time": 9 * 10**12, f"{value}:{name}:lock_count": 2}
            redis.hset("group", mapping=fields)
        redis.pexpire("group", 30_000)
        found = await listed(backend.connect())
        state, [owner] = found["group"], found["group"].owners
        assert (state.kind, state.certain, state.held) == ("group", True, True)
        assert (owner.raw, owner.levels, owner.kept, owner.holder.owner_id) == (name, 2, False, 1)
        state, [owner] = found["nightly"], found["nightly"].owners
        assert (owner.kept, state.time_to_live) == (True, math.inf)
        assert (owner.holder.client_id, owner.holder.owner_id) == (JAVA, 2**32)

    @pytest.mark.parametrize("held", [["orders"], ["{orders}"], ["orders", "{orders}"], []])
    async def test_two_names_with_the_same_companion_keys(self, backend: Backend, redis: Any, held: list[str]) -> None:
        redis.rpush("redisson_lock_queue:{orders}", f"{JAVA}:2")
        redis.zadd("redisson_lock_timeout:{orders}", {f"{JAVA}:2": 9 * 10**12})
        for name in held:
            redis.hset(name, f"{JAVA}:1", 1)
        found = await listed(backend.connect())
        assert sorted(found) == (held or ["orders"])
        for state in found.values():
            [place] = state.waiters
            assert (state.kind, place.alive, place.place, place.owner.holder.owner_id) == ("fair", None, 1, 2)
            assert [companion.purpose for companion in state.companions] == ["queue", "scores of the queue"]


async def test_a_queue(backend: Backend, redis: Any) -> None:
    queue = [f"{CLIENTS[number % 3]}:{number}" for number in range(200)]
    redis.hset("orders", f"{CLIENTS[0]}:200", 1)
    redis.rpush("redisson_lock_queue:{orders}", *queue)
    redis.hset("pyredisson_fair_waiters:{orders}", mapping=dict.fromkeys(queue, 9 * 10**12))
    redis.zadd("pyredisson_fair_clients:{orders}", dict.fromkeys(CLIENTS, 9 * 10**12))
    [state], _ = await inspector(backend.connect()).states([b"orders"], limit=300)
    assert [(waiter.place, waiter.owner.raw) for waiter in state.waiters] == [*enumerate(queue, 1)]
    holders = [waiter.owner.holder for waiter in state.waiters]
    assert [f"{holder.client_id}:{holder.owner_id}" for holder in holders] == queue
    assert (all(waiter.alive for waiter in state.waiters), state.waiter_count) == (True, 200)
    [state], _ = await inspector(backend.connect()).states([b"orders"], limit=LIMIT)
    assert ([waiter.owner.raw for waiter in state.waiters], state.waiter_count) == (queue[:100], 200)
    # Waiters that have left or are silent.
    redis.delete(*redis.keys("*{orders}"))
    waiters = [f"{client}:1" for client in CLIENTS]
    redis.rpush("redisson_lock_queue:{orders}", *waiters, "java:1")
    redis.zadd("redisson_lock_timeout:{orders}", dict.fromkeys(waiters[1:], 1))
    now = redis.time()[0] * 1000
    redis.hset("pyredisson_fair_waiters:{orders}", mapping={waiters[0]: -5, waiters[1]: 5, waiters[2]: 5})
    redis.zadd("pyredisson_fair_clients:{orders}", {CLIENTS[1]: 5, CLIENTS[2]: now + 100_000})
    state = await state_of(backend.connect(), "orders")
    found = [(waiter.owner.raw, waiter.place, waiter.alive, waiter.place_lasts) for waiter in state.waiters]
    assert found == [(waiters[1], 1, False, 0), (waiters[2], 2, True, 0), ("java:1", 3, None, None)]
    # The first one is silent.
    assert state.waiter_count == 2


async def test_many_readers_permits_and_objects(backend: Backend, redis: Any) -> None:
    """So many owners are listed as were asked for. Objects are read in several batches, each in one write."""
    redis.hset("orders", mapping={"mode": "read", **{f"{CLIENTS[0]}:{number}": 1 for number in range(3000)}})
    redis.pexpire("orders", 30_000)
    redis.set("stock", 0)
    permits = [number.to_bytes(16, "big") for number in range(300)]
    ends = redis.time()[0] * 1000 + 60_000
    redis.zadd("{stock}:timeout", {permit: ends + number for number, permit in enumerate(permits)})
    keys = [b"lock-%d" % number for number in range(250)]
    for number, key in enumerate(keys):
        redis.hset(key, f"{CLIENTS[0]}:{number}", 1)
    client = backend.connect()
    (orders, stock, *locks), failed = await inspector(client).states([b"orders", b"stock", *keys])
    assert not failed
    assert (orders.kind, orders.owner_count, len(orders.owners)) == ("read-write", 3000, 100)
    assert (stock.owner_count, stock.permits, stock.free) == (300, 300, 0)
    assert [owner.raw for owner in stock.owners] == [permit.hex() for permit in permits[:100]]
    assert [(state.key, state.owners[0].holder.owner_id) for state in locks] == [*zip(keys, range(250), strict=True)]
    [orders], _ = await inspector(client).states([b"orders"], limit=10 * MOST_LISTED)
    assert len({owner.raw for owner in orders.owners}) == len(orders.owners) == MOST_LISTED


async def test_a_permit_is_looked_up_in_few_announcements(backend: Backend, redis: Any, monkeypatch: Any) -> None:
    """The server doesn't know whose it is: for 1,000 clients, each with each takes long."""
    asked: list[object] = []

    class Holds(dict[bytes, bytes]):
        def __contains__(self, hold: object) -> bool:
            asked.append(hold)
            return super().__contains__(hold)

    async def read(*args: Any) -> dict[str, Announced]:
        return {client: replace(its, holds=Holds(its.holds)) for client, its in (await read_announced(*args)).items()}

    monkeypatch.setattr(states, "read_announced", read)
    clients = [str(uuid.UUID(int=number)) for number in range(30)]
    permits = [number.to_bytes(16, "big") for number in range(30)]
    redis.set("stock", 0)
    redis.zadd("{stock}:timeout", {permit: redis.time()[0] * 1000 + 60_000 for permit in permits})
    for client, permit in zip(clients, permits, strict=True):
        announce(redis, client, {f"{permit.hex()} stock": "permit"})
    [stock], _ = await inspector(backend.connect()).states([b"stock"], clients=clients)
    assert [owner.holder.client_id for owner in stock.owners] == clients
    assert len(asked) < 100


async def test_clients(backend: Backend, redis: Any) -> None:
    announce(redis, CLIENTS[0], {"4294967296 cron: nightly": "fair", f"{'ab' * 16} stock": "permit"})
    announce(redis, CLIENTS[1], {f"{number} orders": "lock" for number in range(1000)}, more=90_000)
    redis.hset(f"pyredisson_client:{{{CLIENTS[2]}}}", "pid", "no number")
    client = backend.connect()
    one, many, odd = (await read_clients(session_of(client), [*CLIENTS, client.id]))[0]
    assert (one.id, one.name, one.host, one.pid) == (CLIENTS[0], "billing@web-3:812", "web-3", 812)
    assert (one.program, one.version) == ("billing", "0.2.0")
    assert (one.waits, one.waited, one.lost, one.hold_count) == (12, 8.311, 1, 2)
    assert one.since is not None
    since = one.holds[0].since
    assert (one.since.timestamp(), since.timestamp()) == pytest.approx((1_795_167_377.228, 1_795_167_377.9))
    assert 20 < one.time_to_live <= 30
    holds = ("fair", "cron: nightly", "4294967296"), ("permit", "stock", "ab" * 16)
    assert one.holds == tuple(AnnouncedHold(*each, since) for each in holds)
    assert (many.hold_count, len(many.holds)) == (91_000, 100)
    assert (odd.pid, odd.name, odd.since, odd.time_to_live) == (None, "", None, float("inf"))


async def test_without_rights(backend: Backend, user: Callable[[str], str], redis: Any) -> None:
    """Without PUBSUB only the number of waiting clients is unknown. What can't be read is named."""
    client = backend.connect(user("~allowed ~*{allowed}* +@all -pubsub"))
    redis.hset("allowed", f"{CLIENTS[0]}:1", 1)
    known, failed = await inspector(client).states([b"allowed", b"other"])
    assert [(state.name, state.owner_count, state.waiting_clients) for state in known] == [("allowed", 1, None)]
    assert [*failed] == [b"other"]
    assert "permission" in str(failed[b"other"])


async def shown(client: Any, name: str = "orders", raw: str = "") -> tuple[State, Owner]:
    """The state, and its first owner or the one that is named."""
    state = await state_of(client, name)
    return state, next(each for each in state.owners if each.raw.startswith(raw))


async def test_a_wait_is_compared_with_few_objects(backend: Backend, redis: Any, monkeypatch: Any) -> None:
    """For 10,000 of both, each with each takes minutes."""
    compared: list[object] = []

    class Key(bytes):
        __hash__ = bytes.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return super().__eq__(other)

    monkeypatch.setattr(announcements, "unquote_to_bytes", lambda text: Key(text))
    names = [b"lock:%d" % number for number in range(50)]
    announce(redis, JAVA, waiting=b"\n".join(b"5 lock %d 1 %b" % each for each in enumerate(names)))
    for name in names:
        redis.hset(name, f"{JAVA}:7", 1)
    known, _ = await inspector(backend.connect()).states(names, clients=[JAVA])
    assert {state.waiters[0].owner.holder.owner_id for state in known} == {*range(50)}
    assert len(compared) < 500


@pytest.mark.parametrize("kind", [*PLAIN, "read", "write"])
@on_every_server
async def test_a_waiter_is_shown_and_woken(backend: Backend, kind: str) -> None:
    """A hold that was shown is released as by its holder, and nobody else's hold is touched."""
    holder, other, admin = (backend.connect() for _ in range(3))
    lock = await acquired(KINDS[kind](holder, "orders"))
    await lock.lock()
    state, owner = await shown(admin)
    waiter = backend.spawn(partial(against(kind, other, "orders").try_lock, wait_time=10))
    while kind != "spin" and not (state.waiters or state.waiting_clients):
        await backend.sleep(0.005)
        state, owner = await shown(admin)
    if kind == "fair":
        assert (state.kind, state.certain, state.waiting_clients, state.waiter_count) == ("fair", True, None, 1)
        [place] = state.waiters
        assert (place.owner.holder.client_id, place.owner.holder.time_to_live) == (other.id, None)
        assert (place.place, (place.place_lasts or 0) > 1) == (1, True)
        # On a busy machine a waiter shows no sign of life now and then.
        while not place.alive:
            await backend.sleep(0.005)
            [place] = (await listed(admin))["orders"].waiters
    else:
        assert (state.waiting_clients, state.waiter_count) == (0 if kind == "spin" else 1, None)
    assert not waiter.done()
    assert await release_shown(session_of(admin), state, owner)
    assert await waiter.result()
    # The other one holds it now.
    assert not await release_shown(session_of(admin), state, owner)
    state, owner = await shown(admin)
    assert [each.holder.client_id for each in state.owners] == [other.id]
    assert await release_shown(session_of(admin), state, owner)
    state = await state_of(admin, "orders")
    assert (state.held, state.waiters, state.waiting_clients or 0) == (False, (), 0)


async def test_one_of_several(backend: Backend, redis: Any) -> None:
    """And whoever only looks changes nothing, and needs an open client."""
    one, two, admin = (backend.connect() for _ in range(3))
    for client in (one, two):
        await KINDS["read"](client, "orders").lock()
    assert await release_shown(session_of(admin), *await shown(admin, raw=one.id))
    assert [each.holder.client_id for each in (await state_of(admin, "orders")).owners] == [two.id]
    semaphore = one.get_permit_expirable_semaphore("stock")
    await semaphore.try_set_permits(2)
    first, second = await semaphore.acquire(), await semaphore.acquire()
    permit = await shown(admin, "stock", first)
    assert [await release_shown(session_of(admin), *permit) for _ in range(2)] == [True, False]
    state = await state_of(admin, "stock")
    assert ([each.raw for each in state.owners], state.free) == ([second], 1)
    # The free permits of a semaphore have no holds.
    pool, owner = replace(state, kind="semaphore"), Owner("x", Holder(), id=b"x")
    await fails(ValueError, release_shown, session_of(admin), pool, owner, match="can't be released one by one")
    await one.get_fair_lock("fair").lock()
    before = {key: redis.dump(key) for key in redis.keys("*")}
    await inspector(admin).states([b"fair", b"orders", b"stock", b"other"])
    assert {key: redis.dump(key) for key in redis.keys("*")} == before
    await admin.close()
    await fails(ClosedError, state_of, admin, "orders")
