"""What public objects have in common for threads and asyncio: names, losses, what a client holds, groups of locks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations
from typing import Any, Generic, NoReturn, TypeVar, Unpack

from redis.exceptions import RedisError

from pyredisson._api.arguments import LockOptions, Name, key_of, package_of
from pyredisson._client.lifecycle import ClientLifecycle, Made
from pyredisson._core import ReleaseCall
from pyredisson._diagnostics import logger, readable
from pyredisson._settings.config import Config
from pyredisson._settings.durations import Duration, lease_ms, seconds
from pyredisson.errors import LockNotHeldError, LockTimeoutError
from pyredisson.holder import Hold
from pyredisson.logic import holds
from pyredisson.logic.groups.group import GroupHold, GroupLogic, GroupOwner
from pyredisson.logic.holds import HELD, LOST, RenewedLease
from pyredisson.logic.locks.keeping import KeepingLock
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner
from pyredisson.logic.session import Session
from pyredisson.owners import FIRST_AUTOMATIC_ID, AnyOwner, id_of_owner, new_owner

LostCallback = TypeVar("LostCallback", bound=Callable[..., object])


class Named:
    __slots__ = ()

    _logic: Any
    _name: Name | None
    """None: it can be computed from the key."""

    @property
    def name(self) -> Name:
        """The name as the client's method got it."""
        name: Name = self._logic.key.decode() if self._name is None else self._name
        return name


class Primitive(Named):
    """What is no lock."""

    __slots__ = ("__weakref__", "_logic", "_name")

    def __init__(self, logic: Any, name: Name | None) -> None:
        self._logic = logic
        self._name = name

    def __repr__(self) -> str:
        return f"<{package_of(type(self))}.{type(self).__name__} {readable(self._logic.key)!r}>"


class Holdable:
    """A lock or a group of locks, as one place in a program has it."""

    __slots__ = ("__weakref__", "_blocks", "_callers", "_explicit_owner", "_logic")

    _explicit_owner: Any
    """None: the calling thread or task. A group has one, its first member's, only if all its members have one."""
    _logic: LockLogic | GroupLogic
    _new_blocks: Callable[[], Any]
    _owner: Callable[[], Any]
    _notification: Callable[[Callable[..., object]], Callable[[], object]]
    """What a thread of the client has to call when a hold is lost."""

    def on_lost(self, callback: LostCallback) -> LostCallback:
        """Registers a function: `callback(lock)` is called once for each hold of this lock that is lost.

        The client calls it on a thread of its own. In asyncio a coroutine function runs on the event loop that
        registered it. The function stays registered, for every handle of this name, until `remove_on_lost` or the end
        of the client. Calls of one function are made one after the other. A slow function delays no other one, unless
        16 of them run at the same time. Returns the function, so that this can be a decorator. Raises `TypeError` for
        anything that can't be called.
        """
        if not callable(callback):
            raise TypeError(f"on_lost needs a function, not {type(callback).__name__}")
        with self._logic.session.channels.mutex:
            self._logic.session.lost_callbacks.add(self._logic.identity, callback, self._notification(callback))
        return callback

    def remove_on_lost(self, callback: Callable[..., object]) -> bool:
        """Removes one registration of a function by `on_lost`, the latest, from whichever handle of this name it was.

        Returns whether there was one. A call that has begun, or was due already, is still made.
        """
        with self._logic.session.channels.mutex:
            return self._logic.session.lost_callbacks.remove(self._logic.identity, callback)


