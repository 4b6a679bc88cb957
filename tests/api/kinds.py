"""The kinds of locks and of semaphores: how each is made and has its turns, and how another owner waits for it."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from pyredisson import LockLostError
from pyredisson.asyncio import ReadLock, WriteLock
from tests.lua.read_write import CLAIM, lease_key
from tests.support.backends import Backend, OtherOwner, ServerState, asleep, fails, listeners, permit_waiters, waiters
from tests.support.kinds import KINDS

GROUPS: dict[str, Callable[[Any, str, Any], Any]] = {
    "multi": lambda client, name, owner: client.get_multi_lock(
        client.get_lock(name, owner=owner), client.get_fair_lock(f"{name}:2", owner=owner)
    ),
    "red": lambda client, name, owner: client.get_red_lock(client.get_lock(name, owner=owner)),
}
PARTLY_EXPLICIT: dict[str, Callable[[Any, str, Any], Any]] = {
    "partly explicit": lambda client, name, owner: client.get_multi_lock(
        client.get_lock(name, owner=1), client.get_lock(f"{name}:2", owner=owner)
    )
}
"""A group of which one member has an explicit owner."""
PERMITS = ("semaphore", "permit")
FAIR = ("fair", "non-reentrant fair")
NON_REENTRANT = ("non-reentrant", "non-reentrant fair")
REENTRANT = [kind for kind in KINDS if kind not in NON_REENTRANT]
WAYS: list[Callable[[Any], Awaitable[Any]]] = [
    *(lambda lock: lock.lock(), lambda lock: lock.lock(50)),
    *(lambda lock: lock.try_lock(), lambda lock: lock.try_lock(5, timedelta(seconds=50))),
    *(lambda lock: lock.acquire(), lambda lock: lock.acquire(blocking=False), lambda lock: lock.acquire(timeout=5)),
    *(lambda lock: lock.__aenter__(), lambda lock: lock.hold(wait_time=5).__aenter__()),
]
"""All ways to acquire a lock."""
kinds = pytest.mark.parametrize("kind", KINDS)
all_blocks = pytest.mark.parametrize("kind", [*KINDS, *GROUPS, *PARTLY_EXPLICIT])
CHANNEL = "redisson_lock__channel:{orders}"
LONG = 60.0
"""A hand-over time that doesn't end in a test: then the number of calls doesn't depend on the machine."""
BY_TIME = 3
"""Attempts that waiters make after some time by themselves, as on a machine that stands still for a second."""
JAVA = "b983c153-7421-469a-addb-44fb92259a1b:1"
COUNTER = "redisson_lock_token:{orders}"
"""What remains of a fenced lock that is free."""
QUEUE, SCORES = "redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}"
WAITERS, CLIENTS = "pyredisson_fair_waiters:{orders}", "pyredisson_fair_clients:{orders}"
FAIR_KEYS = ("orders", QUEUE, SCORES, WAITERS, CLIENTS)
"""Of a fair lock."""


def lock_of(client: Any, kind: str, name: str = "orders", owner: Any = None) -> Any:
    return (KINDS | GROUPS | PARTLY_EXPLICIT)[kind](client, name, owner)


def rival_of(kind: str) -> str:
    """The kind of lock whose holders keep those of `kind` out."""
    return "write" if kind == "read" else kind


def left(redis: Any) -> set[str]:
    """The keys on the server, without what may remain of a free lock."""
    return {key.decode() for key in redis.scan_iter()} - {COUNTER}


def sleeping(client: Any, kind: str, name: str = "orders") -> int:
    """How many calls of a client sleep until the lock, or a permit, is released."""
    return permit_waiters(client, name) if kind in PERMITS else asleep(client, name, kind)


async def use(lock: Any, times: int = 1) -> None:
    """Acquires and releases it so many times."""
    for _ in range(times):
        await lock.lock()
        await lock.unlock()


async def assert_lost(lock: Any, match: str | None = None) -> None:
    """Its owner has lost it, and is told so when it releases it."""
    await fails(LockLostError, lock.unlock, match=match)


async def one_waits(
    backend: Backend, client: Any, kind: str = "lock", waiting: Any = None, name: str = "orders"
) -> tuple[Any, Any, OtherOwner[Any]]:
    """Owner 1 holds the lock, owner 2 waits, in the client `waiting` or the same one. Both locks, and its call."""
    waiting = waiting or client
    holder, waiter = lock_of(client, rival_of(kind), name, owner=1), lock_of(waiting, kind, name, owner=2)
    await holder.lock()
    # A spin lock polls: nothing tells that it waits.
    other = await backend.begin(waiter.lock, lambda: kind == "spin" or sleeping(waiting, kind, name) == 1)
    return holder, waiter, other


def handle_of(client: Any, kind: str, owner: Any = None) -> Any:
    """The lock or the semaphore "orders"."""
    if kind == "semaphore":
        return client.get_semaphore("orders")
    return client.get_permit_expirable_semaphore("orders") if kind == "permit" else lock_of(client, kind, owner=owner)


def turn_of(client: Any, kind: str, owner: Any = None) -> Any:
    """A block in which its caller has the lock, or a permit."""
    handle = handle_of(client, kind, owner)
    return handle.permit() if kind == "permit" else handle


async def take(turn: Any, times: int = 1) -> float:
    """Has its turn so many times. Returns when the last one began."""
    for _ in range(times):
        async with turn:
            begun = time.monotonic()
    return begun


async def set_permits(client: Any, kind: str, permits: int) -> None:
    """There is nothing to do for a lock."""
    if kind in PERMITS:
        assert await handle_of(client, kind).try_set_permits(permits)


async def held(client: Any, kind: str = "lock", permits: int = 1) -> AsyncExitStack:
    """The caller has the lock, or all permits, until this is closed."""
    await set_permits(client, kind, permits)
    stack = AsyncExitStack()
    for _ in range(permits):
        await stack.enter_async_context(turn_of(client, kind))
    return stack


def listening(redis: Any, kind: str) -> int:
    """How many clients hear of a release: for permits those that listen to Redisson's channel after their own one."""
    return redis.pubsub_numsub("redisson_sc:{orders}")[0][1] if kind in PERMITS else listeners(redis, "orders")


