"""Work of which one instance runs at a time across all machines. For asyncio. Written by hand."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, ParamSpec, TypeVar

from redis.exceptions import RedisError

from pyredisson._api.aio.locks import Lock
from pyredisson._api.arguments import warn_not_released
from pyredisson._api.naming import check_function
from pyredisson._diagnostics import readable
from pyredisson.errors import LockTimeoutError

P = ParamSpec("P")
R = TypeVar("R")


class Singleton:
    """One instance at a time across all machines: a decorator, and an async context manager.

    `Client.singleton()` makes it. Each run has an owner of its own, so a second run in the same task doesn't begin.
    """

    __slots__ = ("_make", "_turns", "_wait")

    def __init__(self, make: Callable[[], Lock], wait: float | None) -> None:
        self._make = make
        self._wait = wait
        self._turns: list[_Turn] = []
        """The blocks that were entered by `async with` on this object, and not left yet."""

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R | None]]:
        """Decorates a function. A call returns None if another instance runs, after `wait_time`.

        Raises `TypeError` for what can't be decorated: a generator, a class, a function of the other backend.
        """
        check_function(function, asynchronous=True, decorator="singleton()")

        @functools.wraps(function)
        async def single(*args: P.args, **kwargs: P.kwargs) -> R | None:
            async with AsyncExitStack() as stack:
                # Not around the function: a `LockTimeoutError` of its own must reach its caller.
                try:
                    await stack.enter_async_context(_Turn(self._make(), self._wait))
                except LockTimeoutError:
                    return None
                return await function(*args, **kwargs)

        return single

    async def __aenter__(self) -> Lock:
        turn = _Turn(self._make(), self._wait)
        await turn.__aenter__()
        self._turns.append(turn)
        return turn.lock

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # The latest block of this task; else the oldest one, as another task may run the exit.
        mine = [turn for turn in self._turns if turn.task is asyncio.current_task()]
        turn = mine[-1] if mine else self._turns[0]
        self._turns.remove(turn)
        await turn.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<pyredisson.asyncio.Singleton {readable(self._make()._logic.key)!r}>"


class _Turn:
    """One run, which has the lock from its beginning to its end."""

    __slots__ = ("_block", "lock", "task")

    def __init__(self, lock: Lock, wait: float | None) -> None:
        self.lock = lock
        self.task = asyncio.current_task()
        self._block = lock.hold(wait)

    async def __aenter__(self) -> None:
        await self._block.__aenter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._block.__aexit__(kind, error, trace)
        except RedisError as failure:
            if error is not None:
                raise
            warn_not_released(self.lock._logic.label, failure)
