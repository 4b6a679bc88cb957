"""Expirable permits when things go wrong: whatever is lost, late, cancelled or killed, no permit is lost or made."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from redis import Redis
from redis.exceptions import ConnectionError, TimeoutError

import pyredisson
import pyredisson.asyncio
from pyredisson._api import arguments
from pyredisson._api.sync import releases
from pyredisson._protocol.scripts import NAMES, script
from pyredisson.asyncio import Client
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic
from pyredisson.testing import Proxy, Server
from tests.support.children import Child
from tests.support.faults import FLAGS, LOSSES, InterruptAt, Lose
from tests.support.raw_backends import RawBackend
from tests.support.waiting import cancel_after, eventually

USED, CHANNEL = "{p}:timeout", "redisson_sc:{p}"
TEXTS = {name: script(name, flags=FLAGS) for name in NAMES}
ACQUIRE, RELEASE = TEXTS["permit_acquire"].sha, TEXTS["permit_release"].sha
STEPS = 40
"""More turns of the event loop than an acquire takes; each is one round trip at most."""


def state(admin: Redis) -> tuple[int, int]:
    """How many are free, how many in use."""
    found: Any = admin.get("p")
    used: Any = admin.zcard(USED)
    return int(found), used


def ours(admin: Redis) -> list[Any]:
    found: Any = admin.keys("pyredisson_permit*")
    return list(found)


@pytest.mark.asyncio
class TestLostReplies:
    @LOSSES
    @pytest.mark.parametrize("renew", [False, True])
    async def test_acquire_and_release(
        self, backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose, renew: bool
    ) -> None:
        client = backend.connect(proxy.url, timeout=0.8)
        semaphore = client.get_permit_expirable_semaphore("p")
        await backend.do(semaphore.set_permits(5))
        faults = [lose(proxy, ACQUIRE)]
        one = await backend.do(semaphore.acquire(renew=renew))
        assert state(admin) == (4, 1)
        faults.append(lose(proxy, ACQUIRE))
        many = await backend.do(semaphore.try_acquire_many(3, 0, renew=renew))
        assert len(many) == 3
        assert state(admin) == (1, 4)
        faults.append(lose(proxy, RELEASE))
        await backend.do(semaphore.release(one))
        assert state(admin) == (2, 3)
        faults.append(lose(proxy, RELEASE))
        assert await backend.do(semaphore.try_release(many)) == 3
        assert state(admin) == (5, 0)
        assert all(fault.happened.is_set() for fault in faults)
        assert client._session.permits.in_doubt == set()

    @LOSSES
    async def test_the_answer_is_still_no(self, backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose) -> None:
        semaphore = backend.connect(proxy.url, timeout=0.8).get_permit_expirable_semaphore("p")
        await backend.do(semaphore.set_permits(2))
        one = await backend.do(semaphore.acquire())
        lose(proxy, ACQUIRE)
        assert await backend.do(semaphore.try_acquire_many(2)) == []
        lose(proxy, RELEASE)
        assert await backend.do(semaphore.try_release([one, "0" * 32])) == 0
        assert state(admin) == (1, 1)

    @LOSSES
    async def test_an_ended_permit_is_not_called_released(
        self, backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose
    ) -> None:
        """All unknown after a lost reply means released; but this one is known, and has ended."""
        semaphore = backend.connect(proxy.url, timeout=0.8).get_permit_expirable_semaphore("p")
        await backend.do(semaphore.set_permits(1))
        permit = await backend.do(semaphore.acquire(0.001))
        await backend.sleep(0.005)
        lose(proxy, RELEASE)
        with pytest.raises(pyredisson.PermitNotHeldError):
            await backend.do(semaphore.release(permit))

    @LOSSES
    async def test_all_else(self, backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose) -> None:
        semaphore = backend.connect(proxy.url, timeout=0.8).get_permit_expirable_semaphore("p")
        faults = []

        def struck(name: str) -> None:
            faults.append(lose(proxy, TEXTS[name].sha))

        struck("semaphore_set")
        assert await backend.do(semaphore.try_set_permits(2)) is True
        struck("semaphore_set")
        assert await backend.do(semaphore.try_set_permits(3)) is False
        struck("semaphore_add")
        await backend.do(semaphore.add_permits(3))
        assert state(admin) == (5, 0)
        permit = await backend.do(semaphore.acquire())
        struck("permit_set")
        await backend.do(semaphore.set_permits(3))
        assert state(admin) == (2, 1)
        struck("permit_lease")
        assert await backend.do(semaphore.update_lease_time(permit, 50)) is True
        struck("permit_count")
        assert await backend.do(semaphore.get_permits()) == 3
        struck("once_delete")
        assert await backend.do(semaphore.delete()) is True
        assert all(fault.happened.is_set() for fault in faults)
        assert not admin.exists("p", USED)


@pytest.mark.asyncio
class TestLateCopies:
    async def test_an_acquire_that_gave_up(self, backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
        """Nothing gets through, the caller gets an error, and then the network delivers what it had kept."""
        client = backend.connect(proxy.url, timeout=0.8, connect_timeout=0.8, lock_watchdog_timeout=3)
        semaphore = client.get_permit_expirable_semaphore("p")
        await backend.do(semaphore.set_permits(5))
        late = proxy.hold_request(ACQUIRE)
        proxy.refuse(True)
        with pytest.raises((ConnectionError, TimeoutError)):
            await backend.do(semaphore.try_acquire_many(2, 0.1))
        await backend.run_blocking(late.deliver)
        assert state(admin) == (3, 2)
        proxy.refuse(False)
        await backend.until(lambda: state(admin) == (5, 0))

    @pytest.mark.parametrize("undone", ["released", "released in parts", "not had", "closed"])
    async def test_the_server_could_not_be_told_to_drop_it(self, backend: RawBackend, undone: str) -> None:
        """The user has no right to do so: the copy arrives, and takes nothing."""
        with (
            Server(users=["app on >x ~* &* +@all -client"]) as server,
            server.redis() as redis,
            Proxy(server.host, server.port) as proxy,
        ):
            for text in TEXTS.values():
                redis.script_load(text.text)
            redis.set("p", 3)
            client = backend.connect(f"redis://app:x@{proxy.host}:{proxy.port}/0", timeout=0.8)
            semaphore = client.get_permit_expirable_semaphore("p")
            late = proxy.hold_request(ACQUIRE)
            permits = await backend.do(semaphore.try_acquire_many(9 if undone == "not had" else 3, renew=True))
            assert late.held.is_set()
            if undone == "released":
                await backend.do(semaphore.release(permits))
            elif undone == "released in parts":
                for permit in permits:
                    await backend.do(semaphore.release(permit))
            elif undone == "closed":
                await backend.do(client.close())
            else:
                await backend.run_blocking(proxy.wait_for, RELEASE)
                redis.set("p", 9)
            await backend.until(lambda: redis.zcard(USED) == 0)
            before = redis.get("p")
            await backend.run_blocking(late.deliver)
            assert redis.get("p") == before == (b"9" if undone == "not had" else b"3")
            assert redis.zcard(USED) == 0
            assert all(redis.ttl(key) > 0 for key in redis.keys("pyredisson*"))

    async def test_a_release_that_failed_is_done_in_the_background(
        self, backend: RawBackend, proxy: Proxy, admin: Redis
    ) -> None:
        client = backend.connect(proxy.url, timeout=0.8, retry_attempts=0, lock_watchdog_timeout=3)
        semaphore = client.get_permit_expirable_semaphore("p")
        await backend.do(semaphore.set_permits(3))
        permits = await backend.do(semaphore.acquire_many(2, renew=True))
        fault = proxy.cut_request(RELEASE, 2)
        with pytest.raises((ConnectionError, TimeoutError)):
            await backend.do(semaphore.release(permits))
        assert fault.happened.is_set()
        await backend.until(lambda: state(admin) == (3, 0))
        assert client._session.holds.table == {}


@pytest_asyncio.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    async with pyredisson.asyncio.connect(proxy.url) as running:
        yield running


async def whole(admin: Redis, client: Client) -> None:
    """All permits are free again."""
    await asyncio.to_thread(eventually, lambda: state(admin) == (3, 0), 5)
    assert client._session.holds.table == {}
    assert client._session.permits.in_doubt == set()


async def take_and_end(client: Client, seconds: float, renew: bool) -> None:
    """A user's block, that lasts `seconds`."""
    semaphore = client.get_permit_expirable_semaphore("p")
    permits = await semaphore.acquire_many(2, renew=renew)
    try:
        await asyncio.sleep(seconds)
    finally:
        await semaphore.release(permits)


