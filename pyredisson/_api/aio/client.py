"""The client for asyncio, which makes the locks and the other primitives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, Unpack

from pyredisson._api.aio.connections import ClientConnections
from pyredisson._api.aio.elections import Election, Term
from pyredisson._api.aio.locks import (
    FairLock,
    FencedLock,
    Lock,
    MultiLock,
    NonReentrantFairLock,
    NonReentrantLock,
    ReadLock,
    ReadWriteLock,
    RedLock,
    SpinLock,
    WriteLock,
)
from pyredisson._api.aio.semaphores import CountDownLatch, PermitExpirableSemaphore, Semaphore
from pyredisson._api.aio.singletons import Singleton
from pyredisson._api.arguments import LockOptions, Name, key_of, renewed_lease_of, wait_of
from pyredisson._api.holds import MakeLogic, limited
from pyredisson._api.naming import LockKind, Template, check_function, check_kind
from pyredisson._settings.config import Config
from pyredisson._settings.durations import Duration
from pyredisson._settings.fields import ConfigFields
from pyredisson.backoff import DEFAULT_BACKOFF, Backoff, backoff_of
from pyredisson.logic.locks.fair_lock import FairLockLogic, NonReentrantFairLockLogic
from pyredisson.logic.locks.fenced_lock import FencedLockLogic
from pyredisson.logic.locks.moving import HandedOff
from pyredisson.logic.locks.read_write_lock import ReadLogic, WriteLogic
from pyredisson.logic.locks.rlock import LockLogic, NonReentrantLockLogic
from pyredisson.logic.locks.spin_lock import SpinLockLogic
from pyredisson.logic.owners import Owner
from pyredisson.logic.permits.count_down_latch import CountDownLatchLogic
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic
from pyredisson.logic.permits.semaphore import SemaphoreLogic
from pyredisson.owners import AnyOwner, new_owner

P = ParamSpec("P")
R = TypeVar("R")


def connect(address: object = None, **fields: Unpack[ConfigFields]) -> Client:
    """Makes a client for asyncio. It connects to the server at its first call, not here.

    `address` is a URL (`redis://`, `rediss://`, `unix://`; None: `redis://localhost:6379/0`), a `Config`, or a redis-py
    client, whose settings are used. `fields` are fields of `Config`; they take precedence over the address.

    Raises `ConfigError` for a setting that can't be used or is unknown, `TypeError` for an address of another type.
    """
    return Client(Config.of(address, **fields))


class Client(ClientConnections):
    """Makes locks, and owns the connections and the watchdog behind them. An async context manager; tasks may share it.

    It belongs to the event loop in which it is used first; once that is closed, to the next one.
    """

    def get_lock(self, name: Name, **options: Unpack[LockOptions]) -> Lock:
        """The re-entrant lock (`RLock`) of that name. Sends nothing.

        `owner` is used in place of the calling task, for work that runs in several tasks: `pyredisson.new_owner()`,
        a `str` (within one client the same text is the same owner), or an int below 2**32. Raises `ValueError` or
        `TypeError` for a name or an owner that can't be used.

        `watchdog_timeout` (seconds or a timedelta): the lease of this lock where it is renewed, in place of the
        client's `lock_watchdog_timeout`. So long it stays locked after its process was killed.
        """
        return self._lock(Lock, LockLogic, name, **options)

    def get_fair_lock(self, name: Name, **options: Unpack[LockOptions]) -> FairLock:
        """The fair lock of that name. Sends nothing. Options and errors as for `get_lock`."""
        return self._lock(FairLock, FairLockLogic, name, **options)

    def get_read_write_lock(self, name: Name, **options: Unpack[LockOptions]) -> ReadWriteLock:
        """The read-write lock of that name. Sends nothing. Options and errors as for `get_lock`."""
        read = self._lock(ReadLock, ReadLogic, name, **options)
        return ReadWriteLock(read, self._lock(WriteLock, WriteLogic, name, **options))

    def get_semaphore(self, name: Name, *, must_exist: bool = False) -> Semaphore:
        """The semaphore of that name. Sends nothing.

        `must_exist`: an acquire raises `NotSetError` if the semaphore doesn't exist because nobody has set its permits.
        Without it, an acquire waits until somebody does, which is logged once, as a warning.
        """
        return Semaphore(SemaphoreLogic(self._session, self._key(name), must_exist=must_exist), self._kept(name))

    def get_permit_expirable_semaphore(self, name: Name, *, must_exist: bool = False) -> PermitExpirableSemaphore:
        """The semaphore whose permits have ids and leases. Sends nothing. `must_exist` as for `get_semaphore`."""
        logic = PermitExpirableSemaphoreLogic(self._session, self._key(name), must_exist=must_exist)
        return PermitExpirableSemaphore(logic, self._kept(name))

    def get_count_down_latch(self, name: Name, *, must_exist: bool = False) -> CountDownLatch:
        """The count-down latch of that name. Sends nothing.

        `must_exist`: `wait()` raises `NotSetError` if the latch has no count when it begins, as nobody has set it yet,
        or it has come down to zero already. Without it, `wait()` returns at once then, which is logged once, at INFO.
        """
        logic = CountDownLatchLogic(self._session, self._key(name), must_exist=must_exist)
        return CountDownLatch(logic, self._kept(name))

    def get_fenced_lock(self, name: Name, **options: Unpack[LockOptions]) -> FencedLock:
        """The lock of that name with fencing tokens. Sends nothing. Options and errors as for `get_lock`."""
        return self._lock(FencedLock, FencedLockLogic, name, **options)

    def get_non_reentrant_lock(self, name: Name, **options: Unpack[LockOptions]) -> NonReentrantLock:
        """The lock that its holder can't acquire again. Sends nothing. Options and errors as for `get_lock`."""
        return self._lock(NonReentrantLock, NonReentrantLockLogic, name, **options)

    def get_non_reentrant_fair_lock(self, name: Name, **options: Unpack[LockOptions]) -> NonReentrantFairLock:
        """The fair lock that its holder can't acquire again. Sends nothing. Options and errors as for `get_lock`."""
        return self._lock(NonReentrantFairLock, NonReentrantFairLockLogic, name, **options)

    def get_spin_lock(self, name: Name, backoff: Backoff = DEFAULT_BACKOFF, **options: Unpack[LockOptions]) -> SpinLock:
        """The lock of that name whose waiters try again and again. Sends nothing.

        `backoff`, the pause between tries: an `ExponentialBackoff` or a `ConstantBackoff`. Otherwise as `get_lock`.
        """
        return self._lock(SpinLock, functools.partial(SpinLockLogic, backoff=backoff_of(backoff)), name, **options)

    def get_multi_lock(self, *locks: Lock) -> MultiLock:
        """Several locks as one, all or none of them. Sends nothing.

        `locks`: of any kind and client. Raises `ValueError` for none, or one twice; `TypeError` for anything else.
        """
        return MultiLock(locks)

    def get_red_lock(self, *locks: Lock) -> RedLock:
        """One lock on several masters, each with a client of its own. Sends nothing. Errors as for `get_multi_lock`."""
        return RedLock(locks)

    def adopt(self, token: str, *, owner: AnyOwner | None = None) -> Coroutine[Any, Any, Lock]:
        """Takes over the hold that `hand_off()` has made `token` of, and returns its lock, of the same kind.

        From now on the owner is the calling task (or `owner`, as for `get_lock`), which releases the lock. It is
        renewed with the same lease as before; a fixed lease goes on. Of several callers exactly one adopts the hold.
        The others get `LockNotHeldError`, also after the end of the lease.

        Raises `LockAlreadyHeldError` if the owner has a hold of that lock, and `ValueError` or `TypeError` for what is
        no token: nothing was sent then. After another error, or if this is cancelled, the token is as good as before:
        what the call may have adopted is put back in the background.
        """
        handed = HandedOff.of(token)
        kind, make = LOCKS[handed.kind]
        # The key was made of the name by the former owner's client.
        key = key_of(handed.key_bytes, None, self._config.topology == "cluster")
        renewed = handed.lease / 1000 if handed.lease not in (0, self._session.lease_ms) else None
        kept = handed.name or (None if handed.key.encode("utf-8", "replace") == key else key)
        made = kind(make(self._session, key), self._callers, None, kept)
        lock = self._with_options(made, owner, renewed)
        return self._adopted(lock, lock._owner(), handed)

    async def _adopted(self, lock: Lock, owner: Owner, handed: HandedOff) -> Lock:
        await lock._logic.adopt(owner, handed)
        return lock

    def locked(
        self,
        name: str,
        *,
        wait_time: Duration | None = None,
        lease_time: Duration | None = None,
        at_most: Duration | None = None,
        kind: LockKind = "lock",
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """A decorator: each call of the function runs while it holds a lock.

        `name` is formatted with the arguments of the call, as `str.format` does: `"order:{order_id}"`,
        `"order:{order.id}"`, `"{self.tenant}:{id}"`. A doubled brace stands for one, so `"{{orders}}:{order_id}"` has a
        hash tag. `wait_time`, `lease_time` and `at_most` as for `hold()`; `kind` is the kind of lock.

        The owner is the calling task, so a decorated function may call itself. A call raises what a block of `hold()`
        raises: `LockTimeoutError` if the lock was not acquired in time, and `LockLostError` if it was lost.

        Raises `ValueError` for an unknown field, `TypeError` for a generator, a class, a function of the other backend.
        """
        check_kind(kind)
        wait_of(wait_time, "wait_time")
        renewed_lease_of(self._session.lease_ms, lease_time, at_most)

        def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            check_function(function, asynchronous=True, decorator="locked()")
            template = Template(name, function)

            @functools.wraps(function)
            async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
                lock = self._lock(*LOCKS[kind], template.name(args, kwargs))
                async with lock.hold(wait_time, lease_time, at_most=at_most):
                    return await function(*args, **kwargs)

            return locked

        return decorate

    def singleton(
        self, name: Name, wait_time: Duration | None = 0, at_least: Duration = 0, at_most: Duration | None = None
    ) -> Singleton:
        """Work of which one instance runs at a time across all machines: a decorator, and a context manager.

        `wait_time`: how long the others wait for their turn, and then run, too (None: without end; 0: they leave).
        After that a decorated function returns None, and a block raises `LockTimeoutError`. A block gets the lock.

        `at_least`: the name stays locked for so long after it was acquired, however short the work was, and also if
        the process is killed. So machines whose clocks differ by less than that don't run the same job twice.

        `at_most`: a run that lasts for longer loses the lock, so one that hangs doesn't keep the others out for ever.

        Raises `ValueError` or `TypeError` for a name or a time that can't be used.
        """
        return Singleton(self._lock_of_runs(Lock, name, at_least, at_most), wait_of(wait_time, "wait_time"))

    def elect(
        self,
        name: Name,
        *,
        on_elected: Callable[[Term], object] | None = None,
        on_deposed: Callable[[Term], object] | None = None,
        at_most: Duration | None = None,
    ) -> Election:
        """A new candidate for the leadership of a name. Of all candidates, in all processes, one leads at a time.

        `on_elected(term)` and `on_deposed(term)` are called one after the other, at the beginning and at the end of
        each term; their exceptions are logged. Sends nothing. A leader is the holder of the fenced lock of that name.

        `at_most` (seconds or a timedelta): no term lasts for longer, also if the leader hangs.
        """
        lock = self._lock(FencedLock, FencedLockLogic, name, owner=new_owner())
        return Election(limited(lock, at_most), on_elected, on_deposed)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.close()


LOCKS: dict[str, tuple[type[Lock], MakeLogic]] = {
    "lock": (Lock, LockLogic),
    "fair": (FairLock, FairLockLogic),
    "fenced": (FencedLock, FencedLockLogic),
    "spin": (SpinLock, functools.partial(SpinLockLogic, backoff=DEFAULT_BACKOFF)),
    "read": (ReadLock, ReadLogic),
    "write": (WriteLock, WriteLogic),
    "non-reentrant lock": (NonReentrantLock, NonReentrantLockLogic),
    "non-reentrant fair": (NonReentrantFairLock, NonReentrantFairLockLogic),
}
"""The kinds that `locked` takes, and the other ones in tokens."""
