"""Every schedule of a small world: two or three users, up to two changes of turn at a wrong moment, and one fault.

`python -m tests.logic.simulator.small_world KIND [TURNS [FAULTS [SEED ROUNDS]]]`. What the users do is fixed, and
every way takes the same time. From each state a step may be held back behind the next step of somebody else, or a
fault may happen, also of servers in the kinds that are about them. A state that was met before, with as much left to
change, is not gone on from again, and nothing is changed any more once all is at rest. Two states are the same if the
server, the holds, the places at which the coroutines wait, and what is on its way are the same, with times since now
rounded to 0.1 s, but for tokens and other random names.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from operator import itemgetter
from random import Random
from time import process_time
from typing import Any, Self

from .client import Client
from .judge import Violation
from .network import Connection, FaultPlan, Subscriber, Subscription
from .schedule import CONFIGS, KINDS, Logic, World, alone
from .simulation import Park, Process, Simulation

WORLDS = (((1, 1), 0, 3), ((2,), 0, 3), ((1, 1, 1), 3, 1))
"""The numbers of users of each client, the seed of what they do, and how often each uses the lock at most."""
WAY = 0.001
"""Seconds of each way to the server or back."""
NEAR = 2 * WAY
"""A step is held back behind another one that comes within so many seconds."""
LEASE = 3
REQUEST_FAULTS = ("lost", "unanswered", "late")
PROCESS_FAULTS: dict[str, Callable[[Client], None]] = {
    "killed": Client.kill,
    "frozen": lambda client: client.pause(1.5 * LEASE),
}
LONGEST = 1200.0
"""When all users must have ended; a schedule begins at 1000."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is different at a step, counted from the begin. `victim`: the number of a client, or of a user."""

    step: int
    what: str
    victim: int = 0


class Same(Exception):
    """From here on everything is as it was in an earlier schedule."""


class Middle(Random):
    """Always the same, but for bytes, which are names."""

    def __init__(self) -> None:
        super().__init__(0)
        self._names = Random(0)

    def random(self) -> float:
        return 0.5

    def getrandbits(self, k: int) -> int:
        return min(k - 1, 1)

    def randbytes(self, n: int) -> bytes:
        return self._names.randbytes(n)


class OneFault(FaultPlan):
    """No fault but the planned one."""

    def __init__(self, *, calm: bool) -> None:
        super().__init__(Middle(), calm=True)
        self.calm, self.slowest, self.cancels, self.forces, self.pipelined = calm, WAY, 0.0, 0.0, False
        self.next_fate: str | None = None
        self.requests = 0
        # The judges then know that replies may be missing, and processes.
        self.unanswered = self.deaths = 0.0 if calm else 1.0

    def __copy__(self) -> Self:
        # The nodes of a cluster have one plan in common.
        return self

    def delay(self) -> float:
        return WAY

    def times(self, average: float) -> list[float]:
        return []

    def fate(self, now: float) -> str | None:
        fate, self.next_fate = self.next_fate, None
        self.requests += 1
        return fate


@dataclass(slots=True)
class Found:
    """What a walk has met."""

    states: set[tuple[bytes, int, int]] = field(default_factory=set)
    schedules: int = 0
    """Those that differ from all earlier ones to their end."""
    steps: int = 0