@pytest.mark.asyncio
class TestCancellation:
    @pytest.mark.parametrize("connected", [True, False])
    async def test_at_any_turn_of_the_loop(self, proxy: Proxy, admin: Redis, connected: bool) -> None:
        admin.set("p", 3)
        struck = 0
        for turns in range(STEPS):
            async with pyredisson.asyncio.connect(proxy.url) as client:
                if connected:
                    await client.get_lock("other").is_locked()
                # Twice as late from some turn on: real input and output come between the turns.
                task = asyncio.ensure_future(take_and_end(client, 2e-4 * max(0, turns - 20), bool(turns % 2)))
                struck += await cancel_after(turns, task)
                await whole(admin, client)
        assert struck

    async def test_at_any_turn_of_a_contended_wait(self, client: Client, admin: Redis) -> None:
        semaphore = client.get_permit_expirable_semaphore("p")
        await semaphore.set_permits(3)
        for turns in range(STEPS):
            held = await semaphore.acquire_many(2)
            waiter = asyncio.ensure_future(take_and_end(client, 0, bool(turns % 2)))
            # Half of them are struck while the release is on its way to them.
            release = asyncio.ensure_future(semaphore.release(held)) if turns % 2 else None
            struck = await cancel_after(turns, waiter)
            assert struck or release is not None
            await (release or semaphore.release(held))
            await whole(admin, client)
            assert not any(channel.waiters for channel in client._session.channels._channels.values())

    @pytest.mark.parametrize("what", ["request", "reply"])
    async def test_an_acquire_on_its_way(self, client: Client, proxy: Proxy, admin: Redis, what: str) -> None:
        semaphore = client.get_permit_expirable_semaphore("p")
        await semaphore.set_permits(3)
        late = proxy.hold_request(ACQUIRE) if what == "request" else proxy.hold_reply(ACQUIRE)
        task = asyncio.ensure_future(semaphore.acquire_many(2))
        assert await asyncio.to_thread(late.held.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(late.deliver)
        await whole(admin, client)
        assert await semaphore.try_acquire() is not None

    @pytest.mark.parametrize("what", ["request", "reply"])
    async def test_a_release_on_its_way(self, client: Client, proxy: Proxy, admin: Redis, what: str) -> None:
        semaphore = client.get_permit_expirable_semaphore("p")
        await semaphore.set_permits(3)
        permits = await semaphore.acquire_many(2, renew=True)
        late = proxy.hold_request(RELEASE) if what == "request" else proxy.hold_reply(RELEASE)
        task = asyncio.ensure_future(semaphore.release(permits))
        assert await asyncio.to_thread(late.held.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(late.deliver)
        await whole(admin, client)

    async def test_a_wait_that_is_given_up_leaves_nothing_to_undo(self, client: Client, admin: Redis) -> None:
        semaphore = client.get_permit_expirable_semaphore("p")
        await semaphore.set_permits(0)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(semaphore.acquire(), 0.2)
        assert client._session.watchdog.unrepaired() == []
        assert ours(admin) == []


class TestInterrupts:
    @pytest.mark.parametrize("must", [True, False])
    def test_a_release_that_had_not_begun(self, server: Server, admin: Redis, must: bool) -> None:
        with pyredisson.connect(server.url) as client:
            semaphore = client.get_permit_expirable_semaphore("p")
            semaphore.set_permits(3)
            permits = semaphore.acquire_many(2, renew=True)
            with InterruptAt(PermitExpirableSemaphoreLogic.release) as interrupt, pytest.raises(KeyboardInterrupt):
                release: Callable[..., object] = semaphore.release if must else semaphore.try_release
                release(permits)
            assert interrupt.happened
            eventually(lambda: state(admin) == (3, 0))
            assert client._session.holds.table == {}

    def test_before_the_ids_were_read(self, server: Server, admin: Redis) -> None:
        with pyredisson.connect(server.url) as client:
            semaphore = client.get_permit_expirable_semaphore("p")
            semaphore.set_permits(3)
            permit = semaphore.acquire()
            with InterruptAt(releases.release_permit_ids) as interrupt, pytest.raises(KeyboardInterrupt):
                semaphore.release(permit)
            # As if the signal had come before the call.
            assert interrupt.happened
            assert state(admin) == (2, 1)
            with InterruptAt(arguments.permit_ids_of), pytest.raises(KeyboardInterrupt):
                semaphore.release(permit)
            eventually(lambda: state(admin) == (3, 0))

    @pytest.mark.parametrize("function", [PermitExpirableSemaphoreLogic._keep, PermitExpirableSemaphoreLogic._hold_key])
    def test_on_the_way_out_with_permits_in_its_hands(
        self, server: Server, admin: Redis, function: Callable[..., Any]
    ) -> None:
        with pyredisson.connect(server.url) as client:
            semaphore = client.get_permit_expirable_semaphore("p")
            semaphore.set_permits(3)
            with InterruptAt(function) as interrupt, pytest.raises(KeyboardInterrupt):
                semaphore.acquire_many(2, renew=True)
            assert interrupt.happened
            eventually(lambda: state(admin) == (3, 0))
            assert client._session.holds.table == {}

    @pytest.mark.parametrize("renew", [False, True])
    def test_at_random_moments(self, server: Server, admin: Redis, child: Callable[..., Child], renew: bool) -> None:
        admin.set("p", 3)
        user = child(RANDOM, server.url, 1, renew, 1500)
        interrupts = int(user.receive(45))
        assert interrupts > 100
        eventually(lambda: state(admin) == (3, 0))
        user.send()
        assert user.receive() == "0"
        assert user.wait() == 0

    def test_of_a_real_signal_while_the_reply_is_on_its_way(
        self, proxy: Proxy, admin: Redis, child: Callable[..., Child]
    ) -> None:
        admin.set("p", 3)
        user = child(INTERRUPTED, proxy.url)
        assert user.receive() == "go"
        late = proxy.hold_reply(ACQUIRE)
        user.send()
        assert late.held.wait(10)
        assert state(admin) == (1, 2)
        user.signal(signal.SIGINT)
        assert user.receive() == "interrupted"
        eventually(lambda: state(admin) == (3, 0), 5)
        user.send()
        assert user.wait() == 0


INTERRUPTED = """
import sys
import pyredisson
client = pyredisson.connect(sys.argv[1])
semaphore = client.get_permit_expirable_semaphore("p")
semaphore.get_permits()
print("go", flush=True)
sys.stdin.readline()
try:
    semaphore.acquire_many(2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
"""

RANDOM = """
import faulthandler, random, signal, sys
import pyredisson
# Who hangs says where.
faulthandler.dump_traceback_later(40, exit=True)
signal.signal(signal.SIGALRM, signal.default_int_handler)
url, seed, renew, rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True", int(sys.argv[4])
random.seed(seed)
client = pyredisson.connect(url, connection_pool_size=3, timeout=5)
semaphore = client.get_permit_expirable_semaphore("p")
interrupts = 0
for _ in range(rounds):
    permits = None
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1.5e-3))
            permits = semaphore.acquire_many(2, renew=renew)
            semaphore.release(permits)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupts += 1
        if permits is not None:
            # Interrupted between the two calls; or the second is done already, or in the background.
            semaphore.try_release(permits)
print(interrupts, flush=True)
sys.stdin.readline()
print(len(client._session.holds.table), flush=True)
client.close()
"""

HOLD = """
import asyncio, sys
import pyredisson, pyredisson.asyncio
url, backend, lease = sys.argv[1:]

def said():
    print("held", flush=True)
    sys.stdin.readline()

async def main():
    client = pyredisson.asyncio.connect(url, lock_watchdog_timeout=float(lease))
    await client.get_permit_expirable_semaphore("p").acquire_many(3, renew=True)
    await asyncio.to_thread(said)

if backend == "asyncio":
    asyncio.run(main())
else:
    client = pyredisson.connect(url, lock_watchdog_timeout=float(lease))
    client.get_permit_expirable_semaphore("p").acquire_many(3, renew=True)
    said()
"""


@pytest.mark.asyncio
class TestProcesses:
    async def test_the_end_of_the_interpreter_gives_back_what_is_renewed(
        self, backend: RawBackend, server: Server, admin: Redis, child: Callable[..., Child]
    ) -> None:
        admin.set("p", 3)
        holder = child(HOLD, server.url, backend.name, 30)
        assert await backend.run_blocking(holder.receive) == "held"
        assert state(admin) == (0, 3)
        holder.send()
        assert await backend.run_blocking(holder.wait) == 0
        assert state(admin) == (3, 0)

    async def test_what_a_killed_process_renewed_goes_to_the_next_when_the_lease_ends(
        self, backend: RawBackend, server: Server, admin: Redis, child: Callable[..., Child]
    ) -> None:
        admin.set("p", 3)
        holder = child(HOLD, server.url, backend.name, 1)
        assert await backend.run_blocking(holder.receive) == "held"
        semaphore = backend.connect(server.url).get_permit_expirable_semaphore("p")

        async def take() -> float:
            await backend.do(semaphore.acquire_many(2))
            return time.monotonic()

        waiter = backend.start(take)
        await backend.sleep(1.5)
        # It is renewed while the process lives.
        assert not waiter.done
        holder.signal(signal.SIGKILL)
        await backend.run_blocking(holder.wait)
        killed = time.monotonic()
        assert await waiter.result() - killed < 2
        assert state(admin) == (0, 3)  # one of which has ended
        assert await backend.do(semaphore.available_permits()) == 1

    async def test_a_pause_beyond_the_lease(
        self, backend: RawBackend, server: Server, admin: Redis, child: Callable[..., Child]
    ) -> None:
        """Stopped, its permits go to others; when it goes on it takes nothing from them."""
        admin.set("p", 3)
        holder = child(HOLD, server.url, backend.name, 0.6)
        assert await backend.run_blocking(holder.receive) == "held"
        holder.signal(signal.SIGSTOP)
        semaphore = backend.connect(server.url).get_permit_expirable_semaphore("p")
        permits = await backend.do(semaphore.acquire_many(3))
        holder.signal(signal.SIGCONT)
        holder.send()
        assert await backend.run_blocking(holder.wait) == 0
        assert {permit.hex() for permit in admin.zrange(USED, 0, -1)} == set(permits)  # type: ignore[union-attr]
        assert state(admin) == (0, 3)
