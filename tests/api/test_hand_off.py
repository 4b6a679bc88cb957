"""A hold that moves to another client: `hand_off` and `adopt`."""

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from redis.exceptions import ConnectionError, TimeoutError

from pyredisson import ClosedError, LockAlreadyHeldError, LockLostError, LockNotHeldError
from pyredisson.logic.locks.moving import HandedOff
from pyredisson.testing import Proxy
from tests.support.backends import WOKEN, Backend, cancel_after, fails, in_turn
from tests.support.children import Child
from tests.support.faults import LOSSES, Lose, sha
from tests.support.inspecting import Recorder, told
from tests.support.kinds import KINDS, acquired

from .kinds import LONG, REENTRANT, assert_lost, kinds, left, lock_of, rival_of, sleeping, use
from .test_lock_lost import LEASE, kept

MOVES = {kind: sha("read_move" if kind == "read" else "lock_move") for kind in KINDS}
"""What a proxy finds the commands by."""
PROD = "prod:{}".format
GONE = "isn't there"


async def handed_off(lock: Any) -> str:
    """The token of a lock that was acquired for it."""
    return str(await (await acquired(lock)).hand_off())


def holders(redis: Any) -> list[str]:
    return [field.decode() for field in redis.hkeys("orders") if field != b"mode"]


@kinds
async def test_it_moves(backend: Backend, client: Any, other: Any, lock: Any, redis: Any, kind: str) -> None:
    third, told = backend.connect(), list[Any]()
    lock.on_lost(told.append)
    await lock.lock()
    fence, lost = client.holds()[0].token, lock.lost
    token = await lock.hand_off()
    assert (holders(redis), client.holds()) == ([HandedOff.of(token).hold], [])
    assert not await lock_of(third, rival_of(kind)).try_lock()
    adopted = await other.adopt(token)
    assert (repr(adopted).partition(":")[0], adopted.name) == (repr(lock).partition(">")[0], "orders")
    assert (await adopted.is_held(), await lock.is_held()) == (True, False)
    assert not await lock_of(third, rival_of(kind)).try_lock()
    [hold] = other.holds()
    assert (hold.kind, hold.renewed, hold.token, hold.levels) == (adopted._logic.commands.kind, True, fence, 1)
    if kind in REENTRANT:
        await use(adopted)
    await adopted.unlock()
    assert left(redis) == set()
    assert (lost.is_set(), await lost.wait(1), told) == (False, False, [])
    await use(lock_of(third, kind))


async def test_it_is_renewed_as_before(backend: Backend, redis: Any) -> None:
    """With the lease of the former owner, whichever the other client has."""
    client, other = backend.connect(lock_watchdog_timeout=LEASE), backend.connect()
    locks = {kind: lock_of(client, kind, kind) for kind in KINDS}
    await in_turn(lock.lock for lock in locks.values())
    adopted = [await other.adopt(await lock.hand_off()) for lock in locks.values()]
    await client.close()
    assert await kept(backend, redis, list(locks), 1.5 * LEASE) >= 1.5 * LEASE
    await in_turn(lock.unlock for lock in adopted)
    # The handle acquires it with the same lease.
    async with adopted[0]:
        assert 0 < redis.pttl("lock") <= 1000 * LEASE


@pytest.mark.parametrize("kind", ["lock", "read"])
@pytest.mark.parametrize("limit", ["lease_time", "at_most"])
async def test_it_ends_as_before(backend: Backend, other: Any, lock: Any, redis: Any, kind: str, limit: str) -> None:
    """A fixed lease goes on, and so does `at_most`."""
    await lock.lock(**{limit: LEASE})
    adopted = await other.adopt(await lock.hand_off())
    assert 0 < redis.pttl("orders") <= 1000 * LEASE
    assert await adopted.is_held()
    await backend.until(adopted.lost.is_set)
    await assert_lost(adopted, "at_most" if limit == "at_most" else None)
    await backend.until(lambda: not redis.exists("orders"))


@kinds
async def test_nobody_adopts_it(backend: Backend, redis: Any, kind: str) -> None:
    """It ends with its lease."""
    client, other = backend.connect(lock_watchdog_timeout=1), backend.connect()
    token = await handed_off(lock_of(client, kind))
    await lock_of(other, rival_of(kind)).lock()
    raised: Any = await fails(LockNotHeldError, client.adopt, token, match=GONE)
    assert raised.holder.client_id == other.id


