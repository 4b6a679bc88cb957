"""Helpers of the client for asyncio: locks around whole functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from pyredisson._api.aio.elections import Election, Term
from pyredisson._api.aio.fair_lock import FairLock
from pyredisson._api.aio.fenced_lock import FencedLock
from pyredisson._api.aio.read_write_lock import ReadLock, WriteLock
from pyredisson._api.aio.rlock import AnyLock, Lock
from pyredisson._api.aio.singletons import Singleton
from pyredisson._api.aio.spin_lock import SpinLock
from pyredisson._api.arguments import Name, lease_of, wait_of
from pyredisson._api.locked_kinds import LOGICS, LockKind, check_kind
from pyredisson._api.naming import Template, check_function
from pyredisson._settings.durations import Duration, lease_ms, seconds
from pyredisson.logic.locks.fenced_lock import FencedLockLogic
from pyredisson.logic.locks.keeping import KeepingLock
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.session import Session
from pyredisson.owners import AnyOwner, new_owner

P = ParamSpec("P")
R = TypeVar("R")

LOCKS: dict[str, type[Lock]] = {
    "lock": Lock,
    "fair": FairLock,
    "fenced": FencedLock,
    "spin": SpinLock,
    "read": ReadLock,
    "write": WriteLock,
}


class ClientHelpers:
    """What a client offers beside the primitives themselves."""

    _session: Session

    def locked(
        self,
        name: str,
        *,
        wait_time: Duration | None = None,
        lease_time: Duration | None = None,
        kind: LockKind = "lock",
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """A decorator: each call of the function runs while it holds a lock.

        `name` is formatted with the arguments of the call, as `str.format` does: `"order:{order_id}"`,
        `"order:{order.id}"`, `"{self.tenant}:{id}"`. A doubled brace stands for one, so `"{{orders}}:{order_id}"` has a
        hash tag. `wait_time` and `lease_time` as for `hold()`; `kind` is the kind of lock.

        The owner is the calling task, so a decorated function may call itself. A call raises what a block of `hold()`
        raises: `LockTimeoutError` if the lock was not acquired in time, and `LockLostError` if it was lost.

        Raises `ValueError` for a field that is no parameter, and `TypeError` for what can't be decorated: a generator,
        a class, a function of the other backend.
        """
        check_kind(kind)
        wait_of(wait_time, "wait_time")
        lease_of(lease_time)

        def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            check_function(function, asynchronous=True, decorator="locked()")
            template = Template(name, function)

            @functools.wraps(function)
            async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
                lock = self._lock(LOCKS[kind], LOGICS[kind], template.name(args, kwargs), None)
                async with lock.hold(wait_time, lease_time):
                    return await function(*args, **kwargs)

            return locked

        return decorate

    def singleton(self, name: Name, wait_time: Duration | None = 0, at_least: Duration = 0) -> Singleton:
        """Work of which one instance runs at a time across all machines: a decorator, and a context manager.

        `wait_time`: how long the others wait for their turn, and then run, too (None: without end; 0: they leave).
        After that a decorated function returns None, and a block raises `LockTimeoutError`. A block gets the lock.

        `at_least`: the name stays locked for so long after it was acquired, however short the work was, and also if
        the process is killed. So machines whose clocks differ by less than that don't run the same job twice.

        Raises `ValueError` or `TypeError` for a name or a time that can't be used.
        """
        kept = lease_ms(at_least, "at_least") if seconds(at_least, "at_least") else 0
        logic = functools.partial(KeepingLock, at_least=kept) if kept else LockLogic

        def make() -> Lock:
            return self._lock(Lock, logic, name, new_owner())

        # A name that can't be used is an error here, not at the first run.
        make()
        return Singleton(make, wait_of(wait_time, "wait_time"))

    def elect(
        self,
        name: Name,
        *,
        on_elected: Callable[[Term], object] | None = None,
        on_deposed: Callable[[Term], object] | None = None,
    ) -> Election:
        """A new candidate for the leadership of a name. Of all candidates, in all processes, one leads at a time.

        `on_elected(term)` and `on_deposed(term)` are called one after the other, at the beginning and at the end of
        each term; their exceptions are logged. Sends nothing. A leader is the holder of the fenced lock of that name.
        """
        return Election(self._lock(FencedLock, FencedLockLogic, name, new_owner()), on_elected, on_deposed)

    def _lock(
        self, lock: type[AnyLock], logic: Callable[[Session, bytes], LockLogic], name: Name, owner: AnyOwner | None
    ) -> AnyLock:
        raise NotImplementedError
