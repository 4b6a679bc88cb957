"""Celery: tasks of which one instance runs at a time over all workers, and tasks that are in the queue at most once."""

import functools
import inspect
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any, Literal, ParamSpec, TypeVar, get_args
from urllib.parse import quote, unquote

from redis.exceptions import RedisError

from pyredisson._api.holds import limited
from pyredisson._api.naming import Template, check_function
from pyredisson._api.sync.client import Client
from pyredisson._api.sync.locks import Lock
from pyredisson._api.sync.singletons import Singleton
from pyredisson._core import Run
from pyredisson._diagnostics import logger, naming_extra
from pyredisson._settings.durations import Duration, lease_ms
from pyredisson.errors import LockTimeoutError, RedissonError
from pyredisson.holder import Holder
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner
from pyredisson.owners import FIRST_TASK_ID, id_of_owner

with naming_extra("pyredisson.celery", "celery"):
    from celery import Task, current_task
    from celery.exceptions import Ignore
    from celery.signals import task_revoked
    from celery.utils.time import maybe_iso8601, maybe_make_aware

__all__ = ["AlreadyQueued", "queue_once", "singleton_task"]

P = ParamSpec("P")
R = TypeVar("R")
Busy = Literal["skip", "retry", "raise"]
Queued = Literal["existing", "raise", "skip"]
Until = Literal["end", "start"]

_HEADER = "pyredisson_queued"
"""The header of a message: the lock's name and its owner, which the worker needs. An empty owner: it is a duplicate."""


def singleton_task(
    client: Client,
    name: str,
    *,
    wait_time: Duration | None = 0,
    at_least: Duration = 0,
    at_most: Duration | None = None,
    busy: Busy = "skip",
    countdown: float = 10.0,
) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Below `@app.task`: the function runs only while this worker holds the lock of that name.

    `name` is formatted with the arguments of the task, as in `client.locked`: `"report:{day}"`. `wait_time`, `at_least`
    and `at_most` as for `client.singleton`. If another worker has the lock after `wait_time`, the task ends with None
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
    client.singleton("name", wait_time, at_least, at_most)

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        check_function(function, asynchronous=False, decorator="singleton_task()")
        template = Template(name, function)

        @functools.wraps(function)
        def single(*args: P.args, **kwargs: P.kwargs) -> R | None:
            formatted = template.name(args, kwargs)
            with ExitStack() as stack:
                try:
                    stack.enter_context(client.singleton(formatted, wait_time, at_least, at_most))
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


# --- Tasks that are in the queue at most once


class AlreadyQueued(RedissonError):
    """A task of `queue_once` that is queued, or runs, and so isn't queued again."""

    def __init__(self, name: str, task_id: str | None) -> None:
        # Another process, or a backend of results, makes it anew of these arguments.
        super().__init__(name, task_id)
        self.name = name
        """The name of the lock, from the arguments of the task."""
        self.task_id = task_id
        """The id of the task that is queued or runs. None: something else has a lock of that name."""

    def __str__(self) -> str:
        return f"lock {self.name!r}: the task is queued already, with the id {self.task_id or '(not known)'}"


