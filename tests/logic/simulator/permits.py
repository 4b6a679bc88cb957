"""Schedules with a semaphore whose permits have ids and leases: its users and its judge."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyredisson._core import suffixed
from pyredisson.logic.holds import HELD
from pyredisson.logic.permits.permit_commands import IN_USE
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic

from .client import Client
from .keys import SortedSet
from .network import Network
from .semaphores import PoolJudge, PoolUser
from .user import FAILED, User


class PermitUser(PoolUser):
    """Acquires permits, and releases them by their ids."""

    _judge: PermitJudge

    def __init__(
        self, client: Client, judge: PermitJudge, objects: Sequence[PermitExpirableSemaphoreLogic], name: str
    ) -> None:
        super().__init__(client, judge, objects, name)
        self.held: dict[bytes, float] = {}
        """Until when it has each permit at least; inf: until the release."""
        self.renewed_permits: set[bytes] = set()
        """Those that are renewed."""
        self._singly = False

    async def live(self) -> None:
        await self.arrive()
        for _ in range(self.random.randint(1, 4)):
            semaphore = self.random.choice(self.semaphores)
            await self._take(semaphore)
            await self.nap()
            if self.held and self.random.random() < 0.1:
                await self._update(semaphore)
            forgets = all(math.isfinite(ends) for ends in self.held.values()) and not self.renewed_permits
            if forgets and self.random.random() < 0.1:
                # They become free by themselves.
                return
            while self.held:
                await self._give_back(semaphore)
            if self.retired:
                return

    async def _take(self, semaphore: PermitExpirableSemaphoreLogic) -> None:
        random = self.random
        permits = random.randint(1, self._judge.size)
        renewed = random.random() < 0.4
        endless = random.random() < 0.4 and not self.fault_plan.deaths
        lease = None if renewed or endless else random.choice((50, 1000, 2 * self.session.lease_ms))
        began = self.simulation.now
        had = await self.take(
            semaphore.key,
            permits,
            lambda deadline: semaphore.acquire(permits, lease, deadline, renewed=renewed),
            f", lease {lease}, renewed {renewed}",
        )
        if had is FAILED:
            return
        if had:
            ids = [bytes.fromhex(permit) for permit in had]
            self._judge.had(self, ids, permits)
            # Not earlier than the call its lease begins.
            self.held = dict.fromkeys(ids, math.inf if lease is None else began + lease / 1000)
            self.renewed_permits = set(ids) if renewed else set()
            self._singly = False
        self._judge.count(had=bool(had), waited=self.simulation.now - began)
        self.ended(f"acquire: {len(had)}")

    async def _give_back(self, semaphore: PermitExpirableSemaphoreLogic) -> None:
        ids = self.random.sample(list(self.held), 1 if self._singly else self.random.randint(1, len(self.held)))
        mine = {permit: self.held.pop(permit) for permit in ids}
        self.begin("release %d of %r", len(ids), semaphore.key)
        count = await self.attempt(semaphore.release(ids, must=False), "release")
        if count is FAILED:
            return
        if not count:
            if all(self._judge.must_last(ends, kept=permit in self.renewed_permits) for permit, ends in mine.items()):
                self._judge.blame(f"{self.name}: got the error that a permit isn't held, although it has it")
            if len(mine) > 1:
                # None was released. A release of each one shows which of them have ended.
                self.held.update(mine)
                self._singly = True
        elif count != len(ids):
            self._judge.blame(f"{self.name}: gave back {count} of {len(ids)} permits")
        self.ended(f"released: {count}")

    async def _update(self, semaphore: PermitExpirableSemaphoreLogic) -> None:
        permit = self.random.choice(list(self.held))
        lease = self.random.choice((50, 1000, 2 * self.session.lease_ms))
        before, ends = self.held[permit], self.simulation.now + lease / 1000
        kept = permit in self.renewed_permits
        if kept and (self.fault_plan.cancels or not self.fault_plan.calm):
            # In doubt it goes on being renewed, and may all the same have ended before.
            return
        # Which of the two leases it has isn't known until the reply comes.
        self.held[permit] = min(before, ends)
        self.begin("set the lease of one to %d", lease)
        held = await self.attempt(semaphore.update_lease(permit, lease), "setting a lease")
        if held is FAILED:
            return
        self.renewed_permits.discard(permit)
        if held:
            self.held[permit] = ends
        elif self._judge.must_last(min(before, ends), kept=kept):
            self._judge.blame(f"{self.name}: got the error that {permit.hex()} is not held")
        self.ended(f"lease was set: {held}")


class PermitJudge(PoolJudge):
    """No permit is created or lost, each acquired permit is in use, and no user waits for free permits."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self._ever: set[bytes] = set()

    def had(self, user: PermitUser, ids: Sequence[bytes], permits: int) -> None:
        """An acquire gave these."""
        if len(set(ids)) != permits or self._ever.intersection(ids):
            self.blame(f"{user.name}: wanted {permits} permits and got {ids}")
        self._ever.update(ids)

    def must_last(self, ends: float, *, kept: bool) -> bool:
        """Whether a permit can't have ended by itself."""
        return self.simulation.now < ends and not (kept and not self.fault_plan.calm)

    def look(self) -> None:
        now = self.keyspace.now()
        free: dict[bytes, tuple[int, int]] = {}
        for key in self.keys():
            in_use = self._in_use(key)
            count = int(self.keyspace.of(bytes, key) or 0)
            if count < 0 or count + len(in_use) != self.size:
                self.blame(f"{key!r} has {count} of {self.size} permits free, and {len(in_use)} are in use")
            free[key] = (count, sum(ends <= now for ends in in_use.values()))
            self._claims.look(key)
        everything = {permit for key in free for permit in self._in_use(key)}
        for user in self._takers:
            if not user.client.alive:
                continue
            for permit, ends in user.held.items():
                if permit not in everything and permit not in user.renewed_permits and self.simulation.now < ends:
                    self.blame(f"{user.name}: has {permit.hex()}; the server knows nothing of it")
        for client in self.clients:
            for hold in client.session.holds.table.values() if client.alive else ():
                if (
                    hold.state is HELD
                    and hold.valid_until > self.simulation.now
                    and bytes.fromhex(hold.owner.decode()) not in everything
                ):
                    self.blame(f"{client.name}: keeps {hold.owner!r}; the server knows nothing of it")
        served: dict[User, bool] = {}
        for user in self.waiting():
            key, wanted = user.wants
            at_once, by_time = free[key]
            if self._claims.may_take(user, key, at_once + by_time, wanted):
                served[user] = at_once < wanted or self._claims.ended_by_time(key)
        self._neglect.look(served)

    def closing(self) -> None:
        super().closing()
        for client in self.clients:
            if client.alive and client.session.holds.table:
                self.blame(f"{client.name}: a permit is still renewed")

    def _in_use(self, key: bytes) -> SortedSet:
        return self.keyspace.of(SortedSet, suffixed(key, IN_USE)) or SortedSet()

    def settled(self) -> None:
        now = self.keyspace.now()
        held = {permit for user in self._takers for permit in user.held}
        for key in self.keys():
            for permit, ends in self._in_use(key).items():
                if ends > now and permit not in held:
                    self.blame(f"{key!r}: nobody has {permit.hex()}")
