"""Who holds a lock, in error messages and answers; what a client holds; and what a debugger shows."""

import asyncio
import dataclasses
import math
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pyredisson.asyncio
from pyredisson import Holder, LockLostError, LockNotHeldError, LockTimeoutError, PermitNotHeldError
from pyredisson._protocol.scripts import script
from pyredisson.identity import identity
from pyredisson.testing import Proxy
from tests.support.backends import NOWHERE, Backend, fails, in_turn
from tests.support.faults import FLAGS
from tests.support.inspecting import session_of
from tests.support.kinds import KINDS, acquired

from .kinds import GROUPS, assert_lost, lock_of, rival_of

ID = "b983c153-7421-469a-addb-44fb92259a1b"
kinds = pytest.mark.parametrize("kind", [*KINDS, *GROUPS])


async def refused(lock: Any, match: str | None = None, wait: float = 0) -> LockTimeoutError:
    """The error of a block that doesn't get the lock."""
    return await fails(LockTimeoutError, lock.hold(wait_time=wait).__aenter__, match=match)


@kinds
async def test_errors_name_the_holder(backend: Backend, client: Any, kind: str) -> None:
    await lock_of(client, rival_of(kind)).lock()
    error: Any = await refused(lock_of(backend.connect(), kind), wait=0.02)
    found = error.holder
    about: Any = pytest.approx(30, abs=2)
    assert found == Holder(client.id, owner_id=found.owner_id, time_to_live=about, foreign=False)
    assert "orders" in error.name
    assert re.search(r"free in (2\d|30)\.\d s at the latest", str(error)), str(error)
    for text in (f"{client.id}:{found.owner_id}", error.owner):
        assert text in str(error)
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), twin.name, twin.owner, twin.holder) == (str(error), error.name, error.owner, found)
    caught: Any = await fails(LockNotHeldError, lock_of(backend.connect(), kind).unlock)
    assert (caught.name is None, caught.owner is None, caught.holder.client_id) == (False, False, client.id)


async def test_holders_without_an_announcement(lock: Any, redis: Any) -> None:
    for field, said, found in [
        (f"{ID}:31", rf"a client of Redisson \({ID}, thread 31\)", Holder(ID, owner_id=31, foreign=True)),
        (f"{ID}:{2**32}:1", f"{ID}:{2**32}:1", Holder(ID, owner_id=2**32, foreign=False)),
        ("me:1", "me:1", Holder("me", owner_id=1)),
        ("somebody", "somebody", Holder()),
    ]:
        redis.delete("orders")
        redis.hset("orders", field, 1)
        error = await refused(lock, f"'orders' is held by {said}, which never expires; owner")
        assert error.holder == await lock.holder() == dataclasses.replace(found, time_to_live=math.inf)


ANNOUNCED = {"name": "billing@web-3:812", "host": "web-3", "pid": "812", "program": "billing", "version": "0.2.0"}
OWNER = f"{2**32}:1"


def announce(redis: Any, **other: str) -> None:
    """A client holds the locks `orders` and `a b`, and has announced it."""
    for name, began in (("orders", "1795167377228 fair"), ("a b", "1795167377000 lock")):
        redis.hset(name, f"{ID}:{OWNER}", 1)
        redis.pexpire(name, 28_000)
        redis.hset(f"pyredisson_client:{{{ID}}}", f"h:{OWNER} {name}", began)
    redis.hset(f"pyredisson_client:{{{ID}}}", mapping=ANNOUNCED | other)


async def test_a_holder_that_is_announced(client: Any, redis: Any) -> None:
    announce(redis)
    since = datetime.fromtimestamp(1795167377.228, UTC)
    who: dict[str, Any] = {"host": "web-3", "pid": 812, "program": "billing", "version": "0.2.0"}
    who |= {"client_name": "billing@web-3:812", "time_to_live": pytest.approx(25, abs=5), "foreign": False}
    assert await client.get_lock("orders").holder() == Holder(ID, owner_id=2**32, since=since, **who)
    assert (await client.get_lock("a b").holder()).since == datetime.fromtimestamp(1795167377, UTC)
    error = await refused(client.get_lock("orders"), wait=0.01)
    said = (
        r"lock 'orders' is held by web-3 \(pid 812\), free in 2\d\.\d s at the latest, unless that is extended; "
        rf"owner {client.id}:\d+ waited 0.01 s for it"
    )
    assert re.fullmatch(said, str(error))
    announce(redis, name="invoices")
    lock = client.get_lock("orders")
    await fails(LockNotHeldError, lock.unlock, match=r"'orders' is held by invoices on web-3 \(pid 812\), free in")
    # It is kept after its release.
    redis.rename("orders", "before")
    redis.hset("orders", f"{ID}:{2**32}:kept", 1)
    redis.pexpire("orders", 41_000)
    await refused(lock, r"kept for another [34]\d\.\d s after a run on invoices on web-3 \(pid 812\)")
    assert (await lock.holder()).kept


