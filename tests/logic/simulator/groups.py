"""Users of locks of several locks and of latches in a schedule, and the rules for these."""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from pyredisson.errors import LockLostError
from pyredisson.logic.groups.group import GroupHold, GroupLogic, GroupOwner
from pyredisson.logic.groups.multi_lock import MultiLockLogic
from pyredisson.logic.groups.red_lock import MEMBER_WAIT, RedLockLogic
from pyredisson.logic.holds import HELD, LOST
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.permits.count_down_latch import LONGEST_WAIT, CountDownLatchLogic

from .judge import AFTERMATH, FAILED, Judge, Neglect, User
from .network import Network

ROUNDS = 10.0
"""Seconds after which one of several competing users has acquired a whole group."""
DEEPEST = 3
"""How many levels of a group one user acquires."""


class GroupUser(User):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        owners = {member.session: member.session.owners.new() for member in self.objects}
        self.groups = self.make_groups()
        self.parties = [GroupOwner([owners[member.session] for member in group.members]) for group in self.groups]
        self.depths = [0] * len(self.groups)

    def make_groups(self) -> Sequence[GroupLogic]:
        raise NotImplementedError

    def hold(self, number: int) -> GroupHold | None:
        return self.groups[number].hold_of(self.parties[number].id)

    async def use_one(self) -> None:
        await self._round(self.random.randrange(len(self.groups)))
        if not self.retired:
            await self.nap()

    async def _round(self, number: int) -> None:
        if await self._acquire(number):
            await self.nap()
            while self.random.random() < 0.3 and self.depths[number] < DEEPEST:
                await self._round(number)
            await self._release(number)

    async def _acquire(self, number: int) -> bool:
        group = self.groups[number]
        lease = None if self.random.random() < 0.7 else self.random.choice((200, 1000, 2 * self.session.lease_ms))
        self.wants = group
        taken = await self.acquire(
            f"acquire {group}, lease {lease}",
            lambda deadline: group.acquire(self.parties[number], lease, deadline),
            endless=True,
        )
        if taken is FAILED:
            return False
        self.depths[number] += taken
        self._judge.answered(self, number, taken=taken)
        self.ended(f"acquire: {taken}")
        return bool(taken)

    async def _release(self, number: int) -> None:
        hold = self.hold(number)
        if hold is None:
            self._judge.blame(f"{self.name}: its hold was forgotten")
            return
        lost = hold.state is LOST
        self.begin("release %s", self.groups[number])
        self.depths[number] -= 1
        try:
            done = await self.attempt(self.groups[number].release(self.parties[number], hold), "release")
        except LockLostError as error:
            if hold.state is not LOST and all(part is None or part.state is not LOST for part in hold.holds):
                self._judge.blame(f"{self.name}: got {error} for a hold that is {hold.state.value}")
            self._judge.lost += 1
            self.ended(f"release: {error}")
            return
        if done is not FAILED:
            # If a member is lost while the others are released, the next release raises it.
            if lost:
                self._judge.blame(f"{self.name} was not notified that its hold was lost")
            self.ended("released")


class MultiLockUser(GroupUser):
    """All locks of all servers are one group; not everybody takes them in the same order."""

    def make_groups(self) -> Sequence[GroupLogic]:
        order = list(self.objects)
        if self.random.random() < 0.3:
            self.random.shuffle(order)
        return [MultiLockLogic(order)]


class RedLockUser(GroupUser):
    """Each name is a group, with a member on every server."""

    def make_groups(self) -> Sequence[GroupLogic]:
        keys = dict.fromkeys(member.key for member in self.objects)
        return [RedLockLogic([member for member in self.objects if member.key == key]) for key in keys]