class Steps(Simulation):
    """Counts the steps of a schedule, changes some, and notes what else could be changed."""

    def __init__(self, changes: Sequence[Change], left: tuple[int, int], found: Found) -> None:
        """`left`: how many more turns may be changed, and how many more faults may happen."""
        super().__init__(0)
        self.random = Middle()
        self.plan: OneFault
        self.world: World
        self.others: list[Change] = []
        """What could be changed behind the last change."""
        self._changes = {change.step: change for change in changes}
        self._last = changes[-1].step if changes else -1
        self._left, self._found = left, found
        self._held: dict[object, float] = {}
        self._step = 0
        self._met: set[object] = set()
        self._at_rest = False

    def step(self, action: Callable[..., object], *args: Any) -> None:
        source = source_of(action)
        if self._held.get(source, 0.0) > self.now or (source is not None and self._is_held_back(source)):
            self.at(self._held[source], action, *args)
            return
        requests = self.plan.requests
        super().step(action, *args)
        self.plan.next_fate = None
        is_new = self.plan.requests > requests and self._step - 1 > self._last
        if is_new and self._left[1] and not self.world.logic.names:
            self.others += [Change(self._step - 1, fate) for fate in REQUEST_FAULTS]

    def _is_held_back(self, source: object) -> bool:
        """Before a step of that one: whether it is held back, as planned. Another planned change happens here."""
        step, self._step = self._step, self._step + 1
        self._found.steps += 1
        change = self._changes.get(step)
        if change is None and step <= self._last:
            return False
        near = (event for event in self.queue if event[0] <= self.now + NEAR)
        following = min((when for when, _, action, _ in near if source_of(action) not in (None, source)), default=None)
        if change is None:
            if not self._at_rest:
                self._note(step, following is not None)
        elif change.what == "turn":
            assert following is not None
            self._held[source] = max(self.now, following) + WAY / 100
            return True
        else:
            self._happens(change)
        return False

    def _note(self, step: int, has_following: bool) -> None:
        state = (state_of(self.world, self.queue), *self._left)
        if state in self._met:
            # A step that changes nothing that counts.
            return
        if state in self._found.states:
            raise Same
        self._met.add(state)
        self._found.states.add(state)
        self._at_rest = at_rest(self.world, self.queue)
        if self._at_rest:
            return
        turns, faults = self._left
        if turns and has_following:
            self.others.append(Change(step, "turn"))
        if faults:
            self.others += [Change(step, what) for what in self.world.server_faults()]
        # With several names nothing else breaks, see `Logic`.
        if faults and not self.world.logic.names:
            clients, users = self.world.judge.clients, self.world.judge.users
            alive = {client.name: number for number, client in enumerate(clients) if client.alive}
            self.others += [Change(step, what, number) for what in PROCESS_FAULTS for number in alive.values()]
            self.others += [Change(step, "deaf", number) for number, client in enumerate(clients) if client.alive]
            calls = [number for number, user in enumerate(users) if "attempt" in dict(frames(user.task.coroutine))]
            self.others += [Change(step, "cancelled", number) for number in calls]

    def _happens(self, change: Change) -> None:
        if change.what in REQUEST_FAULTS:
            self.plan.next_fate = change.what
        elif change.what in PROCESS_FAULTS:
            clients = self.world.judge.clients
            for client in clients:
                # A process has a client for each server.
                if client.name == clients[change.victim].name:
                    PROCESS_FAULTS[change.what](client)
        elif change.what == "deaf":
            self.world.judge.clients[change.victim].subscription.cut()
        elif (server_fault := self.world.server_faults().get(change.what)) is not None:
            server_fault()
        elif (task := self.world.judge.users[change.victim].task).park is not None:
            task.process.deliver(task.strike, task.park)


def source_of(action: Callable[..., object]) -> object:
    """The process, or the connection, whose step it is. None: a step that is nobody's, or has no effect."""
    source = getattr(action, "__self__", None)
    if isinstance(source, Park):
        return source.task.process if source.task is not None and source.task.park is source else None
    if isinstance(source, Subscription):
        return source.process
    return source if isinstance(source, Process | Connection | Subscriber) else None


# --- States

TIMES = re.compile(r"\b1\d{6}(?:\d{3})?(?:\.0)?\b")
"""In the repr of a state: what is so large is a time, or a token."""
NAMES = re.compile(r"\b[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}\b")
TOKENS = b"redisson_lock_token"


def at_rest(world: World, queue: Sequence[Any]) -> bool:
    """Whether nothing is held, wanted, on its way, or on a server. Then no change can break a rule any more."""
    sessions = [client.session for client in world.judge.clients if client.alive]
    keyspaces = [network.server.keyspace for network in world.networks]
    return (
        world.judge.all_over()
        and not any(session.holds.table or session.watchdog.pending_repairs() for session in sessions)
        and not any(
            keyspace.value(key) and not key.startswith(TOKENS)
            for keyspace in keyspaces
            for key in list(keyspace.values)
        )
        and all(source_of(action) is None or is_idle(action, args) for _, _, action, args in queue)
    )


def is_idle(action: Callable[..., object], args: tuple[Any, ...]) -> bool:
    """Whether it is the end of a pause of a background task, and brings nothing."""
    if isinstance(getattr(action, "__self__", None), Park):
        return not args
    return bool(args) and getattr(args[0], "__name__", "") == "_sweep"