def whole(redis: Any, kind: str, permits: int = 1) -> bool:
    """Nobody has the lock, or one of so many permits."""
    return int(redis.get("orders")) == permits if kind in PERMITS else left(redis) == set()


# --- The read-write lock `orders`: its sides, its keys, and what a Java client does there


READ_WRITE_CHANNEL = "redisson_rwlock:{orders}"
"""Of Redisson. A client that waits behind one of pyredisson listens to its own channel only."""


class Orders:
    """Without a client named, a method is of `client`, which `connect` replaces."""

    def __init__(self, backend: Backend, state: ServerState) -> None:
        self.backend, self._state = backend, state
        self.redis, self.scripts = state.redis, state.scripts
        self.connect()

    def connect(self, address: object = None, **fields: Any) -> None:
        self.client: Any = self.backend.connect(address, **fields)

    def sides(self, owner: int | None = None) -> tuple[ReadLock, WriteLock]:
        pair = self.client.get_read_write_lock("orders", owner=owner)
        return pair.read_lock(), pair.write_lock()

    def read(self, owner: int | None = None) -> ReadLock:
        return self.sides(owner)[0]

    def write(self, owner: int | None = None) -> WriteLock:
        return self.sides(owner)[1]

    async def waits(self, side: str, *owners: int) -> list[OtherOwner[None]]:
        """Other callers, who sleep until they have that side, each as one of these owners, and will hear of it."""
        others = [self.backend.spawn(getattr(self, side)(owner).lock) for owner in owners]
        await self.backend.until(lambda: waiters(self.client, "orders", side) == len(owners))
        return others

    async def claimed(self) -> None:
        """Returns when a writer that waits holds back readers."""
        await self.backend.until(lambda: bool(self.redis.exists(CLAIM)))

    def holds(self) -> dict[str, str]:
        return self._state.holds("orders")

    def java_reads(self, lease: int) -> None:
        self.redis.hset("orders", mapping={"mode": "read", JAVA: 1})
        self.redis.set(lease_key(JAVA, 1), 1, px=lease)
        self.redis.pexpire("orders", lease)

    def java_writes(self, lease: int) -> None:
        self.redis.hset("orders", mapping={"mode": "write", f"{JAVA}:write": 1})
        self.redis.pexpire("orders", lease)