@kinds
async def test_exactly_one_adopts_it(backend: Backend, lock: Any, redis: Any, kind: str) -> None:
    clients = [backend.connect() for _ in range(3)]
    token = await handed_off(lock)
    calls = [backend.spawn(partial(each.adopt, token)) for each in clients * 4]
    adopted = list[Any]()
    for call in calls:
        with suppress(LockNotHeldError):
            adopted.append(await call.result())
    assert len(adopted) == 1
    assert sum(len(client.holds()) for client in clients) == len(holders(redis)) == 1


async def test_what_the_former_owner_is_told(lock: Any, other: Any, redis: Any) -> None:
    """By the client alone. It forgets that when the owner acquires the lock again."""
    adopted = await other.adopt(await handed_off(lock))
    for call in (lock.unlock, lock.release, lock.hand_off):
        assert (await fails(LockNotHeldError, call, match="was handed off")).handed_off
    await adopted.unlock()
    await use(lock)
    assert not (await fails(LockNotHeldError, lock.unlock, match="has no hold")).handed_off
    # The server has forgotten it.
    for step in ("hand_off", "adopt"):
        await lock.lock()
        token = await lock.hand_off() if step == "adopt" else ""
        redis.flushall()
        if step == "hand_off":
            await fails(LockLostError, lock.hand_off)
        else:
            assert (await fails(LockNotHeldError, other.adopt, token, match=GONE)).holder is None
        await use(lock)


@pytest.mark.filterwarnings("ignore:.*left on another")
async def test_a_block_is_left(backend: Backend, client: Any, lock: Any, other: Any, redis: Any) -> None:
    for enter in (lambda: lock, lock.hold):
        async with enter():
            adopted = await other.adopt(await lock.hand_off())
        assert await adopted.is_held()
        await adopted.unlock()
        with pytest.raises(ZeroDivisionError) as raised:
            async with enter():
                adopted = await other.adopt(await lock.hand_off())
                raise ZeroDivisionError
        assert not hasattr(raised.value, "__notes__")
        await adopted.unlock()
        # What was acquired in there since is released.
        async with enter():
            await (await other.adopt(await lock.hand_off())).unlock()
            await lock.lock()
        assert not redis.exists("orders")
        block = enter()
        await block.__aenter__()
        adopted = await other.adopt(await lock.hand_off())
        await backend.as_another_owner(lambda: block.__aexit__(None, None, None))  # noqa: B023
        assert await adopted.is_held()
        await adopted.unlock()
    # A client that was closed doesn't release what was handed off.
    await client.get_lock("stock").lock()
    async with lock:
        token = await lock.hand_off()
        await client.close()
    for call in (client.get_lock("stock").hand_off, lambda: client.adopt(token)):
        await fails(ClosedError, call)
    adopted = await other.adopt(token, owner=3)
    assert await other.get_lock("orders").is_held_by(3)
    await adopted.unlock()


@LOSSES
@kinds
async def test_a_lost_reply(backend: Backend, proxy: Proxy, redis: Any, lose: Lose, kind: str) -> None:
    client = backend.connect(proxy.url, timeout=0.25)
    lock = await acquired(lock_of(client, kind))
    fault = lose(proxy, MOVES[kind])
    token = await lock.hand_off()
    assert fault.happened.is_set()
    fault = lose(proxy, MOVES[kind])
    adopted = await client.adopt(token)
    assert (fault.happened.is_set(), len(holders(redis))) == (True, 1)
    await adopted.unlock()
    assert left(redis) == set()


@pytest.mark.parametrize("fault", ["drop_reply", "cut_request"])
@kinds
async def test_it_fails(backend: Backend, proxy: Proxy, redis: Any, fault: str, kind: str) -> None:
    """A hand-off that fails releases the lock, and after an adoption that fails the token is as good as before."""
    client, other = backend.connect(proxy.url, timeout=0.5, retry_attempts=0), backend.connect()
    lock = lock_of(client, kind)
    with pytest.raises((ConnectionError, TimeoutError)) as raised:
        async with lock:
            getattr(proxy, fault)(MOVES[kind], 2)
            await lock.hand_off()
    assert not hasattr(raised.value, "__notes__")
    await backend.until(lambda: left(redis) == set())
    assert not client.holds()
    assert (await fails(LockNotHeldError, lock.unlock, match="hand_off")).handed_off
    token = await handed_off(lock)
    getattr(proxy, fault)(MOVES[kind], 2)
    await fails((ConnectionError, TimeoutError), client.adopt, token)
    assert not client.holds()
    await backend.until(lambda: holders(redis) == [HandedOff.of(token).hold])
    await (await other.adopt(token)).unlock()
    assert left(redis) == set()