def state_of(world: World, queue: Sequence[Any]) -> bytes:
    """What decides how a schedule goes on."""
    now = world.simulation.now

    def left(until: float) -> float:
        return round(until - now, 1)

    def relative(number: re.Match[str]) -> str:
        """A time on the server's clock, in ms or in us, as the time since now."""
        value = float(number[0])
        return f"{value / 1e3 - now:.1f}" if value < 1e7 else f"{value / 1e6 - now:.3f}"

    parts: list[object] = []
    for network in world.networks:
        keyspace = network.server.keyspace
        ends = keyspace.valid_until
        for key, value in sorted(keyspace.values.items()):
            lasts = left(ends[key] / 1000) if ends.get(key) else None
            shown = sorted(value.items(), key=lambda item: (str(item[1]), item)) if isinstance(value, dict) else value
            parts.append((key, b"" if key.startswith(TOKENS) else shown, lasts))
    parts += servers_state(world, left)
    numbers: dict[object, int] = {}
    for client in world.judge.clients:
        numbers[client] = len(numbers)
        holds = client.session.holds.table.values()
        parts += [client.alive, max(0.0, left(client.paused_until)), client.subscription.subscriber is None]
        parts += [(hold.key, hold.owner, hold.state.name, hold.count, left(hold.valid_until)) for hold in holds]
        parts += [(name, each.confirmed, len(each.waiters)) for name, each in client.session.channels.by_name.items()]
        parts += [frames(task.coroutine) for task in client.tasks if not task.done]
        parts.append(len(client.session.watchdog.pending_repairs()))
    parts += [(user.operations, user.busy) for user in world.judge.users]
    for when, _, action, args in sorted(queue, key=itemgetter(0, 1)):
        if (source := source_of(action)) is not None:
            words = [arg if isinstance(arg, bytes | float | list | tuple) else type(arg).__name__ for arg in args]
            said = TIMES.sub("", str(words))
            parts.append((numbers.setdefault(source, len(numbers)), action.__name__, said, left(when)))
        elif world.cluster is not None and getattr(action, "__self__", None) is world.cluster:
            parts.append((action.__name__, left(when)))
    text = NAMES.sub(lambda name: f"name {numbers.setdefault(name[0], len(numbers))}", repr(parts))
    return blake2b(TIMES.sub(relative, text).encode(), digest_size=16).digest()


def servers_state(world: World, left: Callable[[float], float]) -> list[object]:
    """Who serves what, and what the clients know of that."""
    if (cluster := world.cluster) is None:
        networks = [network for network in world.networks if network.restarts]
        return [[each.server for each in network.connections if not each.closed] for network in networks]
    slots = sorted(cluster.places)
    parts: list[object] = [max(0.0, left(server.up_at)) for server in cluster.servers]
    parts += [(each.serving, each.target, sorted(each.moved)) for each in map(cluster.places.get, slots) if each]
    for keeper in (client.keeper for client in world.judge.clients):
        nodes = map(keeper.table.node_of_slot, slots)
        parts.append((keeper.coming, [node and str(node.address) for node in nodes]))
    return parts


def frames(coroutine: Any) -> list[tuple[str, int]]:
    """Where a coroutine waits."""
    found: list[tuple[str, int]] = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        found.append((frame.f_code.co_name, frame.f_lasti))
        coroutine = coroutine.cr_await
    return found


# --- The walk


def play(
    logic: Logic,
    users: Sequence[int],
    seed: int,
    rounds: int,
    changes: Sequence[Change],
    left: tuple[int, int],
    found: Found,
) -> list[Change]:
    """One schedule with these changes. Returns what could be changed besides. Raises `Violation`."""
    simulation = Steps(changes, left, found)
    # The same for all schedules of a walk, as users do less where replies may be missing.
    calm = left[1] == 0 and all(change.what == "turn" for change in changes)
    with alone(simulation):
        simulation.plan = OneFault(calm=calm)
        world = simulation.world = World(simulation, simulation.plan, logic, [b"lock0"], CONFIGS[LEASE, False])
        world.judge.begin()
        for network in world.networks:
            network.server.load_all()
        with world.judged(), suppress(Same):
            for count in users:
                world.add_users(world.add_process(), count)
            for number, user in enumerate(world.judge.users):
                user.random, user.rounds = Random(f"{seed} {number}"), rounds
            world.play(LONGEST)
            found.schedules += 1
    return simulation.others


def walk(kind: str, users: Sequence[int], seed: int, turns: int, faults: int, rounds: int = 3) -> Found:
    """All schedules of a small world. Raises `Violation` with the changes that lead to it."""
    logic, found = replace(KINDS[kind], users=1), Found()
    waiting: list[tuple[Change, ...]] = [()]
    while waiting:
        changes = waiting.pop()
        turned = sum(change.what == "turn" for change in changes)
        left = turns - turned, faults - len(changes) + turned
        try:
            others = play(logic, users, seed, rounds, changes, left, found)
        except Violation as violation:
            raise Violation(f"{violation}: {kind}, {users}, seed {seed}, {changes}") from None
        waiting += [(*changes, other) for other in others]
    return found


def main(kind: str, turns: int = 2, faults: int = 1, *does: int) -> None:
    """`does`: what the users do, and how often, in place of what `WORLDS` says."""
    for users, *usual in WORLDS:
        seed, rounds = does or usual
        began = process_time()
        found = walk(kind, users, seed, turns, faults, rounds)
        seconds = process_time() - began
        counts = f"{len(found.states)} states, {found.schedules} schedules, {found.steps} steps"
        print(f"{kind} {users}: {counts}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
