"""What fairness means: which waiter may acquire the lock, and which state every step must leave on the server."""

from dataclasses import dataclass, field
from typing import Any

from tests.lua import locks

from .servers import Memory, Word

LOCK, QUEUE, SCORES, WAITERS, CLIENTS = KEYS = tuple(key.encode() for key in locks.KEYS["fair"])
CHANNEL, WAIT = locks.CHANNEL.encode(), locks.WAIT

SIGN = 1500
"""ms for which an acquire or a heartbeat is a sign of life."""
OFFER = 2000
"""ms for which a free lock is reserved for a head of pyredisson."""
FOREIGN = b"java"
"""How the names of foreign owners begin."""


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


@dataclass(frozen=True)
class State:
    """The values of the lock's keys. Times in ms."""

    holders: dict[bytes, int]
    queue: list[bytes]
    scores: dict[bytes, float]
    waiters: dict[bytes, bytes]
    left_of: dict[bytes, int]
    """The remaining time of each key."""


class FairServer(Memory):
    """One fair lock on a server, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[bytes, bytes]] = []
        """What was published in the latest step."""
        self.grace = 0
        """Until when no waiter counts as dead, because all clients were silent; ms."""

    def end(self) -> State:
        """The state after a step."""
        self.told, self.messages = self.messages, []
        keys: dict[bytes, tuple[Any, int]] = self.keys()
        holders, queue, scores, waiters, _ = (keys[key][0] if key in keys else {} for key in KEYS)
        self.grace = int(waiters.get(b":grace", b"0"))
        return State(
            holders={owner: int(count) for owner, count in holders.items()},
            queue=list(queue),
            scores=dict(scores),
            waiters=dict(waiters),
            left_of={key: ms for key, (_, ms) in keys.items() if key in KEYS},
        )

    def fair(self, name: str, *args: Word, twice: bool = False) -> list[Any]:
        """The replies of one of the fair lock's scripts, which take the same keys; or of `lock_renew`, of the lock."""
        keys = (LOCK,) if name == "lock_renew" else KEYS
        return [self.script(name, *keys, args=args) for _ in range(1 + twice)]


@dataclass
class Place:
    """A name in the queue."""

    foreign: bool
    asked_at: int
    has_left: bool = False
    """Its owner has left the queue."""


