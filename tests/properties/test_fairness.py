"""The fair lock serves waiters in order of arrival, whatever owners of pyredisson and of Java do, in any order."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.lua import locks
from tests.lua.fair.scripts import Java

from .servers import Memory, Word, play

LOCK, QUEUE, SCORES, WAITERS, CLIENTS = KEYS = tuple(key.encode() for key in locks.KEYS["fair"])
CHANNEL, WAIT = locks.CHANNEL.encode(), locks.WAIT
LEASE, HEARTBEAT = 30_000, 400
SIGN = 1500
"""ms for which an acquire or a heartbeat is a sign of life."""
OFFER = 2000
"""ms for which a free lock is reserved for a head of pyredisson."""
SERVING_TIME = 4000
"""ms for each owner that has to acquire the lock, or to be dropped from the queue."""
PAUSES, LONG_PAUSES = (1, 400, 1000, 1499), (1600, 2100, 5100, 31_000, 310_000)
TWICE = st.booleans()
Step = TypeVar("Step", bound=Callable[..., None])


@dataclass
class Person:
    """A thread or task of some client."""

    client: str
    number: int
    names: int = 0
    """How often it changed its name."""
    waits: bool = False
    notified: bool = False
    count: int = 0
    asked_at: int = 0

    @property
    def foreign(self) -> bool:
        return self.client == "java"

    @property
    def name(self) -> bytes:
        return b"%b:%d:%d" % (client_id(self.client), self.number, self.names)


def client_id(client: str) -> bytes:
    """36 characters, as a UUID has."""
    return f"{client:-<36}".encode()


def readable(name: bytes) -> str:
    """An owner as the rules of the machine name it, and how often it changed its name: `a1.2`."""
    return name.decode().replace("-", "").replace(":", "", 1).replace(":", ".")


@dataclass(frozen=True)
class State:
    """The values of the lock's keys."""

    holders: dict[bytes, int]
    queue: list[bytes]
    scores: dict[bytes, float]
    waiters: dict[bytes, bytes]
    left_of: dict[bytes, int]
    """The remaining time of each key, ms."""


def by(choose: Callable[[Any], list[Any]], drawn: str = "who", **more: Any) -> Callable[[Step], Step]:
    """A step of one of these owners, or of what else can do it, where there is one."""
    among = st.runner().flatmap(lambda machine: st.sampled_from(choose(machine)))
    made = cast(Callable[[Step], Step], cast(Any, rule)(**{drawn: among}, **more))
    return lambda step: precondition(lambda machine: bool(choose(machine)))(made(step))


