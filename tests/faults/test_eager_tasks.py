"""`asyncio.eager_task_factory`: a new task runs at once, inside the code that creates it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from redis import Redis

from pyredisson.testing import Server
from tests.support.children import Child

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="asyncio.eager_task_factory came with Python 3.12: there is nothing to test"
)

# In a process of its own: a loop that stands still would take the test run with it.
BEGIN = """
import asyncio, sys
import pyredisson, pyredisson.asyncio
from redis.exceptions import ConnectionError

def run(main):
    async def eager():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        await main()
    asyncio.run(eager())
    print("done")
"""

CONTENDED = """
KINDS = {
    "lock": lambda client: client.get_lock("a"),
    "fair": lambda client: client.get_fair_lock("a"),
    "write": lambda client: client.get_read_write_lock("a").write_lock(),
    "semaphore": lambda client: client.get_semaphore("a"),
}

async def main():
    inside = 0
    async with pyredisson.asyncio.connect(sys.argv[1]) as client:
        if sys.argv[2] == "semaphore":
            await client.get_semaphore("a").try_set_permits(1)

        async def use():
            nonlocal inside
            async with KINDS[sys.argv[2]](client):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.001)
                inside -= 1

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(use())

run(main)
"""


@pytest.mark.parametrize("kind", ["lock", "fair", "write", "semaphore"])
def test_a_contended_wait(server: Server, child: Callable[..., Child], kind: str) -> None:
    user = child(BEGIN + CONTENDED, server.url, kind)
    assert user.receive() == "done"
    assert user.wait() == 0


GROUP = """
async def main():
    clients = [pyredisson.asyncio.connect(url) for url in sys.argv[1:]]
    inside = 0

    async def use():
        nonlocal inside
        async with clients[0].get_red_lock(*[client.get_lock("a") for client in clients]):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0.001)
            inside -= 1

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(use())
    for client in clients:
        await client.close()

run(main)
"""


def test_operations_side_by_side(servers: list[Server], redises: list[Redis], child: Callable[..., Child]) -> None:
    """Those on a server that refuses connections end before the call that begins them returns."""
    user = child(BEGIN + GROUP, *[server.url for server in servers[:2]], "redis://127.0.0.1:1")
    assert user.receive() == "done"
    assert user.wait() == 0
    assert not any(redis.exists("a") for redis in redises)


REFUSED = """
async def main():
    client = pyredisson.asyncio.connect("redis://127.0.0.1:1", retry_attempts=0)

    async def use(number):
        try:
            await client.get_lock(f"a{number}").try_lock()
        except ConnectionError as error:
            return error

    errors = await asyncio.gather(*[asyncio.create_task(use(number)) for number in range(100)])
    assert len(set(map(id, errors))) == 100 and None not in errors
    await client.close()

run(main)
"""


def test_a_connection_that_fails_at_once(child: Callable[..., Child]) -> None:
    user = child(BEGIN + REFUSED)
    assert user.receive() == "done"
    assert user.wait() == 0
