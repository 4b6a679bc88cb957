"""`client.singleton(...)`: one instance at a time over all machines, at least for a stated time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson.testing import Proxy, Server
from tests.support.backends import Backend
from tests.support.children import Child
from tests.support.waiting import TIME_LIMIT, eventually

from .conftest import decorated

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


def kept(admin: Redis, seconds: float = 0) -> bool:
    """Whether the lock is only kept, for more than these seconds."""
    return left(admin) > seconds and [str(field).endswith(":kept'") for field in admin.hkeys("nightly")] == [True]


def left(admin: Redis) -> float:
    """Seconds until the server frees the lock; negative: it is free."""
    return int(str(admin.pttl("nightly"))) / 1000


@pytest.mark.asyncio
class TestBothBackends:
    async def test_a_second_run_leaves(self, backend: Backend, admin: Redis) -> None:
        async def work(depth: int) -> str:
            return f"{depth} {await job(depth + 1)}"

        job = decorated(backend, backend.connect().singleton("nightly"), work)
        for _ in range(2):
            assert await job(1) == "1 None"
            assert not admin.exists("nightly")

    async def test_a_block(self, backend: Backend, admin: Redis) -> None:
        single = backend.connect().singleton("nightly")
        async with single as lock:
            with pytest.raises(pyredisson.LockTimeoutError, match="nightly"):
                async with single:
                    raise AssertionError("not reached")
            assert await lock.is_held()
        assert not admin.exists("nightly")
        package = "pyredisson" if backend.name == "threads" else "pyredisson.asyncio"
        assert repr(single) == f"<{package}.Singleton 'nightly'>"

    @pytest.mark.parametrize("way", ["block", "decorator"])
    @pytest.mark.parametrize("at_least", [0, 60])
    async def test_the_server_is_away_at_the_end(
        self, backend: Backend, own_server: Server, caplog: pytest.LogCaptureFixture, way: str, at_least: float
    ) -> None:
        """The work is done, so that is no error. Nor does the background release a lock that is to be kept."""

        async def work() -> str:
            own_server.pause()
            return "done"

        single = backend.connect(own_server.url, retry_attempts=0, timeout=1).singleton("nightly", at_least=at_least)
        if way == "decorator":
            assert await decorated(backend, single, work)() == "done"
        else:
            async with single:
                own_server.pause()
        own_server.resume()
        assert "is not released yet, though its work is done" in caplog.text
        with own_server.redis() as admin:
            await backend.until(lambda: kept(admin, 40) if at_least else not admin.exists("nightly"))

    async def test_a_block_that_another_owner_leaves(self, backend: Backend, admin: Redis) -> None:
        single = backend.connect().singleton("nightly")
        await single.__aenter__()
        await backend.as_another_owner(lambda: single.__aexit__(None, None, None))
        assert not admin.exists("nightly")


class TestAtLeast:
    @pytest.mark.parametrize(("at_least", "lease"), [(60, 60), (5, 30)])
    def test_it_stays_locked(self, client: pyredisson.Client, admin: Redis, at_least: int, lease: int) -> None:
        """A lease of 30 s, which is renewed, becomes shorter at the end of the work."""
        begun = time.monotonic()
        with client.singleton("nightly", at_least=at_least) as lock:
            assert lease - 5 < left(admin) <= lease
        assert kept(admin)
        found = left(admin)
        assert at_least - (time.monotonic() - begun) - 1 < found <= at_least
        assert not lock.is_held()
        assert client.singleton("nightly", at_least=at_least)(lambda: 5)() is None
        # Another handle can't acquire it, either, as its own owner or as any other.
        assert not client.get_lock("nightly").try_lock()

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

    @pytest.mark.parametrize("done", [False, True])
    def test_the_process_is_killed(self, child: Callable[..., Child], server: Server, admin: Redis, done: bool) -> None:
        """While it works, or it ends by itself after the work: the lock stays for the rest of the time."""
        job = child(JOB, server.url, 60)
        assert job.receive() == "runs"
        if done:
            job.send()
            assert job.receive() == "done"
            assert kept(admin)
            job.send()
        else:
            job.signal(signal.SIGKILL)
        assert job.wait() == (0 if done else -signal.SIGKILL)
        assert kept(admin) is done
        assert 40 < left(admin) <= 60

    def test_the_client_is_closed_in_the_middle(self, server: Server, admin: Redis) -> None:
        client = pyredisson.connect(server.url)
        with pytest.raises(pyredisson.ClosedError), client.singleton("nightly", at_least=60):
            client.close()
        assert kept(admin, 40)

    def test_the_reply_is_lost(self, proxy: Proxy, admin: Redis) -> None:
        with pyredisson.connect(proxy.url) as client:
            with client.singleton("nightly", at_least=60):
                fault = proxy.drop_reply(match=b"EVALSHA")
            assert fault.happened.is_set()
            assert kept(admin, 40)