def queue_once(
    client: Client,
    name: str | Callable[..., str],
    *,
    lease_time: Duration = 3600,
    until: Until = "end",
    busy: Queued = "existing",
    at_most: Duration | None = None,
) -> type[Any]:
    """`@app.task(base=queue_once(locks, "report:{day}"))`: a task that is in the queue, or runs, at most once.

    `apply_async` and `delay` acquire the lock of that name before they send the message; the worker releases it when
    the function has ended, or with `until="start"` before it begins. `name` is formatted with the arguments of the
    task; or it is a function that is called with them, and returns the name.

    `lease_time` (seconds or a timedelta): so long the lock lasts while the message waits, from its countdown or eta on,
    but not beyond `expires`. If the message is lost, the task may be queued again after that time. While the function
    runs, the lock is renewed, but no longer than `at_most`; then the task fails with `LockLostError` when it ends.

    If the task is queued already, `apply_async` returns the result of the task that is (`busy="existing"`), raises
    `AlreadyQueued` (`"raise"`) or returns None (`"skip"`). `"existing"` raises, too, if the lock has no task.

    Raises `ValueError` or `TypeError` for a time, or a word, that can't be used; for a name when the task is made.
    """
    if until not in get_args(Until) or busy not in get_args(Queued):
        raise ValueError(f"until must be end or start, and busy existing, raise or skip: not {until!r}, {busy!r}")
    client.singleton("name", at_most=at_most)
    lease = lease_ms(lease_time) / 1000
    once = {"client": client, "pattern": name, "lease": lease, "until": until, "busy": busy, "at_most": at_most}
    return type("QueueOnce", (_QueueOnce,), {"once": once})


class _QueueOnce(Task):
    once: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        pattern = self.once["pattern"]
        self._template = None if callable(pattern) else Template(pattern, self.run)
        # Also for a message that has expired.
        task_revoked.connect(self._on_revoked, sender=self)

    def apply_async(self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any) -> Any:
        """Celery's, for a task that isn't queued yet; see `queue_once`."""
        headers = options.pop("headers", None) or {}
        lease = self._lease(options)
        request = self.request
        running: Lock | None = getattr(request, "once_lock", None)
        if running is not None and task_id == request.id:
            # A retry. The lock goes with the message, and stays when this run has ended.
            headers = {**headers, _HEADER: _marked(running)}
            result = super().apply_async(args, kwargs, task_id=task_id, headers=headers, **options)
            request.once_lease = lease
            return result
        name = self._name(args or (), kwargs or {})
        new_id = task_id or str(uuid.uuid4())
        lock = self._lock(name, new_id, new_id)
        while not lock.try_lock(0, lease):
            if (holder := lock.holder()) is None:
                continue  # it was released meanwhile
            queued_id = _task_of(holder)
            if task_id is None:
                return self._refuse(name, queued_id)
            # Others wait for this id: a chain, a group, a chord. So its message is sent. It runs nothing, unless the
            # task that has the lock is the same one, of a worker that has died, or this is a retry.
            headers = {**headers, _HEADER: [name, None if task_id in (queued_id, request.id) else ""]}
            return super().apply_async(args, kwargs, task_id=task_id, headers=headers, **options)
        headers = {**headers, _HEADER: _marked(lock)}
        try:
            return super().apply_async(args, kwargs, task_id=new_id, headers=headers, **options)
        except BaseException:
            # The broker may have it all the same. Then the worker acquires the lock, if it is free.
            self._release(lock, headers[_HEADER][1])
            raise
        finally:
            _leave(lock)

    def _refuse(self, name: str, queued_id: str | None) -> Any:
        busy = self.once["busy"]
        if busy == "raise" or (busy == "existing" and queued_id is None):
            raise AlreadyQueued(name, queued_id)
        return self.AsyncResult(queued_id) if busy == "existing" else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        if request.called_directly or hasattr(request, "once_lock"):
            return super().__call__(*args, **kwargs)
        name, queued = (request.headers or {}).get(_HEADER) or (self._name(args, kwargs), None)
        if queued == "":
            logger.info("task %s isn't run: lock %r had another task when it was sent", request.id, name)
            return None
        lock = self._lock(name, request.id, uuid.uuid4().hex)
        if self.once["until"] == "start":
            self._release(lock, queued, wait=True)
            return self.run(*args, **kwargs)
        with ExitStack() as stack:
            try:
                if not self._start(stack, lock, queued):
                    return None
            except RedisError:
                self._release(lock, queued)
                raise
            request.once_lock, request.once_lease = lock, None
            try:
                return self.run(*args, **kwargs)
            finally:
                if request.once_lease is not None:
                    _leave(lock, request.once_lease)
                    stack.pop_all()

    def _start(self, stack: ExitStack, lock: Lock, queued: str | None) -> bool:
        """Makes the lock one of this run. False: another task has it. `Ignore`: another run of this one has it."""
        logic = limited(lock, self.once["at_most"])._logic
        renewed = logic.renewed_ms
        if queued:
            Run(logic._query, logic.commands.hand_over(queued.encode(), lock._owner().name, renewed)).result  # noqa: B018
        for wait in (0.0, renewed / 1000 + 1):
            try:
                stack.enter_context(Singleton(lambda: lock, wait))
                return True
            except LockTimeoutError as error:
                logger.info("task %s isn't run now: %s", self.request.id, error)
                if _task_of(error.holder) != self.request.id:
                    return False
                # The message was delivered twice. The other run has the result, unless its process has died.
        raise Ignore

    def _on_revoked(self, request: Any, **_: Any) -> None:
        name, queued = (request.headers or {}).get(_HEADER) or ("", None)
        if queued:
            self._release(self._lock(name, request.id, request.id), queued)

    def _release(self, lock: Lock, queued: str | None, *, wait: bool = False) -> None:
        """Releases the lock of a message: at once if the server can be reached and `wait`, else in the background."""
        if not queued:
            return
        logic = lock._logic
        release = logic.commands.release(queued.encode(), 0, late=True)
        if wait:
            with suppress(RedisError):
                Run(logic._query, release).result  # noqa: B018
                return
        logic.session.runtime.post(release)

    def _lock(self, name: str, task_id: str, owner: str) -> Lock:
        client: Client = self.once["client"]
        # In place of a client's id it has the task's id. So the lock says which task has it.
        task_owner = Owner(quote(task_id, safe=""), FIRST_TASK_ID + id_of_owner(owner) % FIRST_TASK_ID)
        return Lock(LockLogic(client._session, client._key(name)), client._callers, task_owner, name)

    def _name(self, args: Any, kwargs: Any) -> str:
        return self._template.name(args, kwargs) if self._template else self.once["pattern"](*args, **kwargs)

    def _lease(self, options: dict[str, Any]) -> float:
        """The lease of a message, in seconds."""
        lease: float = self.once["lease"] + max(_seconds_until(options.get("eta") or options.get("countdown") or 0), 0)
        expires = options.get("expires") or self.expires
        return lease if expires is None else min(lease, max(_seconds_until(expires), 1))


