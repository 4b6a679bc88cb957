"""Error messages name the holder of a lock and its remaining lease; `repr` names the lock."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson import Holder, LockLostError, LockNotHeldError, LockTimeoutError, PermitNotHeldError
from pyredisson.testing import Proxy
from tests.support.backends import Backend
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
FREE_IN = re.compile(r"free in (29|30)\.\d s at the latest")
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
    with pytest.raises(LockNotHeldError, match="nobody holds it") as caught:
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


async def test_holders_that_may_be_javas(backend: Backend, server_state: ServerState) -> None:
    lock = backend.connect().get_lock("orders")
    for field, found in [
        ("b983c153-7421-469a-addb-44fb92259a1b:1", ("b983c153-7421-469a-addb-44fb92259a1b", 1)),
        ("somebody", (None, None)),
    ]:
        server_state.redis.delete("orders")
        server_state.redis.hset("orders", field, 1)
        with pytest.raises(LockTimeoutError, match=f"held by {field}, which never expires") as caught:
            await lock.hold(wait_time=0).__aenter__()
        client_id, owner_id = found
        assert caught.value.holder == Holder(client_id=client_id, owner_id=owner_id, time_to_live=math.inf)


async def test_several_readers(backend: Backend, server_state: ServerState) -> None:
    sides = [backend.connect().get_read_write_lock("orders") for _ in range(5)]
    for side in sides:
        await side.read_lock().lock()
    with pytest.raises(LockTimeoutError, match="and 2 more"):
        await backend.connect().get_read_write_lock("orders").write_lock().hold(wait_time=0).__aenter__()


async def test_a_server_that_cannot_be_asked_hides_no_timeout(backend: Backend, proxy: Proxy) -> None:
    holder = backend.connect()
    await holder.get_lock("orders").lock()
    proxy.cut_reply(b"HKEYS")
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
