"""The owners of the fairness machine, their actions, and the checks of what the scripts reply."""

from dataclasses import dataclass

from hypothesis.stateful import RuleBasedStateMachine

from tests.lua.fair.scripts import Java

from .fair_model import CHANNEL, WAIT, FairServer, QueueModel, State, Unfair, readable

LEASE = 30_000
HEARTBEAT = 400
LOOK = 60_000
SERVING_TIME = 4000
"""Milliseconds for each owner that has to acquire the lock, or to be dropped from the queue."""
PAUSES = (1, 400, 1000, 1499)

IDLE, WAITING, HOLDING = "idle", "waiting", "holding"


@dataclass
class Person:
    """A thread or task of some client."""

    client: str
    number: int
    life: int = 0
    """How often its process was restarted, with another client id."""
    names: int = 0
    """How often it changed its name."""
    state: str = IDLE
    notified: bool = False
    count: int = 0
    asked_at: int = 0

    @property
    def foreign(self) -> bool:
        return self.client == "java"

    @property
    def name(self) -> bytes:
        """Its name on the server: a client id of 36 characters, a number, and the number of changes of the name."""
        renamed = f":{self.names}" if self.names else ""
        return b"%b:%d%b" % (client_id(self.client, self.life), self.number, renamed.encode())


def client_id(client: str, life: int) -> bytes:
    """36 characters, as a UUID has."""
    return f"{client + '+' * life:-<36}".encode()


