"""A slot moves between a command whose reply is lost and its repeat: the call has its usual result, exactly once."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import pytest
import pytest_asyncio

import pyredisson
import pyredisson.asyncio
from pyredisson.testing import Cluster, ClusterNode
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.programs import ATOMIC_PROGRAMS

from .test_redirects import other_than

pytestmark = pytest.mark.asyncio

NAME = "orders"
TIMEOUT = 1.0
"""Seconds that a client waits for a lost reply. The slot moves within them."""


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
        yield running


@pytest_asyncio.fixture(params=[Threads, Asyncio], ids=lambda kind: str(kind.name))
async def backend(request: pytest.FixtureRequest, proxied: MovingCluster) -> AsyncIterator[Backend]:
    """The test runs on each of the two backends."""
    proxied.flush()
    made: Backend = request.param(proxied.url)
    yield made
    await made.close()


def connect(backend: Backend, refresh_interval: float = 600) -> pyredisson.asyncio.Client:
    return backend.connect(timeout=TIMEOUT, topology_refresh_interval=refresh_interval)


@contextmanager
def slot_moves_after_the_loss(cluster: MovingCluster, name: str = NAME) -> Iterator[None]:
    """Loses the reply to the next command for a name, and moves its slot before the command can be repeated."""
    slot = cluster.slot_of_key(name)
    source = cluster.node_of(slot)
    target = other_than(source, cluster)
    fault = cluster.proxy_of(source).drop_reply(name.encode())

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
