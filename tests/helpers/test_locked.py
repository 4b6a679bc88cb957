"""`@client.locked(...)`: each call of a function runs while it holds a lock; and `client.singleton(...)`."""

import asyncio
import contextlib
import functools
import inspect
import signal
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

import pyredisson.asyncio
from pyredisson._api.naming import LockKind, Template
from pyredisson.testing import Proxy, Server
from tests.support.backends import TIME_LIMIT, WORK_LIMIT, Backend, eventually, fails, finished
from tests.support.children import Child

from .conftest import decorated

ME = SimpleNamespace(tenant="t")
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


class TestBothBackends:
    @pytest.mark.parametrize("kind", ["lock", "fair", "fenced", "spin", "read", "write"])
    async def test_the_lock_is_held_for_the_call(self, backend: Backend, admin: Redis, kind: LockKind) -> None:
        async def change(order_id: int) -> int:
            assert 15_000 < int(str(admin.pttl(f"order:{order_id}"))) <= 20_000
            return order_id + 1

        locked = backend.connect().locked("order:{order_id}", kind=kind, lease_time=20)
        assert (await decorated(backend, locked, change)(4), admin.exists("order:4")) == (5, 0)

    @pytest.mark.parametrize(
        ("decorate", "options"),
        [("locked", {}), ("singleton", {"wait_time": None}), ("singleton", {"wait_time": WORK_LIMIT})],
    )
    async def test_calls_exclude_each_other(self, backend: Backend, decorate: str, options: dict[str, Any]) -> None:
        inside: list[None] = []

        async def change() -> int:
            inside.append(None)
            await backend.sleep(0)
            most = len(inside)
            inside.pop()
            return most

        call = decorated(backend, getattr(backend.connect(), decorate)("orders", **options), change)
        assert await finished([backend.spawn(call) for _ in range(20)], WORK_LIMIT) == [1] * 20

    @pytest.mark.parametrize("decorate", ["locked", "singleton"])
    async def test_an_error_of_the_function_releases(self, backend: Backend, admin: Redis, decorate: str) -> None:
        """If the function is reached: it waits as long as it may."""

        async def change() -> None:
            raise pyredisson.LockTimeoutError("of another lock")

        client = backend.connect()
        call = decorated(backend, getattr(client, decorate)("orders"), change)
        await fails(pyredisson.LockTimeoutError, call, match="of another lock")
        assert not admin.exists("orders")
        async with client.get_lock("orders", owner=7):
            call = decorated(backend, client.locked("orders", wait_time=0.01), change)
            await fails(pyredisson.LockTimeoutError, call, match="orders")

    @pytest.mark.parametrize(("decorate", "options"), [("locked", {}), ("singleton", {"at_least": 0.1})])
    async def test_a_lost_lock(self, backend: Backend, admin: Redis, decorate: str, options: dict[str, float]) -> None:
        """It is reported at the end of the call, which it ends in asyncio."""

        async def change() -> None:
            admin.delete("orders")
            if backend.name == "asyncio":
                await asyncio.sleep(TIME_LIMIT)

        decorator = getattr(backend.connect(lock_watchdog_timeout=0.6), decorate)("orders", **options)
        await fails(pyredisson.LockLostError, decorated(backend, decorator, change))
        assert not admin.exists("orders")


def test_functions_and_methods(client: pyredisson.Client, aclient: pyredisson.asyncio.Client, admin: Redis) -> None:
    @client.locked("order:{order_id}")
    def change(order_id: int, *, place: str = "here") -> str:
        """Changes an order."""
        return f"{order_id} {place}"

    assert str(inspect.signature(change)) == "(order_id: int, *, place: str = 'here') -> str"
    assert (change.__name__, change.__doc__) == ("change", "Changes an order.")
    assert change(3, place="there") == "3 there"
    assert inspect.iscoroutinefunction(aclient.locked("orders")(coroutine))

    class Orders:
        tenant = "t"

        @client.locked("{self.tenant}:{order_id}")
        def count(self, order_id: int, depth: int) -> int:
            levels = [int(each) for each in admin.hvals(f"t:{order_id}")]
            return max(*levels, self.count(order_id, depth - 1)) if depth else levels[0]

    assert (Orders().count(1, 2), admin.exists("t:1")) == (3, 0)


