"""Explicit owners: the values of `owner=`, their names on the server, and how long the client keeps them."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from typing import Any

import pytest

import pyredisson
from pyredisson import LockNotHeldError, new_owner
from pyredisson.testing import Proxy, Server
from tests.support.backends import NOWHERE, Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio
MANY = 20_000


async def test_a_new_owner_is_a_different_owner(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    one, other = new_owner(), new_owner()
    assert one != other
    assert len({one, other, one}) == 2
    assert 2**48 <= one.id < other.id < 2**62
    assert repr(one) == f"<pyredisson.ExplicitOwner {one.id}>"
    await client.get_lock("orders", owner=one).lock()
    assert server_state.holds("orders") == {f"{client.id}:{one.id}": "1"}
    for lock in (client.get_lock("orders", owner=other), client.get_lock("orders")):
        assert not await lock.try_lock()
        with pytest.raises(LockNotHeldError):
            await lock.unlock()
    await client.get_lock("orders", owner=one).unlock()


@pytest.mark.parametrize("owner", [new_owner(), "alice", "ü" * 1000, 7], ids=lambda owner: type(owner).__name__)
async def test_one_owner_in_several_threads_and_tasks(backend: Backend, owner: Any) -> None:
    client = backend.connect()
    await client.get_lock("orders", owner=owner).lock()
    assert await backend.as_another_owner(lambda: client.get_lock("orders", owner=owner).try_lock())
    assert await client.get_lock("orders", owner=owner).get_hold_count() == 2
    await backend.as_another_owner(lambda: client.get_lock("orders", owner=owner).unlock())
    assert await backend.as_another_owner(lambda: client.get_lock("orders", owner=owner).is_held())
    await client.get_lock("orders", owner=owner).unlock()
    assert not await client.get_lock("orders").is_locked()


async def test_one_owner_on_both_backends(server: Server) -> None:
    """It is another holder in each client, as a client's id is part of its name."""
    owner = new_owner()
    async with pyredisson.asyncio.connect(server.url) as client, client.get_lock("orders", owner=owner):

        def elsewhere() -> bool:
            with pyredisson.connect(server.url) as other:
                return other.get_lock("orders", owner=owner).try_lock()

        assert not await asyncio.to_thread(elsewhere)


async def test_values_are_distinguished(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    fresh = new_owner()
    owners: list[Any] = [fresh, "alice", "7", "07", 7]
    for owner in owners:
        lock = client.get_lock("orders", owner=owner)
        await lock.lock()
        assert [await lock.is_held_by(each) for each in owners] == [each is owner for each in owners]
        assert await lock.is_held_by(fresh.id) == (owner is fresh)
        # Ids on the server are decimal.
        [(client_id, _, number)] = [name.partition(":") for name in server_state.holds("orders")]
        assert client_id == client.id
        assert not isinstance(owner, str) or 2**62 <= int(number) < 2**63
        await lock.unlock()


async def test_a_question_makes_no_owner(backend: Backend) -> None:
    client = backend.connect()
    lock = client.get_lock("orders", owner=1)
    gc.collect()
    before = sys.getallocatedblocks()
    for number in range(MANY):
        await lock.is_held_by(2 + number)
    gc.collect()
    assert sys.getallocatedblocks() - before < MANY / 2
    assert len(client._session.owners._explicit) == 1


async def test_owners_are_forgotten_with_their_handles(backend: Backend) -> None:
    client = backend.connect(NOWHERE)
    handles = [client.get_lock("orders", owner=number) for number in range(1000)]
    assert len(client._session.owners._explicit) == 1000
    del handles
    for number in range(MANY):
        client.get_lock("orders", owner=f"request {number}")
    assert len(client._session.owners._explicit) == 0


async def test_a_hold_outlives_its_handle(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    for count in ("1", "2"):
        await client.get_lock("orders", owner="alice").lock()
        gc.collect()
        assert list(server_state.holds("orders").values()) == [count]
    for _ in range(2):
        await client.get_lock("orders", owner="alice").unlock()
    assert not server_state.holds("orders")
    gc.collect()
    assert not client._session.owners._explicit


@pytest.mark.parametrize("owner", [7, "alice"])
async def test_a_name_in_doubt_is_not_used_again(
    backend: Backend, proxy: Proxy, server_state: ServerState, owner: Any
) -> None:
    """Also when the owner was forgotten meanwhile: a late copy of the command must not meet a later hold."""
    client = backend.connect(proxy.url, timeout=0.5)
    proxy.drop_reply(b"orders")
    names: set[str] = set()
    for _ in range(3):
        await client.get_lock("orders", owner=owner).lock()
        async with client.get_lock("stock", owner=owner):
            names.update(server_state.holds("stock"))
        await client.get_lock("orders", owner=owner).unlock()
        gc.collect()  # the error that told of the doubt refers to the call
        assert not client._session.owners._explicit
    assert len(names) == 3
    assert client._session.id + ":7" not in names


async def test_threads_that_make_the_same_owner_at_once_get_one() -> None:
    with pyredisson.connect(NOWHERE) as client:
        made: list[list[Any]] = [[] for _ in range(4)]
        begin = threading.Barrier(4)

        def make_owners(mine: list[Any]) -> None:
            begin.wait(5)
            mine.extend(client.get_lock("orders", owner=number)._owner() for number in range(2000))

        threads = [threading.Thread(target=make_owners, args=(mine,)) for mine in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for same in zip(*made, strict=True):
            assert len(set(map(id, same))) == 1


FORK = """
import os, sys
import pyredisson
client = pyredisson.connect(sys.argv[1])
lock = client.get_lock("orders", owner=7)
lock.lock()
child = os.fork()
if child == 0:
    os._exit(0 if lock._owner().name == f"{client.id}:7".encode() and not lock.try_lock() else 1)
_, status = os.waitpid(child, 0)
lock.unlock()
sys.exit(os.waitstatus_to_exitcode(status))
"""


async def test_a_handle_in_a_forked_child_is_the_childs(server: Server) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FORK, server.url)
    assert await process.wait() == 0
