"""Users of semaphores and of permits in a schedule, and the rules for these."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pyredisson._core import suffixed
from pyredisson.logic.holds import HELD
from pyredisson.logic.permits.commands import IN_USE, claim_key
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic
from pyredisson.logic.permits.permit_wait import BEHIND, FAR, LONGEST_WAIT
from pyredisson.logic.permits.semaphore import SemaphoreLogic

from .judge import FAILED, Acquire, ClaimPeriods, Judge, Neglect, User
from .keys import SortedSet
from .network import Network

LARGEST = 4
BEAT = 0.05
"""Seconds between the moments at which many users release their permits."""
OTHERS_TURN = 5.0
"""Seconds for which nobody claims after others were held back for long."""


class PoolUser(User):
    """Acquires permits of a semaphore of any kind, and releases them."""

    rounds = 4

    async def take(self, key: bytes, permits: int, acquire: Acquire, about: str = "") -> Any:
        """The result of an acquire, which gets a deadline; or `FAILED`."""
        self.wants = (key, permits)
        # Permits of dead clients may never become free.
        return await self.acquire(f"acquire {permits} of {key!r}{about}", acquire, endless=not self.fault_plan.deaths)


class SemaphoreUser(PoolUser):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.held = {semaphore.key: 0 for semaphore in self.objects}
        """How many permits it has, by the semaphore's name."""

    async def use_one(self) -> None:
        semaphore = self.random.choice(self.objects)
        await (self._drain if self.random.random() < 0.1 else self._take)(semaphore)
        await self.nap()
        while self.held[semaphore.key]:
            await self._give_back(semaphore)

    async def _take(self, semaphore: SemaphoreLogic) -> None:
        permits = self._need()
        had = await self.take(semaphore.key, permits, lambda deadline: semaphore.acquire(permits, deadline))
        if had is not FAILED:
            self.held[semaphore.key] += permits if had else 0
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
        self.claim_keys: dict[bytes, bytes] = {}
        """The keys of the claims, by the names of the semaphores."""
        self._neglect = Neglect(self, LONGEST_WAIT + BEHIND * FAR)
        self._claims = ClaimPeriods(self, OTHERS_TURN)

    def begin(self) -> None:
        self.size = self.simulation.random.randint(1, LARGEST)

    def add(self, user: Any) -> None:
        super().add(user)
        for semaphore in user.objects:
            self.claim_keys[semaphore.key] = claim_key(semaphore.key)
            self.keyspace.values.setdefault(semaphore.key, b"%d" % self.size)

    def operation_ended(self, _: Any) -> None:
        """Soon after the last operation no permits may be in use except those that users have."""
        self.simulation.at(self.settles_at(), self._settled, self._begun())

    def closing(self) -> None:
        super().closing()
        self._settled(self._begun())

    def settled(self) -> None:
        """Called when all operations have ended, and all clients are alive."""
        raise NotImplementedError

    def look_at_waiters(self, free: Mapping[bytes, tuple[int, int]]) -> None:
        """`free`: how many permits of each semaphore are free, and how many of those that expire have ended.

        Claims of those who want several permits hold back others, but not for long.
        """
        claims = {key: self.keyspace.of(bytes, claim) for key, claim in self.claim_keys.items()}
        for key, claim in claims.items():
            if claim is not None:
                self._claims.claimed(key)
        served: dict[User, bool] = {}
        for user in self.users if any(map(any, free.values())) else ():
            if user.wants is not None and user.client.alive:
                key, wanted = user.wants
                if self.may_take(user, claims[key], sum(free[key]), wanted):
                    by_time = self.keyspace.freed.get(self.claim_keys[key], (0.0, False))[1]
                    served[user] = by_time or free[key][0] < wanted
        self._neglect.look(served)

    def may_take(self, user: User, claim: bytes | None, free: int, wanted: int) -> bool:
        """Whether there is enough for a waiter, whoever has a claim."""
        if claim is None:
            return free >= wanted
        needed, _, claimant = claim.partition(b" ")
        if claimant.startswith(user.client.session.id.encode() + b":"):
            # Perhaps its own claim, perhaps one of another waiter of its client.
            return False
        return free - wanted >= int(needed)

    def _begun(self) -> int:
        return sum(user.operations for user in self.users)

    def _settled(self, begun: int) -> None:
        # A later operation is checked later. Permits that dead clients were about to acquire are lost.
        over = begun == self._begun() and not any(user.busy for user in self.users)
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
        self.look_at_waiters({key: (permits, 0) for key, permits in free.items()})

    def closing(self) -> None:
        super().closing()
        self.nothing_but(self.claim_keys)

    def settled(self) -> None:
        for key, permits in self._free().items():
            if permits + self._taken(key) != self.size:
                self.blame(f"{key!r} has {permits} of {self.size} permits free, and {self._taken(key)} are taken")

    def _free(self) -> dict[bytes, int]:
        return {key: int(self.keyspace.of(bytes, key) or 0) for key in self.claim_keys}

    def _taken(self, key: bytes) -> int:
        return sum([user.held[key] for user in self.users])


class PermitUser(PoolUser):
    """Acquires permits, and releases them by their ids."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.held: dict[bytes, float] = {}
        """Until when it has each permit at least; inf: until the release."""
        self.renewed_permits: set[bytes] = set()
        self._singly = False

    async def use_one(self) -> None:
        semaphore = self.random.choice(self.objects)
        await self._take(semaphore)
        await self.nap()
        if self.held and self.random.random() < 0.1:
            await self._update(semaphore)
        forgets = all(math.isfinite(ends) for ends in self.held.values()) and not self.renewed_permits
        if forgets and self.random.random() < 0.1:
            # They become free by themselves.
            self.retired = True
            return
        while self.held:
            await self._give_back(semaphore)

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
        for key in self.claim_keys:
            in_use = self._in_use(key)
            count = int(self.keyspace.of(bytes, key) or 0)
            if count < 0 or count + len(in_use) != self.size:
                self.blame(f"{key!r} has {count} of {self.size} permits free, and {len(in_use)} are in use")
            free[key] = (count, sum(ends <= now for ends in in_use.values()))
        everything = {permit for key in free for permit in self._in_use(key)}
        for user in self.users:
            for permit, ends in user.held.items() if user.client.alive else ():
                if permit not in everything and permit not in user.renewed_permits and self.simulation.now < ends:
                    self.blame(f"{user.name}: has {permit.hex()}; the server knows nothing of it")
        for hold in self.holds():
            believed = hold.state is HELD and hold.valid_until > self.simulation.now
            if believed and bytes.fromhex(hold.owner.decode()) not in everything:
                self.blame(f"{hold.owner!r} is believed to be in use; the server knows nothing of it")
        self.look_at_waiters(free)

    def closing(self) -> None:
        super().closing()
        for hold in self.holds():
            self.blame(f"{hold.owner!r} is still renewed")

    def _in_use(self, key: bytes) -> SortedSet:
        return self.keyspace.of(SortedSet, suffixed(key, IN_USE)) or SortedSet()

    def settled(self) -> None:
        now = self.keyspace.now()
        held = {permit for user in self.users for permit in user.held}
        for key in self.claim_keys:
            for permit, ends in self._in_use(key).items():
                if ends > now and permit not in held:
                    self.blame(f"{key!r}: nobody has {permit.hex()}")
