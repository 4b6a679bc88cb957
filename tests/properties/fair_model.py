"""What fairness means: which waiter may acquire the lock, and which state every step must leave on the server."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import fair_java as java
from .fair_servers import CHANNEL, CLIENTS, LOCK, WAITERS, FairServer, State

SIGN = 1500
"""ms for which an acquire or a heartbeat is a sign of life."""
OFFER = 2000
"""ms for which a free lock is reserved for a head of pyredisson."""
FOREIGN = b"java"
"""How the names of foreign owners begin."""


class Unfair(AssertionError):
    """A step that breaks the rules."""


@dataclass
class Moment:
    """When something happened: at the earliest and at the latest, ms."""

    first: int
    last: int


@dataclass
class Place:
    """A name in the queue."""

    foreign: bool
    asked_at: Moment
    has_left: bool = False
    """Its owner has left the queue."""


@dataclass
class QueueModel:
    """The queue as it should be. It follows the server step by step, and checks each step."""

    server: FairServer
    state: State
    places: dict[bytes, Place] = field(default_factory=dict)
    """In the order of arrival."""
    heartbeats: dict[bytes, Moment] = field(default_factory=dict)
    """The last heartbeat of each client."""
    free_since: Moment | None = None
    """Since when the lock is free and the queue has its present head."""
    offered: Moment | None = None
    """When a script of pyredisson offered the lock to that head."""
    valid_until: int = 0
    """The last millisecond of the holder's lease."""
    forgotten_at: int | None = None
    """When the server forgets which waiters are those of pyredisson, ms."""
    key_lost: bool = False
    """A key was lost: the queue is taken from the server."""

    def is_free(self) -> bool | None:
        """Whether nobody holds the lock in the present step; None: its lease may end in this step."""
        if not self.state.holders or self.server.before > self.valid_until:
            return True
        return False if self.server.after <= self.valid_until else None

    def keeps(self, name: bytes) -> bool | None:
        """Whether that waiter counts as alive, so that others must wait for it. None: it may be either."""
        before, after = self.server.before, self.server.after
        place = self.places[name]
        score = self.state.scores.get(name)
        if score is None or place.has_left:
            return False
        if place.foreign:
            return True if score > after else False if score <= before else None
        signs = [place.asked_at]
        heartbeat = self.heartbeats.get(name.partition(b":")[0])
        if heartbeat is not None:
            signs.append(heartbeat)
        if any(sign.first > after for sign in signs):
            # The clock was set back.
            return None
        # All clients were silent, perhaps because the server was paused: they get time for a heartbeat.
        grace = before <= self.server.grace
        if all(sign.last + SIGN < before for sign in signs):
            return None if grace else False
        alive = any(sign.first + SIGN >= after for sign in signs)
        if self.state.queue[:1] == [name] and self.free_since is not None:
            if self.offered is not None and self.offered.last + OFFER <= before:
                return None if grace else False
            if self.free_since.first + OFFER <= after:
                return None
        return True if alive else None

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
        if self.forgotten_at is not None and self.forgotten_at <= self.server.after and now.queue:
            # No client of pyredisson did anything for ten minutes. Now Redisson's rules apply to all waiters.
            self.key_lost = True
        _check(now, key_lost=self.key_lost)
        if self.key_lost:
            known = self.places
            born = Moment(self.server.before, self.server.after)
            self.places = {
                name: known.get(
                    name, Place(name.startswith(FOREIGN), born, has_left=int(now.waiters.get(name, b"1")) <= 0)
                )
                for name in now.queue
            }
            self.key_lost = bool(now.queue or now.scores)
        else:
            self._check_places(actor, now, arrives=arrives, leaves=leaves)
        self._check_messages(now)
        self._remember(now, ours)

    def clear(self, now: State) -> None:
        """The queue was deleted."""
        self.state, self.places, self.key_lost = now, {}, False
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
            if self.keeps(name):
                raise Unfair(f"{readable(name)} lost its place, though it is alive and did not give up")
        came = [name for name in now.queue if name not in old]
        if came not in ([], [actor]) or (came and not arrives):
            raise Unfair(f"{[*map(readable, came)]} came into the queue")
        if now.queue != [name for name in old if name in now.queue] + came:
            raise Unfair("the order of the queue changed")
        for name in left:
            del self.places[name]
        if came:
            foreign = came[0].startswith(FOREIGN)
            self.places[came[0]] = Place(foreign, Moment(self.server.before, self.server.after))
            tail = old[-1] if old else None
            if foreign and tail in self.places and not self.places[tail].foreign:
                # Whatever scores pyredisson leaves at the end of the queue, the place of the next waiter must last.
                sound = self.places[tail].has_left or self.keeps(tail)
                if sound and now.scores[came[0]] < self.server.before + java.WAIT * 0.75:
                    raise Unfair(
                        f"{readable(came[0])} got a place that is over before its time, behind {readable(tail)}"
                    )

    def _check_messages(self, now: State) -> None:
        for channel, payload in self.server.messages:
            name = channel.removeprefix(CHANNEL + b":")
            if payload != b"0":
                raise Unfair(f"{payload!r} was published")
            anew = name in self.state.queue and name not in self.state.scores
            if not anew and (now.queue[:1] != [name] or LOCK in now.left_of):
                raise Unfair(f"{readable(name)} was notified, and it is not its turn")

    def must_tell(self, now: State) -> None:
        """The step that freed the lock, or found it free, must have notified the head."""
        if now.queue and LOCK not in now.left_of and not self.notifies(now):
            raise Unfair(f"{readable(now.queue[0])} was not notified that it is next")

    def notifies(self, now: State) -> bool:
        """Whether the last step notified the head of the queue."""
        return any(channel == CHANNEL + b":" + now.queue[0] for channel, _ in self.server.messages)

    def _remember(self, now: State, ours: bool) -> None:
        server = self.server
        if LOCK in now.left_of or not now.queue:
            self.free_since = self.offered = None
        elif self.free_since is None or self.state.queue[:1] != now.queue[:1] or self.free_since.first > server.after:
            since = server.before
            if self.state.holders and self.state.queue[:1] == now.queue[:1]:
                since = min(since, self.valid_until)
            self.free_since, self.offered = Moment(since, server.after), None
        if ours and self.offered is None and self.free_since is not None and self.notifies(now):
            self.offered = Moment(server.before, server.after)
        if LOCK in now.left_of:
            self.valid_until = server.after + now.left_of[LOCK]
        self.forgotten_at = server.after + now.left_of[WAITERS] if WAITERS in now.left_of else None
        self.state = now


def _check(now: State, *, key_lost: bool) -> None:
    if len(now.holders) > 1:
        raise Unfair(f"held by {[*map(readable, now.holders)]}")
    for key in (LOCK, WAITERS, CLIENTS):
        if now.left_of.get(key, 0) < 0:
            raise Unfair(f"{key!r} never expires")
    if not key_lost and len(set(now.queue)) < len(now.queue):
        raise Unfair(f"the queue has somebody twice: {[*map(readable, now.queue)]}")
    if not key_lost and set(now.queue) != set(now.scores):
        raise Unfair(f"the queue is {[*map(readable, now.queue)]}, the scores are of {[*map(readable, now.scores)]}")
    broken = [name for name, score in now.scores.items() if not score.is_integer()]
    if broken:
        raise Unfair(f"the score of {readable(broken[0])} is no whole number")


def readable(name: bytes) -> str:
    """An owner as the rules of the machine name it: `a1`, and `a1.2` after two changes of name."""
    client, _, rest = name.partition(b":")
    return client.decode().rstrip("-") + rest.decode().replace(":", ".")
