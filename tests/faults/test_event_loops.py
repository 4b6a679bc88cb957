"""Event loops: several of them, eager tasks, tasks that run the loop; and gevent, which may replace too much."""

from __future__ import annotations

import sys

import pytest
from redis import Redis

from pyredisson.testing import Server
from tests.support.backends import NOWHERE
from tests.support.server_state import listeners
from tests.support.waiting import eventually

from .kinds import Start

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
    server: Server, admin: Redis, child: Start, capfd: pytest.CaptureFixture[str], how: str
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
client = pyredisson.asyncio.connect(sys.argv[1], local_hand_over_time=60)
other = pyredisson.connect(sys.argv[1])
other.get_lock("other").lock()
holder = client.get_lock("a", owner=1)
loop = asyncio.new_event_loop()

async def leave_waiters():
    await holder.lock()
    waiting = [asyncio.create_task(lock.lock()) for lock in (client.get_lock("other"), client.get_lock("a", owner=2))]
    while not client._session.lock_queues or not client._session.channels.events(b"redisson_lock__channel:{a}"):
        await asyncio.sleep(0.01)
    return waiting

async def use():
    third = asyncio.create_task(client.get_lock("a", owner=3).lock())
    await asyncio.sleep(0.1)
    await holder.unlock()
    async with asyncio.timeout(5):
        await third
    print("got it", flush=True)

kept = loop.run_until_complete(leave_waiters())
loop.close()
asyncio.run(use())
sys.stdin.readline()
sys.stderr = None
"""


def test_waiting_tasks_of_a_closed_loop(server: Server, admin: Redis, child: Start) -> None:
    """A lock is not handed on to them, as nobody would ever release it; and they prevent no release at the end."""
    user = child(CLOSED, server.url)
    # Otherwise it gets the lock when the lease of 30 s has ended.
    assert user.receive(25) == "got it"
    assert admin.exists("a", "other") == 2
    user.send()
    assert user.wait() == 0
    assert not admin.keys()


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
    server: Server, admin: Redis, child: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    """nest_asyncio allows that, and many notebooks use it. What they run in there gets its replies."""
    user = child(NESTED, server.url)
    assert user.receive() == "done"
    assert user.wait() == 0
    assert not admin.keys()
    assert capfd.readouterr().err == ""


CONNECT_BESIDE_GEVENT = """
import sys
from gevent import monkey
exec(sys.argv[2])
import pyredisson, pyredisson.asyncio
for connect in (pyredisson.connect, pyredisson.asyncio.connect):
    try:
        connect(sys.argv[1])
        print("made")
    except pyredisson.ConfigError as error:
        print(error)
"""

USE_BESIDE_GEVENT = """
lock = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=1).get_lock("a")
other = pyredisson.connect(sys.argv[1]).get_lock("a")
with lock:
    print(other.try_lock(1.5), lock.lost.is_set())
"""


@pytest.mark.parametrize(
    ("patch", "replaced"),
    [
        ("monkey.patch_all()", "socket, _thread, threading."),
        ("monkey.patch_socket()", "socket."),
        ("monkey.patch_thread()", "_thread, threading."),
    ],
)
def test_replaced_modules_are_refused(server: Server, child: Start, patch: str, replaced: str) -> None:
    user = child(CONNECT_BESIDE_GEVENT, server.url, patch)
    for _ in ("threads", "asyncio"):
        printed = user.receive()
        assert f"replaced these modules: {replaced}" in printed
        assert "patch_all(socket=False, thread=False)" in printed
    assert user.wait() == 0


@pytest.mark.parametrize("patch", ["import gevent", "monkey.patch_all(socket=False, thread=False)"])
def test_what_the_message_recommends_works(server: Server, admin: Redis, child: Start, patch: str) -> None:
    user = child(CONNECT_BESIDE_GEVENT + USE_BESIDE_GEVENT, server.url, patch)
    assert [user.receive(), user.receive()] == ["made", "made"]
    assert user.receive() == "False False"
    assert user.wait() == 0
    assert not admin.exists("a")


# In a process of its own: a loop that stands still would take the test run with it.
EAGER = """
import asyncio, sys
import pyredisson, pyredisson.asyncio
from redis.exceptions import ConnectionError
kind, *urls = sys.argv[1:]
inside = 0

def lock_of(clients):
    if kind == "red":
        return clients[0].get_red_lock(*[client.get_lock("a") for client in clients])
    if kind == "write":
        return clients[0].get_read_write_lock("a").write_lock()
    return getattr(clients[0], f"get_{kind}")("a")

async def use(clients):
    global inside
    async with lock_of(clients):
        inside += 1
        assert inside == 1
        await asyncio.sleep(0.001)
        inside -= 1

async def fail(client, number):
    try:
        await client.get_lock(f"a{number}").try_lock()
    except ConnectionError as error:
        return error

async def main():
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    clients = [pyredisson.asyncio.connect(url, retry_attempts=0) for url in urls]
    if kind == "semaphore":
        await clients[0].get_semaphore("a").try_set_permits(1)
    if kind == "refused":
        errors = await asyncio.gather(*[asyncio.create_task(fail(clients[0], number)) for number in range(100)])
        assert len(set(map(id, errors))) == 100 and None not in errors
    else:
        async with asyncio.TaskGroup() as group:
            for _ in range(3 if kind == "red" else 20):
                group.create_task(use(clients))
    for client in clients:
        await client.close()

asyncio.run(main())
print("done")
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio.eager_task_factory came with Python 3.12")
@pytest.mark.parametrize("kind", ["lock", "fair_lock", "write", "semaphore", "red", "refused"])
def test_eager_tasks(servers: list[Server], redises: list[Redis], child: Start, kind: str) -> None:
    """Operations on a server that refuses connections end before the call that begins them returns."""
    urls = [server.url for server in servers[:2]] if kind != "refused" else []
    user = child(EAGER, kind, *urls, NOWHERE)
    assert user.receive() == "done"
    assert user.wait() == 0
    assert kind == "semaphore" or not any(redis.exists("a") for redis in redises)
