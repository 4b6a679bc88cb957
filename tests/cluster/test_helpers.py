"""Decorators, singletons, elections and `pyredisson run` on a cluster, and behind Sentinels."""

from __future__ import annotations

import sys

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson import LockTimeoutError
from pyredisson.testing import Cluster
from tests.support.commands import Ended
from tests.support.commands import pyredisson as command

SAYS_WHAT_IT_HOLDS = "import os; print(os.environ['PYREDISSON_LOCK'], int(os.environ['PYREDISSON_FENCING_TOKEN']) > 0)"


@pytest.fixture(params=["cluster", "sentinels"])
def url(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(request.param).url
    return address


def test_threads(url: str) -> None:
    with pyredisson.connect(url) as client, pyredisson.connect(url) as other:

        @client.locked("order:{order}")
        def work(order: int) -> bool:
            return other.get_lock(f"order:{order}").is_locked()

        # On several nodes of the cluster.
        assert all(work(order) for order in range(8))
        with client.singleton("nightly", at_least=600):
            pass
        with pytest.raises(LockTimeoutError, match="is kept for another"), other.singleton("nightly"):
            raise AssertionError("not reached")
        with client.elect("billing") as term:
            leader = other.elect("billing").leader()
            assert leader is not None
            assert leader.client_id == client.id
        with other.elect("billing") as later:
            assert later.token > term.token


@pytest.mark.asyncio
async def test_tasks(url: str) -> None:
    async with pyredisson.asyncio.connect(url) as client, pyredisson.asyncio.connect(url) as other:

        @client.locked("order:{order}")
        async def work(order: int) -> bool:
            return await other.get_lock(f"order:{order}").is_locked()

        assert all([await work(order) for order in range(8)])
        async with client.singleton("nightly", at_least=600):
            pass
        with pytest.raises(LockTimeoutError, match="is kept for another"):
            async with other.singleton("nightly"):
                raise AssertionError("not reached")
        async with client.elect("billing") as term:
            leader = await other.elect("billing").leader()
            assert leader is not None
            assert leader.client_id == client.id
        async with other.elect("billing") as later:
            assert later.token > term.token


def test_a_command(url: str) -> None:
    ended = command("run", "--url", url, "job", "--", sys.executable, "-c", SAYS_WHAT_IT_HOLDS)
    assert ended == Ended(0, "job True\n", "")


@pytest.mark.slow
def test_a_leader_stays_when_its_master_is_replaced(cluster: Cluster) -> None:
    """The replica that takes over has everything, so the term goes on."""
    with pyredisson.connect(cluster.url) as client, pyredisson.connect(cluster.url) as other:
        with client.elect("billing") as term:
            cluster.fail_over(cluster.node_of_key("billing"))
            leader = other.elect("billing").leader()
            assert leader is not None
            assert leader.client_id == client.id
            assert term.valid
            assert not term.lost.is_set()
        with other.elect("billing") as later:
            assert later.token > term.token
