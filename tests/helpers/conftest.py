"""Fixtures of the tests of helpers: a client of each backend, and functions as each of them decorates them."""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

import pyredisson.asyncio
from pyredisson.testing import Server
from tests.support.backends import Backend, _finished

Work = Callable[..., Coroutine[Any, Any, Any]]


def called_by(backend: Backend, work: Work) -> Callable[..., Any]:
    """A coroutine function as the backend takes one: for threads a plain function that runs it to its end."""

    @functools.wraps(work)
    def run(*args: Any, **kwargs: Any) -> Any:
        return _finished(work(*args, **kwargs))

    return run if backend.name == "threads" else work


def decorated(backend: Backend, decorator: Any, work: Work) -> Work:
    """The decorated function, whose calls are awaited on both backends."""
    function = getattr(decorator, "_target", decorator)(called_by(backend, work))

    async def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return result if backend.name == "threads" else await result

    return call


@pytest.fixture
async def aclient(server: Server) -> AsyncIterator[pyredisson.asyncio.Client]:
    async with pyredisson.asyncio.connect(server.url) as made:
        yield made
