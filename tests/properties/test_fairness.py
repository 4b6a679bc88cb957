"""The fair lock serves waiters in order of arrival, whatever owners of pyredisson and of Java do, in any order."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from .fair_actions import HEARTBEAT, HOLDING, LEASE, LOOK, PAUSES, SERVING_TIME, FairActions, Person
from .fair_model import CHANNEL, CLIENTS, KEYS, SCORES, WAIT, WAITERS, Unfair, readable
from .servers import play

TWICE = st.booleans()
Drawn = TypeVar("Drawn")
Step = TypeVar("Step", bound=Callable[..., None])
LONG_PAUSES = (1600, 2100, 4000, 5100, 31_000, 61_000, 310_000)


def among(choose: Callable[[Any], list[Drawn]]) -> st.SearchStrategy[Drawn]:
    """Draws an owner, or what else can do this step."""
    return st.runner().flatmap(lambda machine: st.sampled_from(choose(machine)))


def by(choose: Callable[[Any], list[Any]], drawn: str = "who", **more: Any) -> Callable[[Step], Step]:
    """A step of one of these, where there is one."""
    made = cast(Callable[[Step], Step], cast(Any, rule)(**{drawn: among(choose)}, **more))
    return lambda step: precondition(lambda machine: bool(choose(machine)))(made(step))


class FairQueue(FairActions):
    """Owners `a1` to `b3` belong to two clients of pyredisson; `java1` to `java3` do what Redisson does."""

    @initialize(forgetful=st.sampled_from((False, False, False, True)), pauses=st.booleans())
    def begin(self, forgetful: bool, pauses: bool) -> None:
        """`forgetful`: the server loses keys. `pauses`: sometimes no client sends anything for too long."""
        self.forgetful = forgetful
        self.pauses = PAUSES + LONG_PAUSES if pauses else PAUSES

    # What they do.

    @by(FairActions.idle, twice=TWICE)
    def arrive(self, who: str, twice: bool) -> None:
        self._ask(who, twice=twice)

    @precondition(lambda machine: bool(machine.idle()))
    @rule(order=st.runner().flatmap(lambda machine: st.permutations(machine.idle())))
    def all_arrive(self, order: list[str]) -> None:
        for who in order:
            self._ask(who)

    @by(FairActions.idle, twice=TWICE)
    def try_once(self, who: str, twice: bool) -> None:
        self._ask(who, queues=False, twice=twice)

    @by(FairActions.notified, twice=TWICE)
    def answer_the_message(self, who: str, twice: bool) -> None:
        self._ask(who, twice=twice)

    @by(FairActions.waiting)
    def ask_again(self, who: str) -> None:
        self._ask(who)

    @by(FairActions.holding, twice=TWICE)
    def re_enter(self, who: str, twice: bool) -> None:
        self._ask(who, twice=twice)

    @by(FairActions.holding, twice=TWICE)
    def release_one(self, who: str, twice: bool) -> None:
        self._release(who, self.people[who].count - 1, twice=twice)

    @by(FairActions.holding, twice=TWICE, late=st.booleans())
    def release_all(self, who: str, twice: bool, late: bool) -> None:
        """`late`: copies of its commands are still in flight, so it takes another name."""
        person = self.people[who]
        if person.foreign:
            self._release(who, person.count - 1, twice=False)
            return
        name = person.name
        self._release(who, 0, twice=twice)
        if late:
            self._rename(person, ("fair_acquire", self._acquire_args(name, 1, queues=True)))
            self.late[f"release by {readable(name)}"] = ("fair_release", (CHANNEL, name, 0, WAIT))

    @by(FairActions.pairs_of_one_client, "pair", twice=TWICE, late=st.booleans(), ran=st.booleans())
    def hand_over(self, pair: tuple[str, str], twice: bool, late: bool, ran: bool) -> None:
        """`late`: a copy is still in flight. If it didn't run before, the lock was released in the background."""
        who, successor = pair
        person = self.people[who]
        args = self._hand_over_args(person.name, self.people[successor].name)
        if ran or not late:
            self._hand_over(who, successor, twice=twice)
        else:
            self._release(who, 0, twice=twice)
        if late:
            self._rename(person, None)
            self.late[f"hand-over by {readable(person.name)}"] = ("fair_hand_over", args)

    @by(FairActions.waiting, twice=TWICE)
    def give_up(self, who: str, twice: bool) -> None:
        self._leave(who, doubt=False, twice=twice)

    @by(FairActions.ours, ran=st.booleans(), twice=TWICE)
    def give_up_in_doubt(self, who: str, ran: bool, twice: bool) -> None:
        """Its last acquire is in doubt: it did run, or will run late, or never."""
        if ran:
            self._ask(who)
        self._leave(who, doubt=True, twice=twice)

    @precondition(lambda machine: bool(machine.late))
    @rule(copy=among(lambda machine: list(machine.late)))
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
        if took and not model.key_lost and model.is_free() and (closed or model.before_me(owner)):
            raise Unfair(f"a late copy took the lock for {readable(owner)}")
        model.follow(owner, now, arrives=not closed, leaves=True)
        self._hear()

    @by(FairActions.clients_with_waiters, "client", twice=TWICE)
    def the_client_sends_a_heartbeat(self, client: str, twice: bool) -> None:
        self._heartbeat(client, twice=twice)

    @precondition(lambda machine: bool(machine.model.state.holders))
    @rule(java=st.booleans())
    def force_release(self, java: bool) -> None:
        self._force(foreign=java)

    @precondition(lambda machine: machine.forgetful and bool(machine.model.state.queue))
    @rule()
    def delete(self) -> None:
        """The living owners enter the queue again, when they are notified or after their client's next heartbeat."""
        model, server = self.model, self.server
        queue = model.state.queue
        server.fair("fair_delete", CHANNEL, len(queue))
        now = server.end()
        if now.left_of:
            raise Unfair(f"left of what was deleted: {now}")
        if [channel.removeprefix(CHANNEL + b":") for channel, _ in server.told] != queue:
            raise Unfair("not everybody was notified that the queue is gone")
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

    @by(FairActions.mortal_clients)
    def die(self, who: str) -> None:
        self.dead.add(who)

    @precondition(lambda machine: bool(machine.dead))
    @rule(who=among(lambda machine: sorted(machine.dead)))
    def start_anew(self, who: str) -> None:
        """Starts again as another process."""
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
            raise Unfair(f"never served: {self.waiting()}; in the queue: {[*map(readable, self.model.state.queue)]}")
        # Keys of pyredisson that expire by themselves may remain.
        if self.model.state.left_of.keys() - {WAITERS, CLIENTS}:
            raise Unfair(f"left at the end: {self.model.state}")

    def _end_foreign_dead(self) -> None:
        """Ends the turn of a dead head of which only the score is known: by Redisson's rule it lasts that long."""
        state = self.model.state
        head = state.queue[:1]
        if head and head[0] not in {*state.waiters, *(self.people[who].name for who in self.waiting())}:
            self.server.command("ZADD", SCORES, "XX", self.server.now, head[0])
            self.model.follow(None, self.server.end())


def test_fairness() -> None:
    play(FairQueue, examples=250, steps=50)