# --- The semaphore `stock` of either kind, with the same calls: what the server has of it, and what a Java client does


PERMIT_CHANNEL, USED = "redisson_sc:{stock}", "{stock}:timeout"
PERMIT_CLAIM, PERMIT_TURN = "pyredisson_semaphore_claim:{stock}", "pyredisson_semaphore_turn:{stock}"
FOREVER = 922337203685477
ID = "00112233445566778899aabbccddeeff"


class Permits:
    """A handle of a semaphore. What an acquire returns is what a release takes; it is false if there is nothing."""

    def __init__(self, client: Any, kind: str, name: str | bytes = "stock", **options: Any) -> None:
        self.client = client
        self._counts = kind == "semaphore"
        get = client.get_semaphore if self._counts else client.get_permit_expirable_semaphore
        self._own: Any = get(name, **options)

    async def acquire(self, permits: int = 1) -> Any:
        if self._counts:
            await self._own.acquire(permits)
            return permits
        return await self._own.acquire_many(permits)

    async def try_acquire(self, permits: int = 1, wait: Any = 0) -> Any:
        if self._counts:
            return permits if await self._own.try_acquire(permits, wait) else 0
        return await self._own.try_acquire_many(permits, wait)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class Stock:
    """The semaphore `stock` of one kind."""

    def __init__(self, backend: Backend, state: ServerState, kind: str) -> None:
        self.backend, self.kind, self.redis = backend, kind, state.redis
        self.scripts, self.commands = state.scripts, state.commands

    def open(self, address: object = None, **fields: Any) -> Permits:
        """A handle of a new client."""
        return self.of(self.backend.connect(address, **fields))

    def of(self, client: Any, name: str | bytes = "stock", **options: Any) -> Permits:
        return Permits(client, self.kind, name, **options)

    async def made(self, permits: int, address: object = None, **fields: Any) -> Permits:
        """A handle of a new client that has set the number of permits."""
        semaphore = self.open(address, **fields)
        assert await semaphore.try_set_permits(permits)
        return semaphore

    async def waiter(self, semaphore: Permits, permits: int = 1) -> OtherOwner[Any]:
        """Another caller, who sleeps until there are so many permits, and will hear of them."""
        sleepers = permit_waiters(semaphore.client, "stock")
        other = self.backend.spawn(lambda: semaphore.acquire(permits))
        await self.backend.until(lambda: permit_waiters(semaphore.client, "stock") == sleepers + 1)
        return other

    def free(self) -> int:
        """As Redisson reads it."""
        return int(self.redis.get("stock") or 0)

    def used(self) -> set[str]:
        """The ids of the permits in use, as Redisson shows them."""
        return {permit.hex() for permit in self.redis.zrange(USED, 0, -1)}

    def is_heard(self) -> bool:
        """Whether a connection is subscribed."""
        return bool(self.redis.pubsub_numsub(PERMIT_CHANNEL)[0][1] == 1)

    async def claimed(self) -> None:
        await self.backend.until(lambda: bool(self.redis.exists(PERMIT_CLAIM)))

    def java_adds(self, permits: int) -> None:
        """What Redisson does for a release by number, or to add permits."""
        self.redis.publish(PERMIT_CHANNEL, self.redis.incrby("stock", permits))

    def java_acquires(self, permit: str, left: float) -> None:
        """What Redisson does, whose clock runs as ours."""
        assert self.redis.decr("stock") >= 0
        self.redis.zadd(USED, {bytes.fromhex(permit): int((time.time() + left) * 1000)})

    def java_releases(self, *permits: str) -> None:
        """What Redisson does. For one permit it publishes how many are free; for several, how many were released."""
        freed = self.redis.zrem(USED, *map(bytes.fromhex, permits))
        total = self.redis.incrby("stock", freed)
        self.redis.publish(PERMIT_CHANNEL, total if len(permits) == 1 else freed)
