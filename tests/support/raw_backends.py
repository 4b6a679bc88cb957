"""The backends as the fault tests use them: the client itself, with nothing between it and the test."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Self

import pytest

import pyredisson
import pyredisson.asyncio

from .backends import Asyncio, Errors, OtherOwner, Threads


class RawBackend:
    """Threads or asyncio. A test passes the result of each call to `do`, which awaits it where that is needed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.threads = name == "threads"
        self._backend = (Threads if self.threads else Asyncio)("")
        self.until = self._backend.until
        self.sleep = self._backend.sleep
        self._clients: list[Any] = []
        self._calls: list[OtherOwner[Any]] = []

    def connect(self, address: object, **fields: Any) -> Any:
        connect: Callable[..., Any] = pyredisson.connect if self.threads else pyredisson.asyncio.connect
        client = connect(address, **fields)
        self._clients.append(client)
        return client

    async def connected(self, address: object, **fields: Any) -> Any:
        """A client that has its connection: it has asked for something."""
        client = self.connect(address, **fields)
        await self.do(client.get_lock("other").is_locked())
        return client

    async def locked(self, address: object, lease: float = 30.0, **fields: Any) -> tuple[Any, Any]:
        """A client, and its lock, held by an owner that is no thread or task and renewed from this lease on."""
        client = self.connect(address, lock_watchdog_timeout=lease, **fields)
        lock = client.get_lock("a", owner=1)
        await self.do(lock.lock())
        return client, lock

    async def do(self, result: Any) -> Any:
        """The result of a call of the client, which is awaited if it is a coroutine."""
        return await result if inspect.isawaitable(result) else result

    async def fails(
        self, error: Errors, call: Callable[..., Any], *args: Any, match: str | None = None, **options: Any
    ) -> BaseException:
        """The error that a call of the client raises, which is of this kind."""
        with pytest.raises(error, match=match) as raised:
            await self.do(call(*args, **options))
        return raised.value

    async def run_blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs a blocking function that isn't the client's, so that it doesn't block the event loop."""
        return function(*args) if self.threads else await asyncio.to_thread(function, *args)

    def start(self, call: Callable[..., Any], *args: Any) -> OtherOwner[Any]:
        """Makes a call beside the test, as another owner: on a thread or in a task."""
        self._calls.append(self._backend.spawn(lambda: self.do(call(*args))))
        return self._calls[-1]

    async def started(self, until: Callable[[], object], call: Callable[..., Any], *args: Any) -> OtherOwner[Any]:
        """Makes a call beside the test, and waits until it has come that far."""
        begun = self.start(call, *args)
        await self.until(until)
        return begun

    async def waits(self, call: OtherOwner[Any], seconds: float) -> None:
        """The call lasts for longer than so many seconds."""
        await self.sleep(seconds)
        assert not call.done()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await self.do(client.close())
        for call in self._calls:
            await call.end()
