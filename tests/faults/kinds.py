"""The kinds of primitives: how each is made, its scripts, what the server has of it; and troubles of servers."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis, RedisError

from pyredisson.testing import Proxy
from tests.support.backends import RawBackend, eventually
from tests.support.children import Child
from tests.support.faults import sha
from tests.support.kinds import LOCKS

GROUPS: dict[str, Callable[[Any, Any], Any]] = {
    "multi": lambda client, owner: client.get_multi_lock(*[client.get_lock(name, owner=owner) for name in "ab"]),
    "red": lambda client, owner: client.get_red_lock(*[client.get_lock(name, owner=owner) for name in "abc"]),
}
KINDS = [*LOCKS, "semaphore", "permits"]
PERMITS = 5
"""How many a semaphore has. Each owner acquires two of them."""
SCRIPTS = {kind: (f"{kind}_acquire", f"{kind}_release") for kind in ("lock", "fair", "read", "write")} | {
    "fenced": ("fenced_acquire", "lock_release"),
    "semaphore": ("semaphore_acquire", "semaphore_add"),
    "permits": ("permit_acquire", "permit_release"),
}
"""A kind that isn't listed has the scripts of the lock."""

Start = Callable[..., Child]
NoThread = Callable[..., threading.Event]
Log = pytest.LogCaptureFixture
Output = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
"""The fixtures `child`, `no_thread`, `caplog`, `capfd` and `monkeypatch`."""
locks = pytest.mark.parametrize("kind", LOCKS)
kinds = pytest.mark.parametrize("kind", KINDS)


def taken_by_another(admin: Redis, *names: str) -> None:
    """As by a holder that never goes. Without names it is the lock `a`."""
    for name in names or ("a",):
        admin.hset(name, "another:1", 1)


def given_back(admin: Redis, *names: str) -> None:
    for name in names or ("a",):
        admin.delete(name)
        admin.publish(f"redisson_lock__channel:{{{name}}}", "0")


def lock_of(client: Any, kind: str, owner: Any = None) -> Any:
    """A lock, or a group of locks."""
    return LOCKS[kind](client, "a", owner) if kind in LOCKS else GROUPS[kind](client, owner)


def semaphore_of(client: Any, kind: str, _: Any = None) -> Any:
    return client.get_semaphore("a") if kind == "semaphore" else client.get_permit_expirable_semaphore("a")


def prepare(admin: Redis, kind: str) -> None:
    """What has to be there before the first call."""
    if kind in ("semaphore", "permits"):
        admin.set("a", PERMITS)


def taken(admin: Any, kind: str) -> int:
    """How many levels or permits are taken, as the server knows."""
    if kind == "semaphore":
        return PERMITS - int(admin.get("a"))
    if kind == "permits":
        return int(admin.zcard("{a}:timeout"))
    return sum(int(value) for value in admin.hvals("a") if value.isdigit())


@dataclass
class Used:
    """What one owner does with one primitive: the same three calls for each kind."""

    backend: RawBackend
    client: Any
    kind: str
    owner: Any = None
    admin: Any = None

    def __post_init__(self) -> None:
        self.is_lock = self.kind in LOCKS or self.kind in GROUPS
        self.each = 1 if self.is_lock else 2
        """By how much an acquire changes `taken`."""
        scripts = SCRIPTS.get(self.kind, SCRIPTS["lock"])
        self.acquiring, self.releasing = map(sha, scripts)
        self.undoing = sha({"fair": "fair_leave", "semaphore": "semaphore_finish"}.get(self.kind, scripts[1]))
        self.handle = (lock_of if self.is_lock else semaphore_of)(self.client, self.kind, self.owner)
        self._ids: list[Any] = []

    def taken(self) -> int:
        return taken(self.admin, self.kind)

    async def acquire(self) -> None:
        if self.kind == "permits":
            self._ids.append(await self.backend.do(self.handle.acquire_many(2, renew=True)))
        else:
            await self.backend.do(self.handle.lock() if self.is_lock else self.handle.acquire(2))

    async def attempt(self, wait: float = 0, permits: int = 2) -> bool:
        if self.is_lock:
            return bool(await self.backend.do(self.handle.try_lock(wait)))
        ids = self.kind == "permits"
        found = await self.backend.do((self.handle.try_acquire_many if ids else self.handle.try_acquire)(permits, wait))
        if ids and found:
            self._ids.append(found)
        return bool(found)

    async def release(self) -> None:
        if self.is_lock:
            await self.backend.do(self.handle.unlock())
        else:
            await self.backend.do(self.handle.release(2 if self.kind == "semaphore" else self._ids.pop()))

    async def connect(self) -> None:
        """Lets the client open its connection."""
        await self.backend.do(self.client.get_lock("other").is_locked())

    def knows_nothing(self) -> bool:
        """The client has no hold and nobody who waits."""
        session = self.client._session
        queues = [*session.lock_queues.values(), *session.permits.queues.values(), *session.channels.by_name.values()]
        waiting = [queue for queue in queues if queue.waiters]
        waiting += [queue for queue in session.fair_queues.values() if queue.tickets]
        return not (session.holds.table or session.channels.waiting or waiting)


def used(backend: RawBackend, proxy: Proxy, admin: Redis, kind: str, owner: int | None = 1, **fields: Any) -> Used:
    """A primitive of a client behind the proxy, with what has to be there before."""
    prepare(admin, kind)
    return Used(backend, backend.connect(proxy.url, **fields), kind, owner, admin)


async def excluding(backend: RawBackend, client: Any, kind: str, owner: Any = 9) -> Used:
    """Another owner, who has so much of it that nobody else gets any."""
    other = Used(backend, client, "write" if kind == "read" else kind, owner)
    assert await other.attempt(permits=PERMITS)
    return other


async def do_all(backend: RawBackend, *calls: Callable[[], Any]) -> list[Any]:
    """The results of these calls of clients, one after the other."""
    return [await backend.do(call()) for call in calls]


def connections(admin: Redis, client_name: str) -> int:
    return sum(entry["name"] == client_name for entry in admin.client_list())


def away(proxy: Proxy) -> None:
    """The server can't be reached any more."""
    proxy.refuse(True)
    proxy.cut()


Trouble = Callable[[Redis], None]
"""What a server has until it is made `usual` again."""


def unreachable(admin: Redis) -> None:
    """The server becomes a replica of nobody there: it keeps its data and says READONLY."""
    admin.replicaof("127.0.0.1", 1)


def out_of_memory(admin: Redis) -> None:
    admin.config_set("maxmemory", 1)


def busy(admin: Redis) -> None:
    """A script runs until the server is usual again."""

    def run_for_ever() -> None:
        address = {name: admin.get_connection_kwargs()[name] for name in ("host", "port")}
        with Redis(**address, socket_timeout=10) as other, suppress(RedisError):
            other.eval("while true do end", 0)

    # The name that every version knows.
    admin.config_set("lua-time-limit", 10)
    threading.Thread(target=run_for_ever, daemon=True).start()
    eventually(lambda: not answers(admin))


def answers(admin: Redis) -> bool:
    with suppress(RedisError):
        return bool(admin.ping())
    return False


def usual(admin: Redis, trouble: Trouble) -> None:
    if trouble is busy:
        admin.script_kill()
        # It ends at its next step.
        eventually(lambda: answers(admin))
    admin.replicaof("NO", "ONE")
    admin.config_set("maxmemory", 0)
