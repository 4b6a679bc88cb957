"""Work of which one instance runs at a time across all machines. For asyncio. Written by hand."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, ParamSpec, TypeVar

from redis.exceptions import RedisError

from pyredisson._api.aio.blocks import Holding
from pyredisson._api.aio.locks import Lock
from pyredisson._api.holds import AnySingleton, warn_not_released
from pyredisson._api.naming import check_function
from pyredisson.errors import LockTimeoutError

P = ParamSpec("P")
R = TypeVar("R")


class Singleton(AnySingleton):
    """One instance at a time across all machines: a decorator, and an async context manager.

    `Client.singleton()` makes it. Each run has an owner of its own, so a second run in the same task doesn't begin.
    """

    __slots__ = ()

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
        lock = await turn.__aenter__()
        self._turns.append(turn)
        return lock

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        turn = self._turn_to_leave(asyncio.current_task())
        self._turns.remove(turn)
        await turn.__aexit__(kind, error, trace)


class _Turn(Holding[Lock]):
    """One run, which has the lock from its beginning to its end."""

    __slots__ = ("runner",)

    def __init__(self, lock: Lock, wait: float | None) -> None:
        super().__init__(lock, wait, None, cancel_on_lost=True)
        self.runner = asyncio.current_task()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        except RedisError as failure:
            if error is not None:
                raise
            warn_not_released(self._lock._logic.label, failure)