class AnyLock(Holdable, Named):
    """A lock of one name."""

    __slots__ = ("_name",)

    _callers: Any
    _explicit_owner: Owner | None
    _logic: LockLogic

    def __init__(self, logic: LockLogic, callers: Any, owner: Owner | None, name: Name | None) -> None:
        self._logic = logic
        self._callers = callers
        self._explicit_owner = owner
        self._name = name
        self._blocks = self._new_blocks()

    def _owner(self) -> Owner:
        return self._explicit_owner or self._callers.current()

    def __repr__(self) -> str:
        """The lock, and what its owner holds. Changes nothing and never raises."""
        package, explicit, state = package_of(type(self)), self._explicit_owner, ""
        # None: the calling thread or task is no owner yet.
        owner = explicit or self._callers.known()
        if owner is not None and (hold := self._logic.hold_of(owner.id)) is not None:
            now = self._logic.session.clock()
            state = f": {LOST.value if hold.state is HELD else hold.state.value}"
            if hold.state is HELD and hold.valid_until > now:
                caller = "this thread" if package == "pyredisson" else "this task"
                caller = f"owner {explicit.id}" if explicit else caller
                state = f": held by {caller} for {max(0.0, now - hold.begun):.1f} s"
        return f"<{package}.{type(self).__name__} {readable(self._logic.key)!r}{state}>"


AnyHoldable = TypeVar("AnyHoldable", bound=Holdable)
L = TypeVar("L", bound=AnyLock)


class AnyHolding(Generic[AnyHoldable]):
    """What `hold()` returns: the lock, the limit on waiting, the lease, and the blocks that were not left yet."""

    __slots__ = ("_blocks", "_lease", "_lock", "_wait")

    def __init__(self, lock: AnyHoldable, wait: float | None, lease: int | None) -> None:
        self._blocks: Any = lock._new_blocks()
        self._lock = lock
        self._wait = wait
        self._lease = lease

    def __repr__(self) -> str:
        wait, lease = self._wait, self._lease
        waits = "waits without end" if wait is None else f"waits {wait:g} s"
        leased = "renewed" if lease is None else f"lease {lease / 1000:g} s"
        if isinstance(lease, RenewedLease) and lease.at_most is not None:
            leased = f"renewed, at most {lease.at_most / 1000:g} s"
        return f"<{package_of(type(self))}.Holding of {self._lock!r}: {waits}, {leased}>"


class AnyLost:
    __slots__ = ("_hold", "_lock")

    def __init__(self, hold: holds.Hold | GroupHold | None, lock: Holdable) -> None:
        self._hold: Any = hold
        self._lock = lock

    def is_set(self) -> bool:
        """Whether a hold was lost: gone on the server, or its lease over by our clock. Sends nothing."""
        return self._hold is not None and self._lock._logic.expire_if_due(self._hold) and self._hold.state is LOST

    def __repr__(self) -> str:
        state = "no hold" if self._hold is None else "lost" if self.is_set() else self._hold.state.value
        return f"<{package_of(type(self))}.Lost of {self._lock!r}: {state}>"


class AnyPermit:
    __slots__ = ("_ids", "_lease", "_renew", "_semaphore", "_wait")

    def __init__(self, semaphore: Primitive, wait: float | None, lease: int | None, renew: bool) -> None:
        self._semaphore = semaphore
        self._wait = wait
        self._lease = lease
        self._renew = renew
        self._ids: list[str] | None = None
        """None: no block has entered. Empty: a block is about to acquire the permit."""

    def __repr__(self) -> str:
        state = self._ids[0] if self._ids else "not acquired"
        return f"<{package_of(type(self))}.Permit of {self._semaphore!r}: {state}>"


class AnySingleton:
    __slots__ = ("_make", "_turns", "_wait")

    def __init__(self, make: Callable[[], Any], wait: float | None) -> None:
        self._make = make
        self._wait = wait
        self._turns: list[Any] = []
        """The blocks that were entered on this object, and not left yet."""

    def _turn_to_leave(self, runner: object) -> Any:
        """The latest block of this thread or task; else the oldest one, as another one may run the exit."""
        turns = list(self._turns)
        return next((turn for turn in reversed(turns) if turn.runner == runner), turns[0])

    def __repr__(self) -> str:
        return f"<{package_of(type(self))}.Singleton {readable(self._make()._logic.key)!r}>"


MakeLogic = Callable[[Session, bytes], LockLogic]


