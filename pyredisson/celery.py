"""Celery: a decorator for tasks of which one instance runs at a time over all workers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal, ParamSpec, TypeVar

from pyredisson._api.naming import Template, check_function
from pyredisson._api.sync.client import Client
from pyredisson._diagnostics import logger, naming_extra
from pyredisson._settings.durations import Duration
from pyredisson.errors import LockTimeoutError

with naming_extra("pyredisson.celery", "celery"):
    from celery import current_task

__all__ = ["singleton_task"]

P = ParamSpec("P")
R = TypeVar("R")
Busy = Literal["skip", "retry", "raise"]


def singleton_task(
    client: Client,
    name: str,
    *,
    wait_time: Duration | None = 0,
    at_least: Duration = 0,
    busy: Busy = "skip",
    countdown: float = 10.0,
) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Below `@app.task`: the function runs only while this worker holds the lock of that name.

    `name` is formatted with the arguments of the task, as in `client.locked`: `"report:{day}"`. `wait_time` and
    `at_least` as for `client.singleton`. If another worker has the lock after `wait_time`, the task ends with None
    (`busy="skip"`), is sent again by Celery after `countdown` seconds (`"retry"`, as often as the task's `max_retries`
    says), or fails with `LockTimeoutError` (`"raise"`).

    The lock is held while the task runs, not while its message waits. A worker that is killed keeps nothing: the lock
    is free when its lease ends. If the lock is lost, the task fails with `LockLostError` when the function has ended.
    If Redis can't be reached at that time, the task succeeds all the same, and the release goes on in the background.

    `client` may be made at the top of a module: each process of a worker becomes a client of its own.

    Raises `ValueError` or `TypeError` for a name, a time or a function that can't be used.
    """
    if busy not in ("skip", "retry", "raise"):
        raise ValueError(f"busy must be skip, retry or raise, not {busy!r}")
    client.singleton("name", wait_time, at_least)

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        check_function(function, asynchronous=False, decorator="singleton_task()")
        template = Template(name, function)

        @functools.wraps(function)
        def single(*args: P.args, **kwargs: P.kwargs) -> R | None:
            formatted = template.name(args, kwargs)
            with ExitStack() as stack:
                try:
                    stack.enter_context(client.singleton(formatted, wait_time, at_least))
                except LockTimeoutError as error:
                    _not_acquired(error, busy, countdown)
                    return None
                return function(*args, **kwargs)

        # Celery compares the arguments of each call with it, and doesn't look at the decorated function.
        single.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return single

    return decorate


def _not_acquired(error: LockTimeoutError, busy: Busy, countdown: float) -> None:
    # A task that is called as a function is none of a worker's, so nobody could send it again.
    if busy == "raise" or (busy == "retry" and not current_task):
        raise error
    logger.info("a task isn't run now: %s", error)
    if busy == "retry":
        task: Any = current_task
        raise task.retry(exc=error, countdown=countdown)