async def test_an_announcement_that_makes_no_sense(lock: Any, redis: Any) -> None:
    """The user's own programs may write there, too."""
    for field, value in (("pid", "x"), (f"h:{OWNER} orders", "soon lock"), (f"h:{OWNER} orders", "9" * 30)):
        announce(redis, **{field: value})
        found = await lock.holder()
        assert (found.host, None in (found.pid, found.since)) == ("web-3", True)
    redis.delete(f"pyredisson_client:{{{ID}}}")
    redis.set(f"pyredisson_client:{{{ID}}}", "text")
    found = await lock.holder()
    assert (found.client_id, found.host) == (ID, None)


async def test_an_unread_announcement_hides_nobody(backend: Backend, redis: Any, proxy: Proxy) -> None:
    announce(redis)
    lock: Any = backend.connect(proxy.url).get_lock("orders")
    proxy.cut_reply(b"HMGET")
    found = await lock.holder()
    assert (found.client_id, found.owner_id, found.host, found.foreign) == (ID, 2**32, None, False)
    redis.delete("orders")
    redis.hset("orders", f"{ID}:31", 1)
    proxy.cut_reply(b"HMGET")
    # It may be Java's, or not.
    assert (await lock.holder()).foreign is None
    # Nor does a server that can't be asked hide a timeout.
    proxy.cut_reply(script("lock_holder", with_shebang=FLAGS).sha)
    assert (await refused(lock, "can't be told")).holder is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_knows_its_own_holds(backend: Backend, kind: str) -> None:
    client = backend.connect(client_name="billing")
    lock = lock_of(client, kind)
    assert await lock.holder() is None
    before = datetime.now(UTC)
    async with lock:
        found = await lock.holder()
        assert before - timedelta(seconds=0.1) < found.since < datetime.now(UTC) + timedelta(seconds=0.1)
        process = identity()
        assert (found.client_id, found.client_name, found.foreign) == (client.id, "billing", False)
        expected = (process.host, process.pid, process.program, pyredisson.__version__)
        assert (found.host, found.pid, found.program, found.version) == expected
    assert await lock.holder() is None


async def test_a_read_write_lock(backend: Backend, client: Any, other: Any) -> None:
    """Both sides answer alike. Of several readers, the first one by name is named."""
    others = other.get_read_write_lock("orders", owner=1)
    mine = client.get_read_write_lock("orders")
    await in_turn((others.write_lock().lock, others.read_lock().lock))
    for side in (mine.read_lock(), mine.write_lock(), others.read_lock(), others.write_lock()):
        assert (await side.holder()).owner_id == 1
    assert (await others.read_lock().holder()).since is not None
    await refused(mine.read_lock(), r"thread 1\)")
    await others.write_lock().unlock()
    await lock_of(other, "read", owner=0).lock()
    assert (await mine.write_lock().holder()).owner_id == 0
    await in_turn(lock_of(backend.connect(), "read").lock for _ in range(3))
    await refused(mine.write_lock(), "write lock 'orders' is held by 5 readers, one of them .*, free in .* waited 0 s")


@kinds
async def test_what_is_shown_names_the_lock(lock: Any, kind: str) -> None:
    assert re.search("Lost of <pyredisson.*: no hold>$", repr(lock.lost))
    async with lock:
        lost = lock.lost
        assert re.search("'orders'.*: held>$", repr(lost))
    assert repr(lost).endswith(": released>")
    if kind not in GROUPS:
        await lock.lock()
        lost = lock.lost
        await lock.force_unlock()
        assert repr(lost).endswith(": lost>")
    assert re.search(r"'orders'.*: waits 1\.5 s, lease 10 s>$", repr(lock.hold(wait_time=1.5, lease_time=10)))
    assert repr(lock.hold()).endswith(": waits without end, renewed>")


async def test_all_kinds(client: Any) -> None:
    assert client.holds() == []
    before = datetime.now(UTC)
    lock = await acquired(client.get_lock("a", owner=7))
    await lock.lock(10)
    await client.get_fair_lock("b").lock(20)
    token = await client.get_fenced_lock("c").lock_and_get_token()
    sides = client.get_read_write_lock("d")
    await in_turn((sides.write_lock().lock, sides.read_lock().lock, client.get_spin_lock("e").lock))
    semaphore = client.get_permit_expirable_semaphore("f")
    await semaphore.set_permits(1)
    permit = await semaphore.acquire(renew=True)
    found = client.holds()
    assert [(hold.name, hold.kind, hold.levels, hold.renewed, hold.token) for hold in found] == [
        *(("a", "lock", 2, True, None), ("b", "fair", 1, False, None), ("c", "fenced", 1, True, token)),
        *(("d", "write", 1, True, None), ("d", "read", 1, True, None), ("e", "spin", 1, True, None)),
        ("f", "permit", 1, True, None),
    ]
    assert (found[0].owner_id, found[-1].owner_id) == (7, None)
    for hold in found:
        assert (type(hold), hold.lost) == (pyredisson.Hold, False)
        assert before - timedelta(seconds=0.1) < hold.since < datetime.now(UTC) + timedelta(seconds=0.1)
        assert 0 < hold.valid_for <= 30
    await lock.unlock()
    assert client.holds()[0].levels == 1
    await semaphore.release(permit)
    await client.close()
    assert client.holds() == []


