"""A slot moves between a command whose reply is lost and its repeat: the call has its usual result, exactly once."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import pytest_asyncio

import pyredisson
import pyredisson.asyncio
from pyredisson.logic.groups import multi_lock
from pyredisson.testing import Cluster, ClusterNode
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.faults import load_script
from tests.support.programs import ATOMIC_PROGRAMS
from tests.support.waiting import permit_waiters, waiters

from .test_redirects import other_than

pytestmark = pytest.mark.asyncio

NAME = "orders"
TIMEOUT = 1.0
"""Seconds that a client waits for a lost reply. The slot moves within them."""
LOCK, WRITE, READ = b":1\r\n$38\r\n", b":1:write\r\n$44\r\n", b":1:write\r\n$38\r\n"
"""The end of the holder's name, and the beginning of that of whom its release enters: only hand-overs have both."""
PERMIT = b"$1\r\n1\r\n$1\r\n1\r\n$20\r\nredisson_sc:{%s}" % NAME.encode()
"""One permit to release, one to acquire, and the channel: only hand-overs have all. Numbers of calls are never 1."""


class MovingCluster(Cluster):
    """A cluster whose slots move in steps, or atomically."""

    atomic = False

    def move(self, slot: int, to: ClusterNode) -> None:
        if self.atomic:
            self.move_atomically(slot, slot, to)
        else:
            self.move_slot(slot, to)


@pytest.fixture(scope="module", params=[pytest.param(None, id="in-steps"), *ATOMIC_PROGRAMS])
def proxied(request: pytest.FixtureRequest) -> Iterator[MovingCluster]:
    """A cluster with a proxy before each node."""
    find: Callable[[], str] | None = request.param
    program = None if find is None else find()
    with MovingCluster(masters=2, replicas=0, executable=program, proxied=True) as running:
        running.atomic = program is not None
        for node in running.nodes:
            for name in ("lock_hand_over", "write_hand_over", "write_let_readers_in", "semaphore_hand_over"):
                load_script(node, name)
        yield running


@pytest_asyncio.fixture(params=[Threads, Asyncio], ids=lambda kind: str(kind.name))
async def backend(request: pytest.FixtureRequest, proxied: MovingCluster) -> AsyncIterator[Backend]:
    """The test runs on each of the two backends."""
    proxied.flush()
    made: Backend = request.param(proxied.url)
    yield made
    await made.close()


def connect(backend: Backend, refresh_interval: float = 600, **fields: Any) -> pyredisson.asyncio.Client:
    return backend.connect(timeout=TIMEOUT, topology_refresh_interval=refresh_interval, **fields)


@contextmanager
def slot_moves_after_the_loss(cluster: MovingCluster, command: bytes = NAME.encode()) -> Iterator[None]:
    """Loses the reply to the next command that contains this, and moves the slot before the command can be repeated."""
    slot = cluster.slot_of_key(NAME)
    source = cluster.node_of(slot)
    target = other_than(source, cluster)
    fault = cluster.proxy_of(source).drop_reply(command)

    def move() -> None:
        if fault.happened.wait(5):
            cluster.move(slot, target)

    mover = threading.Thread(target=move)
    mover.start()
    yield
    mover.join()
    assert fault.happened.is_set()
    assert cluster.node_of(slot) is target


def field_counts(cluster: MovingCluster, name: str) -> list[int]:
    """How many levels each owner has, as the server counts them."""
    return [int(count) for count in cluster.node_of_key(name).ask("HVALS", name)]


async def test_an_acquire(proxied: MovingCluster, backend: Backend) -> None:
    lock = connect(backend).get_lock(NAME)
    with slot_moves_after_the_loss(proxied):
        await lock.lock()
    assert await lock.get_hold_count() == 1
    assert field_counts(proxied, NAME) == [1]
    assert not await connect(backend).get_lock(NAME).try_lock()
    await lock.unlock()
    assert not await lock.is_locked()


async def test_a_nested_acquire(proxied: MovingCluster, backend: Backend) -> None:
    lock = connect(backend).get_lock(NAME)
    await lock.lock()
    with slot_moves_after_the_loss(proxied):
        await lock.lock()
    assert await lock.get_hold_count() == 2
    assert field_counts(proxied, NAME) == [2]


async def test_an_acquire_whose_keys_are_in_two_places_afterwards(proxied: MovingCluster, backend: Backend) -> None:
    """It was not acquired in time, and what it has acquired is released."""
    lock = connect(backend, retry_attempts=0).get_fenced_lock(NAME)
    await lock.lock()
    await lock.unlock()
    slot = proxied.slot_of_key(NAME)
    source = proxied.node_of(slot)
    hold = proxied.proxy_of(source).hold_reply(NAME.encode())
    call = backend.spawn(lock.try_lock)
    await backend.until(hold.held.is_set)
    proxied.begin_move(slot, other_than(source, proxied))
    proxied.proxy_of(source).cut()
    assert not await call.result()
    assert source.ask("EXISTS", NAME)
    proxied.move_keys(slot)
    proxied.finish_move(slot)
    assert await connect(backend).get_lock(NAME).try_lock(wait_time=10)


