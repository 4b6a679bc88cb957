"""The two backends, threads and asyncio, behind one interface; waits with limits; and what the server has.

One `async def` test covers both. A `RawBackend` has the client itself, with nothing between it and the test, as tests
of faults use it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from enum import Enum
from typing import Any, Generic, Self, TypeVar, cast

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson.logic.waiting import WAITING, Waiter

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
Errors = type[BaseException] | tuple[type[BaseException], ...]
TIME_LIMIT = 10.0
"""Seconds after which a test fails that waits for something which should happen at once."""
WORK_LIMIT = 50.0
"""The same for work of many owners, which goes on all the time. The limit of a whole test is 60 s."""
WOKEN = 3.0
"""Seconds within which a message or the end of a short time wakes a waiter, on a busy machine. Without that it would
look again when the watchdog's lease of 30 s has ended."""
NOWHERE = "redis://127.0.0.1:1"
"""An address at which no server listens: a command that is sent there fails with a connection error."""


def eventually(condition: Callable[[], object], seconds: float = TIME_LIMIT) -> None:
    """Returns once the condition holds; fails the test after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {inspect.getsource(condition).strip()}"
        time.sleep(0.005)


@contextmanager
def within(seconds: float, note: str = "out of bounds", *, least: float = 0.0) -> Iterator[None]:
    """The body takes less time than `seconds`, and at least `least`."""
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    assert least <= took < seconds, f"it took {took:.2f} s: {note}"


def our_threads(name: str = "pyredisson-") -> int:
    """How many threads of the library there are, or of those whose names begin like this."""
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


async def cancel_after(turns: int, task: asyncio.Task[object]) -> bool:
    """Cancels the task after so many iterations of the event loop; returns whether that ended it."""
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    return isinstance(outcome, asyncio.CancelledError)


def asleep(client: Any, name: str, kind: str = "lock") -> int:
    """How many calls of a client sleep until a lock of this kind is released, and will hear of it."""
    if "fair" in kind:
        return fair_waiters(client, name)
    return waiters(client, name, kind if kind in ("read", "write") else None)


def waiters(client: Any, name: str, side: str | None = None) -> int:
    """How many calls of a client sleep until a lock is released, and will hear of it. `side`: of a read-write lock."""
    session = getattr(client, "_target", client)._session
    return _asleep_in(session, session.lock_queues, name.encode() if side is None else (name.encode(), side.encode()))


def fair_waiters(client: Any, name: str) -> int:
    """How many calls of a client sleep in the queue of a fair lock, and will hear that their turn has come."""
    session = getattr(client, "_target", client)._session
    with session.channels.mutex:
        queue = session.fair_queues.get(name.encode())
        tickets = [] if queue is None else list(queue.tickets)
        return sum(_sleeps(ticket.waiter) and ticket.channel.confirmed for ticket in tickets if ticket.waiter)


def permit_waiters(client: Any, name: str) -> int:
    """How many calls of a client sleep until permits are released, and will hear of them."""
    session = getattr(client, "_target", client)._session
    return _asleep_in(session, session.permits.queues, name.encode())


def _asleep_in(session: Any, queues: dict[Any, Any], key: object) -> int:
    # With the mutex: whoever confirms the subscription also wakes a waiter.
    with session.channels.mutex:
        queue = queues.get(key)
        if queue is None or queue.channel is None or not queue.channel.confirmed:
            return 0
        # Behind an explicit owner, which may be one of Redisson, it listens to Redisson's channel, too.
        relay = getattr(queue.channel, "relay", None)
        if relay is not None and not relay.confirmed:
            return 0
        return sum(map(_sleeps, queue.waiters))


def _sleeps(waiter: Waiter) -> bool:
    """Not if it was woken, and is about to make an attempt."""
    return waiter.state is WAITING and not waiter.wakeup.is_set()


class ServerState:
    def __init__(self, redis: Any) -> None:
        self.redis = redis

    def holds(self, key: str | bytes) -> dict[str, str]:
        """The owners and the number of their holds, as stored in the lock's hash."""
        return {owner.decode(): count.decode() for owner, count in self.redis.hgetall(key).items()}

    def scripts(self) -> int:
        return scripts_run(self.redis)

    def commands(self) -> int:
        """How many commands have run since the server started, without INFO."""
        stats = self.redis.info("commandstats")
        return sum(int(entry["calls"]) for name, entry in stats.items() if name != "cmdstat_info")


