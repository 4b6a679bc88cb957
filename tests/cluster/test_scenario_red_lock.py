"""RedLocks over five independent masters, of which one and then three are down."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import pytest_asyncio
from redis.exceptions import ConnectionError as RedisConnectionError

from pyredisson import LockLostError
from pyredisson.logic.groups import parallel
from pyredisson.testing import Server
from tests.faults.soak_worker import clock
from tests.support.backends import NOWHERE, Asyncio, Backend, Threads
from tests.support.waiting import eventually

OPTIONS = {"lock_watchdog_timeout": 3.0, "timeout": 1.0, "connect_timeout": 1.0, "retry_attempts": 1}

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


@pytest.fixture
def masters() -> Iterator[list[Server]]:
    """Five masters of this test's own."""
    with ExitStack() as stack:
        yield [stack.enter_context(Server()) for _ in range(5)]


@pytest_asyncio.fixture(params=[Threads, Asyncio], ids=lambda kind: str(kind.name))
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    made: Backend = request.param(NOWHERE)
    yield made
    await made.close()


def red_lock(backend: Backend, masters: list[Server]) -> Any:
    """A RedLock of a process of its own: a client for each master."""
    clients = [backend.connect(server.url, **OPTIONS) for server in masters]
    return clients[0].get_red_lock(*(client.get_lock("orders") for client in clients))


async def taken(lock: Any, wait: float) -> bool:
    """Whether it was acquired; a majority that is out of reach may also be an error."""
    try:
        return bool(await lock.try_lock(wait))
    except RedisConnectionError:
        return False


@pytest.mark.parametrize("strike", ["kill", "pause"])
async def test_one_and_then_three_of_five_masters_are_down(
    masters: list[Server], backend: Backend, strike: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, wanted = red_lock(backend, masters), red_lock(backend, masters)
    with monkeypatch.context() as patch:
        # All five have it, also on a busy machine.
        patch.setattr(parallel, "SHORTEST_GRACE", 5.0)
        assert await held.try_lock(5)
    getattr(masters[0], strike)()
    assert not await taken(wanted, 0)
    assert await held.is_held()
    # Longer than the lease, which the other four renew.
    await backend.sleep(2 * OPTIONS["lock_watchdog_timeout"])
    assert not held.lost.is_set()
    assert not await taken(wanted, 0)
    await held.unlock()
    begin = clock()
    assert await taken(wanted, 5)
    assert clock() - begin < 5
    for server in masters[1:3]:
        getattr(server, strike)()
    # Without a majority the holder knows that it has lost the lock when the leases end.
    await backend.until(wanted.lost.is_set, OPTIONS["lock_watchdog_timeout"] + 2)
    with pytest.raises(LockLostError):
        await wanted.unlock()
    assert not await taken(held, 2)
    assert not await taken(wanted, 2)
    for server in masters[:3]:
        (server.start if strike == "kill" else server.resume)()
    assert await taken(held, 10)
    assert not await taken(wanted, 0)
    await held.unlock()
    # What attempts without a majority had acquired is undone in the background.
    for server in masters:
        with server.redis() as redis:
            eventually(lambda redis=redis: not redis.exists("orders"))  # type: ignore[misc]


async def test_all_masters_restart_empty_one_after_the_other(masters: list[Server], backend: Backend) -> None:
    """Each is away for longer than the lease, as it must be: it has forgotten whom it has granted the lock."""
    held, wanted = red_lock(backend, masters[:3]), red_lock(backend, masters[:3])
    assert await held.try_lock(5)
    for master in masters[:3]:
        master.kill()
        await backend.sleep(OPTIONS["lock_watchdog_timeout"] + 0.5)
        master.start()
        with master.redis() as redis:
            await backend.until(lambda redis=redis: redis.exists("orders"))  # type: ignore[misc]
        assert not held.lost.is_set()
        assert not await taken(wanted, 0)
    assert await held.is_held()
    await held.unlock()
    assert await taken(wanted, 5)
    await wanted.unlock()