async def test_a_group_whose_keys_are_in_two_places_before_it_extends_its_leases(
    proxied: MovingCluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_lock, "EXTEND_AFTER", 0.0)
    client = connect(backend, retry_attempts=0)
    last = f"z{{{NAME}}}"
    group = client.get_multi_lock(client.get_fenced_lock(NAME), client.get_lock(last))
    await group.lock()
    await group.unlock()
    slot = proxied.slot_of_key(NAME)
    source = proxied.node_of(slot)
    hold = proxied.proxy_of(source).hold_reply(last.encode())
    call = backend.spawn(lambda: group.try_lock(lease_time=60))
    await backend.until(hold.held.is_set)
    proxied.begin_move(slot, other_than(source, proxied))
    hold.deliver()
    assert not await call.result()
    proxied.move_keys(slot)
    proxied.finish_move(slot)
    assert await connect(backend).get_multi_lock(client.get_lock(NAME), client.get_lock(last)).try_lock(wait_time=10)


@pytest.mark.parametrize("refresh_interval", [600, 0.1], ids=["redirected", "refreshed"])
async def test_a_release(proxied: MovingCluster, backend: Backend, refresh_interval: float) -> None:
    """The node to which the repeat goes is found by a redirect, or by a refresh before it."""
    lock = connect(backend, refresh_interval).get_lock(NAME)
    await lock.lock()
    with slot_moves_after_the_loss(proxied):
        await lock.unlock()
    assert await connect(backend).get_lock(NAME).try_lock()


async def test_a_release_of_one_of_two_levels(proxied: MovingCluster, backend: Backend) -> None:
    lock = connect(backend).get_lock(NAME)
    await lock.lock()
    await lock.lock()
    with slot_moves_after_the_loss(proxied):
        await lock.unlock()
    assert field_counts(proxied, NAME) == [1]
    await lock.unlock()
    assert not await lock.is_locked()


@pytest.mark.parametrize(("kind", "command"), [("lock", LOCK), ("write", WRITE), ("read", READ)])
async def test_a_hand_over(proxied: MovingCluster, backend: Backend, kind: str, command: bytes) -> None:
    client = connect(backend, local_hand_over_time=60)
    holder: Any
    waiter: Any
    if kind == "lock":
        holder, waiter = (client.get_lock(NAME, owner=owner) for owner in (1, 2))
    else:
        pairs = [client.get_read_write_lock(NAME, owner=owner) for owner in (1, 2)]
        holder, waiter = pairs[0].write_lock(), getattr(pairs[1], f"{kind}_lock")()
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: waiters(client, NAME, None if kind == "lock" else kind) == 1)
    with slot_moves_after_the_loss(proxied, command):
        await holder.unlock()
    await other.result()
    assert await waiter.get_hold_count() == 1
    [(name, levels)] = [field for field in proxied.node_of_key(NAME).ask("HGETALL", NAME).items() if field[0] != "mode"]
    assert name.endswith(":2:write" if kind == "write" else ":2")
    assert levels == "1"
    await waiter.unlock()
    assert not await waiter.is_locked()


async def test_a_permit_is_handed_on_once(proxied: MovingCluster, backend: Backend) -> None:
    client = connect(backend, local_hand_over_time=60)
    semaphore = client.get_semaphore(NAME)
    await semaphore.try_set_permits(1)
    await semaphore.acquire()
    other = backend.spawn(semaphore.acquire)
    await backend.until(lambda: permit_waiters(client, NAME) == 1)
    with slot_moves_after_the_loss(proxied, PERMIT):
        await semaphore.release()
    await other.result()
    assert await semaphore.available_permits() == 0
    await semaphore.release()
    assert await semaphore.available_permits() == 1


async def test_permits_are_added_once(proxied: MovingCluster, backend: Backend) -> None:
    semaphore = connect(backend).get_semaphore(NAME)
    await semaphore.try_set_permits(5)
    with slot_moves_after_the_loss(proxied):
        await semaphore.acquire(2)
    assert await semaphore.available_permits() == 3
    with slot_moves_after_the_loss(proxied):
        await semaphore.release(2)
    assert await semaphore.available_permits() == 5
    with slot_moves_after_the_loss(proxied):
        await semaphore.add_permits(4)
    assert await semaphore.available_permits() == 9


async def test_a_latch_is_counted_down_once(proxied: MovingCluster, backend: Backend) -> None:
    latch = connect(backend).get_count_down_latch(NAME)
    await latch.try_set_count(3)
    with slot_moves_after_the_loss(proxied):
        await latch.count_down()
    assert await latch.get_count() == 2


async def test_a_token_only_grows(proxied: MovingCluster, backend: Backend) -> None:
    lock = connect(backend).get_fenced_lock(NAME)
    before = await lock.lock_and_get_token()
    await lock.unlock()
    with slot_moves_after_the_loss(proxied):
        after = await lock.lock_and_get_token()
    assert after > before
    assert field_counts(proxied, NAME) == [1]
