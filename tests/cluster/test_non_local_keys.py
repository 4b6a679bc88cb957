"""A server ends a script in the middle, as it uses a key again that it has removed from a slot that is being moved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.exceptions import TryAgainError

from pyredisson import new_owner
from pyredisson._protocol.error_codes import NonLocalKeyError, is_transient
from pyredisson._protocol.replies import as_error
from pyredisson.testing import Cluster
from tests.api.fair_queue import KEYS
from tests.support.backends import Backend
from tests.support.programs import PROGRAMS
from tests.support.waiting import waiters

from .test_redirects import other_than

NAME = "pool"


@pytest.fixture(params=PROGRAMS)
def two_masters(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(masters=2, replicas=0, executable=request.param()) as running:
        yield running


@pytest.mark.asyncio
async def test_the_call_goes_on_where_the_keys_are(two_masters: Cluster, backend_kind: type[Backend]) -> None:
    cluster, backend = two_masters, backend_kind(two_masters.url)
    semaphore = backend.connect().get_permit_expirable_semaphore(NAME)
    await semaphore.try_set_permits(2)
    await semaphore.acquire(lease_time=0.2)
    await backend.sleep(0.3)
    slot, source = cluster.slot_of_key(NAME), cluster.node_of_key(NAME)
    cluster.begin_move(slot, other_than(source, cluster))
    # The permit has ended. The script frees it, which removes the key of the permits in use, and then counts these.
    count = backend.spawn(semaphore.available_permits)
    await backend.until(lambda: source.ask("GET", NAME) == "2")
    cluster.move_keys(slot)
    cluster.finish_move(slot)
    assert await count.result() == 2
    await backend.close()


@pytest.mark.asyncio
async def test_a_release_that_was_ended_in_the_middle_may_have_run(
    two_masters: Cluster, backend_kind: type[Backend]
) -> None:
    cluster, backend = two_masters, backend_kind(two_masters.url)
    lock = backend.connect().get_fair_lock("orders", owner=new_owner())
    await lock.lock()
    slot, source = cluster.slot_of_key("orders"), cluster.node_of_key("orders")
    # The release frees the lock, and drops the only waiter, which has left. That removes the queue.
    _, queue, scores, waiters, clients = KEYS
    source.ask("RPUSH", queue, "gone:1")
    source.ask("ZADD", scores, 10**15, "gone:1")
    source.ask("HSET", waiters, "gone:1", 0)
    source.ask("ZADD", clients, 10**15, "other")
    assert source.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == len(KEYS)
    cluster.begin_move(slot, other_than(source, cluster))
    release = backend.spawn(lock.unlock)
    await backend.until(lambda: source.ask("CLUSTER", "COUNTKEYSINSLOT", slot) < len(KEYS))
    cluster.move_keys(slot)
    cluster.finish_move(slot)
    # The new node doesn't know the hold, and that is no loss.
    await release.result()
    await backend.close()


@pytest.mark.asyncio
async def test_a_call_that_is_not_repeated(two_masters: Cluster, backend_kind: type[Backend]) -> None:
    """It raises a class of redis-py."""
    cluster, backend = two_masters, backend_kind(two_masters.url)
    lock = backend.connect().get_fair_lock("orders")
    slot, source = cluster.slot_of_key("orders"), cluster.node_of_key("orders")
    _, queue, scores, waiters, clients = KEYS
    source.ask("HSET", "orders", "java:1", 1)
    source.ask("RPUSH", queue, "gone:1")
    source.ask("ZADD", scores, 10**15, "gone:1")
    source.ask("HSET", waiters, "gone:1", 0)
    source.ask("ZADD", clients, 10**15, "other")
    cluster.begin_move(slot, other_than(source, cluster))
    with pytest.raises(TryAgainError) as raised:
        await lock.force_unlock()
    assert raised.type is TryAgainError
    await backend.close()


@pytest.mark.asyncio
async def test_a_lock_is_handed_on_while_its_slot_is_moved(two_masters: Cluster, backend_kind: type[Backend]) -> None:
    """The script doesn't remove the key: the server would end it there, and nobody would know that the lock is free."""
    cluster, backend = two_masters, backend_kind(two_masters.url)
    client = backend.connect(local_hand_over_time=60)
    holder, waiter = client.get_lock(NAME, owner=1), client.get_lock(NAME, owner=2)
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: waiters(client, NAME) == 1)
    slot, source = cluster.slot_of_key(NAME), cluster.node_of_key(NAME)
    cluster.begin_move(slot, other_than(source, cluster))
    await holder.unlock()
    await other.result()
    [(name, levels)] = source.ask("HGETALL", NAME).items()
    assert name.endswith(":2")
    assert levels == "1"
    cluster.move_keys(slot)
    cluster.finish_move(slot)
    await waiter.unlock()
    await backend.close()


@pytest.mark.parametrize(
    "text",
    [
        "ERR Script attempted to access a non local key in a cluster node script: e46d14b4, on @user_script:2.",
        "ERR Attempted to access a non local key in a cluster node script: on @user_script:2.",
        "ERR Error running script (call to f_e): Lua script attempted to access a non local key in a cluster node",
    ],
)
def test_the_error_of_each_server(text: str) -> None:
    error = as_error(text)
    assert type(error) is NonLocalKeyError
    assert is_transient(error)