class FairActions(RuleBasedStateMachine):
    """The steps of the owners, and the checks of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.server = FairServer()
        self.people = {
            f"{client}{number}": Person(client, number) for client in ("a", "b", "java") for number in (1, 2, 3)
        }
        self.dead: set[str] = set()
        """The clients and the owners of Java that are dead."""
        self.lives = dict.fromkeys(("a", "b", "java1", "java2", "java3", "last"), 0)
        self.late: dict[str, tuple[str, tuple[bytes | int, ...]]] = {}
        """Copies of commands that are still in flight. Their names are not used any more."""
        self.forgetful = False
        self.pauses: tuple[int, ...] = PAUSES
        self.set_back = 0
        self.model = QueueModel(self.server, self.server.end())

    # Who can do what.

    def idle(self) -> list[str]:
        return self._alive(IDLE)

    def waiting(self) -> list[str]:
        return self._alive(WAITING)

    def notified(self) -> list[str]:
        return [who for who in self.waiting() if self.people[who].notified]

    def holding(self) -> list[str]:
        return self._alive(HOLDING)

    def clients(self) -> list[str]:
        return [client for client in ("a", "b", "last") if client not in self.dead]

    def clients_with_waiters(self) -> list[str]:
        return [client for client in self.clients() if client != "last"]

    def mortal_clients(self) -> list[str]:
        return [who for who in self.lives if who not in {*self.dead, "last"}]

    def pairs_of_one_client(self) -> list[tuple[str, str]]:
        """A holder, and a waiter of the same client, for each of them."""
        people = self.people
        return [
            (who, other)
            for who in self.holding()
            for other in self.waiting()
            if not people[who].foreign and people[who].client == people[other].client
        ]

    def ours(self) -> list[str]:
        return [who for who in (*self.idle(), *self.waiting()) if not self.people[who].foreign]

    def _alive(self, state: str) -> list[str]:
        return [
            who for who, person in self.people.items() if person.state == state and not {who, person.client} & self.dead
        ]

    def _lose(self, *keys: bytes) -> None:
        self.server.command("DEL", *keys)
        self.model.key_lost = True
        self.model.follow(None, self.server.end())

    def _acquire_args(self, name: bytes, count: int, *, queues: bool) -> tuple[bytes | int, ...]:
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
            model.follow(name, now, arrives=person.foreign, leaves=True, ours=not person.foreign)
            self._hear()
            return
        free = model.is_free()
        if not model.key_lost:
            kept = model.before_me(name) if free else True
            # Java uses the scores of pyredisson's waiters, so it may wait for one that is dead.
            if taken is kept and (taken or not person.foreign):
                raise Unfair(f"{who} {'took a lock that was not its to take' if taken else 'was refused its turn'}")
        if taken != (now.holders == {name: 1}):
            raise Unfair(f"{who} was notified {'that it took the lock' if taken else 'to wait'}: {now.holders}")
        advanced = model.state.queue[:1] not in ([], now.queue[:1])
        model.follow(name, now, arrives=queues, leaves=taken, ours=not person.foreign)
        if not taken and advanced and free and not person.foreign:
            model.must_tell(now)
        if name in model.places:
            model.places[name].asked_at = server.now
        person.asked_at = server.now
        if taken:
            person.state, person.count = HOLDING, 1
        elif name in now.queue:
            person.state = WAITING
        self._hear()

    def _expect_hold(self, who: str, taken: bool, now: State) -> None:
        """Another level for the holder of the lock, unless its lease has ended."""
        person = self.people[who]
        mine = self.model.state.holders.get(person.name, 0) > 0 and not self.model.is_free()
        if taken and not mine and not person.foreign:
            raise Unfair(f"{who} got a further hold of a lock that it had lost")
        if not taken and mine:
            raise Unfair(f"{who} was refused a further hold")
        if taken:
            person.count = now.holders.get(person.name, 0)
        elif person.name in now.queue:
            person.state, person.count = WAITING, 0
        else:
            person.state, person.count = IDLE, 0

    def _release(self, who: str, count: int, *, twice: bool) -> None:
        person, model, server = self.people[who], self.model, self.server
        mine = model.state.holders.get(person.name, 0) > 0
        if person.foreign:
            Java(server, person.name).release(LEASE)
        else:
            server.fair("fair_release", CHANNEL, person.name, count, WAIT, twice=twice)
        now = server.end()
        held = mine and not model.is_free()
        model.follow(None, now, ours=not person.foreign)
        if held:
            if now.holders != ({person.name: count} if count else {}):
                raise Unfair(f"{who} released down to {count}: {now.holders}")
            if count == 0:
                model.must_tell(now)
        person.count = count if held else 0
        if person.count == 0:
            person.state = IDLE
        self._hear()

    def _hand_over(self, who: str, successor: str, *, twice: bool) -> None:
        person, following, model, server = self.people[who], self.people[successor], self.model, self.server
        name = following.name
        mine = model.state.holders.get(person.name, 0) > 0
        args = self._hand_over_args(person.name, name)
        replies = server.fair("fair_hand_over", *args, twice=twice)
        now = server.end()
        free = model.is_free()
        entered = replies[0] == [0]
        if entered != (now.holders == {name: 1}) or (entered and replies[-1] != [0]):
            raise Unfair(f"{who} was told {replies} about {successor}: {now.holders}")
        if entered and (not mine or free):
            raise Unfair(f"{who} handed on a lock that it had lost")
        if mine and not free and not model.key_lost:
            before = model.before_me(name)
            if entered and (before or name not in model.state.queue):
                raise Unfair(f"{successor} was entered, and it was not its turn")
            if not entered and before is False and name in model.places and model.keeps(name):
                raise Unfair(f"{successor} was not entered, and it was its turn")
        model.follow(name if entered else None, now, leaves=entered)
        if mine and not free and not entered and not model.key_lost:
            if now.holders:
                raise Unfair(f"{who} did not release: {now.holders}")
            model.must_tell(now)
        person.state, person.count = IDLE, 0
        if entered:
            following.state, following.count, following.notified = HOLDING, 1, False
        self._hear()

    def _hand_over_args(self, name: bytes, following: bytes) -> tuple[bytes | int, ...]:
        return (CHANNEL, name, WAIT, following, LEASE)

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
        if not person.foreign and (name in now.holders and doubt):
            raise Unfair(f"{who} gave up, and holds the lock")
        model.follow(name, now, leaves=True, ours=not person.foreign)
        if not person.foreign and (headed or held):
            model.must_tell(now)
        if not person.foreign:
            copy = ("fair_acquire", self._acquire_args(name, 1, queues=True)) if doubt else None
            self._rename(person, copy)
            self.late[f"leave by {readable(name)}"] = ("fair_leave", args)
        person.state, person.count, person.notified = IDLE, 0, False
        self._hear()

    def _rename(self, person: Person, copy: tuple[str, tuple[bytes | int, ...]] | None) -> None:
        if copy is not None:
            self.late[f"acquire by {readable(person.name)}"] = copy
        person.names += 1

    def _heartbeat(self, client: str, *, twice: bool = False) -> bool:
        model, server = self.model, self.server
        name = client_id(client, self.lives[client])
        waiters = [self.people[who].name for who in self.waiting() if self.people[who].client == client]
        replies = server.fair("fair_heartbeat", CHANNEL, name, WAIT, *waiters, twice=twice)
        _, known, notified, more, without_place = replies[-1]
        now = server.end()
        if more:
            raise Unfair("so few dead waiters are dropped in one call")
        # Scores without the list are no places. The first copy may drop a waiter that was offered the lock in vain.
        expected = [
            [waiter for waiter in waiters if not state.queue or waiter not in state.scores]
            for state in (model.state, now)
        ]
        if [reply[4] for reply in replies] != expected[: len(replies)]:
            raise Unfair(f"{[*map(readable, without_place)]} are reported without a place")
        if model.state.queue:
            model.heartbeats[name] = server.now
        if not model.key_lost:
            if now.queue[:1] == model.state.queue[:1] and now.queue and model.keeps(now.queue[0]) is False:
                raise Unfair(f"{readable(now.queue[0])} is dead and heads the queue")
            if notified not in (b"", *now.queue[:1]):
                raise Unfair(f"{readable(notified)} is reported as the next one")
        model.follow(None, now)
        if model.free_since is not None:
            model.must_tell(now)
        self._hear()
        return known == 1 and not without_place

    def _force(self, *, foreign: bool) -> None:
        server, model = self.server, self.model
        held = bool(model.state.holders)
        if foreign:
            Java(server, "java").force_release()
        else:
            server.fair("fair_force_release", CHANNEL, WAIT)
        now = server.end()
        if now.holders:
            raise Unfair("still held")
        held = held and not model.is_free()
        model.follow(None, now, ours=not foreign)
        if held:
            model.must_tell(now)
        self._hear()

    def _live(self, ms: int) -> None:
        """Advances the time; the living owners and clients do what they regularly do."""
        self.server.advance_time(ms)
        self._see()
        for who in self.holding():
            person = self.people[who]
            if self.server.fair("lock_renew", LEASE, person.name) == [[0]]:
                person.state, person.count = IDLE, 0
            self.model.follow(None, self.server.end())
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
        self.model.follow(None, self.server.end())

    def _hear(self) -> None:
        channels = {channel for channel, _ in self.server.told}
        for person in self.people.values():
            if CHANNEL + b":" + person.name in channels:
                person.notified = True
