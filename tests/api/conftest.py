"""The worlds in which a test of the contract runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from redis import Redis

from pyredisson.testing import Server

from .worlds import Asyncio, Threads, World


@pytest_asyncio.fixture(params=[Threads, Asyncio], ids=lambda kind: str(kind.name))
async def world(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[World]:
    """First one world, then the other."""
    made: World = request.param(server.url)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def threads(server: Server) -> AsyncIterator[World]:
    """The thread world only."""
    made = Threads(server.url)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def tasks(server: Server) -> AsyncIterator[World]:
    """The asyncio world only."""
    made = Asyncio(server.url)
    yield made
    await made.close()


class Behind:
    """What the server knows, read with plain commands."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis

    def holds(self, key: str | bytes) -> dict[str, str]:
        """Owners and their holds, as the hash has them."""
        found = self.redis.hgetall(key)
        return {owner.decode(): count.decode() for owner, count in found.items()}

    def listeners(self, key: str) -> int:
        """How many connections wait for that lock's messages."""
        [(_, count)] = self.redis.pubsub_numsub("redisson_lock__channel:{%s}" % key)
        return int(count)

    def scripts(self) -> int:
        """How many scripts have run since the server started."""
        stats = self.redis.info("commandstats")
        names = ("cmdstat_evalsha", "cmdstat_eval")
        return sum(int(stats[name]["calls"]) for name in names if name in stats)

    def commands(self) -> int:
        """How many commands have run, this kind of question aside."""
        stats = self.redis.info("commandstats")
        return sum(int(entry["calls"]) for name, entry in stats.items() if name != "cmdstat_info")


@pytest.fixture
def behind(admin: Redis) -> Behind:
    """A look behind the curtain."""
    return Behind(admin)
