"""The client for asyncio, which makes the locks and the other primitives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Unpack

from pyredisson._api.aio.connections import ClientConnections
from pyredisson._api.aio.count_down_latch import CountDownLatch
from pyredisson._api.aio.fair_lock import FairLock, NonReentrantFairLock
from pyredisson._api.aio.fenced_lock import FencedLock
from pyredisson._api.aio.helpers import ClientHelpers
from pyredisson._api.aio.multi_lock import MultiLock, RedLock
from pyredisson._api.aio.non_reentrant_lock import NonReentrantLock
from pyredisson._api.aio.permit_expirable_semaphore import PermitExpirableSemaphore
from pyredisson._api.aio.read_write_lock import ReadLock, ReadWriteLock, WriteLock
from pyredisson._api.aio.rlock import AnyLock, Lock
from pyredisson._api.aio.semaphore import Semaphore
from pyredisson._api.aio.spin_lock import SpinLock
from pyredisson._api.arguments import Name, explicit_owner, key_of, name_to_keep
from pyredisson._api.holds import holds_of
from pyredisson._backends.aio.callers import Callers
from pyredisson._client.lifecycle import ClientLifecycle
from pyredisson._settings.config import Config
from pyredisson._settings.fields import ConfigFields
from pyredisson.backoff import DEFAULT_BACKOFF, Backoff, backoff_of
from pyredisson.holder import Hold
from pyredisson.logic.locks.fair_lock import FairLockLogic, NonReentrantFairLockLogic
from pyredisson.logic.locks.fenced_lock import FencedLockLogic
from pyredisson.logic.locks.non_reentrant_lock import NonReentrantLockLogic
from pyredisson.logic.locks.read_write_lock import ReadLogic, WriteLogic
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.locks.spin_lock import SpinLockLogic
from pyredisson.logic.permits.count_down_latch import CountDownLatchLogic
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic
from pyredisson.logic.permits.semaphore import SemaphoreLogic
from pyredisson.logic.session import Session
from pyredisson.owners import AnyOwner


def connect(address: object = None, **fields: Unpack[ConfigFields]) -> Client:
    """Makes a client for asyncio. It connects to the server at its first call, not here.

    `address` is a URL (`redis://`, `rediss://`, `unix://`; None: `redis://localhost:6379/0`), a `Config`, or a redis-py
    client, whose settings are used. `fields` are fields of `Config`; they take precedence over the address.

    Raises `ConfigError` for a setting that can't be used or is unknown, `TypeError` for an address of another type.
    """
    return Client(Config.of(address, **fields))


class Client(ClientHelpers, ClientConnections):
    """Makes locks, and owns the connections and the watchdog behind them. An async context manager; tasks may share it.

    It belongs to the event loop in which it is used first; once that is closed, to the next one.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._on_cluster = config.topology == "cluster"
        self._callers = Callers()
        self._lifecycle = ClientLifecycle(config, self._callers, self._connect)
        self._session = self._lifecycle.session

    @property
    def id(self) -> str:
        """A UUID4, the first part of the names of this client's owners on the server. A forked child gets a new one."""
        return self._session.id

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._session.closed

    def get_lock(self, name: Name, *, owner: AnyOwner | None = None) -> Lock:
        """The re-entrant lock (`RLock`) of that name. Sends nothing.

        `owner` is used in place of the calling task, for work that runs in several tasks: `pyredisson.new_owner()`,
        a `str` (within one client the same text is the same owner), or an int below 2**32. Raises `ValueError` or
        `TypeError` for a name or an owner that can't be used.
        """
        return self._lock(Lock, LockLogic, name, owner)

    def get_fair_lock(self, name: Name, *, owner: AnyOwner | None = None) -> FairLock:
        """The fair lock of that name. Sends nothing. `owner` and errors as for `get_lock`."""
        return self._lock(FairLock, FairLockLogic, name, owner)

    def get_read_write_lock(self, name: Name, *, owner: AnyOwner | None = None) -> ReadWriteLock:
        """The read-write lock of that name. Sends nothing. `owner` and errors as for `get_lock`."""
        return ReadWriteLock(
            self._lock(ReadLock, ReadLogic, name, owner), self._lock(WriteLock, WriteLogic, name, owner)
        )

    def get_semaphore(self, name: Name, *, must_exist: bool = False) -> Semaphore:
        """The semaphore of that name. Sends nothing.

        `must_exist`: an acquire raises `NotSetError` if the semaphore doesn't exist because nobody has set its permits.
        Without it, an acquire waits until somebody does, which is logged once, as a warning.
        """
        logic = SemaphoreLogic(
            self._session, key_of(name, self._config.name_mapper, self._on_cluster), must_exist=must_exist
        )
        return Semaphore(logic, name_to_keep(name, self._config.name_mapper))

    def get_permit_expirable_semaphore(self, name: Name, *, must_exist: bool = False) -> PermitExpirableSemaphore:
        """The semaphore of that name whose permits have ids and leases. Sends nothing.

        `must_exist` as for `get_semaphore`.
        """
        logic = PermitExpirableSemaphoreLogic(
            self._session, key_of(name, self._config.name_mapper, self._on_cluster), must_exist=must_exist
        )
        return PermitExpirableSemaphore(logic, name_to_keep(name, self._config.name_mapper))

    def get_count_down_latch(self, name: Name, *, must_exist: bool = False) -> CountDownLatch:
        """The count-down latch of that name. Sends nothing.

        `must_exist`: `wait()` raises `NotSetError` if the latch has no count when it begins, as nobody has set it yet,
        or it has come down to zero already. Without it, `wait()` returns at once then, which is logged once, at INFO.
        """
        logic = CountDownLatchLogic(
            self._session, key_of(name, self._config.name_mapper, self._on_cluster), must_exist=must_exist
        )
        return CountDownLatch(logic, name_to_keep(name, self._config.name_mapper))

    def get_fenced_lock(self, name: Name, *, owner: AnyOwner | None = None) -> FencedLock:
        """The lock of that name with fencing tokens. Sends nothing. `owner` and errors as for `get_lock`."""
        return self._lock(FencedLock, FencedLockLogic, name, owner)

    def get_non_reentrant_lock(self, name: Name, *, owner: AnyOwner | None = None) -> NonReentrantLock:
        """The lock of that name that its holder can't acquire again. Sends nothing.

        `owner` and errors as for `get_lock`.
        """
        return self._lock(NonReentrantLock, NonReentrantLockLogic, name, owner)

    def get_non_reentrant_fair_lock(self, name: Name, *, owner: AnyOwner | None = None) -> NonReentrantFairLock:
        """The fair lock of that name that its holder can't acquire again. Sends nothing.

        `owner` and errors as for `get_lock`.
        """
        return self._lock(NonReentrantFairLock, NonReentrantFairLockLogic, name, owner)

    def get_spin_lock(
        self, name: Name, backoff: Backoff = DEFAULT_BACKOFF, *, owner: AnyOwner | None = None
    ) -> SpinLock:
        """The lock of that name whose waiters try again and again. Sends nothing.

        `backoff` is the pause between two tries: an `ExponentialBackoff` or a `ConstantBackoff`. `owner` and errors as
        for `get_lock`.
        """
        return self._lock(SpinLock, functools.partial(SpinLockLogic, backoff=backoff_of(backoff)), name, owner)

    def get_multi_lock(self, *locks: Lock) -> MultiLock:
        """Several locks as one, all or none of them. Sends nothing.

        `locks` may be of any kind, and of other clients. Raises `ValueError` without locks or if one is there twice,
        `TypeError` for anything that is no lock of this package.
        """
        return MultiLock(locks)

    def get_red_lock(self, *locks: Lock) -> RedLock:
        """One lock on several independent masters, each with a client of its own. Sends nothing.

        `locks` and errors as for `get_multi_lock`.
        """
        return RedLock(locks)

    def holds(self) -> list[Hold]:
        """What this client holds now, the oldest first; also lost holds that were not released yet.

        As far as the client knows: it sends nothing. Of permits only renewed ones are listed. With 100,000
        holds it takes some tenths of a second.
        """
        return holds_of(self._session)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<pyredisson.asyncio.Client {self.id} at {self._session.server}>"

    def _lock(
        self, lock: type[AnyLock], logic: Callable[[Session, bytes], LockLogic], name: Name, owner: AnyOwner | None
    ) -> AnyLock:
        made = logic(self._session, key_of(name, self._config.name_mapper, self._on_cluster))
        kept = name_to_keep(name, self._config.name_mapper)
        return lock(made, self._callers, explicit_owner(self._session, owner), kept)