def _marked(lock: Lock) -> list[str]:
    """The header of a message that has this lock."""
    hold = lock._logic.hold_of(lock._owner().id)
    return [str(lock.name), (hold.owner if hold else lock._owner().name).decode()]


def _leave(lock: Lock, lease: float | None = None) -> None:
    """Leaves the lock to the message with its name, for `lease` seconds: this client doesn't renew or release it."""
    logic = lock._logic
    session, hold = logic.session, logic.hold_of(lock._owner().id)
    if hold is None:
        return
    if lease is not None:
        renewal = logic.commands.renew(session.runtime.scripts, [hold], lease_ms(lease))
        try:
            Run(logic._query, renewal).result  # noqa: B018
        except RedisError as error:
            logger.warning("lock %r may end before its task is tried again: %s", lock.name, error)
    session.holds.discard(hold)


def _task_of(holder: Holder | None) -> str | None:
    """The id of the task that has the lock. None: it is no task of `queue_once`."""
    if holder is None or holder.client_id is None or (holder.owner_id or 0) // FIRST_TASK_ID != 1:
        return None
    return unquote(holder.client_id)


def _seconds_until(moment: Any) -> float:
    """Of a number of seconds, a datetime, or its text, as Celery takes them."""
    if isinstance(moment, (int, float)):
        return moment
    when: datetime = maybe_make_aware(maybe_iso8601(moment))
    return (when - datetime.now(UTC)).total_seconds()