@kinds
async def test_it_is_cancelled(tasks: Backend, proxy: Proxy, redis: Any, kind: str) -> None:
    client, other = tasks.connect(proxy.url), tasks.connect()
    lock = lock_of(client, kind, owner=1)

    async def cancel(operation: Callable[[], Any]) -> None:
        reply = proxy.hold_reply(MOVES[kind])
        call = asyncio.ensure_future(operation())
        await tasks.until(reply.held.is_set)
        assert await cancel_after(0, call)
        reply.deliver()

    await lock.lock()
    await cancel(lock.hand_off)
    await tasks.until(lambda: left(redis) == set())
    token = await handed_off(lock)
    await cancel(lambda: client.adopt(token))
    await tasks.until(lambda: holders(redis) == [HandedOff.of(token).hold])
    assert not client.holds()
    await (await other.adopt(token)).unlock()


async def test_a_reply_that_comes_after_the_lease(backend: Backend, proxy: Proxy, redis: Any) -> None:
    """It has adopted the hold here too late."""
    lock = await acquired(backend.connect().get_lock("orders"), 1)
    token = await lock.hand_off()
    late = proxy.hold_reply(MOVES["lock"])
    call = await backend.begin(lambda: backend.connect(proxy.url, timeout=20).adopt(token), late.held.is_set)
    await backend.until(lambda: not redis.exists("orders"))
    late.deliver()
    await fails(LockNotHeldError, call.result, match=GONE)


@pytest.mark.parametrize("kind", ["lock", "fair", "fenced", "read", "write"])
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_who_waits_gets_it(backend: Backend, kind: str, elsewhere: bool) -> None:
    """Also a waiter that relies on the release of the former owner, which has the lock by a hand-over in its client."""
    client, other = backend.connect(local_hand_over_time=LONG), backend.connect()
    # Owners with ids as Java's threads have them would let the waiters listen to Redisson's messages.
    first, holder = (lock_of(client, rival_of(kind), owner=owner) for owner in ("first", "second"))
    await first.lock()
    handed_over = await backend.begin(holder.lock, lambda: sleeping(client, rival_of(kind)) == 1)
    await first.unlock()
    await handed_over.result()
    waits_in = other if elsewhere else client
    waiter = lock_of(waits_in, kind, owner="third")
    waiting = await backend.begin(waiter.lock, lambda: sleeping(waits_in, kind) == 1)
    await (await other.adopt(await holder.hand_off())).unlock()
    await waiting.result(WOKEN)
    await waiter.unlock()


async def test_both_sides(backend: Backend, proxy: Proxy, redis: Any) -> None:
    """An owner that reads and writes would go on reading beside another writer."""
    client, other = backend.connect(proxy.url, lock_watchdog_timeout=LEASE, timeout=20), backend.connect()
    read, write = (lock_of(client, kind, owner=1) for kind in ("read", "write"))
    await in_turn((write.lock, read.lock))
    for side, kind in ((read, "read"), (write, "write")):
        late = proxy.hold_reply(MOVES[kind])
        call = await backend.begin(side.hand_off, late.held.is_set)
        # Meanwhile a renewal of this side is due.
        await backend.sleep(LEASE / 2)
        late.deliver()
        await fails(LockAlreadyHeldError, call.result, match="reads and writes")
    # They are renewed as before.
    assert await kept(backend, redis, ["orders"], 1.5 * LEASE) >= 1.5 * LEASE
    await read.unlock()
    adopted = await other.adopt(await write.hand_off())
    assert not await read.try_lock()
    await adopted.unlock()
    # Other readers go on.
    await read.lock()
    third = await acquired(lock_of(other, "read", owner=3))
    adopted = await other.adopt(await read.hand_off())
    await third.unlock()
    assert not await write.try_lock()
    await adopted.unlock()
    assert left(redis) == set()


