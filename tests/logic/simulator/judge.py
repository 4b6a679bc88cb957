"""Users of a schedule, and the checks after every event and at its end. A judge knows what must be true."""

from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from logging import LogRecord
from typing import Any, NoReturn

from redis.exceptions import RedisError

from pyredisson.logic.holds import Hold

from .client import Client
from .keys import SortedSet
from .network import FAULTS_END, LONGEST_PAUSE, Network
from .simulation import Cancelled, Task

FAILED: Any = object()
"""The result of an operation that was cancelled or raised an error."""
STRIKES = (1, 2, 3, 4, 4, 4, 5, 6)
"""At which await a cancellation strikes; at the fourth a waiter can first get a wakeup."""
Acquire = Callable[[float | None], Coroutine[Any, Any, Any]]
"""A call that gets its deadline."""


class User:
    """A thread or a task of a client."""

    rounds = 3
    """How often it uses something, at most."""

    def __init__(self, client: Client, judge: Any, objects: Sequence[Any], name: str) -> None:
        """`objects`: the locks, or other primitives, that it uses."""
        self.client, self._judge, self.objects, self.name = client, judge, objects, name
        self.task: Task | None = None
        self.session, self.simulation, self.fault_plan = client.session, client.simulation, client.fault_plan
        self.random = client.simulation.random
        self.lease = client.session.lease_ms / 1000
        self.operations = 0
        self.busy = False
        self.wants: Any = None
        self.retired = False
        """Does nothing after its first operations: a new acquire could hide that a wakeup was lost."""

    @property
    def over(self) -> bool:
        """Whether it has done all its operations, or is dead."""
        return not self.client.alive or (self.task is not None and self.task.done)

    async def live(self) -> None:
        """All that it does."""
        await self.arrive()
        for _ in range(self.random.randint(1, self.rounds)):
            await self.use_one()
            if self.retired:
                return

    async def use_one(self) -> None:
        """Acquires one of the objects, and releases it."""
        raise NotImplementedError

    async def arrive(self) -> None:
        """Waits for a random time, so that users don't start at the same moment."""
        await self.session.runtime.sleep(self.random.random() * self.random.choice((0.0, 0.0, 0.02, 0.2)))

    async def nap(self) -> None:
        """Whatever one does with a lock, or without it."""
        die = self.random.random()
        scale = 0.0 if die < 0.3 else 0.05 if die < 0.9 else 2 * self.lease
        await self.session.runtime.sleep(scale * self.random.random())

    async def acquire(self, what: str, operation: Acquire, *, endless: bool) -> Any:
        """The result of an acquire or a wait, which gets its deadline; or `FAILED`. `endless`: it may have none."""
        began, die, wait = self.simulation.now, self.random.random(), None
        if die >= 0.5 or not endless:
            wait = 0.0 if die < 0.65 else self.random.random() * self.random.choice((0.05, 1, 5))
        deadline = None if wait is None else began + wait
        self.begin("%s, wait %s", what, wait)
        got = await self.attempt(operation(deadline), "acquire")
        if not got:
            self._judge.gave_up(self.name, deadline)
        elif got is not FAILED:
            self._judge.acquired += 1
        self._judge.waits += self.simulation.now - began > 3 * self.fault_plan.slowest
        return got

    async def attempt(self, operation: Coroutine[Any, Any, Any], what: str) -> Any:
        """The result of an operation that has begun; `FAILED` ends it."""
        try:
            return await operation
        except Cancelled:
            if what == "acquire":
                self.retired = self.random.random() < 0.7
            self.ended(f"{what} was cancelled")
        except RedisError as error:
            self._judge.failed(self.name, error)
            self.ended(f"{what} failed: {error}")
        return FAILED

    def begin(self, what: str, *args: object) -> None:
        """Before an operation, which may be cancelled."""
        assert self.task is not None
        self.simulation.log(f"%s: {what}", self.name, *args)
        self.operations += 1
        self.busy = True
        if self.fault_plan.cancels and self.random.random() < self.fault_plan.cancels:
            span = self.random.choice((0, 0.5, 4)) * self.fault_plan.slowest
            self.task.plan_strike(self.random.choice(STRIKES), span)

    def ended(self, outcome: str) -> None:
        """After it, whatever became of it."""
        assert self.task is not None
        self.wants = None
        self.task.plan_strike(0, 0.0)
        self.busy = False
        self.simulation.log("%s: %s", self.name, outcome)
        self._judge.operation_ended(self)


WAYS = 30
"""The number of network crossings until every client has noticed an event, including retries of others."""
MOVES = 8.0
"""Seconds for which calls may be delayed by slots that move: a call pauses for up to 5.2 s between its retries."""
CLAIMS_IN_A_ROW = 5.0
"""Seconds for which claims hold back others at most."""
AFTERMATH = 20.0
"""Seconds after a storm in which the last timeouts and pauses between tries run out."""


class Violation(AssertionError):
    """A schedule broke a rule."""


