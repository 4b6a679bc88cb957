"""Owners that wait, for each other or not, and what their clients say of that."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from pyredisson.inspection import deadlocks
from pyredisson.inspection.deadlocks import DeadlockSearch
from tests.support.backends import Backend
from tests.support.inspecting import inspector


def waiting_field(redis: Any, client: Any) -> list[str]:
    """What the client says of its waits."""
    return (redis.hget(f"pyredisson_client:{{{client.id}}}", "waiting") or b"").decode().splitlines()


class Scene:
    """Owners that each hold some locks, and then wait for another one."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.held = 0
        self.others: list[Any] = []

    def start(self, holds: list[Any], wanted: Any, when: Callable[[], bool]) -> None:
        """An owner acquires locks, and as soon as that is so, it waits for another one."""

        async def work() -> None:
            async with AsyncExitStack() as stack:
                for lock in holds:
                    await stack.enter_async_context(lock)
                self.held += 1
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


async def confirmed(backend: Backend, client: Any, *keys: bytes) -> list[deadlocks.Deadlock]:
    """The deadlocks that two looks find, as soon as there is one."""
    search = DeadlockSearch(inspector(client))
    while not (found := await search.look(keys)):
        await backend.sleep(0.05)
    return found
