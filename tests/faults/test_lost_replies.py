"""Exactly once: a call whose reply is lost, or whose request arrives late, has its usual result."""

from __future__ import annotations

import pytest
from redis import Redis
from redis.exceptions import ConnectionError, TimeoutError

from pyredisson.testing import Proxy
from tests.support.faults import ACQUIRE, FORCE_RELEASE, LOSSES, RELEASE, Lose
from tests.support.raw_backends import RawBackend

pytestmark = pytest.mark.asyncio


def holds(admin: Redis, name: str) -> list[int]:
    """How often each owner holds it, as the server counts."""
    return [int(count) for count in admin.hvals(name)]


@LOSSES
@pytest.mark.parametrize("wait", [None, 0])
async def test_an_acquire_whose_reply_is_lost_runs_exactly_once(
    backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose, wait: float | None
) -> None:
    lock = backend.connect(proxy.url, timeout=0.8).get_lock("a")
    fault = lose(proxy, ACQUIRE)
    if wait is None:
        await backend.do(lock.lock())
    else:
        assert await backend.do(lock.try_lock(wait)) is True
    assert fault.happened.is_set()
    assert await backend.do(lock.get_hold_count()) == 1
    assert holds(admin, "a") == [1]
    await backend.do(lock.unlock())
    assert not admin.exists("a")


@LOSSES
async def test_a_reentrant_acquire_whose_reply_is_lost_counts_once(
    backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose
) -> None:
    lock = backend.connect(proxy.url, timeout=0.8).get_lock("a")
    await backend.do(lock.lock())
    fault = lose(proxy, ACQUIRE)
    await backend.do(lock.lock())
    assert fault.happened.is_set()
    assert await backend.do(lock.get_hold_count()) == 2
    assert holds(admin, "a") == [2]
    await backend.do(lock.unlock())
    assert holds(admin, "a") == [1]
    await backend.do(lock.unlock())
    assert not admin.exists("a")


@LOSSES
async def test_a_release_whose_reply_is_lost_is_a_release(
    backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose
) -> None:
    lock = backend.connect(proxy.url, timeout=0.8).get_lock("a")
    await backend.do(lock.lock())
    fault = lose(proxy, RELEASE)
    await backend.do(lock.unlock())
    assert fault.happened.is_set()
    assert not admin.exists("a")
    assert await backend.do(lock.try_lock()) is True


@LOSSES
async def test_a_nested_release_whose_reply_is_lost_releases_one_hold(
    backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose
) -> None:
    lock = backend.connect(proxy.url, timeout=0.8).get_lock("a")
    for _ in range(3):
        await backend.do(lock.lock())
    fault = lose(proxy, RELEASE)
    await backend.do(lock.unlock())
    assert fault.happened.is_set()
    assert holds(admin, "a") == [2]
    assert await backend.do(lock.get_hold_count()) == 2


async def test_the_reply_busy_is_lost_and_the_answer_is_still_no(
    backend: RawBackend, proxy: Proxy, admin: Redis
) -> None:
    admin.hset("a", "another:1", 1)
    admin.pexpire("a", 30_000)
    lock = backend.connect(proxy.url, timeout=0.8).get_lock("a")
    fault = proxy.drop_reply(ACQUIRE)
    assert await backend.do(lock.try_lock()) is False
    assert fault.happened.is_set()
    assert admin.hkeys("a") == [b"another:1"]


async def test_every_second_reply_is_lost_and_the_count_stays_right(
    backend: RawBackend, proxy: Proxy, admin: Redis
) -> None:
    lock = backend.connect(proxy.url, timeout=0.8).get_lock("a")
    for depth in range(1, 5):
        fault = proxy.cut_reply(ACQUIRE)
        await backend.do(lock.lock())
        assert fault.happened.is_set()
        assert holds(admin, "a") == [depth]
    for depth in (3, 2, 1):
        fault = proxy.cut_reply(RELEASE)
        await backend.do(lock.unlock())
        assert fault.happened.is_set()
        assert holds(admin, "a") == [depth]
    await backend.do(lock.unlock())
    assert not admin.exists("a")


async def test_a_late_copy_of_an_acquire_never_runs(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """When the first request arrives, the caller has already acquired and released the lock over another connection."""
    lock = backend.connect(proxy.url, timeout=0.8).get_lock("a")
    late = proxy.hold_request(ACQUIRE)
    assert await backend.do(lock.try_lock()) is True
    assert late.held.is_set()
    await backend.do(lock.unlock())
    # The server was asked to drop that connection before the call was repeated.
    with pytest.raises(OSError, match="closed the connection"):
        await backend.run_blocking(late.deliver)
    assert not admin.exists("a")


async def test_a_late_copy_of_a_release_frees_no_later_hold(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    lock = backend.connect(proxy.url, timeout=0.8).get_lock("a")
    await backend.do(lock.lock())
    late = proxy.hold_request(RELEASE)
    await backend.do(lock.unlock())
    assert late.held.is_set()
    await backend.do(lock.lock())
    with pytest.raises(OSError, match="closed the connection"):
        await backend.run_blocking(late.deliver)
    assert holds(admin, "a") == [1]
    assert await backend.do(lock.is_held())
    await backend.do(lock.unlock())


async def test_an_acquire_that_gave_up_leaves_nothing_when_its_request_comes_late(
    backend: RawBackend, proxy: Proxy, admin: Redis
) -> None:
    """Nothing gets through, the caller gets an error, and then the network delivers what it had kept."""
    client = backend.connect(proxy.url, timeout=0.8, connect_timeout=0.8, lock_watchdog_timeout=5)
    lock = client.get_lock("a")
    assert await backend.do(lock.is_locked()) is False  # connected
    late = proxy.hold_request(ACQUIRE)
    proxy.refuse(True)
    with pytest.raises((ConnectionError, TimeoutError)):
        await backend.do(lock.try_lock(0.1))
    # The client can't reach the server and have that connection dropped: the late request runs.
    await backend.run_blocking(late.deliver)
    assert admin.exists("a")
    proxy.refuse(False)
    # Long before the lease would end.
    await backend.until(lambda: not admin.exists("a"), 3)
    assert await backend.do(lock.get_hold_count()) == 0


async def test_force_unlock_is_not_sent_twice(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """A second run could take the lock away from its next holder."""
    admin.hset("a", "another:1", 1)
    lock = backend.connect(proxy.url, timeout=0.8).get_lock("a")
    await backend.do(lock.is_locked())
    proxy.cut_reply(FORCE_RELEASE)
    with pytest.raises(ConnectionError):
        await backend.do(lock.force_unlock())
    assert proxy.seen(FORCE_RELEASE) == 1