@dataclass
class QueueModel:
    """The queue as it should be. It follows the server step by step, and checks each step."""

    server: FairServer
    state: State
    places: dict[bytes, Place] = field(default_factory=dict)
    """In the order of arrival."""
    heartbeats: dict[bytes, int] = field(default_factory=dict)
    """The last heartbeat of each client."""
    free_since: int | None = None
    """Since when the lock is free and the queue has its present head."""
    offered: int | None = None
    """When a script of pyredisson offered the lock to that head."""
    valid_until: int = 0
    """The last millisecond of the holder's lease."""
    forgotten_at: int | None = None
    """When the server forgets which waiters are those of pyredisson, ms."""
    key_lost: bool = False
    """A key was lost: the queue is taken from the server."""

    def is_free(self) -> bool:
        """Whether nobody holds the lock in the present step."""
        return not self.state.holders or self.server.now > self.valid_until

    def keeps(self, name: bytes) -> bool | None:
        """Whether that waiter counts as alive, so that others must wait for it. None: it may be either."""
        now = self.server.now
        place = self.places[name]
        score = self.state.scores.get(name)
        if score is None or place.has_left:
            return False
        if place.foreign:
            return score > now
        heartbeat = self.heartbeats.get(name.partition(b":")[0], place.asked_at)
        if max(place.asked_at, heartbeat) > now:
            # The clock was set back.
            return None
        # All clients were silent, perhaps because the server was paused: they get time for a heartbeat.
        grace = now <= self.server.grace
        if max(place.asked_at, heartbeat) + SIGN < now:
            return None if grace else False
        if self.state.queue[:1] == [name] and self.free_since is not None:
            if self.offered is not None and self.offered + OFFER <= now:
                return None if grace else False
            if self.free_since + OFFER <= now:
                return None
        return True

    def before_me(self, name: bytes) -> bool | None:
        """Whether any waiter before that name counts as alive (any in the queue, if that name isn't there)."""
        answer: bool | None = False
        for other in self.state.queue:
            if other == name:
                break
            kept = self.keeps(other)
            if kept:
                return True
            if kept is None:
                answer = None
        return answer

    def follow(
        self, actor: bytes | None, now: State, *, arrives: bool = False, leaves: bool = False, ours: bool = True
    ) -> None:
        """Checks the state after a step of `actor`, and stores it. `ours`: a script of pyredisson ran."""
        if self.forgotten_at is not None and self.forgotten_at <= self.server.now and now.queue:
            # No client of pyredisson did anything for ten minutes. Now Redisson's rules apply to all waiters.
            self.key_lost = True
        _check(now, key_lost=self.key_lost)
        if self.key_lost:
            known = self.places
            self.places = {
                name: known.get(name, self._place(name, has_left=int(now.waiters.get(name, b"1")) <= 0))
                for name in now.queue
            }
            self.key_lost = bool(now.queue or now.scores)
        else:
            self._check_places(actor, now, arrives=arrives, leaves=leaves)
        self._check_messages(now)
        self._remember(now, ours)

    def _place(self, name: bytes, *, has_left: bool = False) -> Place:
        return Place(name.startswith(FOREIGN), self.server.now, has_left)

    def clear(self, now: State) -> None:
        """The queue was deleted, with the signs of life."""
        self.state, self.places, self.heartbeats, self.key_lost = now, {}, {}, False
        self.free_since = self.offered = self.forgotten_at = None

    def _check_places(self, actor: bytes | None, now: State, *, arrives: bool, leaves: bool) -> None:
        old = self.state.queue
        if arrives and actor is not None and actor in old[:-1] and now.queue[-1:] == [actor] and not self.keeps(actor):
            # Its score had run out, so it lost its place and entered the queue again.
            old = [name for name in old if name != actor]
            del self.places[actor]
        left = [name for name in old if name not in now.queue]
        for name in left:
            if name == actor and leaves:
                continue
            assert not self.keeps(name), f"{readable(name)} lost its place, though it is alive and did not give up"
        came = [name for name in now.queue if name not in old]
        assert not came or (came == [actor] and arrives), f"{[*map(readable, came)]} came into the queue"
        assert now.queue == [name for name in old if name in now.queue] + came, "the order of the queue changed"
        for name in left:
            del self.places[name]
        if came:
            self.places[came[0]] = self._place(came[0])
            tail = old[-1] if old else None
            if self.places[came[0]].foreign and tail in self.places and not self.places[tail].foreign:
                # Whatever scores pyredisson leaves at the end of the queue, the place of the next waiter must last.
                sound = self.places[tail].has_left or self.keeps(tail)
                lasts = now.scores[came[0]] >= self.server.now + WAIT * 0.75
                assert lasts or not sound, f"{readable(came[0])} got too short a place, behind {readable(tail)}"

    def _check_messages(self, now: State) -> None:
        for channel, payload in self.server.told:
            name = channel.removeprefix(CHANNEL + b":")
            assert payload == b"0", f"{payload!r} was published"
            anew = name in self.state.queue and name not in self.state.scores
            its_turn = anew or (now.queue[:1] == [name] and LOCK not in now.left_of)
            assert its_turn, f"{readable(name)} was notified, and it is not its turn"

    def must_tell(self, now: State) -> None:
        """The step that freed the lock, or found it free, must have notified the head."""
        if now.queue and LOCK not in now.left_of and not self.key_lost:
            assert self.notifies(now), f"{readable(now.queue[0])} was not notified that it is next"

    def notifies(self, now: State) -> bool:
        """Whether the last step notified the head of the queue."""
        return any(channel == CHANNEL + b":" + now.queue[0] for channel, _ in self.server.told)

    def _remember(self, now: State, ours: bool) -> None:
        moment = self.server.now
        if LOCK in now.left_of or not now.queue:
            self.free_since = self.offered = None
        elif self.free_since is None or self.state.queue[:1] != now.queue[:1] or self.free_since > moment:
            self.free_since, self.offered = moment, None
            if self.state.holders and self.state.queue[:1] == now.queue[:1]:
                self.free_since = min(moment, self.valid_until)
        if ours and self.offered is None and self.free_since is not None and self.notifies(now):
            self.offered = moment
        if LOCK in now.left_of:
            self.valid_until = moment + now.left_of[LOCK]
        self.forgotten_at = moment + now.left_of[WAITERS] if WAITERS in now.left_of else None
        self.state = now


def _check(now: State, *, key_lost: bool) -> None:
    assert len(now.holders) <= 1, f"held by {[*map(readable, now.holders)]}"
    for key in (LOCK, WAITERS, CLIENTS):
        assert now.left_of.get(key, 0) >= 0, f"{key!r} never expires"
    if not key_lost:
        assert len(set(now.queue)) == len(now.queue), f"the queue has somebody twice: {[*map(readable, now.queue)]}"
        assert set(now.queue) == set(now.scores), f"queue: {now.queue}, scores: {now.scores}"
    broken = [name for name, score in now.scores.items() if not score.is_integer()]
    assert not broken, f"the score of {readable(broken[0])} is no whole number"


def readable(name: bytes) -> str:
    """An owner as the rules of the machine name it: `a1`, and `a1.2` after two changes of name."""
    client, _, rest = name.partition(b":")
    return client.decode().rstrip("-") + rest.decode().replace(":", ".")