def function(order_id: int, place: str = "here", *rest: int, key: str = "k", **others: int) -> None: ...
def method(self: Any, order: Any) -> None: ...


@pytest.mark.parametrize(
    ("work", "text", "args", "kwargs", "name"),
    [
        (function, "order", (1,), {}, "order"),
        (function, "order:{order_id}", (1,), {}, "order:1"),
        (function, "order:{order_id}", (), {"order_id": 1}, "order:1"),
        (function, "{order_id}:{place}:{key}", (1,), {}, "1:here:k"),
        (function, "{order_id:>3}:{place!r}", (1, "x"), {}, "  1:'x'"),
        (function, "{rest[1]}", (1, "x", 7, 8), {}, "8"),
        (function, "{more}", (1,), {"more": 3}, "3"),
        (function, "{others[more]}", (1,), {"more": 3}, "3"),
        (function, "{order_id:{rest[0]}}", (1, "x", 4), {}, "   1"),
        (function, "{{orders}}:{order_id}", (1,), {}, "{orders}:1"),
        (function, "order:{place}", (1, "{order_id}"), {}, "order:{order_id}"),
        (method, "{self.tenant}:{order.id}", (ME, SimpleNamespace(id=5)), {}, "t:5"),
        (method, "{self.tenant}:{order[id]}", (ME, {"id": 6}), {}, "t:6"),
    ],
)
def test_the_name(work: Any, text: str, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
    assert Template(text, work).name(args, kwargs) == name


@pytest.mark.parametrize(
    ("text", "args", "error", "message"),
    [
        *((each, None, ValueError, None) for each in ("", "{", "{}", "{0}", "{order_id", "{order.id.}:{}")),
        *((each, None, ValueError, None) for each in ("{order:{x}}", "{.id}")),
        ("{oder}", None, ValueError, r"method\(\) has no parameter 'oder'; it has: self, order"),
        (b"order", None, TypeError, "must be str"),
        ("{order.id}", (None, None), ValueError, "AttributeError"),
        ("{order[more]}", (None, {}), ValueError, "KeyError"),
        ("{order.id}", (), TypeError, "missing a required argument"),
    ],
)
def test_what_gives_no_name(text: Any, args: tuple[Any, ...] | None, error: type[Exception], message: str) -> None:
    """The template itself, or a call with these arguments."""
    template = None if args is None else Template(text, method)
    with pytest.raises(error, match=message):
        Template(text, method) if template is None else template.name(args or (), {})


async def agenerator() -> AsyncIterator[int]:
    yield 1


async def coroutine() -> None: ...
def plain() -> None: ...


class Called:
    def __call__(self) -> None: ...


class Awaited:
    async def __call__(self) -> None: ...


NEVER: list[Any] = [lambda: (yield), agenerator, Called, "text", staticmethod(plain), classmethod(method)]
MANAGER = contextlib.contextmanager(NEVER[0])
NEVER += [MANAGER, contextlib.asynccontextmanager(agenerator)]
PLAIN: list[Any] = [plain, functools.partial(plain), Called(), MANAGER()(plain)]
COROUTINES: list[Any] = [coroutine, functools.partial(coroutine), Awaited()]


@pytest.mark.parametrize("decorate", ["locked", "singleton"])
async def test_what_is_decorated(decorate: str) -> None:
    async with pyredisson.asyncio.connect() as for_asyncio:
        with pyredisson.connect() as for_threads:
            for client, good, bad in ((for_threads, PLAIN, COROUTINES), (for_asyncio, COROUTINES, PLAIN)):
                decorator: Callable[[Any], Any] = getattr(client, decorate)("orders")
                assert all(callable(decorator(each)) for each in good)
                for each in NEVER + bad:
                    with pytest.raises(TypeError):
                        decorator(each)


@pytest.mark.parametrize(
    ("decorate", "option", "value", "message"),
    [
        ("locked", "kind", "mutex", "kind must be one of lock, fair"),
        ("locked", "wait_time", -1, "wait_time"),
        ("locked", "lease_time", 0, "lease_time"),
        ("singleton", "at_least", -1, "at_least"),
        ("singleton", "at_least", 0.0001, "at_least"),
        ("singleton", "wait_time", -1, "wait_time"),
        ("singleton", "name", "", "empty"),
    ],
)
def test_options_are_checked_at_once(decorate: str, option: str, value: Any, message: str) -> None:
    with pyredisson.connect() as client, pytest.raises(ValueError, match=message):
        getattr(client, decorate)(**({"name": "orders"} | {option: value}))


def kept(admin: Redis, seconds: float = 0) -> bool:
    """Whether the lock is only kept, for more than these seconds."""
    return left(admin) > seconds and [str(field).endswith(":kept'") for field in admin.hkeys("nightly")] == [True]


def left(admin: Redis) -> float:
    """Seconds until the server frees the lock; negative: it is free."""
    return int(str(admin.pttl("nightly"))) / 1000


class TestSingleton:
    async def test_a_second_run_leaves_and_a_block(self, backend: Backend, admin: Redis) -> None:
        async def work(depth: int) -> str:
            return f"{depth} {await job(depth + 1)}"

        single = backend.connect().singleton("nightly")
        job = decorated(backend, single, work)
        for _ in range(2):
            assert (await job(1), admin.exists("nightly")) == ("1 None", 0)
        async with single as lock:
            await fails(pyredisson.LockTimeoutError, single.__aenter__, match="nightly")
            assert await lock.is_held()
        assert not admin.exists("nightly")
        package = "pyredisson" if backend.name == "threads" else "pyredisson.asyncio"
        assert repr(single) == f"<{package}.Singleton 'nightly'>"
        # Another owner may leave it.
        await single.__aenter__()
        await backend.as_another_owner(lambda: single.__aexit__(None, None, None))
        assert not admin.exists("nightly")

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


@pytest.mark.parametrize("way", ["locked", "singleton", "elect"])
async def test_at_most(backend: Backend, admin: Redis, way: str) -> None:
    """Work that hangs loses the lock."""
    made = getattr(backend.connect(), way)("nightly", at_most=1)

    async def work() -> None:
        # In asyncio it is cancelled meanwhile.
        await backend.until(lambda: not admin.exists("nightly"))

    with pytest.raises(pyredisson.LockLostError, match="at_most"):
        if way == "elect":
            async with made:
                await work()
        else:
            await decorated(backend, made, work)()


class TestAtLeast:
    @pytest.mark.parametrize(("at_least", "lease"), [(60, 60), (5, 30)])
    def test_it_stays_locked(self, client: pyredisson.Client, admin: Redis, at_least: int, lease: int) -> None:
        """A lease of 30 s, which is renewed, becomes shorter at the end of the work."""
        begun = time.monotonic()
        with client.singleton("nightly", at_least=at_least) as lock:
            assert lease - 5 < left(admin) <= lease
        assert kept(admin)
        assert at_least - (time.monotonic() - begun) - 1 < left(admin) <= at_least
        assert not lock.is_held()
        assert client.singleton("nightly", at_least=at_least)(lambda: 5)() is None
        # Another handle can't acquire it, either, as its own owner or as any other.
        assert not client.get_lock("nightly").try_lock()
        # Work that takes longer.
        with client.singleton("weekly", at_least=0.05):
            time.sleep(0.06)
        assert not admin.exists("weekly")

    def test_a_waiter_gets_it_at_the_end_of_the_time(self, client: pyredisson.Client, server: Server) -> None:
        """It sleeps for the lease that it was told first, which is much longer."""
        begun = time.monotonic()
        with pyredisson.connect(server.url) as other, ThreadPoolExecutor() as pool:
            wanted: Any = other.get_lock("nightly")
            with client.singleton("nightly", at_least=1):
                waiter = pool.submit(lambda: (wanted.lock(), time.monotonic()))
                eventually(lambda: other._session.lock_queues)
            assert waiter.result(TIME_LIMIT)[1] - begun > 0.9

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

    def test_the_client_is_closed_in_the_middle_or_the_reply_is_lost(self, proxy: Proxy, admin: Redis) -> None:
        client = pyredisson.connect(proxy.url)
        with pytest.raises(pyredisson.ClosedError), client.singleton("nightly", at_least=60):
            client.close()
        assert kept(admin, 40)
        admin.delete("nightly")
        with pyredisson.connect(proxy.url) as client:
            with client.singleton("nightly", at_least=60):
                fault = proxy.drop_reply(match=b"EVALSHA")
            assert fault.happened.is_set()
            assert kept(admin, 40)
