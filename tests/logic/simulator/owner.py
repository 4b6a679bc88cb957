"""An owner of locks in a schedule."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from pyredisson.errors import LockAlreadyHeldError, LockLostError, LockUpgradeError
from pyredisson.logic.holds import LOST
from pyredisson.logic.locks.rlock import LockLogic

from .client import Client
from .user import FAILED, User

if TYPE_CHECKING:
    from .lock_judge import LockJudge

DEEPEST = 3


class Owner(User):
    """A thread or a task that uses the locks."""

    _judge: LockJudge

    def __init__(self, client: Client, judge: LockJudge, locks: Sequence[LockLogic], name: str) -> None:
        super().__init__(client, judge, name)
        self.holder = client.session.owners.new()
        self.locks = locks
        self.depth = {lock.identity: 0 for lock in locks}
        """How many acquires have returned True and were not released, for each lock."""
        self.wants: tuple[LockLogic, float] | None = None
        """The lock that it waits for, and since when."""
        self._unclean: set[Hashable] = set()
        """The locks for which an undo may be in flight, so that the server's count may differ."""
        self._used = locks[0]
        """The lock of the present operation."""
        self.began = 0.0
        """When its latest release began."""
        self.gone = False
        """Whether it ended without a release of a lock with a fixed lease."""

    async def live(self) -> None:
        await self.arrive()
        for _ in range(self.random.randint(1, 3)):
            if self.fault_plan.forces and self.random.random() < self.fault_plan.forces:
                await self._force()
            await self._round(self.random.choice(self.locks), patient=True)
            if self.gone or self.retired:
                return
            await self.nap()

    async def _round(self, lock: LockLogic, *, patient: bool) -> None:
        if not await self._acquire(lock, patient=patient):
            return
        hold = lock.hold_of(self.holder.id)
        if patient and hold is not None and not hold.renewed and self.random.random() < 0.1:
            self.simulation.log("%s: leaves without giving back %r", self.name, lock.identity)
            self.gone = True
            return
        await self.nap()
        while self.random.random() < 0.3:
            inner = self.random.choice(self.locks)
            if self.depth[inner.identity] < DEEPEST:
                # An owner that holds a lock while it waits for another one could wait without end (a deadlock).
                await self._round(inner, patient=False)
        await self._release(lock)

    async def _acquire(self, lock: LockLogic, *, patient: bool) -> bool:
        random, place = self.random, lock.identity
        lease = None if random.random() < 0.7 else random.choice((50, 1000, 2 * self.session.lease_ms))
        wait = self.wait_time(endless=patient or self.depth[place] > 0)
        began = self.simulation.now
        deadline = None if wait is None else began + wait
        self.wants = (lock, began)
        self.begin("acquire %r, lease %s, wait %s", place, lease, wait)
        if self.depth[place] == 0:
            self._unclean.discard(place)
        self._used = lock
        try:
            taken = await self.attempt(lock.acquire(self.holder, lease, deadline), "acquire")
        except (LockAlreadyHeldError, LockUpgradeError) as error:
            self._judge.refused(self, lock, error)
            self.ended(f"acquire: {error!r}")
            return False
        if taken is FAILED:
            self._unclean.add(place)
            return False
        if taken:
            self.depth[place] += 1
        self._judge.answered(self, lock, deadline, taken=taken)
        self.ended(f"acquire: {taken}")
        if taken:
            self._judge.taken(self, lock, clean=place not in self._unclean)
        return bool(taken)

    async def _release(self, lock: LockLogic) -> None:
        hold = lock.hold_of(self.holder.id)
        self._judge.has_hold(self.name, hold)
        assert hold is not None
        self.begin("release %r", lock.identity)
        self.began = self.simulation.now
        self.depth[lock.identity] -= 1
        self._used = lock
        try:
            done = await self.attempt(lock.release(self.holder, hold), "release")
        except LockLostError as error:
            self._judge.told_lost(self.name, hold, error)
            self.ended(f"release: {error}")
            return
        if done is FAILED:
            self._unclean.add(lock.identity)
        else:
            if hold.state is LOST:
                self._judge.blame(f"{self.name} was not notified that its hold was lost")
            self._judge.released(self, hold)
            self.ended("released")

    async def _force(self) -> None:
        lock = self.random.choice(self.locks)
        try:
            removed = await lock.force_release()
        except RedisError as error:
            self._judge.failed(self.name, error)
        else:
            self.simulation.log("%s: force_release %r: %s", self.name, lock.identity, removed)

    def ended(self, outcome: str) -> None:
        self.wants = None
        super().ended(outcome)
        self._judge.operation_ended(self, self._used.key)
