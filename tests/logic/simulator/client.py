"""A client in a schedule, with the real logic inside, and the owners who use its locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from pyredisson.config import Config
from pyredisson.errors import LockLostError
from pyredisson.logic.holds import LOST
from pyredisson.logic.hub import Hub
from pyredisson.logic.lock import LockLogic
from pyredisson.logic.shared import Shared
from pyredisson.logic.watchdog import Loop, Watchdog
from pyredisson.scripts import ScriptSet

from .wire import Network, Node, SimRuntime, Subscription
from .world import Cancelled, Process, Task, World

if TYPE_CHECKING:
    from .judge import Judge

DEEPEST = 3
STRIKES = (1, 2, 3, 4, 4, 4, 5, 6)
"""At which await a cancellation strikes; the fourth is the first at which a waiter hears of a release."""


@dataclass(frozen=True)
class Logic:
    """The classes that a schedule runs; planted bugs come in their place."""

    lock: type[LockLogic] = LockLogic
    hub: type[Hub] = Hub
    watchdog: type[Watchdog] = Watchdog
    patches: dict[str, bytes] | None = None
    """Texts of scripts that run instead of their own, by name."""


class Client(Process):
    """One client of one process."""

    def __init__(self, world: World, name: str, network: Network, config: Config, logic: Logic) -> None:
        super().__init__(world, name)
        weather = network.weather
        self.shared = Shared(config, self._start, _ignore, _ignore)
        scripts = ScriptSet()
        scripts.use(flags=world.random.random() < 0.5)
        self.node = Node(self, network, scripts)
        hub = logic.hub(world.clock)
        self.subscription = Subscription(self, network, hub)
        hub.attach(self.subscription)
        runtime = SimRuntime(self.node, self.shared.repair, pipelined=weather.pipelined)
        renewer = SimRuntime(self.node, self.shared.repair, pipelined=False)
        self.shared.begin(runtime, renewer, hub)
        self.shared.watchdog = logic.watchdog(self.shared.holds, renewer, self.shared.lease, self._start)
        self.shared.id = name

    def _start(self, loop: Loop) -> None:
        # Not at once: whoever starts it is in the middle of something.
        self.world.after(0.0, self.deliver, self._begin, loop)

    def _begin(self, loop: Loop) -> None:
        self.spawn(loop())


class Owner:
    """A thread or a task of a client, and what it does with the locks."""

    def __init__(self, client: Client, judge: Judge, locks: list[LockLogic], name: str) -> None:
        self.client = client
        self.name = name
        self.task: Task | None = None
        self.holder = client.shared.new_owner()
        self.depth = {lock.key: 0 for lock in locks}
        """How many acquires of it have said True and were not given back."""
        self.wants: tuple[bytes, float] | None = None
        """The lock that it waits for, and since when."""
        self._judge = judge
        self._locks = locks
        self._world = client.world
        self._random = client.world.random
        self._weather = client.node.network.weather
        self._lease = client.shared.lease / 1000
        self._unclean: set[bytes] = set()
        """The locks of which an undo may be on its way, so that the server's count is not ours yet."""
        self.operations = 0
        """How many it has begun."""
        self._retired = False
        self.gone = False
        """Left without giving back a lock that frees itself."""

    @property
    def over(self) -> bool:
        """Whether it has done all that it had to do, or is dead."""
        return not self.client.alive or (self.task is not None and self.task.done)

    async def live(self) -> None:
        """All that it does."""
        await self.client.shared.runtime.sleep(self._random.random() * self._random.choice((0.0, 0.0, 0.02, 0.2)))
        for _ in range(self._random.randint(1, 3)):
            if self._weather.forces and self._random.random() < self._weather.forces:
                await self._force()
            await self._round(self._random.choice(self._locks), patient=True)
            if self.gone or self._retired:
                return
            await self._nap()

    async def _round(self, lock: LockLogic, *, patient: bool) -> None:
        if not await self._acquire(lock, patient=patient):
            return
        hold = lock.hold_of(self.holder.id)
        if patient and hold is not None and not hold.renewed and self._random.random() < 0.1:
            self._world.log("%s: leaves without giving back %r", self.name, lock.key)
            self.gone = True
            return
        await self._nap()
        while self._random.random() < 0.3:
            inner = self._random.choice(self._locks)
            if self.depth[inner.key] < DEEPEST:
                # Who waits with a lock in hand for one that another has waits for ever, and rightly so.
                await self._round(inner, patient=False)
        await self._release(lock)

    async def _nap(self) -> None:
        die = self._random.random()
        scale = 0.0 if die < 0.3 else 0.05 if die < 0.9 else 2 * self._lease
        await self.client.shared.runtime.sleep(scale * self._random.random())

    async def _acquire(self, lock: LockLogic, *, patient: bool) -> bool:
        random, world = self._random, self._world
        lease = None if random.random() < 0.7 else random.choice((50, 1000, 2 * self.client.shared.lease))
        die = random.random()
        wait = (
            None
            if die < 0.5 and (patient or self.depth[lock.key])
            else 0.0
            if die < 0.65
            else random.random() * random.choice((0.05, 1, 5))
        )
        began = world.now
        deadline = None if wait is None else began + wait
        world.log("%s: acquire %r, lease %s, wait %s", self.name, lock.key, lease, wait)
        self.wants = (lock.key, began)
        self.operations += 1
        self._plan_strike()
        if self.depth[lock.key] == 0:
            self._unclean.discard(lock.key)
        try:
            taken = await lock.acquire(self.holder, lease, deadline)
        except Cancelled:
            # Who comes back soon would make up for a wake-up that was lost.
            self._retired = self._random.random() < 0.7
            self._unclean.add(lock.key)
            self._ended(lock, "acquire was cancelled")
            return False
        except RedisError as error:
            self._unclean.add(lock.key)
            self._judge.failed(self.name, error)
            self._ended(lock, f"acquire failed: {error}")
            return False
        if taken:
            self.depth[lock.key] += 1
        self._judge.answered(self, lock.key, deadline, taken=taken)
        self._ended(lock, f"acquire: {taken}")
        if taken:
            hold = lock.hold_of(self.holder.id)
            self._judge.taken(self.name, lock.key, hold, self.depth[lock.key], clean=lock.key not in self._unclean)
        return taken

    async def _release(self, lock: LockLogic) -> None:
        hold = lock.hold_of(self.holder.id)
        self._judge.has_hold(self.name, hold)
        assert hold is not None
        self._world.log("%s: release %r", self.name, lock.key)
        self.operations += 1
        self._plan_strike()
        self.depth[lock.key] -= 1
        try:
            await lock.release(self.holder, hold)
        except Cancelled:
            self._unclean.add(lock.key)
            self._ended(lock, "release was cancelled")
        except LockLostError as error:
            self._judge.told_lost(self.name, hold, error)
            self._ended(lock, f"release: {error}")
        except RedisError as error:
            self._unclean.add(lock.key)
            self._judge.failed(self.name, error)
            self._ended(lock, f"release failed: {error}")
        else:
            if hold.state is LOST:
                self._judge.blame(f"{self.name} was not told that its hold was lost")
            self._ended(lock, "released")

    async def _force(self) -> None:
        lock = self._random.choice(self._locks)
        try:
            removed = await lock.force_release()
        except RedisError as error:
            self._judge.failed(self.name, error)
        else:
            self._world.log("%s: force_release %r: %s", self.name, lock.key, removed)

    def _plan_strike(self) -> None:
        assert self.task is not None
        if self._weather.cancels and self._random.random() < self._weather.cancels:
            self.task.plan_strike(self._random.choice(STRIKES), self._random.choice((0.5, 4)) * self._weather.slowest)

    def _ended(self, lock: LockLogic, outcome: str) -> None:
        assert self.task is not None
        self.task.forget_strike()
        self.wants = None
        self._world.log("%s: %s", self.name, outcome)
        self._judge.operation_ended(self, lock.key)


def _ignore(_: object) -> None:
    raise AssertionError("no callback was registered")
