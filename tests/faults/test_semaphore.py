"""No permit is lost or made: cancelled tasks, Ctrl-C at any moment, an event loop or a process that ends."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson._protocol.scripts import script
from pyredisson.asyncio import Client, Semaphore
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.exactly_once import SessionSlots
from pyredisson.logic.permits.commands import SemaphoreCommands
from pyredisson.logic.permits.semaphore import SemaphoreLogic
from pyredisson.testing import Proxy, Server
from tests.support.children import CHILD_LIMIT, Child
from tests.support.faults import FLAGS, InterruptAt
from tests.support.waiting import cancel_after, eventually

from .test_interrupts import PRELUDE

ACQUIRE, ADD, UNDO = (script(f"semaphore_{name}", with_shebang=FLAGS).sha for name in ("acquire", "add", "undo"))
STEPS = 40
"""More turns of the event loop than an acquire takes; each is one round trip at most."""
PERMITS = 5


@pytest_asyncio.fixture
async def client(proxy: Proxy, admin: Redis) -> AsyncIterator[Client]:
    admin.set("stock", PERMITS)
    async with pyredisson.asyncio.connect(proxy.url, lock_watchdog_timeout=3) as running:
        yield running


async def whole(admin: Redis, client: Client, permits: int = PERMITS) -> None:
    """So many permits are free, and that doesn't change any more."""
    await asyncio.to_thread(eventually, lambda: int(admin.get("stock") or 0) == permits, 5)
    assert not any(channel.waiters for channel in client._session.channels.by_name.values())
    # All that was posted has run, as it came before this.
    assert await client.get_semaphore("stock").available_permits() == permits


async def take_and_give_back(semaphore: Semaphore, permits: int, seconds: float) -> None:
    await semaphore.acquire(permits)
    try:
        await asyncio.sleep(seconds)
    finally:
        await semaphore.release(permits)


@pytest.mark.asyncio
class TestCancelled:
    @pytest.mark.parametrize("connected", [True, False])
    async def test_at_any_turn_of_the_loop(self, proxy: Proxy, admin: Redis, connected: bool) -> None:
        admin.set("stock", PERMITS)
        struck = taken = 0
        for turns in range(STEPS):
            async with pyredisson.asyncio.connect(proxy.url) as client:
                semaphore = client.get_semaphore("stock")
                if connected:
                    await semaphore.available_permits()
                # Twice as late from some turn on: real input and output come between the turns.
                work = take_and_give_back(semaphore, 2, 2e-4 * max(0, turns - 20))
                if await cancel_after(turns, asyncio.ensure_future(work)):
                    struck += 1
                else:
                    taken += 1
                await whole(admin, client)
        assert struck

    async def test_at_any_turn_of_a_contended_wait(self, client: Client, admin: Redis) -> None:
        semaphore = client.get_semaphore("stock")
        for turns in range(STEPS):
            await semaphore.acquire(PERMITS - 1)
            waiter = asyncio.ensure_future(take_and_give_back(semaphore, 2, 0))
            # Half of them are struck while the release is on its way to them.
            release = asyncio.ensure_future(semaphore.release(PERMITS - 1)) if turns % 2 else None
            struck = await cancel_after(turns, waiter)
            assert struck or release is not None
            await (release or semaphore.release(PERMITS - 1))
            await whole(admin, client)

    async def test_at_any_turn_of_a_drain(self, client: Client, admin: Redis) -> None:
        struck = 0
        for turns in range(8):
            task = asyncio.ensure_future(drained(client))
            if await cancel_after(turns, task):
                struck += 1
            else:
                await client.get_semaphore("stock").release(task.result())
            await whole(admin, client)
        assert struck

    async def test_at_any_turn_of_a_release(self, client: Client, admin: Redis) -> None:
        """It is done all the same, once."""
        semaphore = client.get_semaphore("stock")
        struck = 0
        for turns in range(1, 8):
            await semaphore.acquire(2)
            struck += await cancel_after(turns, asyncio.ensure_future(semaphore.release(2)))
            await whole(admin, client)
        assert struck

    async def test_while_its_request_is_held_up(self, client: Client, proxy: Proxy, admin: Redis) -> None:
        semaphore = client.get_semaphore("stock")
        await semaphore.available_permits()
        late = proxy.hold_request(ACQUIRE)
        task = asyncio.ensure_future(semaphore.try_acquire(2))
        assert await asyncio.to_thread(late.held.wait, 5)
        assert await cancel_after(0, task)
        await asyncio.to_thread(late.deliver)
        await asyncio.to_thread(proxy.wait_for, UNDO)
        await whole(admin, client)

    async def test_while_its_reply_is_held_up(self, client: Client, proxy: Proxy, admin: Redis) -> None:
        semaphore = client.get_semaphore("stock")
        await semaphore.available_permits()
        late = proxy.hold_reply(ACQUIRE)
        task = asyncio.ensure_future(semaphore.try_acquire(2))
        assert await asyncio.to_thread(late.held.wait, 5)
        assert admin.get("stock") == b"3"
        assert await cancel_after(0, task)
        await asyncio.to_thread(eventually, lambda: admin.get("stock") == b"5", 5)
        late.deliver()
        await whole(admin, client)

    async def test_and_then_cut_off(self, client: Client, proxy: Proxy, admin: Redis) -> None:
        """What undoes it is lost with the connection, and sent again by another."""
        semaphore = client.get_semaphore("stock")
        await semaphore.available_permits()
        late = proxy.hold_reply(ACQUIRE)
        proxy.cut_request(UNDO)
        task = asyncio.ensure_future(semaphore.try_acquire(2))
        assert await asyncio.to_thread(late.held.wait, 5)
        assert await cancel_after(0, task)
        await whole(admin, client)

    async def test_a_release_whose_request_is_held_up(self, client: Client, proxy: Proxy, admin: Redis) -> None:
        semaphore = client.get_semaphore("stock")
        await semaphore.acquire(2)
        late = proxy.hold_request(ADD)
        task = asyncio.ensure_future(semaphore.release(2))
        assert await asyncio.to_thread(late.held.wait, 5)
        assert await cancel_after(0, task)
        await asyncio.to_thread(late.deliver)
        await whole(admin, client)

    async def test_by_a_timeout(self, client: Client, admin: Redis) -> None:
        semaphore = client.get_semaphore("stock")
        await semaphore.acquire(PERMITS)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await semaphore.acquire()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(semaphore.acquire(), 0.05)
        await semaphore.release(PERMITS)
        await whole(admin, client)

    async def test_many_at_random(self, client: Client, admin: Redis) -> None:
        semaphore = client.get_semaphore("stock")
        tasks = [asyncio.ensure_future(take_and_give_back(semaphore, 1 + n % 3, 1e-3)) for n in range(60)]
        for number, task in enumerate(tasks):
            if number % 3:
                await asyncio.sleep(1e-3 * (number % 2))
                task.cancel()
        await asyncio.wait(tasks, timeout=10)
        assert all(task.done() for task in tasks)
        await whole(admin, client)


