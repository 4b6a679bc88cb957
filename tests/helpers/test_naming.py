"""The names that `locked` makes, and what it refuses to decorate. No server is needed."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson._api.naming import Template


def function(order_id: int, place: str = "here", *rest: int, key: str = "k", **others: int) -> None: ...


def method(self: Any, order: Any) -> None: ...


@pytest.mark.parametrize(
    ("text", "args", "kwargs", "name"),
    [
        ("order", (1,), {}, "order"),
        ("order:{order_id}", (1,), {}, "order:1"),
        ("order:{order_id}", (), {"order_id": 1}, "order:1"),
        ("{order_id}:{place}:{key}", (1,), {}, "1:here:k"),
        ("{order_id:>3}:{place!r}", (1, "x"), {}, "  1:'x'"),
        ("{rest[1]}", (1, "x", 7, 8), {}, "8"),
        ("{more}", (1,), {"more": 3}, "3"),
        ("{others[more]}", (1,), {"more": 3}, "3"),
        ("{order_id:{rest[0]}}", (1, "x", 4), {}, "   1"),
        ("{{orders}}:{order_id}", (1,), {}, "{orders}:1"),
        ("order:{place}", (1, "{order_id}"), {}, "order:{order_id}"),
    ],
)
def test_the_name(text: str, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
    assert Template(text, function).name(args, kwargs) == name


def test_the_name_of_a_method() -> None:
    me = SimpleNamespace(tenant="t")
    assert Template("{self.tenant}:{order.id}", method).name((me, SimpleNamespace(id=5)), {}) == "t:5"
    assert Template("{self.tenant}:{order[id]}", method).name((me, {"id": 6}), {}) == "t:6"


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
    ("option", "value", "message"),
    [
        ("kind", "mutex", "kind must be one of lock, fair"),
        ("wait_time", -1, "wait_time"),
        ("lease_time", 0, "lease_time"),
    ],
)
def test_options_are_checked_at_once(option: str, value: Any, message: str) -> None:
    with pyredisson.connect() as client, pytest.raises(ValueError, match=message):
        client.locked("orders", **{option: value})
