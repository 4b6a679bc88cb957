"""Permits are handed on inside a client, and replicas have to confirm it; replies are lost, callers are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError, TimeoutError

import pyredisson.asyncio
from pyredisson.errors import NotReplicatedError
from pyredisson.testing import Cluster
from tests.support.backends import Backend, OtherOwner
from tests.support.faults import LOSSES, Lose, load_script
from tests.support.programs import PROGRAMS
from tests.support.replicated_master import ReplicatedMaster
from tests.support.waiting import TIME_LIMIT, cancel_after, eventually, permit_waiters

from .conftest import NO_FAILOVER

pytestmark = pytest.mark.asyncio

SHORT = 0.9
"""`replicas_sync_timeout` where replicas don't answer."""
TURNS = 12
"""As many turns of the event loop as a release needs until its command is on its way, and some more."""
HAND_OVER = b"$1\r\n1\r\n$1\r\n1\r\n$15\r\nredisson_sc:{s}\r\n"
"""One permit to release, one to acquire, and the channel: only hand-overs have all. Numbers of calls are never 1."""
Replicas = ReplicatedMaster[Cluster]
lost_commands = pytest.mark.parametrize("what", [HAND_OVER, b"WAIT"], ids=["script", "wait"])


@pytest.fixture(scope="module")
def shared_master() -> Iterator[Cluster]:
    with Cluster(masters=1, replicas=1, proxied=True) as running:
        running.set_node_timeout(NO_FAILOVER)
        load_script(running.masters()[0], "semaphore_hand_over")
        yield running


@pytest.fixture(params=PROGRAMS)
def any_master(request: pytest.FixtureRequest) -> Iterator[Replicas]:
    """A master of this test's own, on each kind of server."""
    with Cluster(masters=1, replicas=1, proxied=True, executable=request.param()) as running:
        running.set_node_timeout(NO_FAILOVER)
        load_script(running.masters()[0], "semaphore_hand_over")
        yield ReplicatedMaster(running)


async def one_waits(backend: Backend, client: Any) -> tuple[Any, OtherOwner[None]]:
    """The only permit is taken, and another caller waits for it."""
    semaphore = client.get_semaphore("s")
    await semaphore.try_set_permits(1)
    await semaphore.acquire()
    other = backend.spawn(semaphore.acquire)
    await backend.until(lambda: permit_waiters(client, "s") == 1)
    return semaphore, other


def free(master: Replicas) -> int:
    return int(master.node.ask("GET", "s"))


@LOSSES
@lost_commands
async def test_a_lost_reply(master: Replicas, backend: Backend, lose: Lose, what: bytes) -> None:
    client = backend.connect(timeout=0.5, replicas_sync_timeout=SHORT, local_hand_over_time=60)
    semaphore, other = await one_waits(backend, client)
    fault = lose(master.proxy, what)
    await semaphore.release()
    assert fault.happened.is_set()
    await other.result()
    assert free(master) == 0
    await semaphore.release()
    assert free(master) == 1


@LOSSES
@lost_commands
async def test_it_is_given_up_in_doubt(master: Replicas, backend: Backend, lose: Lose, what: bytes) -> None:
    """The permit is released once, and the waiter acquires it by an attempt."""
    client = backend.connect(timeout=1.0, replicas_sync_timeout=1.0, retry_attempts=0, local_hand_over_time=60)
    semaphore, other = await one_waits(backend, client)
    for _ in range(2):
        fault = lose(master.proxy, what)
    with pytest.raises((ConnectionError, TimeoutError)):
        await semaphore.release()
    assert fault.happened.is_set()
    await other.result()
    await backend.until(lambda: free(master) == 0)
    await semaphore.release()
    assert free(master) == 1


async def test_a_repeated_hand_over_is_confirmed_anew(any_master: Replicas, backend_kind: type[Backend]) -> None:
    """The copy finds the permit handed on. Newer servers confirm at once what its connection has not written."""
    backend = backend_kind(any_master.url)
    client = backend.connect(timeout=0.3, replicas_sync_timeout=SHORT, local_hand_over_time=60)
    semaphore, other = await one_waits(backend, client)
    any_master.freeze()
    fault = any_master.proxy.cut_reply(b"WAIT")
    await semaphore.release()
    with pytest.raises(NotReplicatedError, match="0 of 1"):
        await other.result()
    assert fault.happened.is_set()
    await backend.until(lambda: free(any_master) == 1)
    any_master.restore()
    await backend.close()


async def test_a_hand_over_that_acquires_nothing_needs_no_confirmation_for_its_waiter(
    master: Replicas, backend: Backend
) -> None:
    client = backend.connect(replicas_sync_timeout=SHORT, local_hand_over_time=60)
    semaphore, other = await one_waits(backend, client)
    await semaphore.reduce_permits(1)
    master.freeze()
    await semaphore.release()
    assert free(master) == 0
    assert not other.done()
    master.restore()
    await semaphore.release()
    await other.result()
    assert free(master) == 0


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("whose", ["release", "waiter"])
async def test_cancelled_at_any_turn_it_loses_no_permit(master: Replicas, whose: str, frozen: bool) -> None:
    struck = 0
    async with pyredisson.asyncio.connect(master.url, replicas_sync_timeout=SHORT, local_hand_over_time=60) as client:
        semaphore = client.get_semaphore("s")
        await semaphore.try_set_permits(1)
        for turns in range(1, TURNS):
            await semaphore.acquire()
            waiter = asyncio.ensure_future(semaphore.acquire())
            await asyncio.to_thread(eventually, lambda: permit_waiters(client, "s") == 1)
            if frozen:
                master.freeze()
            release = asyncio.ensure_future(semaphore.release())
            struck += await cancel_after(turns, release if whose == "release" else waiter)
            async with asyncio.timeout(TIME_LIMIT):
                _, outcome = await asyncio.gather(release, waiter, return_exceptions=True)
            assert outcome is None or isinstance(outcome, NotReplicatedError | asyncio.CancelledError)
            master.restore()
            expected = 0 if outcome is None else 1
            await asyncio.to_thread(eventually, lambda: free(master) == expected)  # noqa: B023
            if outcome is None:
                await semaphore.release()
    assert struck