async def test_what_a_debugger_shows(backend: Backend, client: Any) -> None:
    lock, other = client.get_lock("orders"), client.get_lock("orders", owner=7)
    package, caller = ("", "thread") if backend.name == "threads" else (".asyncio", "task")
    prefix = f"<pyredisson{package}.Lock 'orders'"
    assert repr(lock) == repr(other) == f"{prefix}>"
    await lock.lock()
    assert re.fullmatch(rf"{prefix}: held by this {caller} for \d+\.\d s>", repr(lock))
    assert repr(other) == f"{prefix}>"
    [hold] = session_of(client).holds.table.values()
    assert repr(hold) == f"<Hold of lock 'orders' by {hold.owner.decode()}: held, 1 level>"
    await lock.force_unlock()
    [found] = client.holds()
    assert (repr(lock), found.lost, found.valid_for) == (f"{prefix}: lost>", True, 0)
    await lock.lock()
    assert sorted(hold.lost for hold in client.holds()) == [False, True]
    await lock.unlock()
    await assert_lost(lock)
    assert client.holds() == []
    # Errors without a holder name the lock and the owner.
    free = await fails(LockNotHeldError, other.unlock, match=r"'orders' is free; owner .* has no hold of it")
    await other.lock()
    assert repr(other).startswith(f"{prefix}: held by owner 7 for ")
    await other.force_unlock()
    for error in (free, await fails(LockLostError, other.unlock)):
        assert (error.name, error.owner, error.holder) == ("orders", f"{client.id}:7", None)


async def test_outside_of_any_task() -> None:
    """A repr asks nobody, makes no owner, and raises nothing."""
    client = pyredisson.asyncio.connect(NOWHERE)
    assert await asyncio.to_thread(repr, client.get_lock("a")) == "<pyredisson.asyncio.Lock 'a'>"
    assert not client._callers.owners
    assert repr(client.get_read_write_lock("a")) == "<pyredisson.asyncio.ReadWriteLock 'a'>"
    await client.close()


def test_an_owner_ends_with_its_thread() -> None:
    """The watchdog tells that of the locks it holds."""
    with pyredisson.connect(NOWHERE) as client:
        with ThreadPoolExecutor() as threads:
            owner = threads.submit(client._callers.current).result()
            assert not owner.calls.ended
        assert owner.calls.ended


async def test_a_permit_block(client: Any) -> None:
    semaphore = client.get_permit_expirable_semaphore("licenses")
    await semaphore.set_permits(2)
    block = semaphore.permit(lease_time=60)
    for _ in range(2):
        async with block as permit:
            assert re.fullmatch("[0-9a-f]{32}", permit)
            assert 50 < await semaphore.get_lease_time(permit) <= 60
            assert permit in repr(block)
            await fails(RuntimeError, block.__aenter__, match="one block at a time")
            async with semaphore.permit(renew=True) as other:
                assert await semaphore.get_lease_time(other) <= 30
                assert (other == permit, await semaphore.available_permits()) == (False, 0)
    assert (await semaphore.available_permits(), repr(block).endswith("not acquired>")) == (2, True)
    # One that has ended.
    with pytest.raises(PermitNotHeldError):
        async with semaphore.permit() as permit:
            await semaphore.release(permit)
    with pytest.raises(KeyError) as caught:
        async with semaphore.permit() as permit:
            await semaphore.release(permit)
            raise KeyError("mine")
    assert any("PermitNotHeldError" in note for note in caught.value.__notes__)
    assert await semaphore.available_permits() == 2


async def test_its_time(backend: Backend, client: Any, proxy: Proxy) -> None:
    """That for which a block waits for a permit."""
    semaphore = client.get_permit_expirable_semaphore("licenses")
    await semaphore.set_permits(1)
    block = semaphore.permit(wait_time=0.02)
    async with semaphore.permit():
        assert (await fails(LockTimeoutError, block.__aenter__, match="'licenses'")).name == "licenses"
    async with block:
        assert await semaphore.available_permits() == 0
    # Without time to wait it is sent again.
    other = backend.connect(proxy.url, timeout=0.5).get_permit_expirable_semaphore("licenses")
    fault = proxy.drop_reply(b"licenses", 2)
    async with other.permit(wait_time=0):
        assert (fault.happened.is_set(), await semaphore.available_permits()) == (True, 0)
