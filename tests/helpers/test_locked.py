"""`@client.locked(...)`: each call of a function runs while it holds a lock, whose name its arguments make."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson._api.naming import LockKind, Template
from tests.support.backends import WORK_LIMIT, Backend, finished
from tests.support.waiting import TIME_LIMIT

from .conftest import decorated

KINDS: tuple[LockKind, ...] = ("lock", "fair", "fenced", "spin", "read", "write")


@pytest.mark.asyncio
class TestBothBackends:
    @pytest.mark.parametrize("kind", KINDS)
    async def test_the_lock_is_held_for_the_call(self, backend: Backend, admin: Redis, kind: LockKind) -> None:
        async def change(order_id: int) -> int:
            assert 15_000 < int(str(admin.pttl(f"order:{order_id}"))) <= 20_000
            return order_id + 1

        locked = backend.connect().locked("order:{order_id}", kind=kind, lease_time=20)
        assert await decorated(backend, locked, change)(4) == 5
        assert not admin.exists("order:4")

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

    async def test_it_waits_as_long_as_it_may(self, backend: Backend) -> None:
        async def change() -> None:
            raise AssertionError("not reached")

        client = backend.connect()
        async with client.get_lock("orders", owner=7):
            with pytest.raises(pyredisson.LockTimeoutError, match="orders"):
                await decorated(backend, client.locked("orders", wait_time=0.01), change)()

    @pytest.mark.parametrize("decorate", ["locked", "singleton"])
    async def test_an_error_of_the_function_releases(self, backend: Backend, admin: Redis, decorate: str) -> None:
        async def change() -> None:
            raise pyredisson.LockTimeoutError("of another lock")

        with pytest.raises(pyredisson.LockTimeoutError, match="of another lock"):
            await decorated(backend, getattr(backend.connect(), decorate)("orders"), change)()
        assert not admin.exists("orders")

    @pytest.mark.parametrize(("decorate", "options"), [("locked", {}), ("singleton", {"at_least": 0.1})])
    async def test_a_lost_lock(self, backend: Backend, admin: Redis, decorate: str, options: dict[str, float]) -> None:
        """It is reported at the end of the call, which it ends in asyncio."""

        async def change() -> None:
            admin.delete("orders")
            if backend.name == "asyncio":
                await asyncio.sleep(TIME_LIMIT)

        client = backend.connect(lock_watchdog_timeout=0.6)
        with pytest.raises(pyredisson.LockLostError):
            await decorated(backend, getattr(client, decorate)("orders", **options), change)()
        assert not admin.exists("orders")


def test_the_function_keeps_its_signature(client: pyredisson.Client, aclient: pyredisson.asyncio.Client) -> None:
    @client.locked("order:{order_id}")
    def change(order_id: int, *, place: str = "here") -> str:
        """Changes an order."""
        return f"{order_id} {place}"

    @aclient.locked("orders")
    async def coroutine() -> None: ...

    assert str(inspect.signature(change)) == "(order_id: 'int', *, place: 'str' = 'here') -> 'str'"
    assert (change.__name__, change.__doc__) == ("change", "Changes an order.")
    assert change(3, place="there") == "3 there"
    assert inspect.iscoroutinefunction(coroutine)


def test_a_method_and_a_nested_call(client: pyredisson.Client, admin: Redis) -> None:
    class Orders:
        tenant = "t"

        @client.locked("{self.tenant}:{order_id}")
        def count(self, order_id: int, depth: int) -> int:
            levels = [int(each) for each in admin.hvals(f"t:{order_id}")]
            return max(*levels, self.count(order_id, depth - 1)) if depth else levels[0]

    assert Orders().count(1, 2) == 3
    assert not admin.exists("t:1")


def function(order_id: int, place: str = "here", *rest: int, key: str = "k", **others: int) -> None: ...


def method(self: Any, order: Any) -> None: ...


ME = SimpleNamespace(tenant="t")


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
    ("text", "error", "message"),
    [
        *(
            (text, ValueError, None)
            for text in ("", "{", "{}", "{0}", "{order_id", "{order.id.}:{}", "{order:{x}}", "{.id}")
        ),
        ("{oder}", ValueError, r"method\(\) has no parameter 'oder'; it has: self, order"),
        (b"order", TypeError, "must be str"),
    ],
)
def test_a_template_that_is_refused(text: Any, error: type[Exception], message: str | None) -> None:
    with pytest.raises(error, match=message):
        Template(text, method)


@pytest.mark.parametrize(
    ("text", "args", "error", "message"),
    [
        ("{order.id}", (None, None), ValueError, "AttributeError"),
        ("{order[more]}", (None, {}), ValueError, "KeyError"),
        ("{order.id}", (), TypeError, "missing a required argument"),
    ],
)
def test_a_call_that_has_no_name(text: str, args: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Template(text, method).name(args, {})


def generator() -> Iterator[int]:
    yield 1


async def agenerator() -> AsyncIterator[int]:
    yield 1


async def coroutine() -> None: ...


def plain() -> None: ...


class Called:
    def __call__(self) -> None: ...


class Awaited:
    async def __call__(self) -> None: ...


NEVER: list[Any] = [generator, agenerator, Called, "text", staticmethod(plain), classmethod(method)]
PLAIN: list[Any] = [plain, functools.partial(plain), Called()]
COROUTINES: list[Any] = [coroutine, functools.partial(coroutine), Awaited()]


@pytest.mark.asyncio
@pytest.mark.parametrize("decorate", ["locked", "singleton"])
async def test_what_is_decorated(decorate: str) -> None:
    async with pyredisson.asyncio.connect() as for_asyncio:
        with pyredisson.connect() as for_threads:
            for client, good, bad in ((for_threads, PLAIN, COROUTINES), (for_asyncio, COROUTINES, PLAIN)):
                decorator: Callable[[Any], Any] = getattr(client, decorate)("orders")
                for each in good:
                    assert callable(decorator(each))
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
