"""The thread world's client: makes locks, and owns what stands behind them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pyredisson._api.arguments import Name, explicit_owner, given_name, key_of
from pyredisson._api.sync.count_down_latch import CountDownLatch
from pyredisson._api.sync.fair_lock import FairLock, NonReentrantFairLock
from pyredisson._api.sync.fenced_lock import FencedLock
from pyredisson._api.sync.multi_lock import MultiLock, RedLock
from pyredisson._api.sync.non_reentrant_lock import NonReentrantLock
from pyredisson._api.sync.permit_expirable_semaphore import PermitExpirableSemaphore
from pyredisson._api.sync.read_write_lock import ReadLock, ReadWriteLock, WriteLock
from pyredisson._api.sync.rlock import AnyLock, Lock
from pyredisson._api.sync.semaphore import Semaphore
from pyredisson._api.sync.spin_lock import SpinLock
from pyredisson._backends.threads.callers import Callers
from pyredisson._backends.threads.listener import ThreadListener
from pyredisson._backends.threads.operations import run
from pyredisson._backends.threads.runtime import ThreadRuntime
from pyredisson._client.lifecycle import ClientLifecycle, Connections, Listening
from pyredisson._protocol.node import Node
from pyredisson._settings.config import Config
from pyredisson.backoff import USUAL, Backoff, backoff_of
from pyredisson.logic.channels import ChannelRegistry
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


def connect(address: object = None, **fields: Any) -> Client:
    """A client for threads. Doesn't talk to the server: the first call does.

    `address` is a URL (`redis://`, `rediss://`, `unix://`; None: `redis://localhost:6379/0`), a `Config` or
    a redis-py client, whose settings are taken. `fields` are fields of `Config`, which win.

    Raises `ConfigError` for what can't be used, `TypeError` for what is no address.
    """
    return Client(Config.of(address, **fields))


class Client:
    """Makes locks; owns the connections and the watchdog behind them. A context manager; threads may share it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._callers = Callers()
        self._lifecycle = ClientLifecycle(config, self._callers, self._connect)
        self._session = self._lifecycle.session

    @property
    def id(self) -> str:
        """A UUID4, new for every client, and again after `fork`: the first part of its owners' names."""
        return self._session.id

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._session.closed

    def get_lock(self, name: Name, *, owner: AnyOwner | None = None) -> Lock:
        """The reentrant lock of that name. Doesn't talk to the server.

        `owner` stands in for the calling thread, for work that uses several threads: `pyredisson.new_owner()`, a
        `str` (in one client, the same text is the same owner), or an int below 2**32. Raises `ValueError` or
        `TypeError` for a name or an owner that can't be.
        """
        return self._lock(Lock, LockLogic, name, owner)

    def get_fair_lock(self, name: Name, *, owner: AnyOwner | None = None) -> FairLock:
        """The fair lock of that name. Doesn't talk to the server. `owner` as for `get_lock`."""
        return self._lock(FairLock, FairLockLogic, name, owner)

    def get_read_write_lock(self, name: Name, *, owner: AnyOwner | None = None) -> ReadWriteLock:
        """The read-write lock of that name. Doesn't talk to the server. `owner` as for `get_lock`."""
        return ReadWriteLock(
            self._lock(ReadLock, ReadLogic, name, owner), self._lock(WriteLock, WriteLogic, name, owner)
        )

    def get_semaphore(self, name: Name, *, must_exist: bool = False) -> Semaphore:
        """The semaphore of that name. Doesn't talk to the server.

        `must_exist`: where it doesn't exist, as nobody has set its permits, acquiring some raises `NotSetError`.
        Else an acquire waits until somebody does, which is logged as a warning once.
        """
        mapper = self._config.name_mapper
        logic = SemaphoreLogic(self._session, key_of(name, mapper), must_exist=must_exist)
        return Semaphore(logic, given_name(name, mapper))

    def get_permit_expirable_semaphore(self, name: Name, *, must_exist: bool = False) -> PermitExpirableSemaphore:
        """The semaphore of that name whose permits have ids and leases. Doesn't talk to the server.

        `must_exist` as for `get_semaphore`.
        """
        mapper = self._config.name_mapper
        logic = PermitExpirableSemaphoreLogic(self._session, key_of(name, mapper), must_exist=must_exist)
        return PermitExpirableSemaphore(logic, given_name(name, mapper))

    def get_count_down_latch(self, name: Name, *, must_exist: bool = False) -> CountDownLatch:
        """The count-down latch of that name. Doesn't talk to the server.

        `must_exist`: `wait()` raises `NotSetError` if nothing is being counted when it begins, as nobody has set the
        latch yet, or it has come to zero already. Else it returns at once, which is logged at INFO once.
        """
        mapper = self._config.name_mapper
        logic = CountDownLatchLogic(self._session, key_of(name, mapper), must_exist=must_exist)
        return CountDownLatch(logic, given_name(name, mapper))

    def get_fenced_lock(self, name: Name, *, owner: AnyOwner | None = None) -> FencedLock:
        """The lock of that name that gives fencing tokens. Doesn't talk to the server. `owner` as for `get_lock`."""
        return self._lock(FencedLock, FencedLockLogic, name, owner)

    def get_non_reentrant_lock(self, name: Name, *, owner: AnyOwner | None = None) -> NonReentrantLock:
        """The lock of that name that its holder can't take again. Doesn't talk to the server.

        `owner` as for `get_lock`.
        """
        return self._lock(NonReentrantLock, NonReentrantLockLogic, name, owner)

    def get_non_reentrant_fair_lock(self, name: Name, *, owner: AnyOwner | None = None) -> NonReentrantFairLock:
        """The fair lock of that name that its holder can't take again. Doesn't talk to the server.

        `owner` as for `get_lock`.
        """
        return self._lock(NonReentrantFairLock, NonReentrantFairLockLogic, name, owner)

    def get_spin_lock(self, name: Name, backoff: Backoff = USUAL, *, owner: AnyOwner | None = None) -> SpinLock:
        """The lock of that name that is waited for by asking again and again. Doesn't talk to the server.

        `backoff` says how long to pause between two tries: an `ExponentialBackoff` (the usual one when none is
        given) or a `ConstantBackoff`. `owner` as for `get_lock`.
        """
        return self._lock(SpinLock, functools.partial(SpinLockLogic, backoff=backoff_of(backoff)), name, owner)

    def get_multi_lock(self, *locks: Lock) -> MultiLock:
        """Several locks as one, all or nothing. Doesn't talk to any server.

        Locks of any kind, also of other clients. Raises `ValueError` or `TypeError` for what makes no group.
        """
        return MultiLock(locks)

    def get_red_lock(self, *locks: Lock) -> RedLock:
        """One lock on several independent masters, each with a client of its own. Doesn't talk to any server.

        Locks as for `get_multi_lock`.
        """
        return RedLock(locks)

    def close(self) -> None:
        """Gives back what is held, in about a second at most; waiting threads get `ClosedError`."""
        # Ctrl-C may strike in each of them.
        try:
            self._lifecycle.end()
        finally:
            try:
                self._listener.close()
            finally:
                try:
                    run(self._runtime.close)
                finally:
                    self._lifecycle.send_final_releases()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<pyredisson.Client {self.id} at {self._lifecycle.node.address}>"

    def _lock(
        self, face: type[AnyLock], logic: Callable[[Session, bytes], LockLogic], name: Name, owner: AnyOwner | None
    ) -> AnyLock:
        mapper = self._config.name_mapper
        made = logic(self._session, key_of(name, mapper))
        return face(made, self._callers, explicit_owner(self._session, owner), given_name(name, mapper))

    def _connect(
        self, node: Node, channels: ChannelRegistry, post: Callable[[bytes], None]
    ) -> tuple[Connections, Listening]:
        self._runtime = ThreadRuntime(node, post, self._config.connection_pool_size)
        self._runtime.callers = self._callers
        self._listener = self._runtime.listener = ThreadListener(node, channels)
        return self._runtime, self._listener
