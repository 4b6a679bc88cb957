"""Work of which one instance runs at a time across all machines. For threads. Written by hand."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from redis.exceptions import RedisError

from pyredisson._api.arguments import deadline_after
from pyredisson._api.holds import AnySingleton, release_left, tell_failed_release, warn_not_released
from pyredisson._api.naming import check_function
from pyredisson._api.sync.locks import Lock
from pyredisson._api.sync.releases import REPORTED
from pyredisson._core import Run

P = ParamSpec("P")
R = TypeVar("R")


class Singleton(AnySingleton):
    """One instance at a time across all machines: a decorator, and a context manager.

    `Client.singleton()` makes it. Each run has an owner of its own, so a second run in the same thread doesn't begin.
    """

    __slots__ = ()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorates a function. A call returns None if another instance runs, after `wait_time`.

        Raises `TypeError` for what can't be decorated: a generator, a class, a function of the other backend.
        """
        check_function(function, asynchronous=False, decorator="singleton()")

        @functools.wraps(function)
        def single(*args: P.args, **kwargs: P.kwargs) -> R | None:
            with _Turn(self._make(), self._wait) as is_ours:
                return function(*args, **kwargs) if is_ours else None

        return single

    def __enter__(self) -> Lock:
        turn = _Turn(self._make(), self._wait)
        self._turns.append(turn)
        try:
            if turn.__enter__():
                return turn.lock
            raise Run(turn.lock._logic.timed_out, turn.owner, self._wait or 0.0).result
        except BaseException:
            release_left(turn.lock._logic, turn.owner)
            self._turns.remove(turn)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        turn: _Turn | None = None
        try:
            turn = self._turn_to_leave(threading.get_ident())
            self._turns.remove(turn)
        finally:
            # Also if an interrupt strikes in the lines above.
            turn = self._turn_to_leave(threading.get_ident()) if turn is None else turn
            turn.__exit__(kind, error, trace)


class _Turn:
    """One run: it has the lock, or another instance has it."""

    __slots__ = ("is_ours", "lock", "owner", "runner", "wait")

    def __init__(self, lock: Lock, wait: float | None) -> None:
        self.lock = lock
        self.owner = lock._owner()
        self.wait = wait
        self.is_ours = False
        self.runner = threading.get_ident()

    def __enter__(self) -> bool:
        """Whether this run may begin."""
        deadline = deadline_after(self.wait)
        self.is_ours = Run(self.lock._logic.acquire, self.owner, None, deadline).result
        # No function is called from here on: after an interrupt nobody would leave the block.
        return self.is_ours

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self.is_ours:
            return
        try:
            self.lock.unlock()
        except REPORTED as failure:
            if error is None and isinstance(failure, RedisError):
                warn_not_released(self.lock._logic.label, failure)
            else:
                tell_failed_release(failure, error)
