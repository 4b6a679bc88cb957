"""Masters that Sentinels replace while locks are held, waited for, and acquired by many."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyredisson.testing import Sentinels
from tests.faults.soak_worker import clock
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.programs import also_on, newest_redis, newest_valkey, valkey_server

from .load import LEASE, OPTIONS, Load, wants

pytestmark = pytest.mark.slow

OWNERS = [wants("a"), wants("a"), [("multi", ["both-1", "both-2"])]]


@also_on(valkey_server)
@pytest.mark.parametrize("strike", ["kill", "freeze"])
def test_sentinels_replace_the_master_under_load(sentinels: Sentinels, tmp_path: Path, strike: str) -> None:
    master = sentinels.master()
    with Load(sentinels, tmp_path, OWNERS) as load:
        (sentinels.kill if strike == "kill" else sentinels.pause)(master)
        sentinels.wait_for_promotion(master)
        assert sentinels.master() is not master
        load.wait_until_served(LEASE + 5)
        (sentinels.restart if strike == "kill" else sentinels.resume)(master)
        calm = clock()
        load.wait_until_all_are_taken()
        load.end(calm)


@also_on(newest_valkey)
@pytest.mark.parametrize("replicas", [1, 2])
def test_sentinels_fail_over_on_request_under_load(tmp_path: Path, replicas: int, program: str | None) -> None:
    """The Sentinels demote the former master after the promotion. In between both are masters."""
    with (
        Sentinels(replicas=replicas, executable=program) as sentinels,
        Load(sentinels, tmp_path, OWNERS, min_synced_replicas=replicas) as load,
    ):
        former = sentinels.master()
        assert sentinels.fail_over() is not former
        load.wait_until_served(LEASE + 5)
        calm = clock()
        load.wait_until_all_are_taken()
        load.end(calm)


@also_on(newest_redis)
@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [Threads, Asyncio], ids=lambda kind: str(kind.name))
async def test_a_sentinel_that_is_frozen_or_dead_delays_nobody(sentinels: Sentinels, kind: type[Backend]) -> None:
    backend = kind(sentinels.url)
    dead, frozen, _ = sentinels.sentinels
    sentinels.kill(dead)
    sentinels.pause(frozen)
    client = backend.connect(**OPTIONS)
    begin = clock()
    lock = client.get_lock("orders")
    await lock.lock()
    assert clock() - begin < OPTIONS["timeout"] + OPTIONS["connect_timeout"] + 1
    await lock.unlock()
    await backend.close()
