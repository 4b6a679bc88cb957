"""Several event loops: a client subscribes again in a second loop, and a closed loop doesn't prevent closing."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from redis import Redis

from pyredisson.testing import Server
from tests.support.children import Child
from tests.support.server_state import listeners
from tests.support.waiting import eventually

SEVERAL = """
import asyncio, gc, sys
import pyredisson.asyncio
client = pyredisson.asyncio.connect(sys.argv[1])
# What is abandoned may be collected at any moment: here when it is asked for.
gc.disable()

async def take(name):
    lock = client.get_lock(name)
    await lock.lock()
    await lock.unlock()

async def wait():
    first = asyncio.create_task(take("a"))
    print("waiting", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    if sys.argv[2] == "collect":
        gc.collect()
    second = asyncio.create_task(take("b"))
    await first
    await second

for _ in range(3):
    sys.stdin.readline()
    if sys.argv[2] == "run":
        asyncio.run(wait())
    else:
        # Nothing in it is cancelled: it just never runs again.
        loop = asyncio.new_event_loop()
        loop.run_until_complete(wait())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    print("got it", flush=True)
sys.stderr = None
"""


@pytest.mark.parametrize("how", ["run", "abandon", "collect"])
def test_waiters_are_notified_in_every_loop(
    server: Server, admin: Redis, child: Callable[..., Child], capfd: pytest.CaptureFixture[str], how: str
) -> None:
    user = child(SEVERAL, server.url, how)
    for number in range(1, 4):
        admin.hset("a", "another:1", 1)
        admin.hset("b", "another:1", 1)
        user.send()
        assert user.receive() == "waiting"
        # What an abandoned loop had opened stays there until it is collected: nobody closes it.
        eventually(lambda: listeners(admin, "a") == {"run": 1, "abandon": number, "collect": min(number, 2)}[how])  # noqa: B023
        user.send()
        eventually(lambda: listeners(admin, "b") == (number if how == "abandon" else 1))  # noqa: B023
        for name in "ab":
            admin.delete(name)
            admin.publish(f"redisson_lock__channel:{{{name}}}", "0")
        # Unheard, it would look again at the end of a whole lease.
        assert user.receive(5) == "got it"
        assert not admin.exists("a", "b")
    assert user.wait() == 0
    assert "ignored GeneratorExit" not in capfd.readouterr().err


CLOSED = """
import asyncio, sys
import pyredisson, pyredisson.asyncio
client = pyredisson.asyncio.connect(sys.argv[1])
other = pyredisson.connect(sys.argv[1])
other.get_lock("other").lock()
loop = asyncio.new_event_loop()

async def main():
    await client.get_lock("own").lock()
    waiting = loop.create_task(client.get_lock("other").acquire())
    print("held", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)

loop.run_until_complete(main())
loop.close()
sys.stderr = None
"""


def test_a_waiting_task_of_a_closed_loop_prevents_no_release(
    server: Server, admin: Redis, child: Callable[..., Child]
) -> None:
    user = child(CLOSED, server.url)
    assert user.receive() == "held"
    eventually(lambda: listeners(admin, "other") == 1)
    assert admin.exists("own", "other") == 2
    user.send()
    assert user.wait() == 0
    assert not admin.keys()


ABANDONED = """
import asyncio, sys
import pyredisson.asyncio
client = pyredisson.asyncio.connect(sys.argv[1], local_hand_over_time=60)
holder, waiter = client.get_lock("a", owner=1), client.get_lock("a", owner=2)

async def leave_a_waiter():
    await holder.lock()
    waiting = asyncio.create_task(waiter.lock())
    while not client._session.lock_queues or not client._session.channels.events(b"redisson_lock__channel:{a}"):
        await asyncio.sleep(0.01)
    return waiting

async def use():
    third = asyncio.create_task(client.get_lock("a", owner=3).lock())
    await asyncio.sleep(0.1)
    await holder.unlock()
    async with asyncio.timeout(5):
        await third
    await client.get_lock("a", owner=3).unlock()

loop = asyncio.new_event_loop()
kept = loop.run_until_complete(leave_a_waiter())
loop.close()
asyncio.run(use())
print("got it", flush=True)
sys.stdin.readline()
sys.stderr = None
"""


def test_a_lock_is_not_handed_on_to_a_waiter_of_a_closed_loop(
    server: Server, admin: Redis, child: Callable[..., Child]
) -> None:
    """Nobody would ever release it."""
    user = child(ABANDONED, server.url)
    # Otherwise it gets the lock when the lease of 30 s has ended.
    assert user.receive(25) == "got it"
    assert not admin.exists("a")
    user.send()
    assert user.wait() == 0


NESTED = """
import asyncio, sys
import nest_asyncio
import pyredisson.asyncio

async def main():
    async with pyredisson.asyncio.connect(sys.argv[1]) as client:
        # Before the loop is patched, it is one of asyncio's own.
        await client.get_lock("before").lock()
        nest_asyncio.apply()
        loop = asyncio.get_running_loop()

        async def take(number):
            lock = client.get_lock("a")
            for _ in range(5):
                async with lock:
                    loop.run_until_complete(client.get_lock(f"inner:{number}").lock())

        await asyncio.gather(*map(take, range(4)))

asyncio.run(main())
print("done", flush=True)
"""


@pytest.mark.skipif(
    sys.version_info >= (3, 14),
    reason="nest_asyncio supports no Python after 3.13: `asyncio.current_task()` is None in it",
)
def test_tasks_that_run_the_event_loop(
    server: Server, admin: Redis, child: Callable[..., Child], capfd: pytest.CaptureFixture[str]
) -> None:
    """nest_asyncio allows that, and many notebooks use it. What they run in there gets its replies."""
    user = child(NESTED, server.url)
    assert user.receive() == "done"
    assert user.wait() == 0
    assert not admin.keys()
    assert capfd.readouterr().err == ""
