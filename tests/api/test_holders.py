"""Error messages name the holder of a lock and its remaining lease; `repr` names the lock."""

from __future__ import annotations

import dataclasses
import math
import pickle
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson import Holder, LockLostError, LockNotHeldError, LockTimeoutError, PermitNotHeldError
from pyredisson._protocol.scripts import script
from pyredisson.identity import identity
from pyredisson.testing import Proxy
from tests.support.backends import Backend
from tests.support.faults import FLAGS
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio

KINDS: dict[str, Callable[[Any], Any]] = {
    "lock": lambda client: client.get_lock("orders"),
    "fair": lambda client: client.get_fair_lock("orders"),
    "write": lambda client: client.get_read_write_lock("orders").write_lock(),
    "fenced": lambda client: client.get_fenced_lock("orders"),
    "spin": lambda client: client.get_spin_lock("orders"),
    "non-reentrant": lambda client: client.get_non_reentrant_lock("orders"),
    "multi": lambda client: client.get_multi_lock(client.get_lock("free"), client.get_lock("orders")),
    "red": lambda client: client.get_red_lock(client.get_lock("orders")),
}
HOLDER = script("lock_holder", with_shebang=FLAGS).sha
ID = "b983c153-7421-469a-addb-44fb92259a1b"
FREE_IN = re.compile(r"free in (2\d|30)\.\d s at the latest")
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
async def test_a_timeout_error_names_the_holder(backend: Backend, kind: str) -> None:
    holder = backend.connect()
    await KINDS[kind](holder).lock()
    lock = KINDS[kind](backend.connect())
    with pytest.raises(LockTimeoutError) as caught:
        await lock.hold(wait_time=0.02).__aenter__()
    error = caught.value
    found = error.holder
    assert found is not None
    assert found.client_id == holder.id
    assert found.owner_id is not None
    assert f"{holder.id}:{found.owner_id}" in str(error)
    assert found.time_to_live == pytest.approx(30, abs=2)
    assert found.foreign is False
    assert (found.client_name, found.host, found.pid, found.since) == (None,) * 4
    assert FREE_IN.search(str(error)), str(error)
    assert error.name is not None
    assert "orders" in error.name
    assert error.owner is not None
    assert error.owner in str(error)


@kinds
async def test_the_error_of_another_owner_names_the_holder_of_the_lock(backend: Backend, kind: str) -> None:
    holder = backend.connect()
    await KINDS[kind](holder).lock()
    with pytest.raises(LockNotHeldError) as caught:
        await KINDS[kind](backend.connect()).unlock()
    found = caught.value.holder
    assert caught.value.name is not None
    assert caught.value.owner is not None
    if kind != "multi":  # whose first member that is given back is the other one
        assert found is not None
        assert found.client_id == holder.id


async def test_it_is_not_held(backend: Backend) -> None:
    with pytest.raises(LockNotHeldError, match=r"'orders' is free; owner .* has no hold of it") as caught:
        await backend.connect().get_lock("orders").unlock()
    assert caught.value.holder is None
    assert caught.value.name == "orders"


async def test_a_loss_names_the_lock_and_the_owner(backend: Backend) -> None:
    client = backend.connect()
    lock = client.get_lock("orders", owner=7)
    await lock.lock()
    await lock.force_unlock()
    with pytest.raises(LockLostError) as caught:
        await lock.unlock()
    assert (caught.value.name, caught.value.owner, caught.value.holder) == ("orders", f"{client.id}:7", None)


