"""The backends as the fault tests use them: the client itself, with nothing between it and the test."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import pyredisson
import pyredisson.asyncio

from .waiting import TIME_LIMIT, eventually


class RawBackend:
    """Threads or asyncio. A test passes the result of each call to `do`, which awaits it where that is needed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.threads = name == "threads"
        self._clients: list[Any] = []
        self._calls: list[BackgroundCall] = []

    def connect(self, address: object, **fields: Any) -> Any:
        """A client of this backend, closed at the end of the test."""
        connect: Callable[..., Any] = pyredisson.connect if self.threads else pyredisson.asyncio.connect
        client = connect(address, **fields)
        self._clients.append(client)
        return client

    async def do(self, result: Any) -> Any:
        """The result of a call of the client, which is awaited if it is a coroutine."""
        return await result if inspect.isawaitable(result) else result

    async def run_blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs a blocking function that isn't the client's, so that it doesn't block the event loop."""
        return function(*args) if self.threads else await asyncio.to_thread(function, *args)

    async def until(self, condition: Callable[[], object], seconds: float = TIME_LIMIT) -> None:
        """Waits until the condition holds, by polling."""
        if self.threads:
            eventually(condition, seconds)
            return
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds:g} s: {inspect.getsource(condition).strip()}"
            await asyncio.sleep(0.005)

    async def sleep(self, seconds: float) -> None:
        if self.threads:
            time.sleep(seconds)
        else:
            await asyncio.sleep(seconds)

    def start(self, operation: Callable[[], Coroutine[Any, Any, Any]]) -> BackgroundCall:
        """Runs `operation` beside the test, as another owner: on a thread or in a task."""
        begun = BackgroundCall(self, operation)
        self._calls.append(begun)
        return begun

    async def close(self) -> None:
        for client in self._clients:
            await self.do(client.close())
        for call in self._calls:
            await call.ended()


class BackgroundCall:
    """A call that runs beside the test."""

    def __init__(self, backend: RawBackend, operation: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._future: Future[Any] = Future()
        if backend.threads:
            threading.Thread(target=self._run, args=(operation(),), daemon=True).start()
        else:
            self._task = asyncio.get_running_loop().create_task(operation())

    @property
    def done(self) -> bool:
        return self._future.done() if self._task is None else self._task.done()

    async def result(self, seconds: float = TIME_LIMIT) -> Any:
        """The result of the call; TimeoutError if it takes longer."""
        if self._task is None:
            return self._future.result(seconds)
        return await asyncio.wait_for(asyncio.shield(self._task), seconds)

    async def ended(self) -> None:
        """Waits until the call has ended, with a result or an error."""
        if self._task is None:
            self._future.exception(TIME_LIMIT)
        else:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=TIME_LIMIT)

    def _run(self, operation: Coroutine[Any, Any, Any]) -> None:
        try:
            operation.send(None)
        except StopIteration as end:
            self._future.set_result(end.value)
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._future.set_exception(error)
        else:
            self._future.set_exception(AssertionError("a call suspended on the threads backend"))
