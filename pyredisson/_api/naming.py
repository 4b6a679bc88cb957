"""Decorated functions: names that are formatted from the arguments of a call, and the kinds of locks for `locked`."""

import contextlib
import inspect
import re
import string
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args


class Template:
    """The name of a lock with fields for arguments, as `"order:{order_id}"`, for one function.

    The fields are written as for `str.format`, by the names of the parameters. Only the text of the template is parsed:
    braces in an argument are part of the name.
    """

    __slots__ = ("_keywords", "_signature", "_text")

    def __init__(self, text: str, function: Callable[..., Any]) -> None:
        """`TypeError` for a name that is no text. `ValueError` for an empty name, and a field that is no parameter."""
        if not isinstance(text, str):
            raise TypeError(f"the name for a decorator must be str, not {type(text).__name__}")
        if not text:
            raise ValueError("a name must not be empty")
        self._text = text
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters
        self._keywords = next((name for name, each in parameters.items() if each.kind is each.VAR_KEYWORD), None)
        for field in _fields(text):
            if not field.isidentifier():
                raise ValueError(f"{text!r}: a field must be the name of a parameter, as in 'order:{{order_id}}'")
            if field not in parameters and self._keywords is None:
                known = ", ".join(parameters) or "none"
                raise ValueError(f"{text!r}: {_named(function)} has no parameter {field!r}; it has: {known}")

    def name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The name for one call. `TypeError` if the function can't be called so, as the call itself would raise."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        if self._keywords is not None:
            values = {**values[self._keywords], **values}
        try:
            return string.Formatter().vformat(self._text, (), values)
        except (KeyError, IndexError, AttributeError) as error:
            text = f"the name {self._text!r} can't be made from these arguments: {type(error).__name__}: {error}"
            raise ValueError(text) from error


def check_function(function: object, *, asynchronous: bool, decorator: str) -> None:
    """`TypeError` for what can't be wrapped: around a generator, the lock would be released before the code has run."""
    binds = isinstance(function, (classmethod, staticmethod))
    if not callable(function) or inspect.isclass(function) or binds:
        kind = "a class" if inspect.isclass(function) else type(function).__name__
        hint = f"; put @{kind} above it" if binds else ""
        raise TypeError(f"{decorator} decorates a function, not {kind}{hint}")
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    # A function that `contextmanager` has made is no generator, but returns as early: before its `with` block begins.
    inner = inspect.unwrap(called) if getattr(called, "__globals__", None) is vars(contextlib) else called
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise TypeError(f"{decorator} can't decorate a generator: {_named(function)}")
    is_coroutine = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
    if asynchronous and not is_coroutine:
        text = f"{_named(function)} is no coroutine function: use the decorator of a client for threads"
        raise TypeError(text)
    if is_coroutine and not asynchronous:
        raise TypeError(f"{_named(function)} is a coroutine function: use the decorator of a pyredisson.asyncio client")


def _fields(text: str) -> Iterator[str]:
    """The names of the fields, also of those inside a format. `ValueError` for a text that can't be parsed."""
    for _, field, spec, _ in string.Formatter().parse(text):
        if field is not None:
            # Behind the name begins a path, as in `order.id`.
            yield re.split(r"[.\[]", field, maxsplit=1)[0]
            yield from _fields(spec or "")


def _named(function: object) -> str:
    name = getattr(function, "__qualname__", None)
    return f"{name}()" if name else repr(function)


LockKind = Literal["lock", "fair", "fenced", "spin", "read", "write"]


def check_kind(kind: LockKind) -> None:
    if kind not in get_args(LockKind):
        raise ValueError(f"kind must be one of {', '.join(get_args(LockKind))}, not {kind!r}")