class Judge:
    """Knows the users of a schedule, and the broken rules."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        network = networks[0]
        self.simulation, self.fault_plan = network.simulation, network.fault_plan
        self.keyspace = network.server.keyspace
        self.lease = lease
        self.soon = WAYS * network.fault_plan.slowest
        self.late = self.soon
        """How long after its deadline an operation may time out, with a calm fault plan."""
        self._moves = False
        self.clients: list[Client] = []
        self.acquired = self.waits = self.lost = 0
        self.verdict = ""
        self.users: list[Any] = []
        self._busy: list[User] = []
        self.simulation.after_event = self._after_event

    def expect_moves(self) -> None:
        """Calls are delayed while slots move, also in a calm schedule."""
        self.soon += MOVES
        self.late += MOVES
        self._moves = True

    def begin(self) -> None:
        """Called before the first user starts."""

    def operation_ended(self, user: Any) -> None:
        """Called after every operation, whatever became of it."""

    def look(self) -> None:
        """Called after every event."""

    def closing(self) -> None:
        """Called when all users have ended."""
        for client in self.clients:
            if client.alive and any(channel.waiters for channel in client.session.channels.by_name.values()):
                self.blame(f"{client.name}: a waiter is left behind")

    def nothing_but(self, known: Collection[bytes]) -> None:
        """No keys remain except these, and those of single calls, of claims, and of dead clients, which expire."""
        alive = {client.session.client for client in self.clients if client.alive}
        for key in list(self.keyspace.values):
            ends = key.startswith((b"pyredisson_once:", b"pyredisson_semaphore_")) and key in self.keyspace.valid_until
            if key.startswith((b"pyredisson_waiting:", b"pyredisson_woken:")) and key in self.keyspace.valid_until:
                members = self.keyspace.of(SortedSet, key) or ()
                # After a fault, a late copy of an acquire may enter a client that waits no longer.
                ends = not self.fault_plan.calm or not any(member.partition(b":")[0] in alive for member in members)
            if key not in known and not ends and self.keyspace.value(key) is not None:
                self.blame(f"{key!r} is left behind")

    def add(self, user: Any) -> None:
        self.users.append(user)
        self._busy.append(user)

    def blame(self, text: str) -> NoReturn:
        """Ends the schedule, even if the caller swallows the exception."""
        self.verdict = self.verdict or text
        raise Violation(self.verdict)

    def filter(self, record: LogRecord) -> bool:
        """An error in the log is a violation: the logic continued after an unexpected exception."""
        self.blame(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")
        return False

    def failed(self, name: str, error: RedisError) -> None:
        if self.fault_plan.calm and not self._moves:
            self.blame(f"{name}: {error!r} in calm fault_plan")

    def gave_up(self, name: str, deadline: float | None) -> None:
        """An operation raised or returned because of its timeout."""
        now = self.simulation.now
        if deadline is None:
            self.blame(f"{name}: gave up without a deadline")
        elif now < deadline:
            self.blame(f"{name}: gave up {deadline - now:.3f} s before its deadline")
        elif self.fault_plan.calm and now > deadline + self.late:
            self.blame(f"{name}: gave up {now - deadline:.3f} s after its deadline")

    def check_wait(self, user: User, since: float, longer: float) -> None:
        """A user waits for what it could have had since then. `longer`: seconds until it asks without a message."""
        bound = self.soon + longer
        if not self.fault_plan.calm:
            since = max(since, FAULTS_END, user.client.paused_until)
            bound += AFTERMATH
        waited = self.simulation.now - since
        if waited > bound:
            self.blame(f"{user.name}: could have had what it waits for, for {waited:.3f} s")

    def all_over(self) -> bool:
        while self._busy and self._busy[-1].over:
            self._busy.pop()
        return not self._busy

    def holds(self) -> Iterator[Hold]:
        """Of the clients that are alive."""
        return (hold for client in self.clients if client.alive for hold in client.session.holds.table.values())

    def settles_at(self) -> float:
        """The time by which the present state must be repaired, faults included."""
        now = self.simulation.now
        return now + self.soon if self.fault_plan.calm else max(now, FAULTS_END) + AFTERMATH

    def rests_at(self) -> float:
        """The time by which the background commands have run, or were dropped."""
        if self.fault_plan.calm:
            return self.simulation.now + self.soon
        awake = FAULTS_END + (LONGEST_PAUSE if self.fault_plan.pauses else 0)
        return max(self.simulation.now, awake) + 2 * self.lease

    def _after_event(self) -> None:
        if self.verdict:
            raise Violation(self.verdict)
        self.look()


class Neglect:
    """For how long each waiter could have been served; updated after every event."""

    def __init__(self, judge: Judge, blind: float) -> None:
        """`blind`: the longest time in seconds after which a waiter asks again without any message."""
        self._judge, self._blind = judge, blind
        self._since: dict[User, tuple[float, bool]] = {}

    def look(self, served: Mapping[User, bool]) -> None:
        """`served`: the waiters that could be served now, and whether no message announced that."""
        judge = self._judge
        now = judge.simulation.now
        self._since = {user: self._since.get(user, (now, unheard)) for user, unheard in served.items()}
        for user, (since, silent) in self._since.items():
            judge.check_wait(user, since, self._blind if silent or not judge.fault_plan.calm else 0.0)


class ClaimPeriods:
    """For how long claims of the same name have held back others. They must pause after some time."""

    def __init__(self, judge: Judge, others_turn: float) -> None:
        """`others_turn`: seconds for which nobody claims after that."""
        self._judge, self._others_turn = judge, others_turn
        self._periods: dict[bytes, tuple[float, float]] = {}
        """When the present period of claims began, and when a claim was seen last."""

    def claimed(self, key: bytes) -> None:
        now = self._judge.simulation.now
        began, seen = self._periods.get(key, (now, now))
        if now - seen > self._others_turn / 2:
            began = now
        self._periods[key] = began, now
        if now - began > CLAIMS_IN_A_ROW + self._judge.soon:
            self._judge.blame(f"{key!r}: others were held back for {now - began:.3f} s")

    def end(self, key: bytes) -> None:
        self._periods.pop(key, None)
