"""The fair lock serves waiters in order of arrival, whatever owners of pyredisson and of Java do, in any order."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.lua.fair.scripts import Java

from . import fair_model
from .fair_model import CHANNEL, CLIENTS, HOLDING, IDLE, KEYS, WAIT, WAITERS, WAITING, Person, State, readable
from .servers import play

LEASE = 30_000
HEARTBEAT = 400
LOOK = 60_000
SERVING_TIME = 4000
"""Milliseconds for each owner that has to acquire the lock, or to be dropped from the queue."""
PAUSES = (1, 400, 1000, 1499)
Args = tuple[bytes | int, ...]
TWICE = st.booleans()
Step = TypeVar("Step", bound=Callable[..., None])
LONG_PAUSES = (1600, 2100, 4000, 5100, 31_000, 61_000, 310_000)


def by(choose: Callable[[Any], list[Any]], drawn: str = "who", **more: Any) -> Callable[[Step], Step]:
    """A step of one of these owners, or of what else can do it, where there is one."""
    among = st.runner().flatmap(lambda machine: st.sampled_from(choose(machine)))
    made = cast(Callable[[Step], Step], cast(Any, rule)(**{drawn: among}, **more))
    return lambda step: precondition(lambda machine: bool(choose(machine)))(made(step))


class FairQueue(RuleBasedStateMachine):
    """Owners `a1` to `b3` belong to two clients of pyredisson; `java1` to `java3` do what Redisson does."""

    def __init__(self) -> None:
        super().__init__()
        self.server = fair_model.FairServer()
        self.people = {f"{client}{n}": Person(client, n) for client in ("a", "b", "java") for n in (1, 2, 3)}
        self.dead: set[str] = set()
        """The clients and the owners of Java that are dead."""
        self.lives = dict.fromkeys(("a", "b", "java1", "java2", "java3", "last"), 0)
        self.late: dict[str, tuple[str, Args]] = {}
        """Copies of commands that are still in flight. Their names are not used any more."""
        self.forgetful = False
        self.pauses: tuple[int, ...] = PAUSES
        self.set_back = 0
        self.model = fair_model.QueueModel(self.server, self.server.end())

    # Who can do what.

    def idle(self) -> list[str]:
        return self._alive(IDLE)

    def waiting(self) -> list[str]:
        return self._alive(WAITING)

    def holding(self) -> list[str]:
        return self._alive(HOLDING)

    def ours(self) -> list[str]:
        return [who for who in self.idle() + self.waiting() if not self.people[who].foreign]

    def clients(self) -> list[str]:
        return [client for client in ("a", "b", "last") if client not in self.dead]

    def pairs_of_one_client(self) -> list[tuple[str, str]]:
        """A holder, and a waiter of the same client, for each of them."""
        people = self.people
        return [
            (who, other)
            for who in self.holding()
            for other in self.waiting()
            if not people[who].foreign and people[who].client == people[other].client
        ]

    @initialize(forgetful=st.sampled_from((False, False, False, True)), pauses=st.booleans())
    def begin(self, forgetful: bool, pauses: bool) -> None:
        """`forgetful`: the server loses keys. `pauses`: sometimes no client sends anything for too long."""
        self.forgetful = forgetful
        self.pauses = PAUSES + LONG_PAUSES if pauses else PAUSES

    # What they do.

    @by(idle, queues=st.booleans(), twice=TWICE)
    def arrive(self, who: str, queues: bool, twice: bool) -> None:
        self._ask(who, queues=queues, twice=twice)

    @precondition(lambda machine: bool(machine.idle()))
    @rule(order=st.runner().flatmap(lambda machine: st.permutations(machine.idle())))
    def all_arrive(self, order: list[str]) -> None:
        for who in order:
            self._ask(who)

    @by(lambda machine: machine.waiting() + machine.holding(), twice=TWICE)
    def ask_again(self, who: str, twice: bool) -> None:
        self._ask(who, twice=twice)

    @by(holding, twice=TWICE)
    def release_one(self, who: str, twice: bool) -> None:
        self._release(who, self.people[who].count - 1, twice=twice)

    @by(holding, twice=TWICE, late=st.booleans())
    def release_all(self, who: str, twice: bool, late: bool) -> None:
        """`late`: copies of its commands are still in flight, so it takes another name."""
        person = self.people[who]
        if person.foreign:
            self._release(who, person.count - 1, twice=False)
            return
        name = person.name
        self._release(who, 0, twice=twice)
        if late:
            self._rename(person)
            self.late[f"release by {readable(name)}"] = ("fair_release", (CHANNEL, name, 0, WAIT))

    @by(pairs_of_one_client, "pair", twice=TWICE, late=st.booleans(), ran=st.booleans())
    def hand_over(self, pair: tuple[str, str], twice: bool, late: bool, ran: bool) -> None:
        """`late`: a copy is still in flight. If it didn't run before, the lock was released in the background."""
        who, successor = pair
        person = self.people[who]
        args = (CHANNEL, person.name, WAIT, self.people[successor].name, LEASE)
        if ran or not late:
            self._hand_over(who, successor, twice=twice)
        else:
            self._release(who, 0, twice=twice)
        if late:
            self._rename(person, acquires=False)
            self.late[f"hand-over by {readable(person.name)}"] = ("fair_hand_over", args)

    @by(waiting, twice=TWICE)
    def give_up(self, who: str, twice: bool) -> None:
        self._leave(who, doubt=False, twice=twice)

    @by(ours, ran=st.booleans(), twice=TWICE)
    def give_up_in_doubt(self, who: str, ran: bool, twice: bool) -> None:
        """Its last acquire is in doubt: it did run, or will run late, or never."""
        if ran:
            self._ask(who)
        self._leave(who, doubt=True, twice=twice)

    @by(lambda machine: list(machine.late), "copy")
    def late_copy(self, copy: str) -> None:
        script, args = self.late.pop(copy)
        owner = args[1] if script in ("fair_acquire", "fair_release") else args[3]
        assert isinstance(owner, bytes)
        model, server = self.model, self.server
        closed = int(model.state.waiters.get(owner, b"1")) <= 0
        if script == "fair_leave" and owner in model.places:
            model.places[owner].has_left = True
        server.fair(script, *args)
        now = server.end()
        took = owner in now.holders and owner not in model.state.holders
        if took and not model.key_lost and model.is_free():
            out_of_turn = closed or model.before_me(owner)
            assert not out_of_turn, f"a late copy took the lock for {readable(owner)}"
        self._follow(owner, now, arrives=not closed, leaves=True)

    @by(lambda machine: [client for client in machine.clients() if client != "last"], "client", twice=TWICE)
    def the_client_sends_a_heartbeat(self, client: str, twice: bool) -> None:
        self._heartbeat(client, twice=twice)

    @precondition(lambda machine: bool(machine.model.state.holders))
    @rule(java=st.booleans())
    def force_release(self, java: bool) -> None:
        server, model = self.server, self.model
        held = bool(model.state.holders)
        if java:
            Java(server, "java").force_release()
        else:
            server.fair("fair_force_release", CHANNEL, WAIT)
        now = server.end()
        assert not now.holders, "still held"
        held = held and not model.is_free()
        self._follow(None, now, ours=not java)
        if held:
            model.must_tell(now)

    @precondition(lambda machine: machine.forgetful and bool(machine.model.state.queue))
    @rule()
    def delete(self) -> None:
        """The living owners enter the queue again, when they are notified or after their client's next heartbeat."""
        model, server = self.model, self.server
        queue = model.state.queue
        server.fair("fair_delete", CHANNEL, len(queue))
        now = server.end()
        assert not now.left_of, f"left of what was deleted: {now}"
        notified = [channel.removeprefix(CHANNEL + b":") for channel, _ in server.told]
        assert notified == queue, "not everybody was notified that the queue is gone"
        model.clear(now)
        self.late.clear()
        self._hear()

    # What happens to them.

    @rule(steps=st.sampled_from((1, 2, 4, 6, 10)))
    def time_passes(self, steps: int) -> None:
        """Time passes: clients send heartbeats, holders renew, and notified waiters ask again."""
        for _ in range(steps):
            self._live(HEARTBEAT)

    @rule(ms=st.runner().flatmap(lambda machine: st.sampled_from(machine.pauses)))
    def all_are_paused(self, ms: int) -> None:
        self.server.advance_time(ms)
        self._see()

    @by(lambda machine: [who for who in machine.lives if who not in {*machine.dead, "last"}])
    def die(self, who: str) -> None:
        self.dead.add(who)

    @by(lambda machine: sorted(machine.dead))
    def start_anew(self, who: str) -> None:
        """Starts again as another process."""
        self.dead.remove(who)
        self.lives[who] += 1
        for other, person in self.people.items():
            if who in (other, person.client):
                self.people[other] = Person(person.client, person.number, self.lives[who])

    @precondition(lambda machine: machine.forgetful)
    @rule(keys=st.sampled_from((KEYS, *((key,) for key in KEYS))))
    def keys_are_lost(self, keys: tuple[bytes, ...]) -> None:
        self.server.command("DEL", *keys)
        self.model.key_lost = True
        self._see()
        if keys == KEYS:
            self.late.clear()

    @precondition(lambda machine: machine.forgetful)
    @rule(ms=st.sampled_from((1, 900, 3000, 40_000)))
    def clock_is_set_back(self, ms: int) -> None:
        self.server.advance_time(-ms)
        self.set_back += ms
        self._see()

    # How it ends.

    def teardown(self) -> None:
        """All living waiters acquire the lock in time. Then one more owner finds the queue empty and leaves no key."""
        if sys.exception() is None:
            self._settle()

    def _settle(self) -> None:
        # A client of pyredisson waits too: without one, Java needs minutes to drop its dead waiters.
        self.people["last1"] = Person("last", 1)
        self._ask("last1")
        limit = LEASE + LOOK + self.set_back + SERVING_TIME * (len(self.model.places) + len(self.people))
        for _ in range(limit // HEARTBEAT):
            for who in self.holding():
                while self.people[who].state == HOLDING:
                    self._release(who, self.people[who].count - 1, twice=False)
            if not self.waiting() and not self.model.state.holders:
                break
            self._end_foreign_dead()
            self._live(HEARTBEAT)
        else:
            raise AssertionError(f"never served: {self.waiting()}; queue: {[*map(readable, self.model.state.queue)]}")
        # Keys of pyredisson that expire by themselves may remain.
        assert not self.model.state.left_of.keys() - {WAITERS, CLIENTS}, f"left at the end: {self.model.state}"

    def _end_foreign_dead(self) -> None:
        """Ends the turn of a dead head of which only the score is known: by Redisson's rule it lasts that long."""
        state = self.model.state
        head = state.queue[:1]
        if head and head[0] not in {*state.waiters, *(self.people[who].name for who in self.waiting())}:
            self.server.command("ZADD", fair_model.SCORES, "XX", self.server.now, head[0])
            self._see()

    # The steps, and the checks of each.

    def _alive(self, state: str) -> list[str]:
        people = self.people.items()
        return [who for who, person in people if person.state == state and not {who, person.client} & self.dead]

    def _acquire_args(self, name: bytes, count: int, *, queues: bool = True) -> Args:
        return (CHANNEL, name, count, LEASE, WAIT, int(queues))

    def _ask(self, who: str, *, queues: bool = True, twice: bool = False) -> None:
        person, model, server = self.people[who], self.model, self.server
        name = person.name
        held = person.state == HOLDING
        person.notified = False
        if person.foreign:
            taken = Java(server, name).acquire(lease=LEASE, queues=queues) is None
        else:
            args = self._acquire_args(name, person.count + 1, queues=queues)
            taken = server.fair("fair_acquire", *args, twice=twice)[-1] is None
        now = server.end()
        if held:
            self._expect_hold(who, taken, now)
            self._follow(name, now, arrives=person.foreign, leaves=True, ours=not person.foreign)
            return
        free = model.is_free()
        if not model.key_lost:
            kept = model.before_me(name) if free else True
            # Java uses the scores of pyredisson's waiters, so it may wait for one that is dead.
            if taken or not person.foreign:
                wrong = "took a lock that was not its to take" if taken else "was refused its turn"
                assert taken is not kept, f"{who} {wrong}"
        assert taken == (now.holders == {name: 1}), f"{who} was told to {'go on' if taken else 'wait'}: {now.holders}"
        advanced = model.state.queue[:1] not in ([], now.queue[:1])
        self._follow(name, now, arrives=queues, leaves=taken, ours=not person.foreign)
        if not taken and advanced and free and not person.foreign:
            model.must_tell(now)
        if name in model.places:
            model.places[name].asked_at = server.now
        person.asked_at = server.now
        if taken:
            person.state, person.count = HOLDING, 1
        elif name in now.queue:
            person.state = WAITING

    def _expect_hold(self, who: str, taken: bool, now: State) -> None:
        """Another level for the holder of the lock, unless its lease has ended."""
        person = self.people[who]
        mine = self.model.state.holders.get(person.name, 0) > 0 and not self.model.is_free()
        assert not taken or mine or person.foreign, f"{who} got a further hold of a lock that it had lost"
        assert taken or not mine, f"{who} was refused a further hold"
        if taken:
            person.count = now.holders.get(person.name, 0)
        else:
            person.state, person.count = WAITING if person.name in now.queue else IDLE, 0

    def _release(self, who: str, count: int, *, twice: bool) -> None:
        person, model, server = self.people[who], self.model, self.server
        mine = model.state.holders.get(person.name, 0) > 0
        if person.foreign:
            Java(server, person.name).release(LEASE)
        else:
            server.fair("fair_release", CHANNEL, person.name, count, WAIT, twice=twice)
        now = server.end()
        held = mine and not model.is_free()
        self._follow(None, now, ours=not person.foreign)
        if held:
            assert now.holders == ({person.name: count} if count else {}), f"{who} released to {count}: {now.holders}"
            if count == 0:
                model.must_tell(now)
        person.count = count if held else 0
        if person.count == 0:
            person.state = IDLE

    def _hand_over(self, who: str, successor: str, *, twice: bool) -> None:
        person, following, model, server = self.people[who], self.people[successor], self.model, self.server
        name = following.name
        mine = model.state.holders.get(person.name, 0) > 0
        replies = server.fair("fair_hand_over", CHANNEL, person.name, WAIT, name, LEASE, twice=twice)
        now = server.end()
        free = model.is_free()
        entered = replies[0] == [0]
        told = f"{who} was told {replies} about {successor}: {now.holders}"
        assert entered == (now.holders == {name: 1}), told
        assert not entered or replies[-1] == [0], told
        assert not entered or (mine and not free), f"{who} handed on a lock that it had lost"
        if mine and not free and not model.key_lost:
            before = model.before_me(name)
            assert not entered or (not before and name in model.state.queue), f"{successor} came before its turn"
            served = entered or before is not False or name not in model.places or not model.keeps(name)
            assert served, f"{successor} was not entered, and it was its turn"
        self._follow(name if entered else None, now, leaves=entered)
        if mine and not free and not entered and not model.key_lost:
            assert not now.holders, f"{who} did not release: {now.holders}"
            model.must_tell(now)
        person.state, person.count = IDLE, 0
        if entered:
            following.state, following.count, following.notified = HOLDING, 1, False

    def _leave(self, who: str, *, doubt: bool, twice: bool) -> None:
        person, model, server = self.people[who], self.model, self.server
        name = person.name
        headed = model.state.queue[:1] == [name]
        args = (CHANNEL, WAIT, int(doubt), name)
        if name in model.places:
            model.places[name].has_left = True
        if person.foreign:
            Java(server, name).give_up()
        else:
            server.fair("fair_leave", *args, twice=twice)
        now = server.end()
        held = model.state.holders.get(name, 0) > 0 and not model.is_free()
        assert person.foreign or not doubt or name not in now.holders, f"{who} gave up, and holds the lock"
        self._follow(name, now, leaves=True, ours=not person.foreign)
        if not person.foreign and (headed or held):
            model.must_tell(now)
        if not person.foreign:
            self._rename(person, acquires=doubt)
            self.late[f"leave by {readable(name)}"] = ("fair_leave", args)
        person.state, person.count, person.notified = IDLE, 0, False

    def _rename(self, person: Person, *, acquires: bool = True) -> None:
        """`acquires`: a copy of its acquire is still in flight."""
        if acquires:
            self.late[f"acquire by {readable(person.name)}"] = ("fair_acquire", self._acquire_args(person.name, 1))
        person.names += 1

    def _heartbeat(self, client: str, *, twice: bool = False) -> bool:
        model, server = self.model, self.server
        name = fair_model.client_id(client, self.lives[client])
        waiters = [self.people[who].name for who in self.waiting() if self.people[who].client == client]
        replies = server.fair("fair_heartbeat", CHANNEL, name, WAIT, *waiters, twice=twice)
        _, known, notified, more, without_place = replies[-1]
        now = server.end()
        assert not more, "so few dead waiters are dropped in one call"
        # Scores without the list are no places. The first copy may drop a waiter that was offered the lock in vain.
        for reply, state in zip(replies, (model.state, now), strict=False):
            expected = [waiter for waiter in waiters if not state.queue or waiter not in state.scores]
            assert reply[4] == expected, f"{[*map(readable, reply[4])]} are reported without a place"
        if model.state.queue:
            model.heartbeats[name] = server.now
        if not model.key_lost:
            if now.queue and now.queue[:1] == model.state.queue[:1]:
                assert model.keeps(now.queue[0]) is not False, f"{readable(now.queue[0])} is dead and heads the queue"
            assert notified in (b"", *now.queue[:1]), f"{readable(notified)} is reported as the next one"
        self._follow(None, now)
        if model.free_since is not None:
            model.must_tell(now)
        return known == 1 and not without_place

    def _live(self, ms: int) -> None:
        """Advances the time; the living owners and clients do what they regularly do."""
        self.server.advance_time(ms)
        self._see()
        for who in self.holding():
            person = self.people[who]
            if self.server.fair("lock_renew", LEASE, person.name) == [[0]]:
                person.state, person.count = IDLE, 0
            self._see()
        for client in self.clients():
            waiters = [who for who in self.waiting() if self.people[who].client == client]
            if waiters and not self._heartbeat(client):
                for who in waiters:
                    self._ask(who)
        free = self.model.free_since is not None
        for who in self.waiting():
            person = self.people[who]
            if person.notified or self.server.now - person.asked_at >= LOOK or (person.foreign and free):
                self._ask(who)

    def _see(self) -> None:
        self._follow(None, self.server.end())

    def _follow(self, actor: bytes | None, now: State, **how: bool) -> None:
        self.model.follow(actor, now, **how)
        self._hear()

    def _hear(self) -> None:
        channels = {channel for channel, _ in self.server.told}
        for person in self.people.values():
            if CHANNEL + b":" + person.name in channels:
                person.notified = True


def test_fairness() -> None:
    play(FairQueue, examples=250, steps=50)