async def test_holders_without_an_announcement(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect().get_lock("orders")
    for field, said, found in [
        (f"{ID}:31", rf"a client of Redisson \({ID}, thread 31\)", Holder(ID, owner_id=31, foreign=True)),
        (f"{ID}:{2**32}:1", f"{ID}:{2**32}:1", Holder(ID, owner_id=2**32, foreign=False)),
        ("me:1", "me:1", Holder("me", owner_id=1)),
        ("somebody", "somebody", Holder()),
    ]:
        server_state.redis.delete("orders")
        server_state.redis.hset("orders", field, 1)
        with pytest.raises(LockTimeoutError, match=f"'orders' is held by {said}, which never expires; owner") as caught:
            await lock.hold(wait_time=0).__aenter__()
        assert caught.value.holder == await lock.holder() == dataclasses.replace(found, time_to_live=math.inf)


ANNOUNCED = {"name": "billing@web-3:812", "host": "web-3", "pid": "812", "program": "billing", "version": "0.2.0"}
OWNER = f"{2**32}:1"


def announce(redis: Any, **other: str) -> None:
    """A client holds the locks `orders` and `a b`, and has announced it."""
    for name, began in (("orders", "1795167377228 fair"), ("a b", "1795167377000 lock")):
        redis.hset(name, f"{ID}:{OWNER}", 1)
        redis.pexpire(name, 28_000)
        redis.hset(f"pyredisson_client:{{{ID}}}", f"h:{OWNER} {name}", began)
    redis.hset(f"pyredisson_client:{{{ID}}}", mapping=ANNOUNCED | other)


async def test_a_holder_that_is_announced(backend: Backend, server_state: ServerState) -> None:
    announce(server_state.redis)
    client = backend.connect()
    found = await client.get_lock("orders").holder()
    assert found is not None
    assert found.time_to_live == pytest.approx(25, abs=5)
    assert dataclasses.replace(found, time_to_live=None) == Holder(
        client_id=ID,
        client_name="billing@web-3:812",
        host="web-3",
        pid=812,
        owner_id=2**32,
        since=datetime.fromtimestamp(1795167377.228, UTC),
        foreign=False,
        program="billing",
        version="0.2.0",
    )
    other = await client.get_lock("a b").holder()
    assert other is not None
    assert other.since == datetime.fromtimestamp(1795167377, UTC)
    with pytest.raises(LockTimeoutError) as timed_out:
        await client.get_lock("orders").hold(wait_time=0.01).__aenter__()
    said = (
        r"lock 'orders' is held by web-3 \(pid 812\), free in 2\d\.\d s at the latest, unless that is extended; "
        rf"owner {client.id}:\d+ waited 0.01 s for it"
    )
    assert re.fullmatch(said, str(timed_out.value))
    announce(server_state.redis, name="invoices")
    with pytest.raises(LockNotHeldError, match=r"'orders' is held by invoices on web-3 \(pid 812\), free in"):
        await client.get_lock("orders").unlock()


async def test_an_announcement_that_makes_no_sense(backend: Backend, server_state: ServerState) -> None:
    """The user's own programs may write there, too."""
    lock = backend.connect().get_lock("orders")
    for field, value in (("pid", "x"), (f"h:{OWNER} orders", "soon lock"), (f"h:{OWNER} orders", "9" * 30)):
        announce(server_state.redis, **{field: value})
        found = await lock.holder()
        assert found is not None
        assert found.host == "web-3"
        assert None in (found.pid, found.since)
    server_state.redis.delete(f"pyredisson_client:{{{ID}}}")
    server_state.redis.set(f"pyredisson_client:{{{ID}}}", "text")
    found = await lock.holder()
    assert found is not None
    assert (found.client_id, found.host) == (ID, None)


async def test_an_announcement_that_cannot_be_read_hides_no_holder(
    backend: Backend, server_state: ServerState, proxy: Proxy
) -> None:
    announce(server_state.redis)
    lock = backend.connect(proxy.url).get_lock("orders")
    proxy.cut_reply(b"HMGET")
    found = await lock.holder()
    assert found is not None
    assert (found.client_id, found.owner_id, found.host, found.foreign) == (ID, 2**32, None, False)
    server_state.redis.delete("orders")
    server_state.redis.hset("orders", f"{ID}:31", 1)
    proxy.cut_reply(b"HMGET")
    found = await lock.holder()
    assert found is not None
    # It may be Java's, or not.
    assert found.foreign is None


async def test_a_lock_that_is_kept(backend: Backend, server_state: ServerState) -> None:
    announce(server_state.redis)
    server_state.redis.hdel("orders", f"{ID}:{OWNER}")
    server_state.redis.hset("orders", f"{ID}:{2**32}:kept", 1)
    server_state.redis.pexpire("orders", 41_000)
    lock = backend.connect().get_lock("orders")
    with pytest.raises(LockTimeoutError, match=r"kept for another [34]\d\.\d s after a run on web-3 \(pid 812\)"):
        await lock.hold(wait_time=0).__aenter__()
    found = await lock.holder()
    assert found is not None
    assert found.kept


@kinds
async def test_a_client_knows_its_own_holds(backend: Backend, kind: str) -> None:
    client = backend.connect(client_name="billing")
    lock = KINDS[kind](client)
    if kind in ("multi", "red"):
        with pytest.raises(NotImplementedError):
            await lock.holder()
        return
    assert await lock.holder() is None
    before = datetime.now(UTC)
    async with lock:
        found = await lock.holder()
        assert found is not None
        assert found.since is not None
        assert before - timedelta(seconds=0.1) < found.since < datetime.now(UTC) + timedelta(seconds=0.1)
        process = identity()
        assert (found.client_id, found.client_name, found.host, found.pid, found.program, found.version) == (
            client.id,
            "billing",
            process.host,
            process.pid,
            process.program,
            pyredisson.__version__,
        )
        assert found.foreign is False
    assert await lock.holder() is None


async def test_both_sides_of_a_read_write_lock_answer_alike(backend: Backend) -> None:
    client, others = backend.connect(), backend.connect().get_read_write_lock("orders", owner=1)
    mine = client.get_read_write_lock("orders")
    await others.write_lock().lock()
    await others.read_lock().lock()
    for side in (mine.read_lock(), mine.write_lock(), others.read_lock(), others.write_lock()):
        found = await side.holder()
        assert found is not None
        assert found.owner_id == 1
    own = await others.read_lock().holder()
    assert own is not None
    assert own.since is not None
    with pytest.raises(LockTimeoutError, match=r"thread 1\)"):
        await mine.read_lock().hold(wait_time=0).__aenter__()


async def test_several_readers(backend: Backend, server_state: ServerState) -> None:
    sides = [backend.connect().get_read_write_lock("orders") for _ in range(5)]
    for side in sides:
        await side.read_lock().lock()
    said = "write lock 'orders' is held by 5 readers, one of them .*, free in .* waited 0 s"
    with pytest.raises(LockTimeoutError, match=said):
        await backend.connect().get_read_write_lock("orders").write_lock().hold(wait_time=0).__aenter__()


async def test_a_server_that_cannot_be_asked_hides_no_timeout(backend: Backend, proxy: Proxy) -> None:
    holder = backend.connect()
    await holder.get_lock("orders").lock()
    proxy.cut_reply(HOLDER)
    with pytest.raises(LockTimeoutError, match="can't be told") as caught:
        await backend.connect(proxy.url).get_lock("orders").hold(wait_time=0).__aenter__()
    assert caught.value.holder is None


async def test_errors_survive_pickling(backend: Backend) -> None:
    await backend.connect().get_lock("orders").lock()
    with pytest.raises(LockTimeoutError) as caught:
        await backend.connect().get_lock("orders").hold(wait_time=0).__aenter__()
    error = caught.value
    twin = pickle.loads(pickle.dumps(error))
    assert str(twin) == str(error)
    assert (twin.name, twin.owner, twin.holder) == (error.name, error.owner, error.holder)


async def test_a_holder_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Holder().client_id = "another"  # type: ignore[misc]


@kinds
async def test_what_is_shown_names_the_lock(backend: Backend, kind: str) -> None:
    lock = KINDS[kind](backend.connect())
    assert "Lost of <pyredisson" in repr(lock.lost)
    assert repr(lock.lost).endswith(": no hold>")
    async with lock:
        lost = lock.lost
        assert "'orders'" in repr(lost)
        assert repr(lost).endswith(": held>")
    assert repr(lost).endswith(": released>")
    readable = repr(lock.hold(wait_time=1.5, lease_time=10))
    assert "'orders'" in readable
    assert readable.endswith(": waits 1.5 s, lease 10 s>")
    assert repr(lock.hold()).endswith(": waits without end, renewed>")


async def test_lost_is_shown(backend: Backend) -> None:
    lock = backend.connect().get_lock("orders")
    await lock.lock()
    lost = lock.lost
    await lock.force_unlock()
    assert repr(lost).endswith(": lost>")


async def test_a_type_for_everything_that_locks() -> None:
    with pyredisson.connect() as client:
        for make in KINDS.values():
            assert isinstance(make(client), pyredisson.Lockable)
        assert not isinstance(client.get_semaphore("permits"), pyredisson.Lockable)
    async with pyredisson.asyncio.connect() as other:
        for make in KINDS.values():
            assert isinstance(make(other), pyredisson.asyncio.Lockable)
    assert "Lockable" in pyredisson.__all__
    assert "Lockable" in pyredisson.asyncio.__all__
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", pyredisson.__version__)


class TestPermit:
    async def test_a_block(self, backend: Backend) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("licenses")
        await semaphore.set_permits(2)
        block = semaphore.permit(lease_time=60)
        for _ in range(2):
            async with block as permit:
                assert re.fullmatch("[0-9a-f]{32}", permit)
                assert 50 < await semaphore.get_lease_time(permit) <= 60
                assert permit in repr(block)
                async with semaphore.permit(renew=True) as other:
                    assert other != permit
                    assert await semaphore.get_lease_time(other) <= 30
                    assert await semaphore.available_permits() == 0
        assert await semaphore.available_permits() == 2
        assert repr(block).endswith("not acquired>")

    async def test_not_in_time(self, backend: Backend) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("licenses")
        await semaphore.set_permits(1)
        block = semaphore.permit(wait_time=0.02)
        async with semaphore.permit():
            with pytest.raises(LockTimeoutError, match="'licenses'") as caught:
                async with block:
                    pytest.fail("it was entered")
            assert caught.value.name == "licenses"
        async with block:
            assert await semaphore.available_permits() == 0

    async def test_one_that_ended(self, backend: Backend) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("licenses")
        await semaphore.set_permits(1)
        with pytest.raises(PermitNotHeldError):
            async with semaphore.permit() as permit:
                await semaphore.release(permit)
        with pytest.raises(KeyError) as caught:
            async with semaphore.permit() as permit:
                await semaphore.release(permit)
                raise KeyError("mine")
        assert any("PermitNotHeldError" in note for note in caught.value.__notes__)
        assert await semaphore.available_permits() == 1

    async def test_one_block_at_a_time(self, backend: Backend) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("licenses")
        await semaphore.set_permits(2)
        block = semaphore.permit()
        async with block:
            with pytest.raises(RuntimeError, match="one block at a time"):
                await block.__aenter__()
        assert await semaphore.available_permits() == 2

    async def test_wrong_arguments(self, backend: Backend) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("licenses")
        with pytest.raises(ValueError, match="renew"):
            semaphore.permit(lease_time=1, renew=True)
        with pytest.raises(ValueError, match="wait_time"):
            semaphore.permit(wait_time=-1)
