"""Explicit owners: the values of `owner=`, their names on the server, and how long the client keeps them."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from typing import Any

import pytest

import pyredisson
from pyredisson import ExplicitOwner, LockNotHeldError, new_owner
from pyredisson.testing import Proxy, Server
from tests.support.backends import NOWHERE, Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio
MANY = 100_000


async def test_a_new_owner_is_a_different_owner(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    one, other = new_owner(), new_owner()
    assert one != other
    assert len({one, other, one}) == 2
    assert 2**48 <= one.id < other.id < 2**62
    assert repr(one) == f"<pyredisson.ExplicitOwner {one.id}>"
    await client.get_lock("orders", owner=one).lock()
    assert server_state.holds("orders") == {f"{client.id}:{one.id}": "1"}
    assert not await client.get_lock("orders", owner=other).try_lock()
    assert not await client.get_lock("orders").try_lock()
    with pytest.raises(LockNotHeldError):
        await client.get_lock("orders", owner=other).unlock()
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


async def test_is_held_by_accepts_the_same_values_as_owner(backend: Backend) -> None:
    client = backend.connect()
    owners: list[Any] = [new_owner(), "alice", "bob", 7]
    for owner in owners:
        lock = client.get_lock(f"of {owner}", owner=owner)
        await lock.lock()
        assert [await lock.is_held_by(each) for each in owners] == [each is owner for each in owners]
    fresh: ExplicitOwner = owners[0]
    assert await client.get_lock(f"of {fresh}").is_held_by(fresh.id)


async def test_ids_on_the_server_are_decimal(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    await client.get_lock("orders", owner="alice").lock()
    [(owner, _)] = server_state.holds("orders").items()
    client_id, number = owner.split(":")
    assert client_id == client.id
    assert 2**62 <= int(number) < 2**63


async def test_names_are_distinguished(backend: Backend) -> None:
    client = backend.connect()
    async with client.get_lock("orders", owner="7"):
        assert not await client.get_lock("orders", owner=7).try_lock()
        assert not await client.get_lock("orders", owner="07").try_lock()
        assert await client.get_lock("orders", owner="7").try_lock()


async def test_a_question_makes_no_owner(backend: Backend) -> None:
    client = backend.connect()
    lock = client.get_lock("orders", owner=1)
    gc.collect()
    before = sys.getallocatedblocks()
    for number in range(MANY):
        await lock.is_held_by(2 + number)
    gc.collect()
    assert sys.getallocatedblocks() - before < MANY / 10
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
    await client.get_lock("orders", owner="alice").lock()
    gc.collect()
    await client.get_lock("orders", owner="alice").lock()
    assert list(server_state.holds("orders").values()) == ["2"]
    await client.get_lock("orders", owner="alice").unlock()
    await client.get_lock("orders", owner="alice").unlock()
    assert not server_state.holds("orders")
    gc.collect()
    assert not client._session.owners._explicit


@pytest.mark.parametrize("owner", [7, "alice"])
async def test_a_name_in_doubt_is_not_used_again(
    backend: Backend, proxy: Proxy, server_state: ServerState, owner: Any
) -> None:
    """Also when the owner was forgotten meanwhile: a late copy of the command must not meet a later hold."""
    client = backend.connect(proxy.url)
    proxy.drop_reply(b"orders")
    names: set[str] = set()
    for _ in range(3):
        await client.get_lock("orders", owner=owner).lock()
        await client.get_lock("stock", owner=owner).lock()
        names.update(server_state.holds("stock"))
        await client.get_lock("stock", owner=owner).unlock()
        await client.get_lock("orders", owner=owner).unlock()
        gc.collect()  # the error that told of the doubt refers to the call
        assert not client._session.owners._explicit
    assert len(names) == 3
    assert client._session.id + ":7" not in names


def make_owners(client: pyredisson.Client, made: list[Any], begin: threading.Barrier) -> None:
    begin.wait(5)
    made.extend(client.get_lock("orders", owner=number)._owner() for number in range(2000))


async def test_threads_that_make_the_same_owner_at_once_get_one() -> None:
    with pyredisson.connect(NOWHERE) as client:
        made: list[list[Any]] = [[] for _ in range(4)]
        begin = threading.Barrier(4)
        threads = [threading.Thread(target=make_owners, args=(client, mine, begin)) for mine in made]
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
