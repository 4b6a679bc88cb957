"""Schedules with a semaphore: its users and its judge."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pyredisson.logic.permits.commands import claim_key
from pyredisson.logic.permits.refusal import LONGEST_WAIT
from pyredisson.logic.permits.semaphore import SemaphoreLogic

from .client import Client
from .judge import ClaimPeriods, Judge, Neglect
from .keys import Keys
from .network import Network
from .user import FAILED, User

LARGEST = 4
BEAT = 0.05
"""Seconds between the moments at which many users release their permits."""
OTHERS_TURN = 5.0
"""Seconds for which nobody claims after others were held back for long."""


class PoolUser(User):
    """Acquires permits of a semaphore of any kind, and releases them."""

    _judge: PoolJudge

    def __init__(self, client: Client, judge: PoolJudge, objects: Sequence[Any], name: str) -> None:
        super().__init__(client, judge, name)
        self.semaphores = objects
        self.wants: tuple[bytes, int] | None = None
        """From which semaphore it wants how many."""

    async def take(
        self, key: bytes, permits: int, acquire: Callable[[float | None], Coroutine[Any, Any, Any]], about: str = ""
    ) -> Any:
        """The result of an acquire, which gets a deadline; or `FAILED`."""
        # Permits of dead clients may never become free.
        wait = self.wait_time(endless=not self.fault_plan.deaths)
        deadline = None if wait is None else self.simulation.now + wait
        self.begin(f"acquire %d of %r{about}, wait %s", permits, key, wait)
        self.wants = (key, permits)
        had = await self.attempt(acquire(deadline), "acquire")
        if not had:
            self._judge.gave_up(self.name, deadline)
        return had

    def ended(self, outcome: str) -> None:
        self.wants = None
        super().ended(outcome)
        self._judge.operation_ended()


class SemaphoreUser(PoolUser):
    """Acquires permits and releases them."""

    _judge: SemaphoreJudge

    def __init__(self, client: Client, judge: SemaphoreJudge, objects: Sequence[SemaphoreLogic], name: str) -> None:
        super().__init__(client, judge, objects, name)
        self.held = {semaphore.key: 0 for semaphore in objects}
        """How many permits it has, by the semaphore's name."""

    async def live(self) -> None:
        await self.arrive()
        for _ in range(self.random.randint(1, 4)):
            semaphore = self.random.choice(self.semaphores)
            if self.random.random() < 0.1:
                await self._drain(semaphore)
            else:
                await self._take(semaphore)
            await self.nap()
            while self.held[semaphore.key]:
                await self._give_back(semaphore)
            if self.retired:
                return

    async def _take(self, semaphore: SemaphoreLogic) -> None:
        permits, began = self._need(), self.simulation.now
        had = await self.take(semaphore.key, permits, lambda deadline: semaphore.acquire(permits, deadline))
        if had is not FAILED:
            self.held[semaphore.key] += permits if had else 0
            self._judge.count(had=had, waited=self.simulation.now - began)
            self.ended(f"acquire: {had}")

    def _need(self) -> int:
        return self.random.randint(1, self._judge.size)

    async def _drain(self, semaphore: SemaphoreLogic) -> None:
        self.begin("drain %r", semaphore.key)
        had = await self.attempt(semaphore.drain(), "drain")
        if had is not FAILED:
            self.held[semaphore.key] += had
            self.ended(f"drain: {had}")

    async def _give_back(self, semaphore: SemaphoreLogic) -> None:
        permits = self.random.randint(1, self.held[semaphore.key])
        self.begin("release %d of %r", permits, semaphore.key)
        # Whatever becomes of the call, it is done.
        self.held[semaphore.key] -= permits
        if await self.attempt(semaphore.release(permits), "release") is not FAILED:
            self.ended("released")


class CrowdedSemaphoreUser(SemaphoreUser):
    """Mostly wants one permit, as many others do, and releases it at the same moment as others."""

    def _need(self) -> int:
        return 1 if self.random.random() < 0.8 else super()._need()

    async def nap(self) -> None:
        if self.random.random() < 0.1:
            await super().nap()
        await self.session.runtime.sleep(BEAT - self.simulation.now % BEAT)


