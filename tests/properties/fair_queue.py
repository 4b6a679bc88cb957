"""The fairness machine: owners of ours and of Java come, wait, die, repeat themselves and leave, in any order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from . import fair_java as java
from .fair_model import Line, Moment, Unfair, readable
from .fair_servers import CHANNEL, CLIENTS, KEYS, SCORES, WAITERS, FairServer, State

LEASE = 30_000
WAIT = 300_000
TICK = 400
LOOK = 60_000
PATIENCE = 4000
"""ms for each who has to be served, or passed over."""
TWICE = st.booleans()
PAUSES = (1, 400, 1000, 1499)
LONG_PAUSES = (1600, 2100, 4000, 5100, 31_000, 61_000, 310_000)

IDLE, WAITING, HOLDING = "idle", "waiting", "holding"


@dataclass
class Person:
    """A thread or task of some client."""

    client: str
    number: int
    life: int = 0
    """How often its process was started anew, with another client id."""
    names: int = 0
    """How often it changed its name."""
    state: str = IDLE
    told: bool = False
    count: int = 0
    looked: int = 0

    @property
    def foreign(self) -> bool:
        return self.client == "java"

    @property
    def name(self) -> bytes:
        """As the server knows it: a client id of 36 characters, a number, and of a changed name how often it was."""
        renamed = f":{self.names}" if self.names else ""
        return b"%b:%d%b" % (client_id(self.client, self.life), self.number, renamed.encode())


def client_id(client: str, life: int) -> bytes:
    """36 characters, as a UUID has."""
    return f"{client + '+' * life:-<36}".encode()


def among(choose: Callable[[Any], list[str]]) -> st.SearchStrategy[str]:
    """One of those who can do the step at hand."""
    return st.runner().flatmap(lambda machine: st.sampled_from(choose(machine)))


def some(choose: Callable[[Any], list[str]]) -> Callable[[Any], bool]:
    """Whether there is one."""
    return lambda machine: bool(choose(machine))


class FairQueue(RuleBasedStateMachine):
    """Owners `a1` to `b3` are ours, of two clients; `java1` to `java3` do what Redisson does."""

    server: FairServer

    def __init__(self) -> None:
        super().__init__()
        self.people = {
            f"{client}{number}": Person(client, number) for client in ("a", "b", "java") for number in (1, 2, 3)
        }
        self.dead: set[str] = set()
        """Clients, and Java's owners, who do nothing any more."""
        self.lives = dict.fromkeys(("a", "b", "java1", "java2", "java3", "last"), 0)
        self.late: dict[str, tuple[str, tuple[bytes | int, ...]]] = {}
        """Copies of commands that are still on their way, of names that nobody goes by."""
        self.forgetful = False
        self.pauses: tuple[int, ...] = PAUSES
        self.set_back = 0
        self.server.begin()
        self.line = Line(self.server, self.server.end())

    @initialize(forgetful=st.sampled_from((False, False, False, True)), pauses=st.booleans())
    def begin(self, forgetful: bool, pauses: bool) -> None:
        """`forgetful`: the server loses keys. `pauses`: at times nobody does anything, for longer than one may."""
        self.forgetful = forgetful
        self.pauses = PAUSES + LONG_PAUSES if pauses else PAUSES

    # Who can do what.

    def idle(self) -> list[str]:
        return self._alive(IDLE)

    def waiting(self) -> list[str]:
        return self._alive(WAITING)

    def told(self) -> list[str]:
        return [who for who in self.waiting() if self.people[who].told]

    def holding(self) -> list[str]:
        return self._alive(HOLDING)

    def clients(self) -> list[str]:
        return [client for client in ("a", "b", "last") if client not in self.dead]

    def tickers(self) -> list[str]:
        return [client for client in self.clients() if client != "last"]

    def mortals(self) -> list[str]:
        return [who for who in self.lives if who not in {*self.dead, "last"}]

    def ours(self) -> list[str]:
        return [who for who in (*self.idle(), *self.waiting()) if not self.people[who].foreign]

    def _alive(self, state: str) -> list[str]:
        return [
            who for who, person in self.people.items() if person.state == state and not {who, person.client} & self.dead
        ]

    # What they do.

    @precondition(some(idle))
    @rule(who=among(idle), twice=TWICE)
    def arrive(self, who: str, twice: bool) -> None:
        self._ask(who, twice=twice)

    @precondition(some(idle))
    @rule(order=st.runner().flatmap(lambda machine: st.permutations(machine.idle())))
    def all_arrive(self, order: list[str]) -> None:
        for who in order:
            self._ask(who)

    @precondition(some(idle))
    @rule(who=among(idle), twice=TWICE)
    def try_once(self, who: str, twice: bool) -> None:
        self._ask(who, queues=False, twice=twice)

    @precondition(some(told))
    @rule(who=among(told), twice=TWICE)
    def answer_the_message(self, who: str, twice: bool) -> None:
        self._ask(who, twice=twice)

    @precondition(some(waiting))
    @rule(who=among(waiting))
    def look_again(self, who: str) -> None:
        self._ask(who)

    @precondition(some(holding))
    @rule(who=among(holding), twice=TWICE)
    def re_enter(self, who: str, twice: bool) -> None:
        self._ask(who, twice=twice)

    @precondition(some(holding))
    @rule(who=among(holding), twice=TWICE)
    def release_one(self, who: str, twice: bool) -> None:
        self._release(who, self.people[who].count - 1, twice=twice)

    @precondition(some(holding))
    @rule(who=among(holding), twice=TWICE, late=st.booleans())
    def release_all(self, who: str, twice: bool, late: bool) -> None:
        """`late`: copies of its commands are still on their way, so it takes another name."""
        person = self.people[who]
        if person.foreign:
            self._release(who, person.count - 1, twice=False)
            return
        name = person.name
        self._release(who, 0, twice=twice)
        if late:
            self._rename(person, ("fair_acquire", self._acquire_args(name, 1, queues=True)))
            self.late[f"release by {readable(name)}"] = ("fair_release", (CHANNEL, name, 0, WAIT))

    @precondition(some(waiting))
    @rule(who=among(waiting), twice=TWICE)
    def give_up(self, who: str, twice: bool) -> None:
        self._leave(who, doubt=False, twice=twice)

    @precondition(some(ours))
    @rule(who=among(ours), ran=st.booleans(), twice=TWICE)
    def give_up_in_doubt(self, who: str, ran: bool, twice: bool) -> None:
        """Its last acquire was cut: it did run, or will run late, or never."""
        if ran:
            self._ask(who)
        self._leave(who, doubt=True, twice=twice)

    @precondition(lambda machine: bool(machine.late))
    @rule(copy=among(lambda machine: list(machine.late)))
    def late_copy(self, copy: str) -> None:
        script, args = self.late.pop(copy)
        owner = args[3] if script == "fair_leave" else args[1]
        assert isinstance(owner, bytes)
        line, server = self.line, self.server
        closed = int(line.state.waiters.get(owner, b"1")) <= 0
        if script == "fair_leave" and owner in line.places:
            line.places[owner].gone = True
        server.begin()
        server.script(script, *args)
        now = server.end()
        took = owner in now.holders and owner not in line.state.holders
        if took and not line.torn and line.is_free() and (closed or line.before_me(owner)):
            raise Unfair(f"a late copy took the lock for {readable(owner)}")
        line.follow(owner, now, arrives=not closed, leaves=True)
        self._hear()

    @precondition(some(tickers))
    @rule(client=among(tickers), twice=TWICE)
    def tick(self, client: str, twice: bool) -> None:
        self._heartbeat(client, twice=twice)

    @precondition(lambda machine: bool(machine.line.state.holders))
    @rule(java=st.booleans())
    def force_release(self, java: bool) -> None:
        self._force(foreign=java)

    @precondition(lambda machine: machine.forgetful and bool(machine.line.state.queue))
    @rule()
    def delete(self) -> None:
        """Who lives stands in line again, as it is told, or by its client's next tick."""
        line, server = self.line, self.server
        queue = line.state.queue
        server.begin()
        server.script("fair_delete", CHANNEL, len(queue))
        now = server.end()
        if now.left_of:
            raise Unfair(f"left of what was deleted: {now}")
        if [channel.removeprefix(CHANNEL + b":") for channel, _ in server.heard] != queue:
            raise Unfair("not everybody was told that the queue is gone")
        line.clear(now)
        self.late.clear()
        self._hear()

    # What happens to them.

    @rule(steps=st.sampled_from((1, 2, 4, 6, 10)))
    def time_passes(self, steps: int) -> None:
        """And all who live go on as they do: clients tick, holders renew, who was told looks."""
        for _ in range(steps):
            self._live(TICK)

    @rule(ms=st.runner().flatmap(lambda machine: st.sampled_from(machine.pauses)))
    def all_are_paused(self, ms: int) -> None:
        self.server.pass_time(ms)
        self._see()

    @precondition(some(mortals))
    @rule(who=among(mortals))
    def die(self, who: str) -> None:
        self.dead.add(who)

    @precondition(lambda machine: bool(machine.dead))
    @rule(who=among(lambda machine: sorted(machine.dead)))
    def start_anew(self, who: str) -> None:
        """As another process."""
        self.dead.remove(who)
        self.lives[who] += 1
        for other, person in self.people.items():
            if who in (other, person.client):
                self.people[other] = Person(person.client, person.number, self.lives[who])

    @precondition(lambda machine: machine.forgetful)
    @rule()
    def server_forgets_all(self) -> None:
        self._lose(*KEYS)
        self.late.clear()

    @precondition(lambda machine: machine.forgetful)
    @rule(key=st.sampled_from(KEYS))
    def a_key_is_lost(self, key: bytes) -> None:
        self._lose(key)

    # How they do it.

    def _lose(self, *keys: bytes) -> None:
        self.server.begin()
        self.server.command("DEL", *keys)
        self.line.torn = True
        self.line.follow(None, self.server.end())

    def _acquire_args(self, name: bytes, count: int, *, queues: bool) -> tuple[bytes | int, ...]:
        return (CHANNEL, name, count, LEASE, WAIT, int(queues))

    def _ask(self, who: str, *, queues: bool = True, twice: bool = False) -> None:
        person, line, server = self.people[who], self.line, self.server
        name = person.name
        held = person.state == HOLDING
        person.told = False
        server.begin()
        if person.foreign:
            taken = java.acquire(server, name, LEASE, queues=queues)
        else:
            for _ in range(1 + twice):
                reply = server.script("fair_acquire", *self._acquire_args(name, person.count + 1, queues=queues))
            taken = reply is None
        now = server.end()
        if held:
            self._expect_hold(who, taken, now)
            line.follow(name, now, arrives=person.foreign, leaves=True, ours=not person.foreign)
            self._hear()
            return
        free = line.is_free()
        if not line.torn and free is not None:
            kept = line.before_me(name) if free else True
            # Java goes by the scores of ours, so it may wait for one that is dead.
            if taken is kept and (taken or not person.foreign):
                raise Unfair(f"{who} {'took a lock that was not its to take' if taken else 'was refused its turn'}")
        if taken != (now.holders == {name: 1}):
            raise Unfair(f"{who} was told {'that it took the lock' if taken else 'to wait'}: {now.holders}")
        advanced = line.state.queue[:1] not in ([], now.queue[:1])
        line.follow(name, now, arrives=queues, leaves=taken, ours=not person.foreign)
        if not taken and advanced and free and not line.torn and not person.foreign:
            line.must_tell(now)
        if name in line.places:
            line.places[name].looked = Moment(server.before, server.after)
        person.looked = server.after
        if taken:
            person.state, person.count = HOLDING, 1
        elif name in now.queue:
            person.state = WAITING
        self._hear()

    def _expect_hold(self, who: str, taken: bool, now: State) -> None:
        """A further hold of one who holds the lock, unless its lease is over."""
        person = self.people[who]
        mine = self.line.state.holders.get(person.name, 0) > 0 and self.line.is_free() is not True
        if taken and not mine and not person.foreign:
            raise Unfair(f"{who} got a further hold of a lock that it had lost")
        if not taken and mine and self.line.is_free() is False:
            raise Unfair(f"{who} was refused a further hold")
        if taken:
            person.count = now.holders.get(person.name, 0)
        elif person.name in now.queue:
            person.state, person.count = WAITING, 0
        else:
            person.state, person.count = IDLE, 0

    def _release(self, who: str, count: int, *, twice: bool) -> None:
        person, line, server = self.people[who], self.line, self.server
        mine = line.state.holders.get(person.name, 0) > 0
        server.begin()
        if person.foreign:
            java.release(server, person.name, LEASE)
        else:
            for _ in range(1 + twice):
                server.script("fair_release", CHANNEL, person.name, count, WAIT)
        now = server.end()
        held = mine and line.is_free() is False
        line.follow(None, now, ours=not person.foreign)
        if held:
            if now.holders != ({person.name: count} if count else {}):
                raise Unfair(f"{who} released down to {count}: {now.holders}")
            if count == 0 and not line.torn:
                line.must_tell(now)
        person.count = count if held else 0
        if person.count == 0:
            person.state = IDLE
        self._hear()

    def _leave(self, who: str, *, doubt: bool, twice: bool) -> None:
        person, line, server = self.people[who], self.line, self.server
        name = person.name
        headed = line.state.queue[:1] == [name]
        args = (CHANNEL, WAIT, int(doubt), name)
        if name in line.places:
            line.places[name].gone = True
        server.begin()
        if person.foreign:
            java.give_up(server, name)
        else:
            for _ in range(1 + twice):
                server.script("fair_leave", *args)
        now = server.end()
        held = line.state.holders.get(name, 0) > 0 and line.is_free() is False
        if not person.foreign and (name in now.holders and doubt):
            raise Unfair(f"{who} gave up, and holds the lock")
        line.follow(name, now, leaves=True, ours=not person.foreign)
        if not line.torn and not person.foreign and (headed or held):
            line.must_tell(now)
        if not person.foreign:
            copy = ("fair_acquire", self._acquire_args(name, 1, queues=True)) if doubt else None
            self._rename(person, copy)
            self.late[f"leave by {readable(name)}"] = ("fair_leave", args)
        person.state, person.count, person.told = IDLE, 0, False
        self._hear()

    def _rename(self, person: Person, copy: tuple[str, tuple[bytes | int, ...]] | None) -> None:
        if copy is not None:
            self.late[f"acquire by {readable(person.name)}"] = copy
        person.names += 1

    def _heartbeat(self, client: str, *, twice: bool = False) -> bool:
        line, server = self.line, self.server
        name = client_id(client, self.lives[client])
        waiters = [self.people[who].name for who in self.waiting() if self.people[who].client == client]
        server.begin()
        for _ in range(1 + twice):
            _, known, told, more, strayed = server.script("fair_heartbeat", CHANNEL, name, WAIT, *waiters)
        now = server.end()
        if more:
            raise Unfair("so few dead waiters are dropped in one call")
        if strayed != [waiter for waiter in waiters if waiter not in line.state.scores]:
            raise Unfair(f"{[*map(readable, strayed)]} are said to have no place")
        if line.state.queue:
            line.ticks[name] = Moment(server.before, server.after)
        if not line.torn:
            if now.queue[:1] == line.state.queue[:1] and now.queue and line.keeps(now.queue[0]) is False:
                raise Unfair(f"{readable(now.queue[0])} is dead and heads the line")
            if told not in (b"", *now.queue[:1]):
                raise Unfair(f"{readable(told)} is said to be next")
        line.follow(None, now)
        if not line.torn and line.free_since is not None:
            line.must_tell(now)
        self._hear()
        return known == 1 and not strayed

    def _force(self, *, foreign: bool) -> None:
        server, line = self.server, self.line
        held = bool(line.state.holders)
        server.begin()
        if foreign:
            java.force_release(server)
        else:
            server.script("fair_force_release", CHANNEL, WAIT)
        now = server.end()
        if now.holders:
            raise Unfair("still held")
        held = held and line.is_free() is False
        line.follow(None, now, ours=not foreign)
        if held and not line.torn:
            line.must_tell(now)
        self._hear()

    def _live(self, ms: int) -> None:
        """All who live do what they do in that time."""
        self.server.pass_time(ms)
        self._see()
        for who in self.holding():
            person = self.people[who]
            self.server.begin()
            if self.server.script("lock_renew", LEASE, person.name) == [0]:
                person.state, person.count = IDLE, 0
            self.line.follow(None, self.server.end())
        for client in self.clients():
            waiters = [who for who in self.waiting() if self.people[who].client == client]
            if waiters and not self._heartbeat(client):
                for who in waiters:
                    self._ask(who)
        free = self.line.free_since is not None
        for who in self.waiting():
            person = self.people[who]
            if person.told or self.server.after - person.looked >= LOOK or (person.foreign and free):
                self._ask(who)

    def _see(self) -> None:
        self.server.begin()
        self.line.follow(None, self.server.end())

    def _hear(self) -> None:
        channels = {channel for channel, _ in self.server.heard}
        for person in self.people.values():
            if CHANNEL + b":" + person.name in channels:
                person.told = True

    # How it ends.

    def teardown(self) -> None:
        """Those who live all get it, in time; a last one finds the line empty and leaves nothing."""
        try:
            if sys.exception() is None:
                self._settle()
        finally:
            self.server.close()

    def _settle(self) -> None:
        # A client of ours waits too: where nobody of ours lives, Java passes over our dead in minutes, by its rules.
        self.people["last1"] = Person("last", 1)
        self._ask("last1")
        patience = LEASE + LOOK + self.set_back + PATIENCE * (len(self.line.places) + len(self.people))
        for _ in range(patience // TICK):
            for who in self.holding():
                while self.people[who].state == HOLDING:
                    self._release(who, self.people[who].count - 1, twice=False)
            if not self.waiting() and not self.line.state.holders:
                break
            self._end_foreign_dead()
            self._live(TICK)
        else:
            raise Unfair(f"never served: {self.waiting()}; in line: {[*map(readable, self.line.state.queue)]}")
        # Of ours, what ends by itself may stay.
        if self.line.state.left_of.keys() - {WAITERS, CLIENTS}:
            raise Unfair(f"left at the end: {self.line.state}")

    def _end_foreign_dead(self) -> None:
        """The time of a dead head that only its score speaks of is over: that it has it is Redisson's rule."""
        state = self.line.state
        head = state.queue[:1]
        if head and head[0] not in {*state.waiters, *(self.people[who].name for who in self.waiting())}:
            self.server.begin()
            self.server.command("ZADD", SCORES, "XX", self.server.now(), head[0])
            self.line.follow(None, self.server.end())
