"""Inspecting the servers of a client: keys of others, announcements, owners that wait. Observers that keep events."""

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

from pyredisson.events import METHODS, Event
from pyredisson.inspection.deadlocks import Deadlock, DeadlockSearch
from pyredisson.inspection.discovery import Discovery
from pyredisson.inspection.model import State
from pyredisson.inspection.states import Inspector
from pyredisson.logic.session import Session

from .backends import Backend

FOREIGN: Mapping[str, tuple[object, ...]] = {
    "cart": ("HSET", "cart", "item:12", 3, "item:13", 1),
    "car": ("HSET", "car", "mode", "sport"),
    "session": ("HSET", "session", str(uuid.UUID(int=7)), "x"),
    "limits": ("HSET", "limits", "rate", 5, "interval", 1000, "type", 0),
    "hits": ("SET", "hits", 17),
    "page": ("SET", "page", "<html>"),
    "jobs": ("RPUSH", "jobs", "1"),
    "{jobs}:timeout": ("ZADD", "{jobs}:timeout", 1, "a job"),
    "ranks": ("ZADD", "ranks", 1, "me"),
    "tags": ("SADD", "tags", "a"),
}
"""Keys of other programs, some of which resemble ours, with the commands that make them."""


def add_foreign_keys(redis: Any) -> None:
    for command in FOREIGN.values():
        redis.execute_command(*command)


def session_of(client: Any) -> Session:
    """The inside of a client of either backend."""
    return cast(Session, getattr(client, "_target", client)._session)


def inspector(client: Any) -> Inspector:
    return Inspector(session_of(client))


def discovery_of(client: Any, pattern: str = "*", rate: float = 0.0) -> Discovery:
    return Discovery(session_of(client), pattern, rate)


async def state_of(client: Any, name: str) -> State:
    [state], failed = await inspector(client).states([name.encode()])
    assert not failed
    return state


async def walk(discovery: Discovery) -> Discovery:
    while await discovery.step():
        pass
    return discovery


async def walked(client: Any) -> Discovery:
    return await walk(discovery_of(client))


async def listed(client: Any, pattern: str = "*") -> dict[str, State]:
    """The objects that a walk finds, by their names."""
    discovery = await walk(discovery_of(client, pattern))
    assert not discovery.failed
    known, failed = await inspector(client).found(discovery.found, clients=[*discovery.clients])
    assert not failed
    assert len({state.key for state in known}) == len(known)
    return {state.name: state for state in known}


def announce(redis: Any, client_id: str, holds: Mapping[str, str] = {}, **fields: object) -> None:
    """Announces a client. `holds`: for each owner and key, with a space between them, the kind."""
    values: dict[str, object] = {"n": 1, "name": "billing@web-3:812", "host": "web-3", "pid": 812, "program": "billing"}
    values |= {"version": "0.2.0", "since": 1_795_167_377_228, "lease": 30_000}
    values |= {"waits": 12, "waited": 8_311, "lost": 1}
    values |= fields | {f"h:{hold}": f"1795167377900 {kind}" for hold, kind in holds.items()}
    key = f"pyredisson_client:{{{client_id}}}"
    redis.hset(key, mapping=values)
    redis.pexpire(key, 30_000)


DEADLOCK = (
    "deadlock: web-1 (pid 7), owner 4294967296, holds orders and waits for stock; "
    "web-2 (pid 9), owner 4294967296, holds stock and waits for orders"
)


def announce_deadlock(redis: Any) -> None:
    """Two owners that wait for each other, as `DEADLOCK` says; and a third one, which waits for one of them."""
    waits = (("web-1", 7, "orders", "stock"), ("web-2", 9, "stock", "orders"), ("web-3", 812, "", "orders"))
    for number, (host, pid, held, wanted) in enumerate(waits, 1):
        client = str(uuid.UUID(int=number))
        waiting = f"{number}000 lock 4294967296 1 {wanted}"
        announce(redis, client, name=f"billing@{host}:{pid}", host=host, pid=pid, waiting=waiting)
        redis.zadd(f"pyredisson_waiting:{{{wanted}}}", {f"{client}:1": number})
        if held:
            redis.hset(held, f"{client}:4294967296", 1)
            redis.pexpire(held, 30_000)


def key_of(client: Any) -> str:
    """Where the client announces itself."""
    return f"pyredisson_client:{{{client.id}}}"


def waiting_field(redis: Any, client: Any) -> list[str]:
    """What the client says of its waits."""
    return (redis.hget(key_of(client), "waiting") or b"").decode().splitlines()


class Scene:
    """Owners that each hold some locks, and then wait for another one."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._holding: list[None] = []  # an item for each: `+=` of several threads would lose some
        self.others: list[Any] = []

    @property
    def held(self) -> int:
        """How many owners hold what they are to hold."""
        return len(self._holding)

    def start(self, holds: list[Any], wanted: Any, when: Callable[[], bool]) -> None:
        """An owner acquires locks, and as soon as that is so, it waits for another one."""

        async def work() -> None:
            async with AsyncExitStack() as stack:
                for lock in holds:
                    await stack.enter_async_context(lock)
                self._holding.append(None)
                await self.backend.until(when)
                await stack.enter_async_context(wanted)

        self.others.append(self.backend.spawn(work))

    async def wait_for_each_other(self, *locks: tuple[list[Any], Any]) -> None:
        """Each owner waits only when all have what they hold."""
        count = self.held + len(locks)
        for holds, wanted in locks:
            self.start(holds, wanted, lambda: self.held == count)
        await self.backend.until(lambda: self.held == count)

    async def finish(self) -> None:
        await self.backend.close()
        for other in self.others:
            await other.end()


async def confirmed(backend: Backend, client: Any, *keys: bytes) -> list[Deadlock]:
    """The deadlocks that two looks find, as soon as there is one."""
    search = DeadlockSearch(inspector(client))
    while not (found := await search.look(keys)):
        await backend.sleep(0.05)
    return found


# --- Observers

ENDS_WAIT = ("acquired", "timed_out", "failed")
OF_LOCKS = tuple(name for name in METHODS if name != "discovered")
"""The events that follow from what a program does."""


class Recorder:
    """Has all methods, or those named."""

    def __init__(self, *methods: str) -> None:
        self.events: list[Event] = []
        for name in methods or OF_LOCKS:
            setattr(self, name, self.events.append)


def told(client: Any) -> list[Event]:
    """All that the observer of this client was told until now, apart from renewals."""
    return [event for event in everything_told(client) if event.what not in ("renewed", "renewal_failed")]


def everything_told(client: Any) -> list[Event]:
    delivered(client)
    recorder: Recorder = getattr(client, "_target", client)._lifecycle.config.observer
    return recorder.events


def delivered(client: Any) -> None:
    """Returns when the observer of this client was told of everything until now."""
    assert getattr(client, "_target", client)._lifecycle.delivery.drain(30), "the events were not delivered"


def whats(events: Sequence[Event]) -> list[str]:
    return [event.what for event in events]


def check_pairs(events: Sequence[Event], where: str = "") -> None:
    """Each wait and each hold that has begun has ended once, and nothing has ended that has not begun."""
    waits = Counter(event.wait_id for event in events if event.what == "waiting")
    ended_waits = Counter(event.wait_id for event in events if event.what in ENDS_WAIT and event.wait_id)
    holds = Counter(event.hold_id for event in events if event.what == "acquired" and event.hold_id)
    ended_holds = Counter(event.hold_id for event in events if event.what in ("released", "lost"))
    assert waits == ended_waits, (where, events)
    assert holds == ended_holds, (where, events)
    assert set(waits.values()) | set(holds.values()) <= {1}