class PoolJudge(Judge):
    """What is true of semaphores of any kind."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self.size = 1
        self._takers: list[Any] = []
        self._neglect = Neglect(self, LONGEST_WAIT)
        self._claims = Claims(self, self.keyspace)

    def begin(self) -> None:
        self.size = self.simulation.random.randint(1, LARGEST)

    def add(self, user: User) -> None:
        super().add(user)
        assert isinstance(user, PoolUser)
        self._takers.append(user)
        for semaphore in user.semaphores:
            self.keyspace.values.setdefault(semaphore.key, b"%d" % self.size)

    def count(self, *, had: bool, waited: float) -> None:
        """For the report."""
        self.acquired += had
        self.waits += waited > 3 * self.fault_plan.slowest

    def operation_ended(self) -> None:
        """Soon after the last operation no permits may be in use except those that users have."""
        self.simulation.at(self.settles_at(), self._settled, self._begun())

    def closing(self) -> None:
        super().closing()
        self._settled(self._begun())

    def settled(self) -> None:
        """Called when all operations have ended, and all clients are alive."""
        raise NotImplementedError

    def keys(self) -> list[bytes]:
        """The names of the semaphores."""
        return [semaphore.key for semaphore in self._takers[0].semaphores] if self._takers else []

    def waiting(self) -> list[Any]:
        """The users that wait for permits."""
        return [user for user in self._takers if user.wants is not None and user.client.alive]

    def _begun(self) -> int:
        return sum(user.operations for user in self._takers)

    def _settled(self, begun: int) -> None:
        # A later operation is checked later. Permits that dead clients were about to acquire are lost.
        over = begun == self._begun() and not any(user.busy for user in self._takers)
        if over and all(client.alive for client in self.clients):
            self.settled()


class SemaphoreJudge(PoolJudge):
    """No permit is created or lost, and no user waits for free permits."""

    def look(self) -> None:
        free = self._free()
        for key, permits in free.items():
            taken = self._taken(key)
            if permits < 0 or permits + taken > self.size:
                self.blame(f"{key!r} has {permits} of {self.size} permits free, and {taken} are taken")
            self._claims.look(key)
        served: dict[User, bool] = {}
        for user in self.waiting():
            key, wanted = user.wants
            if self._claims.may_take(user, key, free[key], wanted):
                served[user] = self._claims.ended_by_time(key)
        self._neglect.look(served)

    def closing(self) -> None:
        super().closing()
        self.nothing_but(self.keys())

    def settled(self) -> None:
        for key, permits in self._free().items():
            if permits + self._taken(key) != self.size:
                self.blame(f"{key!r} has {permits} of {self.size} permits free, and {self._taken(key)} are taken")

    def _free(self) -> dict[bytes, int]:
        return {key: int(self.keyspace.of(bytes, key) or 0) for key in self.keys()}

    def _taken(self, key: bytes) -> int:
        return sum(user.held[key] for user in self._takers)


class Claims:
    """The claims of those who want several permits: they hold back others, but not for long."""

    def __init__(self, judge: Judge, keyspace: Keys) -> None:
        self._keyspace = keyspace
        self._periods = ClaimPeriods(judge, OTHERS_TURN)

    def look(self, key: bytes) -> None:
        """After every event."""
        if self._keyspace.value(claim_key(key)) is not None:
            self._periods.claimed(key)

    def may_take(self, user: User, key: bytes, free: int, wanted: int) -> bool:
        """Whether there is enough for a waiter, whoever has a claim."""
        claim = self._keyspace.of(bytes, claim_key(key))
        if claim is None:
            return free >= wanted
        needed, _, claimant = claim.partition(b" ")
        if claimant.startswith(user.client.session.id.encode() + b":"):
            # Perhaps its own claim, perhaps one of another waiter of its client.
            return False
        return free - wanted >= int(needed)

    def ended_by_time(self, key: bytes) -> bool:
        """Whether the latest claim ended without a message."""
        return self._keyspace.freed.get(claim_key(key), (0.0, False))[1]
