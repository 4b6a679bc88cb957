"""`client.singleton(...)`: one instance at a time over all machines, at least for a stated time."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson.testing import Proxy, Server
from tests.support.children import Child
from tests.support.waiting import TIME_LIMIT, eventually

JOB = """
import sys, time
import pyredisson
client = pyredisson.connect(sys.argv[1])
with client.singleton("nightly", at_least=float(sys.argv[2])) as lock:
    print("runs")
    sys.stdin.readline()
print("done")
sys.stdin.readline()
"""
RUNS = """
import sys
import pyredisson, redis
client, plain = pyredisson.connect(sys.argv[1]), redis.Redis.from_url(sys.argv[1])

@client.singleton("nightly", wait_time=None)
def job():
    inside = plain.incr("inside")
    plain.decr("inside")
    return inside

print(max(job() for _ in range(25)))
"""


def kept(admin: Redis, name: str = "nightly") -> bool:
    """Whether the lock is only kept."""
    return [str(field).endswith(":kept'") for field in admin.hkeys(name)] == [True]


def left(admin: Redis, name: str = "nightly") -> float:
    """Seconds until the server frees the lock; negative: it is free."""
    return int(str(admin.pttl(name))) / 1000


class TestThreads:
    def test_a_second_run_leaves(self, client: pyredisson.Client, admin: Redis) -> None:
        @client.singleton("nightly")
        def job(depth: int) -> str:
            return f"{depth} {job(depth + 1)}"

        assert job(1) == "1 None"
        assert not admin.exists("nightly")
        assert job(1) == "1 None"

    def test_a_block(self, client: pyredisson.Client, admin: Redis) -> None:
        single = client.singleton("nightly")
        with single as lock:
            assert isinstance(lock, pyredisson.Lock)
            assert lock.is_held()
            with pytest.raises(pyredisson.LockTimeoutError, match="nightly"), single:
                raise AssertionError("not reached")
            assert lock.is_held()
        assert not admin.exists("nightly")
        assert repr(single) == "<pyredisson.Singleton 'nightly'>"

    def test_the_others_wait(self, client: pyredisson.Client) -> None:
        @client.singleton("nightly", wait_time=TIME_LIMIT)
        def job() -> int:
            return 5

        results: list[int | None] = []
        with client.singleton("nightly"):
            waiter = threading.Thread(target=lambda: results.append(job()))
            waiter.start()
        waiter.join(TIME_LIMIT)
        assert results == [5]

    def test_an_error_of_the_function(self, client: pyredisson.Client, admin: Redis) -> None:
        @client.singleton("nightly")
        def job() -> None:
            raise pyredisson.LockTimeoutError("of another lock")

        with pytest.raises(pyredisson.LockTimeoutError, match="of another lock"):
            job()
        assert not admin.exists("nightly")

    def test_a_block_that_another_thread_leaves(self, client: pyredisson.Client, admin: Redis) -> None:
        single = client.singleton("nightly")
        single.__enter__()
        other = threading.Thread(target=single.__exit__, args=(None, None, None))
        other.start()
        other.join(TIME_LIMIT)
        assert not admin.exists("nightly")

    def test_a_lost_lock(self, client: pyredisson.Client, admin: Redis) -> None:
        with pytest.raises(pyredisson.LockLostError), client.singleton("nightly", at_least=60):
            admin.delete("nightly")
        assert not admin.exists("nightly")

    @pytest.mark.parametrize(("option", "value"), [("at_least", -1), ("at_least", 0.0001), ("wait_time", -1)])
    def test_a_time_that_is_refused(self, client: pyredisson.Client, option: str, value: float) -> None:
        wrong: dict[str, float] = {option: value}
        with pytest.raises(ValueError, match=option):
            client.singleton("nightly", **wrong)
        with pytest.raises(ValueError, match="empty"):
            client.singleton("")


class TestAtLeast:
    def test_it_stays_locked(self, client: pyredisson.Client, admin: Redis) -> None:
        begun = time.monotonic()
        with client.singleton("nightly", at_least=60) as lock:
            assert left(admin) > 55
        assert kept(admin)
        found = left(admin)
        assert 60 - (time.monotonic() - begun) - 1 < found <= 60
        assert not lock.is_held()
        assert client.singleton("nightly", at_least=60)(lambda: 5)() is None
        # Another handle can't acquire it, either, as its own owner or as any other.
        assert not client.get_lock("nightly").try_lock()

    def test_a_renewed_lease_becomes_shorter(self, client: pyredisson.Client, admin: Redis) -> None:
        """A lease of 30 s is renewed, and 5 s are left of the time."""
        with client.singleton("nightly", at_least=5):
            assert left(admin) > 25
        assert kept(admin)
        assert left(admin) <= 5

    def test_work_that_takes_longer(self, client: pyredisson.Client, admin: Redis) -> None:
        with client.singleton("nightly", at_least=0.05):
            time.sleep(0.06)
        assert not admin.exists("nightly")

    def test_a_waiter_gets_it_at_the_end_of_the_time(self, client: pyredisson.Client, server: Server) -> None:
        """It sleeps for the lease that it was told first, which is much longer."""
        entered: list[float] = []
        begun = time.monotonic()
        with pyredisson.connect(server.url) as other:

            def wait() -> None:
                with other.get_lock("nightly"):
                    entered.append(time.monotonic())

            with client.singleton("nightly", at_least=1):
                waiter = threading.Thread(target=wait)
                waiter.start()
                eventually(lambda: other._session.lock_queues)
            waiter.join(TIME_LIMIT)
        assert entered
        assert entered[0] - begun > 0.9

    def test_the_time_begins_once(self, client: pyredisson.Client, admin: Redis) -> None:
        with client.singleton("nightly", at_least=60) as lock:
            admin.pexpire("nightly", 20_000)
            with lock:
                # A nested acquire has the usual lease.
                assert left(admin) <= 30
            assert not kept(admin)
        assert kept(admin)

    def test_the_process_is_killed(self, child: Callable[..., Child], server: Server, admin: Redis) -> None:
        job = child(JOB, server.url, 60)
        assert job.receive() == "runs"
        job.signal(signal.SIGKILL)
        job.wait()
        assert 50 < left(admin) <= 60

    def test_the_process_ends_after_the_work(self, child: Callable[..., Child], server: Server, admin: Redis) -> None:
        job = child(JOB, server.url, 60)
        assert job.receive() == "runs"
        job.send()
        assert job.receive() == "done"
        assert kept(admin)
        job.send()
        assert job.wait() == 0
        assert kept(admin)
        assert left(admin) > 40

    def test_the_client_is_closed_in_the_middle(self, server: Server, admin: Redis) -> None:
        client = pyredisson.connect(server.url)
        with pytest.raises(pyredisson.ClosedError), client.singleton("nightly", at_least=60):
            client.close()
        assert kept(admin)
        assert left(admin) > 40

    def test_the_reply_is_lost(self, proxy: Proxy, admin: Redis) -> None:
        with pyredisson.connect(proxy.url) as client:
            with client.singleton("nightly", at_least=60):
                fault = proxy.drop_reply(match=b"EVALSHA")
            assert fault.happened.is_set()
            assert kept(admin)
            assert left(admin) > 40

    def test_the_server_is_away_at_the_end(self, own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
        """The work is done, so that is no error. The lock is not released later: the background keeps it, too."""
        with pyredisson.connect(own_server.url, retry_attempts=0, timeout=1) as client:
            with client.singleton("nightly", at_least=60):
                own_server.pause()
            own_server.resume()
            assert "is not released yet, though its work is done" in caplog.text
            with own_server.redis() as admin:
                eventually(lambda: kept(admin))
                assert left(admin) > 40


def test_never_two_at_a_time(child: Callable[..., Child], server: Server) -> None:
    processes = [child(RUNS, server.url) for _ in range(3)]
    assert [process.receive(60) for process in processes] == ["1"] * 3


@pytest.mark.asyncio
class TestAsyncio:
    async def test_a_second_run_leaves(self, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
        @aclient.singleton("nightly")
        async def job(depth: int) -> str:
            return f"{depth} {await job(depth + 1)}"

        assert await job(1) == "1 None"
        assert not admin.exists("nightly")

    async def test_a_block(self, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
        single = aclient.singleton("nightly", at_least=60)
        async with single as lock:
            assert await lock.is_held()
            with pytest.raises(pyredisson.LockTimeoutError):
                async with single:
                    raise AssertionError("not reached")
        assert kept(admin)

    async def test_an_error_of_the_function(self, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
        @aclient.singleton("nightly")
        async def job() -> None:
            raise pyredisson.LockTimeoutError("of another lock")

        with pytest.raises(pyredisson.LockTimeoutError, match="of another lock"):
            await job()
        assert not admin.exists("nightly")

    async def test_the_others_wait(self, aclient: pyredisson.asyncio.Client) -> None:
        inside = 0

        @aclient.singleton("nightly", wait_time=None)
        async def job() -> int:
            nonlocal inside
            inside += 1
            await asyncio.sleep(0)
            inside -= 1
            return inside

        async with asyncio.timeout(TIME_LIMIT):
            assert await asyncio.gather(*[job() for _ in range(10)]) == [0] * 10

    async def test_a_lost_lock_ends_the_work(self, server_url: str, admin: Redis) -> None:
        async with pyredisson.asyncio.connect(server_url, lock_watchdog_timeout=0.6) as client:

            @client.singleton("nightly", at_least=0.1)
            async def job() -> None:
                admin.delete("nightly")
                await asyncio.sleep(TIME_LIMIT)

            with pytest.raises(pyredisson.LockLostError):
                await job()

    @pytest.mark.parametrize("way", ["block", "decorator"])
    async def test_the_server_is_away_at_the_end(
        self, own_server: Server, caplog: pytest.LogCaptureFixture, way: str
    ) -> None:
        async with pyredisson.asyncio.connect(own_server.url, retry_attempts=0, timeout=1) as client:

            @client.singleton("nightly")
            async def work() -> str:
                own_server.pause()
                return "done"

            if way == "decorator":
                assert await work() == "done"
            else:
                async with client.singleton("nightly"):
                    own_server.pause()
            own_server.resume()
            assert "is not released yet, though its work is done" in caplog.text
            with own_server.redis() as admin:
                eventually(lambda: not admin.exists("nightly"))

    async def test_cancelled_work_keeps_it(self, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
        begun = asyncio.Event()

        @aclient.singleton("nightly", at_least=60)
        async def job() -> None:
            begun.set()
            await asyncio.sleep(TIME_LIMIT)

        task = asyncio.create_task(job())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        eventually(lambda: kept(admin))