def scripts_run(admin: Redis) -> int:
    stats: dict[str, Any] = admin.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def listeners(admin: Redis, name: str) -> int:
    """How many connections are subscribed to the channels on which clients that wait for that lock are woken."""
    channels = admin.pubsub_channels(f"pyredisson_wake:{{{name}}}:*")
    return sum(count for _, count in admin.pubsub_numsub(*channels)) if channels else 0


class Backend(ABC):
    """Makes clients, other owners and time. Its name is "threads" or "asyncio"."""

    name: str

    def __init__(self, url: str) -> None:
        self.url = url
        self._clients: list[pyredisson.asyncio.Client] = []

    def connect(self, address: object = None, **fields: Any) -> pyredisson.asyncio.Client:
        """A client of the test's server, or of `address`; closed after the test."""
        client = self._connect(self.url if address is None else address, **fields)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def until(self, condition: Callable[[], object], timeout: float = TIME_LIMIT) -> None:
        """Waits until the condition holds, by polling: for a change on the server that no message announces."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout:g} s: {inspect.getsource(condition).strip()}"
            await self.sleep(0.002)

    @abstractmethod
    def _connect(self, address: object, **fields: Any) -> pyredisson.asyncio.Client: ...

    @abstractmethod
    def spawn(self, work: Callable[[], Awaitable[T]]) -> OtherOwner[T]:
        """Starts `work` as another owner, beside the caller."""

    async def begin(self, work: Callable[[], Awaitable[T]], condition: Callable[[], object]) -> OtherOwner[T]:
        """Starts `work` as another owner, and returns when the condition holds."""
        other = self.spawn(work)
        await self.until(condition)
        return other

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    def flag(self) -> Flag:
        return Flag(self)

    async def as_another_owner(self, work: Callable[[], Awaitable[T]]) -> T:
        return await self.spawn(work).result()


async def finished(others: Iterable[OtherOwner[T]], seconds: float = TIME_LIMIT) -> list[T]:
    """Waits for the end of all this work. The results."""
    return [await other.result(seconds) for other in others]


async def in_turn(calls: Iterable[Callable[[], Awaitable[object]]]) -> None:
    """Makes these calls one after the other."""
    for call in calls:
        await call()


async def hold_all(client: pyredisson.asyncio.Client, *names: str) -> list[Any]:
    """Locks of these names, which the client has acquired."""
    locks = [client.get_lock(name) for name in names]
    await in_turn(lock.lock for lock in locks)
    return locks


async def fails(
    error: type[E] | tuple[type[E], ...], call: Callable[..., Any], *args: Any, match: str | None = None, **kwargs: Any
) -> E:
    """The error that this call raises, which is of this type, and has a text that matches."""
    __tracebackhide__ = True
    with pytest.raises(error, match=match) as caught:
        await call(*args, **kwargs)
    return caught.value


def raises(error: Errors, call: Callable[..., Any], *args: Any, match: str | None = None, **kwargs: Any) -> None:
    """The same of a call that isn't awaited."""
    __tracebackhide__ = True
    with pytest.raises(error, match=match):
        call(*args, **kwargs)