async def test_what_is_refused(backend: Backend, proxy: Proxy) -> None:
    """Before anything is sent, and nothing has changed."""
    client: Any = backend.connect(proxy.url)
    lock = client.get_lock("orders")
    await fails(LockNotHeldError, lock.hand_off, match="has no hold")
    await use(lock)
    token = await handed_off(lock)
    await client.adopt(token)
    proxy.forget()
    await lock.lock()
    await fails(LockAlreadyHeldError, lock.hand_off, match="2 times")
    await fails(LockAlreadyHeldError, client.adopt, token, match="is held already")
    for each in (lock, client.get_multi_lock(client.get_lock("a"))):
        await fails((LockAlreadyHeldError, NotImplementedError), each.hand_off)
    assert (proxy.seen(MOVES["lock"]), await lock.get_hold_count()) == (0, 2)
    await in_turn([lock.unlock] * 2)
    async with client.singleton("nightly", at_least=0.01) as kept_for:
        await fails(NotImplementedError, kept_for.hand_off, match="at_least")


def token_of(**fields: Any) -> str:
    usual = {"v": 1, "kind": "lock", "key": "orders", "hold": "b983c153-7421-469a-addb-44fb92259a1b:4294967296"}
    return base64.urlsafe_b64encode(json.dumps({**usual, **fields}).encode()).decode().rstrip("=")


WRONG = [
    *("", "x", "größe", "e30", base64.b64encode(b"[1]").decode(), base64.b64encode(b"\xff").decode()),
    *(token_of(**{name: None}) for name in ("v", "kind", "key", "hold", "lease", "fence", "at_most", "name")),
    *(token_of(v=2), token_of(kind="multi"), token_of(key=""), token_of(key="\ud800"), token_of(hold="me:1")),
    *(token_of(kind="write"), token_of(lease=-1), token_of(lease=2**60), token_of(lease=True), token_of(more=1)),
]


@pytest.mark.parametrize("token", WRONG)
async def test_wrong_tokens(client: Any, token: str) -> None:
    await fails(ValueError, client.adopt, token, match="token")
    await fails(LockNotHeldError, client.adopt, token_of(), match=GONE)
    for wrong in (None, token.encode(), 1):
        await fails(TypeError, client.adopt, wrong, match="token")


async def test_names_and_events(backend: Backend) -> None:
    """The adopting client doesn't map the key once more."""
    mappers = (PROD, PROD, None)
    recording = [backend.connect(name_mapper=each, observer=Recorder("acquired", "released")) for each in mappers]
    client, *others = recording
    for other in others:
        for name in ("orders", "größe", b"stock"):
            lock = client.get_lock(name)
            adopted = await other.adopt(await handed_off(lock))
            assert adopted._logic.key == lock._logic.key
            assert adopted.name == (name if isinstance(name, str) else "prod:stock")
            await adopted.unlock()
    for each, times in zip(recording, (6, 3, 3), strict=True):
        assert [event.what for event in told(each)] == ["acquired", "released"] * times
    adopted = await others[1].adopt(await handed_off(others[1].get_lock(b"\xff:a")))
    assert adopted.name == b"\xff:a"
    await adopted.unlock()


WORKER = """
import sys
import pyredisson
client = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=30)
print("ready", flush=True)
lock = client.adopt(sys.stdin.readline().strip())
print("adopted", flush=True)
sys.stdin.readline()
lock.unlock()
print("released", flush=True)
"""


@pytest.mark.parametrize("killed", [False, True])
async def test_processes(backend: Backend, redis: Any, child: Callable[..., Child], killed: bool) -> None:
    """A worker that is killed costs one lease."""
    lock = backend.connect(lock_watchdog_timeout=LEASE).get_lock("orders")
    async with lock:
        # Its start may take longer than the lease.
        worker = child(WORKER, backend.url)
        assert worker.receive() == "ready"
        worker.send(await lock.hand_off())
        assert worker.receive() == "adopted"
    assert await kept(backend, redis, ["orders"], 1.5 * LEASE) >= 1.5 * LEASE
    assert not await lock.try_lock()
    if killed:
        worker.close()
    else:
        worker.send()
        assert worker.receive() == "released"
    assert await lock.try_lock(LEASE + WOKEN if killed else 0)
    await lock.unlock()