class FairQueue(RuleBasedStateMachine):
    """Owners `a1` to `b3` belong to two clients of pyredisson; `java1` to `java3` do what Redisson does."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.people = {f"{client}{n}": Person(client, n) for client in ("a", "b", "java") for n in (1, 2, 3)}
        self.dead: set[str] = set()
        """The clients that are dead."""
        self.heartbeats: dict[str, int] = {}
        """The last one of each client."""
        self.told: list[bytes] = []
        """Who was notified in the latest step."""
        self.offered: dict[bytes, int] = {}
        """When a script of pyredisson offered the free lock to the head of the queue."""
        self.pauses: tuple[int, ...] = PAUSES
        self.grace = 0
        """Until when no waiter counts as dead, because all clients were silent; ms."""
        self.state = self.read()

    # Who can do what.

    def alive(self) -> list[str]:
        return [who for who, person in self.people.items() if person.client not in self.dead]

    def idle(self) -> list[str]:
        return [who for who in self.alive() if not self.people[who].waits and not self.people[who].count]

    def waiting(self) -> list[str]:
        return [who for who in self.alive() if self.people[who].waits]

    def holding(self) -> list[str]:
        return [who for who in self.alive() if self.people[who].count]

    def ours(self) -> list[str]:
        return [who for who in self.idle() + self.waiting() if not self.people[who].foreign]

    def clients(self) -> list[str]:
        return sorted({self.people[who].client for who in self.alive()} - {"java"})

    def pairs_of_one_client(self) -> list[tuple[str, str]]:
        """A holder, and a waiter of the same client, for each of them."""
        pairs = [(who, other) for who in self.holding() for other in self.waiting()]
        return [(who, other) for who, other in pairs if self.people[who].client == self.people[other].client != "java"]

    @initialize(pauses=st.booleans())
    def begin(self, pauses: bool) -> None:
        """`pauses`: sometimes no client sends anything for too long."""
        self.pauses += LONG_PAUSES * pauses

    # What they do.

    @by(idle, queues=st.booleans(), twice=TWICE)
    def arrive(self, who: str, queues: bool, twice: bool) -> None:
        self.ask(who, queues=queues, twice=twice)

    @precondition(lambda machine: bool(machine.idle()))
    @rule(order=st.runner().flatmap(lambda machine: st.permutations(machine.idle())))
    def all_arrive(self, order: list[str]) -> None:
        for who in order:
            self.ask(who)

    @by(lambda machine: machine.waiting() + machine.holding(), twice=TWICE)
    def ask_again(self, who: str, twice: bool) -> None:
        self.ask(who, twice=twice)

    def ask(self, who: str, *, queues: bool = True, twice: bool = False) -> None:
        person, name, held = self.people[who], self.people[who].name, self.people[who].count
        free, mine = not self.state.holders, name in self.state.holders
        args = (CHANNEL, name, held + 1, LEASE, WAIT, int(queues))
        person.notified = False
        if person.foreign:
            taken = Java(self.memory, name).acquire(lease=LEASE, queues=queues) is None
        else:
            taken = self.fair("fair_acquire", *args, twice=twice)[-1] is None
        now = self.read()
        if held and not (person.foreign and not mine):
            # Another level, unless the lease has ended.
            assert taken is mine, f"{who} {'got' if taken else 'was refused'} a further hold"
        elif taken or not person.foreign:
            # Java uses the scores of pyredisson's waiters, so it may wait for one that is dead.
            wrong = "took a lock that was not its to take" if taken else "was refused its turn"
            assert taken is not (self.before(name) if free else True), f"{who} {wrong}"
        assert taken == (now.holders == {name: held + 1 if mine else 1}), f"{who} was told {taken}: {now.holders}"
        advanced = free and self.state.queue[:1] not in ([], now.queue[:1])
        self.follow(name, now, arrives=queues, leaves=taken, ours=not person.foreign)
        if not taken and advanced and not person.foreign:
            self.must_tell()
        person.count, person.waits, person.asked_at = now.holders.get(name, 0), name in now.queue, self.memory.now

    @by(holding, all_levels=st.booleans(), twice=TWICE)
    def release(self, who: str, all_levels: bool, twice: bool = False) -> None:
        person, name = self.people[who], self.people[who].name
        count = 0 if all_levels and not person.foreign else person.count - 1
        mine = name in self.state.holders
        if person.foreign:
            Java(self.memory, name).release(LEASE)
        else:
            self.fair("fair_release", CHANNEL, name, count, WAIT, twice=twice)
        self.follow(None, self.read(), ours=not person.foreign)
        if mine:
            assert self.state.holders == ({name: count} if count else {}), f"{who} released to {count}: {self.state}"
            self.must_tell()
        person.count = count if mine else 0

    @by(pairs_of_one_client, "pair", twice=TWICE)
    def hand_over(self, pair: tuple[str, str], twice: bool) -> None:
        person, following = (self.people[who] for who in pair)
        name, mine = following.name, person.name in self.state.holders
        replies = self.fair("fair_hand_over", CHANNEL, person.name, WAIT, name, LEASE, twice=twice)
        now = self.read()
        entered = replies[0] == [0]
        assert entered == (now.holders == {name: 1}), f"{pair}: {replies}, {now.holders}"
        assert not entered or (mine and replies[-1] == [0])
        if mine:
            before = self.before(name)
            assert not entered or (not before and name in self.state.queue), f"{pair[1]} came before its turn"
            served = entered or before is not False or not (name in self.state.queue and self.keeps(name))
            assert served, f"{pair[1]} was not entered, and it was its turn"
        self.follow(name if entered else None, now, leaves=entered)
        if mine and not entered:
            assert not now.holders, f"{pair[0]} did not release: {now.holders}"
            self.must_tell()
        person.count = 0
        if entered:
            following.count, following.waits, following.notified = 1, False, False

    @by(waiting, twice=TWICE)
    def give_up(self, who: str, twice: bool) -> None:
        self.leave(who, doubt=False, twice=twice)

    @by(ours, ran=st.booleans(), twice=TWICE)
    def give_up_in_doubt(self, who: str, ran: bool, twice: bool) -> None:
        """Its last acquire is in doubt: it did run, or never does. Of those that come late: `tests/lua/fair`."""
        if ran:
            self.ask(who)
        self.leave(who, doubt=True, twice=twice)

    def leave(self, who: str, *, doubt: bool, twice: bool) -> None:
        person, name = self.people[who], self.people[who].name
        was_next = self.state.queue[:1] == [name] or name in self.state.holders
        if person.foreign:
            Java(self.memory, name).give_up()
        else:
            self.fair("fair_leave", CHANNEL, WAIT, int(doubt), name, twice=twice)
            person.names += 1
        self.follow(name, self.read(), leaves=True, ours=not person.foreign)
        assert name not in self.state.holders, f"{who} gave up, and holds the lock"
        if was_next and not person.foreign:
            self.must_tell()
        person.waits, person.count, person.notified = False, 0, False

    @by(clients, "client", twice=TWICE)
    def the_client_sends_a_heartbeat(self, client: str, twice: bool) -> None:
        self.heartbeat(client, twice=twice)

    def heartbeat(self, client: str, *, twice: bool = False) -> bool:
        """Whether all of its waiters have places."""
        waiters = [self.people[who].name for who in self.waiting() if self.people[who].client == client]
        replies = self.fair("fair_heartbeat", CHANNEL, client_id(client), WAIT, *waiters, twice=twice)
        now = self.read()
        # The first copy may drop a waiter that was offered the lock in vain.
        for reply, state in zip(replies, (self.state, now), strict=False):
            assert reply[4] == [waiter for waiter in waiters if waiter not in state.queue], "places, as reported"
        _, known, notified, _, without_place = replies[-1]
        assert notified in (b"", *now.queue[:1]), f"{readable(notified)} is reported as the next one"
        if self.state.queue:
            self.heartbeats[client] = self.memory.now
        if now.queue and now.queue[:1] == self.state.queue[:1]:
            assert self.keeps(now.queue[0]) is not False, f"{readable(now.queue[0])} is dead and heads the queue"
        self.follow(None, now)
        self.must_tell()
        return known == 1 and not without_place

    @precondition(lambda machine: bool(machine.state.holders))
    @rule(java=st.booleans())
    def force_release(self, java: bool) -> None:
        if java:
            Java(self.memory, "java").force_release()
        else:
            self.fair("fair_force_release", CHANNEL, WAIT)
        self.follow(None, self.read(), ours=not java)
        assert not self.state.holders, "still held"
        self.must_tell()

    # What happens to them.

    @rule(steps=st.sampled_from((1, 2, 4, 6, 10)))
    def time_passes(self, steps: int) -> None:
        """Clients send heartbeats, holders renew, and notified waiters ask again."""
        for _ in range(steps):
            self.all_are_paused(HEARTBEAT)
            for who in self.holding():
                if self.memory.script("lock_renew", LOCK, args=(LEASE, self.people[who].name)) == [0]:
                    self.people[who].count = 0
                self.follow(None, self.read())
            for client in self.clients():
                waiters = [who for who in self.waiting() if self.people[who].client == client]
                if waiters and not self.heartbeat(client):
                    for who in waiters:
                        self.ask(who)
            for who in self.waiting():
                if self.people[who].notified or (self.people[who].foreign and not self.state.holders):
                    self.ask(who)

    @rule(ms=st.runner().flatmap(lambda machine: st.sampled_from(machine.pauses)))
    def all_are_paused(self, ms: int) -> None:
        self.memory.advance_time(ms)
        self.follow(None, self.read())

    @by(clients, "client")
    def die(self, client: str) -> None:
        self.dead.add(client)

    def teardown(self) -> None:
        """All living waiters acquire the lock in time. Then one more owner finds the queue empty and leaves no key."""
        if sys.exception() is not None:
            return
        # A client of pyredisson waits too: without one, nobody tells Java that a lease has ended.
        self.people["last1"] = Person("last", 1)
        self.ask("last1")
        for _ in range((LEASE + SERVING_TIME * len(self.people)) // HEARTBEAT):
            for who in self.holding():
                while self.people[who].count:
                    self.release(who, False)
            if not self.waiting() and not self.state.holders:
                break
            self.time_passes(1)
        else:
            raise AssertionError(f"never served: {self.waiting()}; queue: {[*map(readable, self.state.queue)]}")
        # Keys of pyredisson that expire by themselves may remain.
        assert not self.state.left_of.keys() - {WAITERS, CLIENTS}, f"left at the end: {self.state}"

    # What must be true.

    def fair(self, name: str, *args: Word, twice: bool = False) -> list[Any]:
        """The replies of one of the fair lock's scripts, which take the same keys."""
        return [self.memory.script(name, *KEYS, args=args) for _ in range(1 + twice)]

    def read(self) -> State:
        """The state after a step."""
        messages, self.memory.messages = self.memory.messages, []
        assert {payload for _, payload in messages} <= {b"0"}
        self.told = [channel.removeprefix(CHANNEL + b":") for channel, _ in messages]
        keys: dict[bytes, tuple[Any, int]] = self.memory.keys()
        holders, queue, scores, waiters, _ = (keys[key][0] if key in keys else {} for key in KEYS)
        self.grace = int(waiters.get(b":grace", b"0"))
        return State(
            holders={owner: int(count) for owner, count in holders.items()},
            queue=list(queue),
            scores=dict(scores),
            waiters=dict(waiters),
            left_of={key: ms for key, (_, ms) in keys.items() if key in KEYS},
        )

    def keeps(self, name: bytes) -> bool | None:
        """Whether that waiter counts as alive, so that others must wait for it. None: it may be either."""
        now = self.memory.now
        person = next((each for each in self.people.values() if each.waits and each.name == name), None)
        if person is None:
            return False
        if person.foreign:
            return self.state.scores[name] > now
        silent = max(person.asked_at, self.heartbeats.get(person.client, 0)) + SIGN < now
        if not silent and self.offered.get(name, now) + OFFER > now:
            return True
        # All clients may have been silent, perhaps because the server was paused: they get time for a heartbeat.
        return None if now <= self.grace else False

    def before(self, name: bytes) -> bool | None:
        """Whether any waiter before that name counts as alive (any in the queue, if that name isn't there)."""
        queue = self.state.queue
        kept = [self.keeps(other) for other in queue[: queue.index(name) if name in queue else None]]
        return True if True in kept else None if None in kept else False

    def follow(
        self, actor: bytes | None, now: State, *, arrives: bool = False, leaves: bool = False, ours: bool = True
    ) -> None:
        """Checks the state after a step of `actor`, and stores it. `ours`: a script of pyredisson ran."""
        old = self.state.queue
        if arrives and actor in old[:-1] and now.queue[-1:] == [actor] and not self.keeps(actor):
            # Its score had run out, so it lost its place and entered the queue again.
            old = [name for name in old if name != actor]
        lost = [name for name in old if name not in now.queue and not (name == actor and leaves) and self.keeps(name)]
        assert not lost, f"{[*map(readable, lost)]} lost their places, though they are alive and did not give up"
        came = [name for name in now.queue if name not in old]
        assert not came or (came == [actor] and arrives), f"{[*map(readable, came)]} came into the queue"
        assert now.queue == [name for name in old if name in now.queue] + came, "the order of the queue changed"
        free = LOCK not in now.left_of
        assert not self.told or (free and {*self.told} == {*now.queue[:1]}), f"{self.told} were notified out of turn"
        assert len(now.holders) <= 1, f"held by {[*map(readable, now.holders)]}"
        assert {*now.queue} == {*now.scores}, f"queue: {now.queue}, scores: {now.scores}"
        assert all(score.is_integer() for score in now.scores.values()), f"Redisson can't read {now.scores}"
        assert all(now.left_of.get(key, 0) >= 0 for key in (LOCK, WAITERS, CLIENTS)), f"it never expires: {now.left_of}"
        offers = [name for name in self.offered if free and name in now.queue[:1]] + self.told * ours
        self.offered = {name: self.offered.get(name, self.memory.now) for name in offers}
        self.state = now
        for person in self.people.values():
            person.notified = person.notified or person.name in self.told

    def must_tell(self) -> None:
        """The latest step must have notified the head, if the lock is free."""
        queue = self.state.queue
        assert self.state.holders or self.told or not queue, f"{readable(queue[0])} was not notified that it is next"


def test_fairness() -> None:
    play(FairQueue, examples=250, steps=50)