class Flag:
    """An event of this backend; any thread may set it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    async def wait(self) -> None:
        await self._backend.until(lambda: self._is_set)


class Threads(Backend):
    """Every call runs and blocks on the caller's thread; no coroutine here ever suspends."""

    name = "threads"

    def _connect(self, address: object, **fields: Any) -> pyredisson.asyncio.Client:
        return cast(pyredisson.asyncio.Client, _Awaited(pyredisson.connect(address, **fields)))

    def spawn(self, work: Callable[[], Awaitable[T]]) -> OtherOwner[T]:
        return _Thread(work)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Asyncio(Backend):
    name = "asyncio"

    def _connect(self, address: object, **fields: Any) -> pyredisson.asyncio.Client:
        return pyredisson.asyncio.connect(address, **fields)

    def spawn(self, work: Callable[[], Awaitable[T]]) -> OtherOwner[T]:
        return _Task(work)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Awaited:
    """An object of the threads API whose methods can be awaited."""

    _at_once = (
        *("elect", "hold", "holds", "is_set", "on_lost", "permit", "read_lock"),
        *("remove_on_lost", "singleton", "start", "write_lock"),
    )
    """Methods that are not awaited on either backend, beside the factories of a client."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return self._wrapped(value)

        def at_once(*args: Any, **kwargs: Any) -> Any:
            args = tuple(arg._target if isinstance(arg, _Awaited) else arg for arg in args)
            return self._wrapped(value(*args, **kwargs))

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return at_once(*args, **kwargs)

        # `locked()` of a lock is awaited, and `locked(name)` of a client makes a decorator.
        factory = isinstance(self._target, pyredisson.Client) and (name.startswith("get_") or name == "locked")
        return at_once if factory or name in self._at_once else awaited

    async def __aenter__(self) -> Any:
        return self._wrapped(self._target.__enter__())

    async def __aexit__(self, *raised: object) -> Any:
        return self._target.__exit__(*raised)

    def __repr__(self) -> str:
        return repr(self._target)

    def _wrapped(self, value: Any) -> Any:
        if value is self._target:
            return self
        # Every object of the library is wrapped, except its errors and what only has fields.
        plain = isinstance(value, Exception | Enum) or dataclasses.is_dataclass(value)
        ours = type(value).__module__.startswith("pyredisson.") and not plain
        return _Awaited(value) if ours else value


class _Thread(Generic[T]):
    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, args=(_operation(work),), daemon=True).start()

    def _run(self, operation: Coroutine[Any, Any, T]) -> None:
        try:
            self._future.set_result(_finished(operation))
        except BaseException as error:  # noqa: BLE001 (raised again by `result`)
            self._future.set_exception(error)

    async def result(self, seconds: float = TIME_LIMIT) -> T:
        return self._future.result(seconds)

    def done(self) -> bool:
        return self._future.done()

    async def end(self) -> None:
        self._future.exception(TIME_LIMIT)


class _Task(Generic[T]):
    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._task = asyncio.get_running_loop().create_task(_operation(work))

    async def result(self, seconds: float = TIME_LIMIT) -> T:
        return await asyncio.wait_for(asyncio.shield(self._task), seconds)

    def done(self) -> bool:
        return self._task.done()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task], timeout=TIME_LIMIT)


OtherOwner = _Thread[T] | _Task[T]
"""Work that another owner does: on a thread or in a task of its own. `result` waits for the end of the work, so long at
most. `end` does, too, and ends it in asyncio; its result doesn't matter."""


async def _operation(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


def _finished(operation: Coroutine[Any, Any, T]) -> T:
    try:
        operation.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("an operation suspended on the threads backend")


class RawBackend:
    """Threads or asyncio. A test passes the result of each call to `do`, which awaits it where that is needed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.threads = name == "threads"
        self._backend = (Threads if self.threads else Asyncio)("")
        self.until = self._backend.until
        self.sleep = self._backend.sleep
        self._clients: list[Any] = []
        self._calls: list[OtherOwner[Any]] = []

    def connect(self, address: object, **fields: Any) -> Any:
        connect: Callable[..., Any] = pyredisson.connect if self.threads else pyredisson.asyncio.connect
        client = connect(address, **fields)
        self._clients.append(client)
        return client

    async def connected(self, address: object, **fields: Any) -> Any:
        """A client that has its connection: it has asked for something."""
        client = self.connect(address, **fields)
        await self.do(client.get_lock("other").is_locked())
        return client

    async def locked(self, address: object, lease: float = 30.0, **fields: Any) -> tuple[Any, Any]:
        """A client, and its lock, held by an owner that is no thread or task and renewed from this lease on."""
        client = self.connect(address, lock_watchdog_timeout=lease, **fields)
        lock = client.get_lock("a", owner=1)
        await self.do(lock.lock())
        return client, lock

    async def do(self, result: Any) -> Any:
        """The result of a call of the client, which is awaited if it is a coroutine."""
        return await result if inspect.isawaitable(result) else result

    async def fails(
        self, error: Errors, call: Callable[..., Any], *args: Any, match: str | None = None, **options: Any
    ) -> BaseException:
        """The error that a call of the client raises, which is of this kind."""
        __tracebackhide__ = True
        return await fails(error, lambda: self.do(call(*args, **options)), match=match)

    async def run_blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs a blocking function that isn't the client's, so that it doesn't block the event loop."""
        return function(*args) if self.threads else await asyncio.to_thread(function, *args)

    def start(self, call: Callable[..., Any], *args: Any) -> OtherOwner[Any]:
        """Makes a call beside the test, as another owner: on a thread or in a task."""
        self._calls.append(self._backend.spawn(lambda: self.do(call(*args))))
        return self._calls[-1]

    async def started(self, until: Callable[[], object], call: Callable[..., Any], *args: Any) -> OtherOwner[Any]:
        """Makes a call beside the test, and waits until it has come that far."""
        begun = self.start(call, *args)
        await self.until(until)
        return begun

    async def waits(self, call: OtherOwner[Any], seconds: float) -> None:
        """The call lasts for longer than so many seconds."""
        await self.sleep(seconds)
        assert not call.done()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await self.do(client.close())
        for call in self._calls:
            await call.end()
