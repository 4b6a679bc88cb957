"""A slot moves between a command whose reply is lost and its repeat: the call has its usual result, exactly once."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson.logic.groups import multi_lock
from tests.support.backends import Backend
from tests.support.faults import load_script
from tests.support.kinds import KINDS
from tests.support.programs import ATOMIC_PROGRAMS
from tests.support.waiting import permit_waiters, waiters

from .scenes import MovingCluster, half_moved, other_than

pytestmark = pytest.mark.asyncio

NAME = "orders"
TIMEOUT = 1.0
"""Seconds that a client waits for a lost reply. The slot moves within them."""
LOCK, WRITE, READ = b":1\r\n$38\r\n", b":1:write\r\n$44\r\n", b":1:write\r\n$40\r\n"
"""The end of the holder's name, and what follows it in hand-overs only: the next owner's name, or the readers."""
PATIENT = 60.0
"""The same for a client whose reply is held: it must not send its call again before the slot moves."""
PERMIT = b"$1\r\n1\r\n$1\r\n1\r\n$20\r\nredisson_sc:{%s}" % NAME.encode()
"""One permit to release, one to acquire, and the channel: only hand-overs have all. Numbers of calls are never 1."""


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


@pytest.fixture(autouse=True)
def empty(proxied: MovingCluster) -> None:
    proxied.flush()


def connect(
    backend: Backend, refresh_interval: float = 600, timeout: float = TIMEOUT, **fields: Any
) -> pyredisson.asyncio.Client:
    return backend.connect(timeout=timeout, topology_refresh_interval=refresh_interval, **fields)


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


async def test_each_call_changes_its_number_once(proxied: MovingCluster, backend: Backend) -> None:
    """Acquires and releases of a hold's levels, of permits, and a count."""
    client, other = connect(backend), connect(backend)
    lock, semaphore = client.get_lock(f"lock{{{NAME}}}"), client.get_semaphore(f"permits{{{NAME}}}")
    latch, fenced = client.get_count_down_latch(f"{{{NAME}}}"), client.get_fenced_lock(f"fenced{{{NAME}}}")
    await semaphore.try_set_permits(5)
    await latch.try_set_count(3)
    earlier = await fenced.lock_and_get_token()
    await fenced.unlock()
    changes: list[tuple[Callable[[], Awaitable[object]], list[int], int, int]] = [
        (lock.lock, [1], 5, 3),
        (lock.lock, [2], 5, 3),
        (lambda: semaphore.acquire(2), [2], 3, 3),
        (lambda: semaphore.release(2), [2], 5, 3),
        (lambda: semaphore.add_permits(4), [2], 9, 3),
        (latch.count_down, [2], 9, 2),
        (fenced.lock, [2], 9, 2),
        (lock.unlock, [1], 9, 2),
        (lock.unlock, [], 9, 2),
    ]
    for change, levels, permits, count in changes:
        with slot_moves_after_the_loss(proxied):
            await change()
        assert field_counts(proxied, str(lock.name)) == levels
        assert (await semaphore.available_permits(), await latch.get_count()) == (permits, count)
        assert await other.get_lock(lock.name).is_locked() is bool(levels)
    assert field_counts(proxied, str(fenced.name)) == [1]
    assert fenced.token > earlier


async def test_an_acquire_whose_keys_are_in_two_places_afterwards(proxied: MovingCluster, backend: Backend) -> None:
    """It was not acquired in time, and what it has acquired is released."""
    lock = connect(backend, timeout=PATIENT, retry_attempts=0).get_fenced_lock(NAME)
    await lock.lock()
    await lock.unlock()
    source = proxied.node_of_key(NAME)
    # Not of a release that the background of an earlier test's client sends.
    hold = proxied.proxy_of(source).hold_reply(b"redisson_lock_token:{%s}" % NAME.encode())
    call = backend.spawn(lock.try_lock)
    await backend.until(hold.held.is_set)
    with half_moved(proxied, NAME):
        proxied.proxy_of(source).cut()
        assert not await call.result()
        assert source.ask("EXISTS", NAME)
    assert await connect(backend).get_lock(NAME).try_lock(wait_time=10)


async def test_a_group_whose_keys_are_in_two_places_before_it_extends_its_leases(
    proxied: MovingCluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_lock, "EXTEND_AFTER", 0.0)
    client = connect(backend, timeout=PATIENT, retry_attempts=0)
    last = f"z{{{NAME}}}"
    group = client.get_multi_lock(client.get_fenced_lock(NAME), client.get_lock(last))
    await group.lock()
    await group.unlock()
    hold = proxied.proxy_of(proxied.node_of_key(NAME)).hold_reply(last.encode())
    call = backend.spawn(lambda: group.try_lock(lease_time=60))
    await backend.until(hold.held.is_set)
    with half_moved(proxied, NAME):
        hold.deliver()
        assert not await call.result()
    assert await connect(backend).get_multi_lock(client.get_lock(NAME), client.get_lock(last)).try_lock(wait_time=10)


async def test_a_release_that_a_refresh_has_sent_elsewhere(proxied: MovingCluster, backend: Backend) -> None:
    """The node to which the repeat goes is found by a refresh before it, and not by a redirect."""
    lock = connect(backend, 0.1).get_lock(NAME)
    await lock.lock()
    with slot_moves_after_the_loss(proxied):
        await lock.unlock()
    assert field_counts(proxied, NAME) == []


@pytest.mark.parametrize(("kind", "command"), [("lock", LOCK), ("write", WRITE), ("read", READ)])
async def test_a_hand_over(proxied: MovingCluster, backend: Backend, kind: str, command: bytes) -> None:
    client = connect(backend, local_hand_over_time=60)
    holder, waiter = KINDS["lock" if kind == "lock" else "write"](client, NAME, 1), KINDS[kind](client, NAME, 2)
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