class GroupJudge(Judge):
    """A group has one holder on enough servers; a user without a hold has no member on any server."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self._networks = networks
        self._neglect = Neglect(self, lease + ROUNDS)

    def settles_at(self) -> float:
        return max(super().settles_at(), *(network.up_at + AFTERMATH for network in self._networks))

    def rests_at(self) -> float:
        return max(super().rests_at(), self.settles_at())

    def answered(self, user: GroupUser, number: int, *, taken: bool) -> None:
        hold = user.hold(number)
        if taken and hold is None:
            self.blame(f"{user.name}: has no hold")
        depth = 0 if hold is None else len(user.groups[number].session.groups.levels(hold.key))
        if depth != user.depths[number]:
            self.blame(f"{user.name}: holds it {user.depths[number]} times and counts {depth}")

    def operation_ended(self, user: GroupUser) -> None:
        """Soon nothing must be left on any server that its client doesn't know of."""
        self.simulation.at(self.settles_at(), self._leaked, user, user.operations)

    def look(self) -> None:
        believers: dict[object, GroupUser] = {}
        for user in self.users:
            for number, group in enumerate(user.groups):
                if user.depths[number] and user.client.alive and self._believes(user, number):
                    # Not the place: that has the members in the order of this user.
                    what = frozenset((member.session.server, member.key) for member in group.members)
                    if what in believers:
                        self.blame(f"{group} is held by {believers[what].name} and by {user.name}")
                    believers[what] = user
        waiting = [user for user in self.users if user.wants is not None and user.client.alive]
        free = [user for user in waiting if not any(map(self._holders, user.wants.members))]
        self._neglect.look(dict.fromkeys(free, True))

    def closing(self) -> None:
        super().closing()
        for user in self.users:
            self._leaked(user, user.operations)

    def _believes(self, user: GroupUser, number: int) -> bool:
        hold, group = user.hold(number), user.groups[number]
        if hold is None:
            return False
        sure = 0
        for member, part in zip(group.members, hold.holds, strict=True):
            if part is None or part.state is not HELD:
                continue
            if part.valid_until - group.drift(member, part) > self.simulation.now:
                sure += 1
                if part.owner not in self._holders(member):
                    self.blame(f"{user.name}: believes in {member.key!r} on {member.session.server}, which lacks it")
        return sure >= group.quorum

    def _holders(self, member: LockLogic) -> dict[bytes, bytes]:
        network = self._networks[int(member.session.server.removeprefix("s"))]
        return network.server.keyspace.hash(member.key)

    def _leaked(self, user: GroupUser, operations: int) -> None:
        heard_at = max(network.up_at and network.up_at + AFTERMATH for network in self._networks)
        if self.simulation.now < heard_at:
            # A server went down meanwhile.
            self.simulation.at(heard_at, self._leaked, user, operations)
            return
        if user.operations != operations or user.busy or not user.client.alive or any(user.depths):
            return
        for group, party in zip(user.groups, user.parties, strict=True):
            for member, owner in zip(group.members, party.owners, strict=True):
                left = [name for name in self._holders(member) if name.startswith(owner._prefix.encode())]
                if left:
                    self.blame(f"{user.name}: {member.key!r} on {member.session.server} is held by {left[0]!r}")
                if member.hold_of(owner.id) is not None:
                    self.blame(f"{user.name}: a hold of {member.key!r} was not forgotten")


class RedLockJudge(GroupJudge):
    """One server may be down."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        # An operation waits that long for a server that doesn't reply, at the acquire and at the release.
        self.late += 0.3 * lease + 0.5

    def settles_at(self) -> float:
        # A call that waits for one member when the group's attempt has ended releases it after it is acquired.
        return super().settles_at() + 1.5 * MEMBER_WAIT

    def failed(self, name: str, error: RedisError) -> None:
        # Of two members that are held, one may be on the server that is down.
        if not any(network.up_at for network in self._networks):
            super().failed(name, error)

    def begin(self) -> None:
        random = self.simulation.random
        if random.random() < 0.5:
            down = random.choice(self._networks)
            self.simulation.after(random.random(), down.go_down, random.random() * 10)


class LatchUser(User):
    """Counts down once or twice, and waits for the others to have done so."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.counts = self.random.randint(1, 2)
        """How often it is going to count down each latch."""

    async def live(self) -> None:
        await self.arrive()
        for _ in range(self.counts):
            for latch in self.objects:
                if self.random.random() < 0.3:
                    await self._wait(latch, patient=False)
                await self._count_down(latch)
            await self.nap()
        for latch in self.objects:
            # The counts of dead users remain.
            await self._wait(latch, patient=not self.fault_plan.deaths)

    async def _count_down(self, latch: CountDownLatchLogic) -> None:
        self.begin("count down %r", latch.key)
        # Whatever becomes of the call, it is done.
        self._judge.counted(latch.key)
        if await self.attempt(latch.count_down(), "counting down") is not FAILED:
            self.ended("counted down")

    async def _wait(self, latch: CountDownLatchLogic, *, patient: bool) -> None:
        self.wants = latch.key
        opened = await self.acquire(f"wait for {latch.key!r}", latch.wait, endless=patient)
        if opened is not FAILED:
            self._judge.answered(self, latch.key, opened=opened)
            self.ended(f"wait: {opened}")


class LatchJudge(Judge):
    """Each count-down counts once; the latch opens at zero, and then no user waits."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self._due: dict[bytes, int] = {}
        """How much must still be counted down, by those who have begun to."""
        self._seen: dict[bytes, int] = {}
        self._neglect = Neglect(self, LONGEST_WAIT)
        self._spare = self.simulation.random.randint(0, 1)

    def add(self, user: Any) -> None:
        super().add(user)
        for latch in user.objects:
            count = max(1, sum(user.counts for user in self.users) - self._spare)
            self._due[latch.key] = self._seen[latch.key] = count
            self.keyspace.values[latch.key] = b"%d" % count

    def counted(self, key: bytes) -> None:
        self._due[key] -= 1

    def answered(self, user: LatchUser, key: bytes, *, opened: bool) -> None:
        if opened and self._count(key):
            self.blame(f"{user.name}: went on while {key!r} was at {self._count(key)}")

    def look(self) -> None:
        for key, due in self._due.items():
            count = self._count(key)
            if count > self._seen[key] or count < due:
                self.blame(f"{key!r} went from {self._seen[key]} to {count}, and must be {due} at least")
            self._seen[key] = count
        opened = {key for key, count in self._seen.items() if not count}
        waiting = [user for user in self.users if user.wants in opened and user.client.alive]
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
