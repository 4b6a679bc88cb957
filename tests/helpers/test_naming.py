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
    "text", ["", "{", "{}", "{0}", "{order_id", "{order.id.}:{}", "{oder}", "{order:{x}}", "{.id}"]
)
def test_a_template_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Template(text, method)


def test_the_error_says_which_parameters_there_are() -> None:
    with pytest.raises(ValueError, match=r"method\(\) has no parameter 'oder'; it has: self, order"):
        Template("{oder}", method)
    wrong: Any = b"order"
    with pytest.raises(TypeError, match="must be str"):
        Template(wrong, method)


def test_a_call_that_has_no_name() -> None:
    with pytest.raises(ValueError, match="AttributeError"):
        Template("{order.id}", method).name((None, None), {})
    with pytest.raises(ValueError, match="KeyError"):
        Template("{more}", function).name((1,), {})
    with pytest.raises(TypeError, match="missing a required argument"):
        Template("{order.id}", method).name((), {})


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


@pytest.mark.parametrize("decorate", ["locked", "singleton"])
def test_what_is_decorated(decorate: str) -> None:
    with pyredisson.connect() as client:
        decorator: Callable[[Any], Any] = getattr(client, decorate)("orders")
        for each in PLAIN:
            assert callable(decorator(each))
        for each in NEVER + COROUTINES:
            with pytest.raises(TypeError):
                decorator(each)


@pytest.mark.asyncio
@pytest.mark.parametrize("decorate", ["locked", "singleton"])
async def test_what_is_decorated_in_asyncio(decorate: str) -> None:
    async with pyredisson.asyncio.connect() as client:
        decorator: Callable[[Any], Any] = getattr(client, decorate)("orders")
        for each in COROUTINES:
            assert callable(decorator(each))
        for each in NEVER + PLAIN:
            with pytest.raises(TypeError):
                decorator(each)


def test_options_are_checked_at_once() -> None:
    with pyredisson.connect() as client:
        wrong: Any = "mutex"
        with pytest.raises(ValueError, match="kind must be one of lock, fair"):
            client.locked("orders", kind=wrong)
        with pytest.raises(ValueError, match="wait_time"):
            client.locked("orders", wait_time=-1)
        with pytest.raises(ValueError, match="lease_time"):
            client.locked("orders", lease_time=0)
