"""Schedules with a count-down latch: its users and its judge."""

from __future__ import annotations

from collections.abc import Sequence

from pyredisson.logic.permits.count_down_latch import LONGEST_WAIT, CountDownLatchLogic

from .client import Client
from .judge import Judge, Neglect
from .network import Network
from .user import FAILED, User


class LatchUser(User):
    """Counts down once or twice, and waits for the others to have done so."""

    _judge: LatchJudge

    def __init__(self, client: Client, judge: LatchJudge, objects: Sequence[CountDownLatchLogic], name: str) -> None:
        super().__init__(client, judge, name)
        self.latches = objects
        self.counts = self.random.randint(1, 2)
        """How often it is going to count down each latch."""
        self.waits_for: bytes | None = None

    async def live(self) -> None:
        await self.arrive()
        for _ in range(self.counts):
            for latch in self.latches:
                if self.random.random() < 0.3:
                    await self._wait(latch, patient=False)
                await self._count_down(latch)
            await self.nap()
        for latch in self.latches:
            # The counts of dead users remain.
            await self._wait(latch, patient=not self.fault_plan.deaths)

    async def _count_down(self, latch: CountDownLatchLogic) -> None:
        self.begin("count down %r", latch.key)
        # Whatever becomes of the call, it is done.
        self._judge.counted(latch.key)
        if await self.attempt(latch.count_down(), "counting down") is not FAILED:
            self.ended("counted down")

    async def _wait(self, latch: CountDownLatchLogic, *, patient: bool) -> None:
        wait = self.wait_time(endless=patient)
        began = self.simulation.now
        deadline = None if wait is None else began + wait
        self.begin("wait for %r, %s", latch.key, wait)
        self.waits_for = latch.key
        opened = await self.attempt(latch.wait(deadline), "waiting")
        if opened is not FAILED:
            self._judge.answered(self, latch.key, deadline, began, opened=opened)
            self.ended(f"wait: {opened}")

    def ended(self, outcome: str) -> None:
        self.waits_for = None
        super().ended(outcome)


class LatchJudge(Judge):
    """Each count-down counts once; the latch opens at zero, and then no user waits."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self._waiters: list[LatchUser] = []
        self._due: dict[bytes, int] = {}
        """How much must still be counted down, by those who have begun to."""
        self._seen: dict[bytes, int] = {}
        self._neglect = Neglect(self, LONGEST_WAIT)
        self._spare = self.simulation.random.randint(0, 1)

    def add(self, user: User) -> None:
        super().add(user)
        assert isinstance(user, LatchUser)
        self._waiters.append(user)
        for latch in user.latches:
            count = max(1, sum(user.counts for user in self._waiters) - self._spare)
            self._due[latch.key] = self._seen[latch.key] = count
            self.keyspace.values[latch.key] = b"%d" % count

    def counted(self, key: bytes) -> None:
        """A user begins to count down."""
        self._due[key] -= 1

    def answered(self, user: LatchUser, key: bytes, deadline: float | None, began: float, *, opened: bool) -> None:
        """A wait ended because the latch opened."""
        self.acquired += opened
        self.waits += self.simulation.now - began > 3 * self.fault_plan.slowest
        if not opened:
            self.gave_up(user.name, deadline)
        elif self._count(key):
            self.blame(f"{user.name}: went on while {key!r} was at {self._count(key)}")

    def look(self) -> None:
        for key, due in self._due.items():
            count = self._count(key)
            if count > self._seen[key] or count < due:
                self.blame(f"{key!r} went from {self._seen[key]} to {count}, and must be {due} at least")
            self._seen[key] = count
        opened = {key for key, count in self._seen.items() if not count}
        waiting = [user for user in self._waiters if user.waits_for in opened and user.client.alive]
        self._neglect.look(dict.fromkeys(waiting, False))

    def closing(self) -> None:
        super().closing()
        if all(client.alive for client in self.clients):
            for key, due in self._due.items():
                if self._count(key) != max(0, due):
                    self.blame(f"{key!r} is at {self._count(key)} and must be at {due}")
        self.nothing_but(self._due)

    def _count(self, key: bytes) -> int:
        return int(self.keyspace.of(bytes, key) or 0)