class AnyClient:
    """What a client says of itself, as it knows without asking the server."""

    _connect: Callable[..., Made]
    _new_callers: Callable[[], Any]

    def __init__(self, config: Config) -> None:
        self._config = config
        self._callers = self._new_callers()
        self._lifecycle = ClientLifecycle(config, self._callers.begin, self._connect)
        self._session = self._lifecycle.session

    @property
    def id(self) -> str:
        """A UUID4, the first part of the names of this client's owners on the server. A forked child gets a new one."""
        return self._session.id

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._session.closed

    def holds(self) -> list[Hold]:
        """What this client holds now, the oldest first; also lost holds that were not released yet.

        Sends nothing. Of permits only renewed ones are listed. With 100,000 holds it takes some tenths of a second.
        """
        session = self._session
        now, wall = session.clock(), datetime.now(UTC)
        found = []
        held = list(session.holds.table.values())
        for hold in [*held, *(lost for each in held if (lost := each.lost_below) is not None)]:
            session.holds.expire_if_due(hold)
            is_lost = hold.state is LOST
            # It may be released by another thread meanwhile.
            if not hold.count:
                continue
            found.append(
                Hold(
                    name=readable(hold.commands.key),
                    kind=hold.commands.kind,
                    owner_id=None if hold.acquired_by is None else hold.key[1],
                    since=wall - timedelta(seconds=now - hold.begun),
                    levels=hold.count,
                    token=hold.token or None,
                    valid_for=0.0 if is_lost else max(0.0, hold.valid_until - now),
                    renewed=hold.renewed,
                    lost=is_lost,
                )
            )
        return sorted(found, key=lambda hold: hold.since)

    def __repr__(self) -> str:
        return f"<{package_of(type(self))}.Client {self.id} at {self._session.server}>"

    def _key(self, name: Name) -> bytes:
        return key_of(name, self._config.name_mapper, self._config.topology == "cluster")

    def _kept(self, name: Name) -> Name | None:
        """The name, if it can't be computed from the key; else None, so that a million locks don't store it twice."""
        return name if self._config.name_mapper is not None or isinstance(name, bytes) else None

    def _lock(self, kind: type[L], logic: MakeLogic, name: Name, **options: Unpack[LockOptions]) -> L:
        made = kind(logic(self._session, self._key(name)), self._callers, None, self._kept(name))
        return self._with_options(made, **options)

    def _with_options(self, lock: L, owner: AnyOwner | None = None, watchdog_timeout: Duration | None = None) -> L:
        if watchdog_timeout is not None:
            renewal = RenewedLease(lease_ms(watchdog_timeout, "watchdog_timeout"))
            lock._logic.renewal = renewal
            self._session.expect_lease(renewal)
        if owner is not None:
            owner_id = id_of_owner(owner)
            if type(owner) is int and owner >= FIRST_AUTOMATIC_ID:
                raise ValueError(f"an int for owner must be in 0 .. 2**32 - 1, not {owner}")
            lock._explicit_owner = self._session.owners.explicit(owner_id)
        return lock

    def _lock_of_runs(self, kind: type[L], name: Name, at_least: Duration, at_most: Duration | None) -> Callable[[], L]:
        """Makes the lock for each run of a singleton, with an owner of its own."""
        kept = lease_ms(at_least, "at_least") if seconds(at_least, "at_least") else 0
        logic = partial(KeepingLock, at_least=kept) if kept else LockLogic

        def make() -> L:
            return limited(self._lock(kind, logic, name, owner=new_owner()), at_most)

        # A name that can't be used is an error here, not at the first run.
        make()
        return make


def permit_timeout_error(key: bytes, wait: float | None) -> LockTimeoutError:
    name = readable(key)
    return LockTimeoutError(f"no permit of semaphore {name!r} was acquired in {wait or 0.0:g} s", name=name)


def limited(lock: L, at_most: Duration | None) -> L:
    """The lock, whose acquires have this limit if they name none."""
    if at_most is not None:
        logic = lock._logic
        logic.renewal = RenewedLease(logic.renewed_ms, lease_ms(at_most, "at_most"))
    return lock