async def drained(client: Client) -> int:
    return await client.get_semaphore("stock").drain_permits()


TAKE_AND_GIVE_BACK = (
    PRELUDE
    + """
import contextlib
mode, rounds = sys.argv[3], int(sys.argv[4])
contended = mode != "free"
client = pyredisson.connect(url, connection_pool_size=3, timeout=5)
semaphore = client.get_semaphore("stock")
over = threading.Event()

def contend():
    with pyredisson.connect(url) if mode == "contended" else contextlib.nullcontext(client) as other:
        while not over.is_set():
            with other.get_semaphore("stock"):
                time.sleep(random.uniform(0, 3e-4))
            time.sleep(random.uniform(0, 3e-4))

count = {"free": 0, "contended": 1, "handed on": 3}[mode]
contenders = [threading.Thread(target=contend, daemon=True) for _ in range(count)]
for contender in contenders:
    contender.start()
interrupts, other_errors = 0, []
for _ in turns(rounds):
    inside, left = False, False
    try:
        try:
            alarm(1.5e-3 if contended else 3.5e-4)
            semaphore.acquire()
            inside = True
            semaphore.release()
            left = True
        finally:
            quiet()
    except KeyboardInterrupt as error:
        steps = traceback.walk_tb(error.__traceback__)
        frames = [step for step in steps if "/pyredisson/" in step[0].f_code.co_filename]
        interrupts += bool(frames)
        if inside and not left:
            frame, line = frames[-1]
            if line == frame.f_code.co_firstlineno and "/_api/sync/" in frame.f_code.co_filename:
                # A signal that comes at the very first instruction of a call comes before the call.
                semaphore.release()
    except Exception as error:
        other_errors.append(repr(error))
over.set()
for contender in contenders:
    contender.join()
waiters = sum(len(channel.waiters) for channel in client._session.channels.by_name.values())
print(json.dumps({"interrupts": interrupts, "errors": other_errors, "waiters": waiters}))
sys.stdin.readline()
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("mode", ["free", "contended", "handed on"])
def test_interrupts_at_random_moments_leave_the_permits_whole(
    server: Server, admin: Redis, child: Callable[..., Child], mode: str, seed: int
) -> None:
    """`handed on`: the others are threads of the same client."""
    permits = b"%d" % (PERMITS if mode == "free" else 1)
    admin.set("stock", permits)
    user = child(TAKE_AND_GIVE_BACK, server.url, seed, mode, 500)
    report: dict[str, Any] = json.loads(user.receive(CHILD_LIMIT) or "{}")
    assert report, "the child failed"
    assert report["interrupts"] > 50
    assert report["errors"] == []
    assert report["waiters"] == 0
    eventually(lambda: admin.get("stock") == permits, 5)
    user.send()
    # What its end gave back.
    assert user.wait() == 0
    assert admin.get("stock") == permits


@pytest.mark.parametrize(
    "function", [SemaphoreLogic.release, SemaphoreCommands.add, SessionSlots.allocate, SessionSlots.send]
)
def test_ctrl_c_before_a_release_is_sent_releases_all_the_same(
    server: Server, admin: Redis, function: Callable[..., Any]
) -> None:
    admin.set("stock", PERMITS)
    with pyredisson.connect(server.url, lock_watchdog_timeout=3) as client:
        semaphore = client.get_semaphore("stock")
        semaphore.acquire(2)
        interrupt = InterruptAt(function)
        with pytest.raises(KeyboardInterrupt), interrupt:
            semaphore.release(2)
        assert interrupt.happened
        eventually(lambda: admin.get("stock") == b"5", 5)
        semaphore.acquire(2)
        semaphore.release(2)
        assert semaphore.available_permits() == PERMITS


def test_ctrl_c_with_permits_in_its_hands_gives_them_back(server: Server, admin: Redis) -> None:
    """At the last steps of a wait that has had what it waited for."""
    admin.set("stock", PERMITS)
    with pyredisson.connect(server.url, lock_watchdog_timeout=3) as client:
        semaphore = client.get_semaphore("stock")
        semaphore.acquire(PERMITS)
        interrupt = InterruptAt(ChannelRegistry.leave)
        ended: list[bool] = []

        def wait() -> None:
            try:
                with interrupt:
                    semaphore.acquire(2)
            except KeyboardInterrupt:
                ended.append(True)

        waiter = threading.Thread(target=wait)
        waiter.start()
        eventually(lambda: admin.pubsub_numsub("redisson_sc:{stock}")[0][1] == 1)
        semaphore.release(PERMITS)
        waiter.join(10)
        assert interrupt.happened
        assert ended
        eventually(lambda: admin.get("stock") == b"5", 5)
        assert not any(channel.waiters for channel in client._session.channels.by_name.values())


CLAIMING = (
    PRELUDE
    + """
client = pyredisson.connect(url)
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    if sys.argv[3] == "plain":
        client.get_semaphore("stock").acquire(9)
    else:
        client.get_permit_expirable_semaphore("stock").acquire_many(9)
except KeyboardInterrupt:
    print("interrupted")
sys.stdin.readline()
"""
)


@pytest.mark.parametrize("kind", ["plain", "expirable"])
def test_ctrl_c_withdraws_a_claim(server: Server, admin: Redis, child: Callable[..., Child], kind: str) -> None:
    admin.set("stock", PERMITS)
    claim = "pyredisson_semaphore_claim:{stock}"
    waiter = child(CLAIMING, server.url, 1, kind)
    eventually(lambda: admin.exists(claim) == 1, 10)
    # Else it would end by itself.
    admin.persist(claim)
    waiter.signal(signal.SIGINT)
    assert waiter.receive(3) == "interrupted"
    eventually(lambda: not admin.exists(claim), 5)
    assert admin.get("stock") == b"5"


LOOP_THAT_ENDS = """
import asyncio, sys
import pyredisson.asyncio

async def stop_halfway():
    client = pyredisson.asyncio.connect(sys.argv[1])
    await client.get_semaphore("stock").available_permits()
    begun.append(asyncio.ensure_future(client.get_semaphore("stock").acquire(2)))
    await asyncio.sleep(0)
    return client

begun = []
client = asyncio.run(stop_halfway())
print("loop ended", flush=True)
sys.stdin.readline()
"""


def test_a_loop_that_ends_in_the_middle_of_an_acquire_takes_nothing(
    proxy: Proxy, admin: Redis, child: Callable[..., Child]
) -> None:
    admin.set("stock", PERMITS)
    proxy.hold_reply(ACQUIRE)
    user = child(LOOP_THAT_ENDS, proxy.url)
    assert user.receive() == "loop ended"
    proxy.wait_for(ACQUIRE)
    proxy.wait_for(UNDO)
    eventually(lambda: admin.get("stock") == b"5", 5)


FORK = """
import os, sys
import pyredisson

client = pyredisson.connect(sys.argv[1])
semaphore = client.get_semaphore("stock")
semaphore.acquire()
child = os.fork()
for _ in range(50):
    with semaphore:
        pass
if child:
    _, status = os.waitpid(child, 0)
    semaphore.release()
    print(os.waitstatus_to_exitcode(status))
"""


def test_after_a_fork_both_count_for_themselves(server: Server, admin: Redis, child: Callable[..., Child]) -> None:
    """With the same session slots the calls of one process would count as late copies of the other's."""
    admin.set("stock", PERMITS)
    assert child(FORK, server.url).receive() == "0"
    assert admin.get("stock") == b"5"
