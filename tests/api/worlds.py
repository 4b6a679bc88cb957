"""Both worlds behind one face, that of the asyncio world, so that one `async def` test covers both."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson.testing import Fault, Proxy

T = TypeVar("T")
PATIENCE = 5.0
"""Seconds after which what should happen at once counts as not happening."""
NOWHERE = "redis://127.0.0.1:1"
"""Nothing answers there: whatever is sent ends in another error."""

Lose = Callable[[Proxy, bytes], Fault]
LOSSES = pytest.mark.parametrize("lose", [Proxy.drop_reply, Proxy.cut_reply, Proxy.cut_request])


class World(ABC):
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

    async def until(self, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Until something is so on the server, which tells nobody of it."""
        deadline = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < deadline, "it never came to that"
            await self.sleep(0.002)

    @abstractmethod
    def _connect(self, address: object, **fields: Any) -> pyredisson.asyncio.Client: ...

    @abstractmethod
    def spawn(self, work: Callable[[], Awaitable[T]]) -> Other[T]:
        """Another owner, who does this work meanwhile."""

    @abstractmethod
    def flag(self) -> Flag: ...

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    async def elsewhere(self, work: Callable[[], Awaitable[T]]) -> T:
        """What another owner gets."""
        return await self.spawn(work).result()


class Other(ABC, Generic[T]):
    """Another owner at work."""

    @abstractmethod
    async def result(self) -> T:
        """What came out, once it is done; raises what it raised."""

    @abstractmethod
    def done(self) -> bool: ...


class Flag(ABC):
    """An event of the world's own; may be set from any thread."""

    @abstractmethod
    def set(self) -> None: ...

    @abstractmethod
    async def wait(self) -> None: ...


class Threads(World):
    """Every call runs on the caller's thread; nothing here ever suspends."""

    name = "threads"

    def _connect(self, address: object, **fields: Any) -> pyredisson.asyncio.Client:
        return cast(pyredisson.asyncio.Client, _Awaited(pyredisson.connect(address, **fields)))

    def spawn(self, work: Callable[[], Awaitable[T]]) -> Other[T]:
        return _Thread(work)

    def flag(self) -> Flag:
        return _ThreadFlag()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Asyncio(World):
    """The asyncio world as it is."""

    name = "asyncio"

    def _connect(self, address: object, **fields: Any) -> pyredisson.asyncio.Client:
        return pyredisson.asyncio.connect(address, **fields)

    def spawn(self, work: Callable[[], Awaitable[T]]) -> Other[T]:
        return _Task(work)

    def flag(self) -> Flag:
        return _TaskFlag()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Behind:
    """What the server knows, read with plain commands."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis

    def holds(self, key: str | bytes) -> dict[str, str]:
        """Owners and their holds, as the hash has them."""
        found = self.redis.hgetall(key)
        return {owner.decode(): count.decode() for owner, count in found.items()}

    def listeners(self, key: str) -> int:
        """How many connections wait for that lock's messages."""
        [(_, count)] = self.redis.pubsub_numsub(f"redisson_lock__channel:{{{key}}}")
        return int(count)

    def scripts(self) -> int:
        """How many scripts have run since the server started."""
        stats = self.redis.info("commandstats")
        names = ("cmdstat_evalsha", "cmdstat_eval")
        return sum(int(stats[name]["calls"]) for name in names if name in stats)

    def commands(self) -> int:
        """How many commands have run, this kind of question aside."""
        stats = self.redis.info("commandstats")
        return sum(int(entry["calls"]) for name, entry in stats.items() if name != "cmdstat_info")


class _Awaited:
    """An object of the thread world, whose methods are awaited."""

    _at_once = frozenset(
        {
            "get_count_down_latch",
            "get_fair_lock",
            "get_fenced_lock",
            "get_lock",
            "get_multi_lock",
            "get_non_reentrant_fair_lock",
            "get_non_reentrant_lock",
            "get_permit_expirable_semaphore",
            "get_read_write_lock",
            "get_red_lock",
            "get_semaphore",
            "get_spin_lock",
            "hold",
            "is_set",
            "on_lost",
            "permit",
            "read_lock",
            "remove_on_lost",
            "write_lock",
        }
    )
    """What isn't awaited in either world."""

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

        return at_once if name in self._at_once else awaited

    async def __aenter__(self) -> Any:
        return self._wrapped(self._target.__enter__())

    async def __aexit__(self, *raised: object) -> Any:
        return self._target.__exit__(*raised)

    def __repr__(self) -> str:
        return repr(self._target)

    def _wrapped(self, value: Any) -> Any:
        if value is self._target:
            return self
        # Every object of the library but its errors.
        ours = type(value).__module__.startswith("pyredisson.") and not isinstance(value, Exception)
        return _Awaited(value) if ours else value


class _Thread(Other[T]):
    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._outcome: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        async def operation() -> T:
            return await self._work()

        try:
            self._outcome.append(_finished(operation()))
        except BaseException as error:  # noqa: BLE001 (given on by `result`)
            self._error = error

    async def result(self) -> T:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "still at work"
        if self._error is not None:
            raise self._error
        return self._outcome[0]

    def done(self) -> bool:
        return not self._thread.is_alive()


class _Task(Other[T]):
    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        async def operation() -> T:
            return await work()

        self._task = asyncio.create_task(operation())

    async def result(self) -> T:
        async with asyncio.timeout(PATIENCE):
            return await self._task

    def done(self) -> bool:
        return self._task.done()


class _ThreadFlag(Flag):
    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        assert self._event.wait(PATIENCE), "it never happened"


class _TaskFlag(Flag):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._event.wait()


def _finished(operation: Coroutine[Any, Any, T]) -> T:
    """Runs what never suspends."""
    try:
        operation.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("an operation suspended in the thread world")