def warn_not_released(what: str, error: RedisError) -> None:
    """Logs that the release after work that is done has failed. The client goes on with it in the background.

    An error would say that the work has failed, and have it done again.
    """
    logger.warning("%s is not released yet, though its work is done; the release goes on: %s", what, error)


def tell_failed_release(failure: BaseException, error: BaseException | None) -> None:
    """Tells that the release after a block has failed: raises that, or notes it in the exception of the block's body.

    The body's own exception goes on: the user must see it. That `hand_off` had ended the hold is no failure.
    """
    if isinstance(failure, LockNotHeldError) and failure.handed_off:
        return
    if error is None:
        raise failure
    error.add_note(f"and while releasing it: {type(failure).__name__}: {failure}")


def release_left(logic: LockLogic, owner: Owner) -> None:
    """Releases in the background what an interrupt or a cancellation has left to the owner."""
    hold = logic.hold_of(owner.id)
    if hold is not None:
        logic.release_in_background(owner, hold, ReleaseCall())


# --- Groups of locks


def _refuses(reason: str) -> Callable[..., NoReturn]:
    """A method of a lock that makes no sense for a group."""

    def refuse(_: object, *__: object) -> NoReturn:
        raise NotImplementedError(reason)

    refuse.__doc__ = f"Not for a group: {reason}. Raises `NotImplementedError`."
    return refuse


class Group(Holdable, Generic[L]):
    """Several locks as one: the owner of its calls, and the methods that make no sense for a group."""

    __slots__ = ("_locks",)

    _callers: Any
    _explicit_owner: Owner | GroupOwner | None
    """The first member's; or a `GroupOwner`, in a copy for one owner, whose calls it makes."""
    _kind: Callable[[Sequence[LockLogic]], GroupLogic]
    _logic: GroupLogic
    _member: type[L]
    """What a member must be: a lock of the same package."""

    def __init__(self, locks: Sequence[L]) -> None:
        """`TypeError` for a member that is no lock of the same package; `ValueError` for none, or for one twice."""
        if not locks:
            raise ValueError("a group needs at least one lock")
        for lock in locks:
            if not isinstance(lock, self._member):
                raise TypeError(f"a member must be a lock of {package_of(self._member)}, not {lock!r}")
        if any(_are_same(one._logic, other._logic) for one, other in combinations(locks, 2)):
            raise ValueError("the same lock stands twice in a group: it would wait for itself")
        # In the order in which every program acquires them.
        self._locks = locks = sorted(
            locks, key=lambda lock: (lock._logic.session.server, lock._logic.key, lock._logic.order_in_group)
        )
        self._logic = self._kind([lock._logic for lock in locks])
        # The owner of the group is the calling thread or task as soon as that is so for one member.
        first = next((lock for lock in locks if lock._explicit_owner is None), locks[0])
        self._callers = first._callers
        self._explicit_owner = first._explicit_owner
        self._blocks = self._new_blocks()

    name = property(_refuses("a group of locks has no name: ask its members"))
    is_locked = locked = _refuses("a group may be locked in part: ask its members")
    is_held_by = _refuses("an owner has another id in each member's client: ask the members")
    get_hold_count = _refuses("a group's members may be held by other calls too: ask its members")
    remain_time_to_live = _refuses("each member of a group has a lease of its own: ask its members")
    holder = _refuses("a group's members may be held by different owners: ask its members")
    waiters = _refuses("a group's members are waited for one by one: ask its members")
    hand_off = _refuses("a group of locks can't be handed off: its members may be on several servers")
    force_unlock = delete = _refuses("a group's members may be held by different owners: force each that must go")

    def _owner(self) -> GroupOwner:
        explicit = self._explicit_owner
        return explicit if isinstance(explicit, GroupOwner) else GroupOwner([lock._owner() for lock in self._locks])

    def __repr__(self) -> str:
        return f"<{package_of(type(self))}.{type(self).__name__} of {', '.join(map(repr, self._locks))}>"


def _are_same(one: LockLogic, other: LockLogic) -> bool:
    if one.identity != other.identity:
        return False
    return one.session is other.session or one.session.config.names_same_data(other.session.config)
