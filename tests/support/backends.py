"""The two backends, threads and asyncio, behind one interface: one `async def` test covers both."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Generic, TypeVar, cast

import pytest

import pyredisson
import pyredisson.asyncio

from .waiting import within

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Errors = type[BaseException] | tuple[type[BaseException], ...]
TIME_LIMIT = 10.0
"""Seconds after which a test fails that waits for something which should happen at once."""
WORK_LIMIT = 50.0
"""The same for work of many owners, which goes on all the time. The limit of a whole test is 60 s."""
WOKEN = 3.0
"""Seconds within which a message or the end of a short time wakes a waiter, on a busy machine. Without that it would
look again when the watchdog's lease of 30 s has ended."""
NOWHERE = "redis://127.0.0.1:1"
"""An address at which no server listens: a command that is sent there fails with a connection error."""


class Backend(ABC):
    """Makes clients, other owners and time. Its name is "threads" or "asyncio"."""

    name: str

    def __init__(self, url: str) -> None:
        self.url = url
        self._clients: list[pyredisson.asyncio.Client] = []

    def connect(self, address: object = None, **fields: Any) -> pyredisson.asyncio.Client:
        """A client of the test's server, or of `address`; closed after the test."""
        client = self._connect(self.url if address is None else address, **fields)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def until(self, condition: Callable[[], object], timeout: float = TIME_LIMIT) -> None:
        """Waits until the condition holds, by polling: for a change on the server that no message announces."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout:g} s: {inspect.getsource(condition).strip()}"
            await self.sleep(0.002)

    @abstractmethod
    def _connect(self, address: object, **fields: Any) -> pyredisson.asyncio.Client: ...

    @abstractmethod
    def spawn(self, work: Callable[[], Awaitable[T]]) -> OtherOwner[T]:
        """Starts `work` as another owner, beside the caller."""

    async def begin(self, work: Callable[[], Awaitable[T]], condition: Callable[[], object]) -> OtherOwner[T]:
        """Starts `work` as another owner, and returns when the condition holds."""
        other = self.spawn(work)
        await self.until(condition)
        return other

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    def flag(self) -> Flag:
        return Flag(self)

    async def as_another_owner(self, work: Callable[[], Awaitable[T]]) -> T:
        return await self.spawn(work).result()


async def finished(others: Iterable[OtherOwner[T]], seconds: float = TIME_LIMIT) -> list[T]:
    """Waits for the end of all this work. The results."""
    return [await other.result(seconds) for other in others]


async def in_turn(calls: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """Makes these calls one after the other."""
    for call in calls:
        await call()


async def hold_all(client: pyredisson.asyncio.Client, *names: str) -> list[Any]:
    """Locks of these names, which the client has acquired."""
    locks = [client.get_lock(name) for name in names]
    await in_turn(lock.lock for lock in locks)
    return locks


async def fails(
    error: type[E] | tuple[type[E], ...], call: Callable[..., Any], *args: Any, match: str | None = None, **kwargs: Any
) -> E:
    """The error that this call raises, which is of this type, and has a text that matches."""
    __tracebackhide__ = True
    with pytest.raises(error, match=match) as caught:
        await call(*args, **kwargs)
    return caught.value


def raises(error: Errors, call: Callable[..., Any], *args: Any, match: str | None = None, **kwargs: Any) -> None:
    """The same of a call that isn't awaited."""
    __tracebackhide__ = True
    with pytest.raises(error, match=match):
        call(*args, **kwargs)


def lasting(least: float, most: float) -> AbstractContextManager[None]:
    """The block lasts for that many seconds at least, and for less than `most`."""
    return within(most, least=least)


class Flag:
    """An event of this backend; any thread may set it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    async def wait(self) -> None:
        await self._backend.until(lambda: self._is_set)


class Threads(Backend):
    """Every call runs and blocks on the caller's thread; no coroutine here ever suspends."""

    name = "threads"

    def _connect(self, address: object, **fields: Any) -> pyredisson.asyncio.Client:
        return cast(pyredisson.asyncio.Client, _Awaited(pyredisson.connect(address, **fields)))

    def spawn(self, work: Callable[[], Awaitable[T]]) -> OtherOwner[T]:
        return _Thread(work)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Asyncio(Backend):
    name = "asyncio"

    def _connect(self, address: object, **fields: Any) -> pyredisson.asyncio.Client:
        return pyredisson.asyncio.connect(address, **fields)

    def spawn(self, work: Callable[[], Awaitable[T]]) -> OtherOwner[T]:
        return _Task(work)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Awaited:
    """An object of the threads API whose methods can be awaited."""

    _at_once = (
        *("elect", "hold", "holds", "is_set", "on_lost", "permit", "read_lock"),
        *("remove_on_lost", "singleton", "start", "write_lock"),
    )
    """Methods that are not awaited on either backend, beside the factories of a client."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return self._wrapped(value)

        def at_once(*args: Any, **kwargs: Any) -> Any:
            args = tuple(arg._target if isinstance(arg, _Awaited) else arg for arg in args)
            return self._wrapped(value(*args, **kwargs))

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return at_once(*args, **kwargs)

        # `locked()` of a lock is awaited, and `locked(name)` of a client makes a decorator.
        factory = isinstance(self._target, pyredisson.Client) and (name.startswith("get_") or name == "locked")
        return at_once if factory or name in self._at_once else awaited

    async def __aenter__(self) -> Any:
        return self._wrapped(self._target.__enter__())

    async def __aexit__(self, *raised: object) -> Any:
        return self._target.__exit__(*raised)

    def __repr__(self) -> str:
        return repr(self._target)

    def _wrapped(self, value: Any) -> Any:
        if value is self._target:
            return self
        # Every object of the library is wrapped, except its errors and what only has fields.
        plain = isinstance(value, Exception | Enum) or dataclasses.is_dataclass(value)
        ours = type(value).__module__.startswith("pyredisson.") and not plain
        return _Awaited(value) if ours else value


class _Thread(Generic[T]):
    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, args=(_operation(work),), daemon=True).start()

    def _run(self, operation: Coroutine[Any, Any, T]) -> None:
        try:
            self._future.set_result(_finished(operation))
        except BaseException as error:  # noqa: BLE001 (raised again by `result`)
            self._future.set_exception(error)

    async def result(self, seconds: float = TIME_LIMIT) -> T:
        return self._future.result(seconds)

    def done(self) -> bool:
        return self._future.done()

    async def end(self) -> None:
        self._future.exception(TIME_LIMIT)


class _Task(Generic[T]):
    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._task = asyncio.get_running_loop().create_task(_operation(work))

    async def result(self, seconds: float = TIME_LIMIT) -> T:
        return await asyncio.wait_for(asyncio.shield(self._task), seconds)

    def done(self) -> bool:
        return self._task.done()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task], timeout=TIME_LIMIT)


OtherOwner = _Thread[T] | _Task[T]
"""Work that another owner does: on a thread or in a task of its own. `result` waits for the end of the work, so long at
most. `end` does, too, and ends it in asyncio; its result doesn't matter."""


async def _operation(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


def _finished(operation: Coroutine[Any, Any, T]) -> T:
    try:
        operation.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("an operation suspended on the threads backend")
