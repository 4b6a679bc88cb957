"""Schedules with a semaphore: its users and its judge."""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import RedisError

from pyredisson.logic.permits.commands import claim_key
from pyredisson.logic.permits.refusal import LONGEST_WAIT
from pyredisson.logic.permits.semaphore import SemaphoreLogic

from .client import Client
from .judge import Judge, Neglect
from .keys import Keys
from .network import Network
from .simulation import Cancelled
from .user import User

LARGEST = 4
BEAT = 0.05
"""Seconds between the moments at which many users release their permits."""
CLAIMS_IN_A_ROW, OTHERS_TURN = 5.0, 5.0
"""Seconds for which claims hold others back at most, and for which nobody claims after that."""


class SemaphoreUser(User):
    """Acquires permits and releases them."""

    _judge: SemaphoreJudge

    def __init__(self, client: Client, judge: SemaphoreJudge, objects: Sequence[SemaphoreLogic], name: str) -> None:
        super().__init__(client, judge, name)
        self.semaphores = objects
        self.held = {semaphore.key: 0 for semaphore in objects}
        """How many permits it has, by the semaphore's name."""
        self.wants: tuple[bytes, int] | None = None
        """From which semaphore it wants how many."""

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
        permits = self._need()
        # Permits of dead clients never become free.
        wait = self.wait_time(endless=not self.fault_plan.deaths)
        began = self.simulation.now
        deadline = None if wait is None else began + wait
        self.begin("acquire %d of %r, wait %s", permits, semaphore.key, wait)
        self.wants = (semaphore.key, permits)
        try:
            had = await semaphore.acquire(permits, deadline)
        except Cancelled:
            self.retired = self.random.random() < 0.7
            self._ended("acquire was cancelled")
            return
        except RedisError as error:
            self._judge.failed(self.name, error)
            self._ended(f"acquire failed: {error}")
            return
        if had:
            self.held[semaphore.key] += permits
        else:
            self._judge.gave_up(self.name, deadline)
        self._judge.count(had=had, waited=self.simulation.now - began)
        self._ended(f"acquire: {had}")

    def _need(self) -> int:
        return self.random.randint(1, self._judge.size)

    async def _drain(self, semaphore: SemaphoreLogic) -> None:
        self.begin("drain %r", semaphore.key)
        try:
            had = await semaphore.drain()
        except Cancelled:
            self._ended("drain was cancelled")
        except RedisError as error:
            self._judge.failed(self.name, error)
            self._ended(f"drain failed: {error}")
        else:
            self.held[semaphore.key] += had
            self._ended(f"drain: {had}")

    async def _give_back(self, semaphore: SemaphoreLogic) -> None:
        permits = self.random.randint(1, self.held[semaphore.key])
        self.begin("release %d of %r", permits, semaphore.key)
        # Whatever becomes of the call, it is done.
        self.held[semaphore.key] -= permits
        try:
            await semaphore.release(permits)
        except Cancelled:
            self._ended("release was cancelled")
        except RedisError as error:
            self._judge.failed(self.name, error)
            self._ended(f"release failed: {error}")
        else:
            self._ended("released")

    def _ended(self, outcome: str) -> None:
        self.wants = None
        self.end(outcome)
        self._judge.operation_ended()


class CrowdedSemaphoreUser(SemaphoreUser):
    """Mostly wants one permit, as many others do, and releases it at the same moment as others."""

    def _need(self) -> int:
        return 1 if self.random.random() < 0.8 else super()._need()

    async def nap(self) -> None:
        if self.random.random() < 0.1:
            await super().nap()
        await self.session.runtime.sleep(BEAT - self.simulation.now % BEAT)


class SemaphoreJudge(Judge):
    """No permit is created or lost, and no user waits for free permits."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self.size = 1
        self._takers: list[SemaphoreUser] = []
        self._neglect = Neglect(self, LONGEST_WAIT)
        self._claims = Claims(self, self.keyspace)

    def begin(self) -> None:
        self.size = self.simulation.random.randint(1, LARGEST)

    def add(self, user: User) -> None:
        super().add(user)
        assert isinstance(user, SemaphoreUser)
        self._takers.append(user)
        for semaphore in user.semaphores:
            self.keyspace.values.setdefault(semaphore.key, b"%d" % self.size)

    def count(self, *, had: bool, waited: float) -> None:
        """For the report."""
        self.acquired += had
        self.waits += waited > 3 * self.fault_plan.slowest

    def operation_ended(self) -> None:
        """Soon after the last operation all permits must be free, or acquired by a user."""
        self.simulation.at(self.settles_at(), self._settled, self._begun())

    def look(self) -> None:
        free = self._free()
        for key, permits in free.items():
            taken = self._taken(key)
            if permits < 0 or permits + taken > self.size:
                self.blame(f"{key!r} has {permits} of {self.size} permits free, and {taken} are taken")
            self._claims.look(key)
        served: dict[User, bool] = {}
        for user in self._takers:
            if user.wants is not None and user.client.alive:
                key, wanted = user.wants
                if self._claims.may_take(user, key, free[key], wanted):
                    served[user] = self._claims.ended_by_time(key)
        self._neglect.look(served)

    def closing(self) -> None:
        super().closing()
        self._settled(self._begun())
        self.nothing_but(self._takers[0].held)

    def _free(self) -> dict[bytes, int]:
        return {key: int(self.keyspace.of(bytes, key) or 0) for key in self._takers[0].held} if self._takers else {}

    def _taken(self, key: bytes) -> int:
        return sum(user.held[key] for user in self._takers)

    def _begun(self) -> int:
        return sum(user.operations for user in self._takers)

    def _settled(self, begun: int) -> None:
        if begun != self._begun() or any(user.busy for user in self._takers):
            # A later operation is checked later.
            return
        if not all(client.alive for client in self.clients):
            # Permits that dead clients were about to acquire are lost.
            return
        for key, permits in self._free().items():
            if permits + self._taken(key) != self.size:
                self.blame(f"{key!r} has {permits} of {self.size} permits free, and {self._taken(key)} are taken")


class Claims:
    """The claims of those who want several permits: they hold back others, but not for long."""

    def __init__(self, judge: Judge, keyspace: Keys) -> None:
        self._judge = judge
        self._keyspace = keyspace
        self._rows: dict[bytes, tuple[float, float]] = {}
        """When the present period of claims began, and when a claim was seen last."""

    def look(self, key: bytes) -> None:
        """After every event."""
        now = self._judge.simulation.now
        if self._keyspace.value(claim_key(key)) is None:
            return
        began, seen = self._rows.get(key, (now, now))
        if now - seen > OTHERS_TURN / 2:
            began = now
        self._rows[key] = began, now
        if now - began > CLAIMS_IN_A_ROW + self._judge.soon:
            self._judge.blame(f"{key!r}: others were held back for {now - began:.3f} s")

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
